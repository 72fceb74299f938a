//! Cluster side: Sluice on a real cluster, from `kubectl apply` to what the containers saw.
//!
//! `cargo test --features e2e --test e2e [FILTER]` starts a cluster of its own
//! (`tests/cluster/cluster.sh`), installs the chart with helm, runs the scenarios one after
//! another inside the cluster's namespaces, and takes the cluster down, whatever happens.
//! `SLUICE_E2E_KEEP=1` leaves it up for the next run and for a look around.
//!
//! Nothing here waits by the clock: a scenario waits for a fact (a watch event, or a line that a
//! container wrote), and makes things happen by creating a file that a container waits for.

#![allow(clippy::print_stderr, reason = "a test tells the person who runs it what goes on")]

mod support;

mod basic;
mod bypass;
mod crash;
mod credit;
mod drain;
mod endings;
mod explained;
mod forced;
mod manifests;
mod nodes;
mod owners;
mod release;
mod wave;
mod wide;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use support::{Case, outer};

/// Names each scenario `module::function`, in the order in which they run.
macro_rules! cases {
    ($($module:ident: [$($name:ident),* $(,)?],)*) => {
        vec![$($(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            body: |scenario| Box::pin(async move { $module::$name(&scenario).await }),
        },)*)*]
    };
}

fn cases() -> Vec<Case> {
    cases! {
        basic: [eight_smalls_at_once, larges_and_smalls_see_their_gpus, kubectl_get_tells],
        drain: [gpus_stay_idle_for_the_large, a_large_on_an_idle_node_starts_at_once],
        wave: [twelve_smalls_between_two_larges, a_short_wave_closes],
        wide: [two_and_four_beside_smalls_and_larges],
        credit: [unrestricted_service_consumes_it, it_does_not_outlive_empty_queues],
        endings: [
            failure, deletion_while_queued, deletion_while_its_node_drains, deletion_while_running,
            deletion_as_it_ends, deletion_as_its_gpus_come_free, deadline_exceeded, eviction,
        ],
        forced: [the_large_waits_for_the_container, the_next_small_waits_for_the_container],
        crash: [
            controller_in_phase_open, controller_in_phase_draining, controller_in_phase_exclusive,
            controller_in_phase_wave, controller_between_ledger_and_gate, frozen_leader, kubelet_restarted,
            agent_killed,
        ],
        bypass: [node_name_by_hand, labelled_with_node_name, another_scheduler],
        owners: [jobs, a_deployment],
        nodes: [only_the_chosen_gate_closes, an_empty_node_takes_the_large],
        explained: [why_a_large_waits],
        manifests: [bad_ones_are_refused, a_pod_without_a_label_is_given_its_shape],
        release: [upgrade_disturbs_nothing, uninstall_leaves_nothing],
    }
}

fn filtered_out(arguments: &Arguments, case: &Case) -> bool {
    arguments.is_filtered_out(&Trial::test(case.name, || Ok(())))
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if arguments.list || support::inside_cluster() {
        support::run_cases(arguments, cases())
    } else if cases().iter().all(|case| filtered_out(&arguments, case)) {
        // Nothing to run is no reason to start a cluster.
        libtest_mimic::run(&arguments, Vec::new()).exit_code()
    } else {
        // The profile of this program: most of what the images need is built already.
        outer::run(&outer::Plan { name: "e2e", profile: "dev", install: true })
    }
}

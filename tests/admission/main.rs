//! Cluster side: the custom resources and admission policies of the chart, on a real API server.
//!
//! `cargo test --features e2e --test admission [FILTER]` starts a cluster of its own, installs the
//! chart with helm (with no pod of Sluice running: nothing here needs one) and judges the tables
//! beside this file: which pods are completed and how, which are refused and in which words.

#![allow(clippy::unwrap_used, reason = "a test")]

mod server;
mod stage;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};

use libtest_mimic::{Arguments, Failed, Trial};

use stage::{Stage, Stages};

/// Set for the run inside the cluster's namespaces.
const INSIDE: &str = "SLUICE_ADMISSION_INSIDE";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn tables() -> PathBuf {
    root().join("tests/admission")
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The cluster passes from stage to stage in the order of the list.
    arguments.test_threads = Some(1);
    let trials = trials();
    let wanted = trials.iter().filter(|trial| !arguments.is_filtered_out(trial)).count();
    if arguments.list || wanted == 0 || std::env::var_os(INSIDE).is_some() {
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    let status = Command::new(tables().join("run.sh"))
        .arg(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .unwrap();
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A check, given the stages of the cluster.
type Check = Box<dyn FnOnce(&mut Stages) -> Result<(), Failed> + Send>;

fn trials() -> Vec<Trial> {
    let stages = Arc::new(Mutex::new(Stages::default()));
    let mut trials = Vec::new();
    let mut add = |name: String, check: Check| {
        let stages = stages.clone();
        trials.push(Trial::test(name, move || check(&mut stages.lock().unwrap())));
    };
    let no_warning = |_: &mut Stages| Ok(stage::definitions_bring_no_warning()?);
    add("definitions::no_warning".into(), Box::new(no_warning));
    for kind in ["gpupools", "gpunodes"] {
        let name = format!("definitions::explain_{kind}");
        add(name, Box::new(move |stages| stage::explained(stages, kind)));
    }
    add("policies::no_type_warning".into(), Box::new(stage::policies_bring_no_warning));
    add("agent::own_ledger_only".into(), Box::new(stage::agents_write_their_own_ledger));
    for (file, at) in [
        ("complete.yaml", Stage::Served),
        ("refuse.yaml", Stage::Served),
        ("update.yaml", Stage::Served),
        ("pools-refuse.yaml", Stage::Served),
        ("unserved.yaml", Stage::Unserved),
    ] {
        for case in table::read(&tables().join(file)) {
            let name = format!("{}::{}", Path::new(file).file_stem().unwrap().display(), case.name);
            add(name, Box::new(move |stages| Ok(case.judge(stages.enter(at)?)?)));
        }
    }
    add("undefined::other_pods_pass".into(), Box::new(stage::other_pods_pass_without_definitions));
    add("upgrade::definitions".into(), Box::new(stage::upgrades_definitions));
    add("uninstall::nothing_is_left".into(), Box::new(stage::uninstall_leaves_nothing));
    trials
}

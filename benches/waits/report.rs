//! The page that the benchmark writes.

use std::fmt::Write as _;

use crate::latency::Latency;
use crate::play::{Measured, Results, quantile};
use crate::workload::Workload;

/// The cluster's own scheduler, without Sluice.
pub(crate) const PLAIN: &str = "kube-scheduler";
/// With Sluice.
pub(crate) const SLUICE: &str = "Sluice";

const HEAD: &str = "\
# Benchmarks

Written by `cargo bench --features e2e --bench waits`, which plays the same three
workloads twice on one real control plane (etcd, API server, controller manager, kube-scheduler)
with simulated nodes of eight GPUs: first with the plain kube-scheduler, then with Sluice and its
default policy. A wait is counted from the creation of a pod to the first watch event that shows it
on a node. Utilisation is the part of all GPU time, from the beginning to the end of the stream of
arrivals, in which a pod held the GPU. One seed, one run: differences of a few seconds are noise.

The bound of the k-th waiting large is k (L + S), and S + (k-1) (L + S) if none runs when it
arrives, with S and L the run-time limits of a small and a large. \"Over the bound\" is the most by
which any large of the workload waited longer than its own bound, in seconds: at most the control
plane's share, below zero if every one was earlier.
";

const FOOT: &str = "
## The first command

How long `examples/demo.sh` takes on a minimal Debian with Rust, Go and a C linker, and how long it
takes there again, is measured by `tests/fresh-machine.sh`; the figures stand in
[figures.md](figures.md).
";

/// The whole page.
pub(crate) fn page(workloads: &[Workload], results: &Results, latency: &Latency) -> String {
    let mut page = HEAD.to_owned();
    for workload in workloads {
        let _ = writeln!(page, "\n## {}\n\n{}.\n", workload.name, capital(workload.about));
        page.push_str(
            "| scheduler | larges bound | wait of a large, median / largest (s) | over the bound \
             (s) | smalls bound | wait of a small, median / 95th percentile / largest (s) | \
             utilisation | killed |\n|---|---|---|---|---|---|---|---|\n",
        );
        for scheduler in [PLAIN, SLUICE] {
            if let Some(measured) = results.get(&(workload.name, scheduler)) {
                page.push_str(&row(workload, scheduler, measured));
                page.push('\n');
            }
        }
        page.push_str("\nThe wait of every large, in the order of creation (s):\n\n");
        for scheduler in [PLAIN, SLUICE] {
            if let Some(measured) = results.get(&(workload.name, scheduler)) {
                let waits: Vec<String> = measured.larges_ms.iter().copied().map(seconds).collect();
                let _ = writeln!(page, "- {scheduler}: {}", waits.join(", "));
            }
        }
    }
    page.push_str(
        "\n## Latency\n\nOn the real node, with kubelet, containerd and the node agent.\n\n",
    );
    page.push_str(&self::latency(latency));
    page.push_str(FOOT);
    page
}

/// One line of a table.
pub(crate) fn row(workload: &Workload, scheduler: &str, measured: &Measured) -> String {
    let mut larges = measured.larges_ms.clone();
    larges.sort_unstable();
    let smalls = &measured.smalls_ms;
    let all_smalls = workload.arrivals.iter().filter(|arrival| !arrival.large).count();
    format!(
        "| {scheduler} | {} | {} / {} | {} | {} of {all_smalls} | {} / {} / {} | {:.1} % | {} |",
        larges.len(),
        seconds(quantile(&larges, 0.5)),
        seconds(quantile(&larges, 1.0)),
        signed_seconds(measured.over_bound_ms),
        smalls.len(),
        seconds(quantile(smalls, 0.5)),
        seconds(quantile(smalls, 0.95)),
        seconds(quantile(smalls, 1.0)),
        measured.utilisation * 100.0,
        measured.killed,
    )
}

/// Both latencies as a table.
pub(crate) fn latency(latency: &Latency) -> String {
    let mut table = "| from | to | samples | median | 99th percentile | largest |\n\
                     |---|---|---|---|---|---|\n"
        .to_owned();
    for (from, to, samples) in [
        ("creation of a small on an idle node", "its binding", &latency.small_ms),
        ("terminal status of the last small", "binding of the large", &latency.large_ms),
    ] {
        let _ = writeln!(
            table,
            "| {from} | {to} | {} | {} ms | {} ms | {} ms |",
            samples.len(),
            quantile(samples, 0.5),
            quantile(samples, 0.99),
            quantile(samples, 1.0),
        );
    }
    table
}

fn seconds(ms: u64) -> String {
    format!("{}.{}", ms / 1000, ms % 1000 / 100)
}

fn signed_seconds(ms: i64) -> String {
    format!("{}{}", if ms < 0 { "-" } else { "+" }, seconds(ms.unsigned_abs()))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

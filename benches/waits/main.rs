//! What Sluice does to waits, beside the plain kube-scheduler on the same control plane, and how
//! fast it is.
//!
//! `cargo bench --features e2e --bench waits` starts a cluster of its own, plays
//! three workloads on simulated nodes with the plain kube-scheduler, installs the chart, measures
//! two latencies on the real node, plays the same three workloads with Sluice, and writes
//! `docs/benchmarks.md`. It takes about 45 minutes and asserts nothing.

#![allow(clippy::print_stderr, reason = "a benchmark tells the person who runs it what goes on")]
#![allow(dead_code, reason = "shares the support of the end-to-end tests, and uses part of it")]

mod latency;
mod play;
mod report;
#[path = "../../tests/e2e/support/mod.rs"]
mod support;
mod workload;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};

use play::Results;
use support::{Cluster, command, outer};

/// Samples of each latency.
const SAMPLES: usize = 40;

fn main() -> ExitCode {
    if support::inside_cluster() {
        return match inside() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("benchmark: {error:?}");
                ExitCode::FAILURE
            }
        };
    }
    outer::run(&outer::Plan { name: "bench", profile: "release", install: false })
}

fn inside() -> Result<()> {
    let (runtime, cluster) = support::connect()?;
    runtime.block_on(run(&cluster))
}

async fn run(cluster: &Arc<Cluster>) -> Result<()> {
    let chosen = std::env::var("SLUICE_BENCH_ONLY").ok();
    let workloads: Vec<workload::Workload> = workload::all()
        .into_iter()
        .filter(|workload| chosen.as_deref().is_none_or(|names| names.contains(workload.name)))
        .collect();
    let mut results = Results::new();
    for workload in &workloads {
        play(cluster, workload, report::PLAIN, &mut results).await?;
    }
    command::harness(&["kwok-nodes", "0"]).await?;
    let install = command::repository().join("tests/e2e/install.sh");
    command::run(install.to_str().context("the path is text")?, &[]).await?;
    let latency = latency::measure(cluster, SAMPLES).await?;
    eprintln!("{}", report::latency(&latency));
    for workload in &workloads {
        play(cluster, workload, report::SLUICE, &mut results).await?;
    }
    let text = report::page(&workloads, &results, &latency);
    let path = command::repository().join("docs/benchmarks.md");
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    eprintln!("written: {}", path.display());
    Ok(())
}

async fn play(
    cluster: &Arc<Cluster>,
    workload: &workload::Workload,
    scheduler: &'static str,
    results: &mut Results,
) -> Result<()> {
    eprintln!("{} with {scheduler}: {}", workload.name, workload.about);
    command::harness(&["kwok-nodes", &workload.nodes.to_string()]).await?;
    let namespace = format!("{}-{scheduler}", workload.name).to_lowercase().replace(' ', "-");
    let (fates, began_ms) = play::play(cluster, workload, &namespace).await?;
    let measured = play::measure(workload, &fates, began_ms);
    eprintln!("{}", report::row(workload, scheduler, &measured));
    results.insert((workload.name, scheduler), measured);
    Ok(())
}

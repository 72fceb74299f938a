//! Pure side: `sluice simulate` plays one job list to several policies and compares them.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::plan::build::{self, Frame};
use crate::plan::compare::{Name, play};
use crate::plan::report::{Report, Skipped};
use crate::sim::Problem;
use crate::trace::{Source, Workload, parse_duration};

/// What work there is, and on what it runs.
#[derive(Clone, Debug, clap::Args)]
pub struct Work {
    /// The job list: CSV, a Microsoft ITP trace, SWF, or the records of `sluice record`.
    #[arg(value_name = "JOBS")]
    pub jobs: PathBuf,
    /// Demand of the services in the list: CSV `job_id,time,gpus`.
    #[arg(long, value_name = "FILE")]
    pub demand: Option<PathBuf>,
    /// GPUs of a node.
    #[arg(long, default_value_t = 8)]
    pub gpus: u32,
    /// Nodes.
    #[arg(long, default_value_t = 1)]
    pub nodes: usize,
    /// Where counting ends [default: 24h; the day of the last arrival for a trace].
    #[arg(long, value_parser = duration)]
    pub horizon: Option<u64>,
    /// The grid of time [default: 15m; 1s for a trace].
    #[arg(long, value_parser = duration)]
    pub step: Option<u64>,
    /// GPUs by which a service may grow per step [default: half a node].
    #[arg(long, value_name = "GPUS")]
    pub churn: Option<u32>,
}

/// Arguments of `sluice simulate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    work: Work,
    /// Policies to compare [default: all].
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    policy: Vec<Name>,
    /// Seed of the planner's search.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Check each schedule by code that made none of them; fail if one is not legal.
    #[arg(long)]
    check: bool,
}

/// Compares the policies.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let problem = args.work.problem(0)?;
    let names = if args.policy.is_empty() { &Name::ALL[..] } else { &args.policy };
    let (mut entries, mut skipped) = (Vec::new(), Vec::new());
    for &name in names {
        match play(&problem, name) {
            Ok(entry) => entries.push(entry),
            Err(error) => skipped.push(Skipped { name, reason: error.to_string() }),
        }
    }
    if entries.is_empty() {
        let reasons: Vec<String> = skipped.iter().map(|s| s.reason.clone()).collect();
        bail!("no policy can serve this: {}", reasons.join("; "));
    }
    let violations = args
        .check
        .then(|| entries.iter().map(|entry| entry.violations(&problem)).collect::<Vec<_>>());
    let report = Report { problem, seed: args.seed, entries, skipped, violations };
    let text = if args.json { pretty(&report.json()?)? } else { report.text() };
    print(&text)?;
    match report.breaches() {
        0 => Ok(()),
        breaches => bail!("{breaches} breaches of the rules of a legal schedule"),
    }
}

impl Work {
    /// Reads the files.
    pub fn workload(&self) -> anyhow::Result<Workload> {
        let jobs = read(&self.jobs)?;
        let demand = self.demand.as_deref().map(read).transpose()?;
        let source = |(name, content)| Source { name, content };
        let jobs = source((&jobs.0, &jobs.1));
        let demand = demand.as_ref().map(|(name, content)| source((name, content)));
        Ok(Workload::read(jobs, demand)?)
    }

    /// Reads the files and puts them on a grid of time.
    pub fn problem(&self, now_ms: u64) -> anyhow::Result<Problem> {
        let frame = Frame {
            gpus: self.gpus,
            nodes: self.nodes,
            step_ms: self.step,
            horizon_ms: self.horizon,
            churn_limit: self.churn,
            now_ms,
        };
        Ok(build::problem(&self.workload()?, frame)?)
    }
}

fn read(path: &Path) -> anyhow::Result<(String, String)> {
    let name = path.display().to_string();
    let content = std::fs::read(path).with_context(|| format!("failed to read {name}"))?;
    let content = String::from_utf8(content).with_context(|| format!("{name} is not UTF-8"))?;
    Ok((name, content))
}

/// A duration of the command line.
pub(super) fn duration(text: &str) -> Result<u64, String> {
    let parsed = parse_duration(text).filter(|&ms| ms > 0);
    parsed.ok_or_else(|| "expected a duration such as 24h, 15m, 1h30m or 2d".to_owned())
}

pub(super) fn pretty(value: &serde_json::Value) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(value).context("failed to write JSON")?;
    text.push('\n');
    Ok(text)
}

pub(super) fn print(text: &str) -> anyhow::Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes()).context("failed to print")
}

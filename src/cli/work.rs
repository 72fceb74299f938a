//! Pure side: the arguments that say what work there is and on what it runs, and the files that
//! they name.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::plan::build::{self, Frame};
use crate::sim::Problem;
use crate::trace::{Source, Workload, parse_duration};

/// What work there is, and on what it runs.
#[derive(Clone, Debug, clap::Args)]
pub struct Work {
    /// The job list: CSV, a Microsoft ITP trace, SWF, or the records of `sluice record`; `-` is
    /// standard input.
    #[arg(value_name = "JOBS", required = true)]
    pub jobs: Option<PathBuf>,
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
    /// Let the planners start jobs on more than `min_gpus`, up to `max_gpus`; the share of the
    /// work that more GPUs do not speed up [default where it is given: 10].
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "10",
          require_equals = true, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub moldable: Option<u32>,
}

impl Work {
    /// What the figures are about, for a heading.
    pub(super) fn title(&self) -> String {
        let name = self.jobs.as_deref().and_then(Path::file_stem);
        let name = name.map_or_else(String::new, |name| name.to_string_lossy().into());
        format!("What another order would have given: {name}")
    }

    /// Reads the files.
    pub fn workload(&self) -> anyhow::Result<Workload> {
        let jobs = read(self.jobs.as_deref().context("there is no job list")?)?;
        let demand = self.demand.as_deref().map(read).transpose()?;
        let jobs = Source { name: &jobs.0, content: &jobs.1 };
        let demand = demand.as_ref().map(|(name, content)| Source { name, content });
        Ok(Workload::read(jobs, demand)?)
    }

    /// Reads the files and puts them on a grid of time.
    pub fn problem(&self, now_ms: u64) -> anyhow::Result<Problem> {
        Ok(build::problem(&self.workload()?, self.frame(now_ms))?)
    }

    /// The frame that the arguments ask for.
    pub fn frame(&self, now_ms: u64) -> Frame {
        Frame {
            gpus: self.gpus,
            nodes: self.nodes,
            step_ms: self.step,
            horizon_ms: self.horizon,
            churn_limit: self.churn,
            now_ms,
            serial_permille: self.moldable.map(|percent| percent * 10),
        }
    }
}

fn read(path: &Path) -> anyhow::Result<(String, String)> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let read = if name == "-" {
        std::io::stdin().lock().read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    read.with_context(|| format!("failed to read {name}"))?;
    let content = String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8"))?;
    Ok((name, content))
}

/// Writes a file that was asked for, if one was.
pub(super) fn write(path: Option<&Path>, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text()).with_context(|| format!("failed to write {}", path.display()))
}

/// A duration of the command line.
pub(super) fn duration(text: &str) -> Result<u64, String> {
    let parsed = parse_duration(text).filter(|&ms| ms > 0);
    parsed.ok_or_else(|| "expected a duration such as 24h, 15m, 1h30m or 2d".to_owned())
}

/// JSON as people can read it too.
pub(super) fn pretty(value: &serde_json::Value) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(value).context("failed to write JSON")?;
    text.push('\n');
    Ok(text)
}

/// Prints a result. That the reader has seen enough and closed the pipe is no failure.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("failed to print"),
    }
}

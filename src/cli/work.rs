//! Pure side: the arguments that say what work there is and on what it runs, and the files that
//! they name.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::input;
use crate::plan::build::Frame;
use crate::trace::{Fault, Faults, Source, Workload, parse_duration};

/// What work there is, and on what it runs.
#[derive(Clone, Debug, clap::Args)]
pub struct Work {
    /// The job list: CSV, a Microsoft ITP trace, SWF, the records of `sluice record`, or the
    /// controller's log in JSON; `-` is standard input.
    #[arg(value_name = "JOBS", required = true)]
    pub jobs: Option<PathBuf>,
    /// Demand of the services in the list: CSV `job_id,time,gpus`.
    #[arg(long, value_name = "FILE")]
    pub demand: Option<PathBuf>,
    /// What became of a job list in CSV: the records of `sluice record`, or the controller's log in
    /// JSON. A job is the pod that bears its name.
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
    /// GPUs of a node [default: as the records say, else 8].
    #[arg(long)]
    pub gpus: Option<u32>,
    /// Nodes [default: as many as the list names, else 1].
    #[arg(long)]
    pub nodes: Option<usize>,
    /// Leave out jobs of other widths, for every policy alike: `1,8`.
    #[arg(long, value_name = "GPUS", value_delimiter = ',')]
    pub only_widths: Vec<u32>,
    /// Where counting ends [default: 24h; the day of the last arrival for a trace; the end of
    /// records].
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
        let file = |path: &Option<PathBuf>| path.as_deref().map(read).transpose();
        let jobs = file(&self.jobs)?.context("there is no job list")?;
        let (demand, records) = (file(&self.demand)?, file(&self.records)?);
        let faults = [Some(&jobs), demand.as_ref(), records.as_ref()];
        let faults = faults.into_iter().flatten().filter_map(|file| file.not_utf8.clone());
        let faults = Faults(faults.collect());
        if !faults.is_empty() {
            return Err(faults.into());
        }
        let (demand, records) = (demand.as_ref().map(File::source), records.as_ref());
        let mut workload = Workload::read_all(jobs.source(), demand, records.map(File::source))?;
        self.leave_out_other_widths(&mut workload);
        Ok(workload)
    }

    fn leave_out_other_widths(&self, workload: &mut Workload) {
        if self.only_widths.is_empty() {
            return;
        }
        let before = workload.jobs.len();
        workload.jobs.retain(|job| self.only_widths.contains(&job.min_gpus));
        let left_out = before - workload.jobs.len();
        if left_out > 0 {
            let widths: Vec<String> = self.only_widths.iter().map(u32::to_string).collect();
            workload.remarks.push(Fault {
                file: self.jobs.as_deref().unwrap_or(Path::new("")).display().to_string(),
                line: 0,
                column: "min_gpus".to_owned(),
                found: format!("{left_out} jobs of other widths, left out"),
                allowed: format!("{} (--only-widths)", widths.join(", ")),
            });
        }
    }

    /// The frame that the arguments ask for, of work from a moment on.
    pub fn frame(&self, workload: &Workload, now_ms: u64) -> Frame {
        let recorded = workload.nodes.iter().filter_map(|node| node.gpus).max();
        Frame {
            gpus: self.gpus.or(recorded).unwrap_or(8),
            nodes: self.nodes.unwrap_or_else(|| workload.nodes.len().max(1)),
            step_ms: self.step,
            horizon_ms: self.horizon,
            churn_limit: self.churn,
            now_ms,
            serial_permille: self.moldable.map(|percent| percent * 10),
        }
    }
}

/// A file as it was read.
struct File {
    name: String,
    content: String,
    /// Where it is no text.
    not_utf8: Option<Fault>,
}

impl File {
    fn source(&self) -> Source<'_> {
        Source { name: &self.name, content: &self.content }
    }
}

fn read(path: &Path) -> anyhow::Result<File> {
    let (name, bytes) = input::read(path)?;
    match String::from_utf8(bytes) {
        Ok(content) => Ok(File { name, content, not_utf8: None }),
        Err(error) => {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = good.iter().filter(|byte| **byte == b'\n').map(|_| 1).sum::<u64>() + 1;
            let byte = error.as_bytes().get(good.len()).copied().unwrap_or_default();
            let fault = Fault {
                file: name.clone(),
                line,
                column: String::new(),
                found: format!("the byte {byte:#04x}"),
                allowed: "text in UTF-8".to_owned(),
            };
            Ok(File { name, content: String::new(), not_utf8: Some(fault) })
        }
    }
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

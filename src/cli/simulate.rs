//! Pure side: `sluice simulate` plays one job list to several policies and compares them.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::plan::bound::bound;
use crate::plan::build::{self, Frame};
use crate::plan::compare::{Effort, Name, plannable, play};
use crate::plan::noise::{self, Noise};
use crate::plan::report::{Report, Skipped};
use crate::plan::score::Weights;
use crate::plan::search::Control;
use crate::plan::{html, picture};
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

/// How hard planners try.
#[derive(Clone, Debug, clap::Args)]
pub struct Search {
    /// Seed of the search: the same seed gives the same schedule.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Schedules that plan-online may try each time that it plans [default: 4000].
    #[arg(long, value_name = "SCHEDULES")]
    pub online_budget: Option<u32>,
    /// Schedules that plan-offline may try [default: 200000].
    #[arg(long, value_name = "SCHEDULES")]
    pub offline_budget: Option<u32>,
    /// By how much run times may well exceed their estimates: planners keep away from deadlines
    /// by as much [default: 0%].
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    pub estimate_error: u32,
}

/// Arguments of `sluice simulate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    work: Work,
    /// Policies to compare [default: all].
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    policy: Vec<Name>,
    #[command(flatten)]
    search: Search,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Draw the schedules above one another into this file.
    #[arg(long, value_name = "OUT")]
    svg: Option<PathBuf>,
    /// Write a report that needs nothing else into this file.
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Make run times differ from their estimates: sigma of a lognormal factor.
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    run_error: u32,
    /// Make demand come earlier or later than forecast.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    forecast_shift: Option<u64>,
    /// Make demand differ from its forecast by up to so many GPUs.
    #[arg(long, value_name = "GPUS", default_value_t = 0)]
    forecast_error: u32,
    /// Keep so many GPUs above the forecast for each service.
    #[arg(long, value_name = "GPUS", default_value_t = 0)]
    forecast_margin: u32,
    /// Check each schedule by code that made none of them; fail if one is not legal.
    #[arg(long)]
    check: bool,
}

/// Compares the policies.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut problem = args.work.problem(0)?;
    let noise = Noise {
        run_sigma: f64::from(args.run_error) / 100.0,
        shift_ms: args.forecast_shift.unwrap_or_default(),
        gpus: args.forecast_error,
        margin: args.forecast_margin,
        seed: args.search.seed,
    };
    if noise.is_some() {
        noise::apply(&mut problem, noise);
    }
    let names = if args.policy.is_empty() { &Name::ALL[..] } else { &args.policy };
    let report = compare(problem, names, &args.search, args.check)?;
    let title = args.work.title();
    write(args.svg.as_deref(), || picture::render(&report, &title))?;
    write(args.html.as_deref(), || html::render(&report, &title))?;
    print(&if args.json { pretty(&report.json()?)? } else { report.text() })?;
    refuse_breaches(&report)
}

fn write(path: Option<&Path>, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text()).with_context(|| format!("failed to write {}", path.display()))
}

/// Fails where the checker found something.
pub(super) fn refuse_breaches(report: &Report) -> anyhow::Result<()> {
    match report.breaches() {
        0 => Ok(()),
        breaches => bail!("{breaches} breaches of the rules of a legal schedule"),
    }
}

/// Plays the problem to each policy, and looks for a bound.
pub(super) fn compare(
    problem: Problem,
    names: &[Name],
    search: &Search,
    check: bool,
) -> anyhow::Result<Report> {
    let watch = Watch::start()?;
    let effort = search.effort(&watch.control);
    let (mut entries, mut skipped) = (Vec::new(), Vec::new());
    for &name in names {
        watch.says(name.as_str());
        match play(&problem, name, &effort) {
            Ok(entry) => entries.push(entry),
            Err(error) => skipped.push(Skipped { name, reason: error.to_string() }),
        }
    }
    if entries.is_empty() {
        let reasons: Vec<String> = skipped.iter().map(|s| s.reason.clone()).collect();
        bail!("no policy can serve this: {}", reasons.join("; "));
    }
    watch.says("upper bound");
    let known = entries.iter().map(|entry| entry.metrics.value_done).fold(0.0, f64::max);
    let bound = plannable(&problem).is_ok().then(|| bound(&problem, known));
    let violations =
        check.then(|| entries.iter().map(|entry| entry.violations(&problem)).collect::<Vec<_>>());
    let interrupted = watch.end();
    Ok(Report { problem, seed: search.seed, entries, bound, skipped, violations, interrupted })
}

impl Search {
    /// Without anybody watching.
    pub(super) fn quiet(&self) -> Effort {
        self.effort(&Arc::default())
    }

    fn effort(&self, control: &Arc<Control>) -> Effort {
        let error = i64::from(self.estimate_error.min(1_000)) * 10;
        Effort {
            seed: self.seed,
            weights: Weights { estimate_error_permille: error, ..Weights::default() },
            control: Some(Arc::clone(control)),
            online: self.online_budget,
            offline: self.offline_budget,
        }
    }
}

/// Says on a terminal how far it is, and lets the first interrupt end searches early with the best
/// so far. The second one ends the process.
struct Watch {
    control: Arc<Control>,
    ended: Arc<AtomicBool>,
    shown: bool,
    ticker: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    fn start() -> anyhow::Result<Self> {
        let control = Arc::new(Control::default());
        let seen = Arc::clone(&control);
        ctrlc::set_handler(move || {
            if seen.stop.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        })
        .context("cannot listen to interrupts")?;
        let ended = Arc::new(AtomicBool::new(false));
        let shown = std::io::stderr().is_terminal();
        let ticker = shown.then(|| {
            let (control, ended) = (Arc::clone(&control), Arc::clone(&ended));
            std::thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    std::thread::park_timeout(Duration::from_millis(200));
                    let tried = control.tried.load(Ordering::Relaxed);
                    note(&format!("\r\u{1b}[30C{tried:>12} schedules tried"));
                }
            })
        });
        Ok(Self { control, ended, shown, ticker })
    }

    fn says(&self, what: &str) {
        if self.shown {
            note(&format!("\r\u{1b}[K{what}"));
        }
    }

    /// Clears the line, and says whether searches were ended early.
    fn end(self) -> bool {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(ticker) = self.ticker {
            ticker.thread().unpark();
            // It only prints; if that panicked, the result is as good.
            let _ = ticker.join();
            note("\r\u{1b}[K");
        }
        self.control.stop.load(Ordering::Relaxed)
    }
}

/// Progress is a courtesy: where it cannot be shown, nothing is lost.
fn note(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

impl Work {
    fn title(&self) -> String {
        let name = self.jobs.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into());
        format!("What another order would have given: {name}")
    }

    /// Reads the files.
    pub fn workload(&self) -> anyhow::Result<Workload> {
        let jobs = read(&self.jobs)?;
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
        }
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

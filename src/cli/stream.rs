//! Pure side: `sluice simulate --stream` plays a stream of jobs to several schedulers.

use std::path::PathBuf;

use anyhow::Context as _;

use super::ladder::Ladder;
use super::work::{duration, pretty, print, write};
use crate::stream::{
    Contender, Limits, Measured, Report, Spec, Window, lanes, play, plot, recorded,
};
use crate::trace::{Source, Workload};

/// What only streams have.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Streams")]
pub struct Streams {
    /// Play a stream of one-GPU and whole-node jobs instead of a list: KEY=VALUE separated by
    /// commas, such as `rate=12/h,large=0.1,small-run=lognormal:1h:sigma=1,jobs=100000`.
    ///
    /// `jobs` [10000]; `rate` of arrivals such as 12/h, or `load` [0.8] of the nodes; `large`, the
    /// share of larges among the jobs, or `large-work` [0.5], among the work; `small-run`
    /// [exp:1h:max=8h] and `large-run` [uniform:2h:6h]: fixed:1h, uniform:30m:90m, exp:1h,
    /// lognormal:1h:sigma=1, pareto:1h:alpha=1.5, the last three with :max=8h at will. Or
    /// `trace=FILE`, whose jobs of one GPU and of a whole node are taken, with `wide` also those
    /// between, and `faster=6` to have them arrive six times as fast.
    #[arg(
        long,
        value_name = "SPEC",
        conflicts_with_all = [
            "demand", "records", "only_widths", "horizon", "step", "churn", "html",
            "online_budget", "offline_budget",
            "estimate_error", "run_error", "forecast_shift", "forecast_error", "forecast_margin",
            "check",
        ]
    )]
    stream: Option<Spec>,
    /// What schedulers know of run times: an enforced limit, `exact`, a factor such as `x1.5`, or
    /// `class` for the longest of the shape.
    #[arg(long, value_name = "HOW", default_value = "x1.5", conflicts_with = "jobs")]
    limits: Limits,
    /// How long a job waits until it counts as starved [default: ten times the longest run of a
    /// small and of a large together].
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "jobs")]
    starved_after: Option<u64>,
    /// The stretch of time that `--svg` shows, as FROM..TO since the beginning [default: the
    /// middle].
    #[arg(long, value_name = "FROM..TO", conflicts_with = "jobs")]
    window: Option<Window>,
    /// Plot how waits are distributed into this file.
    #[arg(long, value_name = "OUT", conflicts_with = "jobs")]
    plot: Option<PathBuf>,
}

impl Streams {
    /// The stream, if one is asked for.
    pub(super) fn spec(&self) -> Option<&Spec> {
        self.stream.as_ref()
    }
}

/// Compares the schedulers.
pub(super) fn run(
    args: &Streams,
    spec: &Spec,
    shared: &Ladder,
    contenders: &[Contender],
) -> anyhow::Result<()> {
    let (gpus, nodes) = (shared.work.gpus.unwrap_or(8), shared.work.nodes.unwrap_or(1));
    let seed = shared.search.seed;
    anyhow::ensure!((2..=64).contains(&gpus), "--gpus is {gpus}; a stream needs 2 to 64 of a node");
    anyhow::ensure!(nodes > 0, "--nodes is 0; use 1 or more");
    let (problem, left_out, seed) = match spec {
        Spec::Drawn(drawn) => (drawn.generate(gpus, nodes, seed), 0, Some(seed)),
        Spec::Recorded { path, wide, faster } => {
            let name = path.display().to_string();
            let content =
                std::fs::read_to_string(path).with_context(|| format!("failed to read {name}"))?;
            let list = Workload::read(Source { name: &name, content: &content }, None)?;
            let (problem, left_out) = recorded(&list, *faster, *wide, gpus, nodes);
            anyhow::ensure!(!problem.jobs.is_empty(), "{name} has no job of one GPU or of {gpus}");
            (problem, left_out, None)
        }
    };
    let entries: Result<Vec<Measured>, _> = contenders
        .iter()
        .map(|contender| play(&problem, contender, args.limits, args.starved_after))
        .collect();
    let report = Report {
        stream: spec.to_string(),
        seed,
        limits: args.limits.to_string(),
        problem,
        left_out,
        entries: entries?,
    };
    if let Some(path) = &shared.svg {
        let picture = lanes(&report, args.window).map_err(anyhow::Error::msg)?;
        write(Some(path), || picture)?;
    }
    write(args.plot.as_deref(), || plot(&report))?;
    print(&if shared.json { pretty(&report.json()?)? } else { report.text() })
}

//! Pure: what a contender made of a stream, each figure defined once.

use serde::Serialize;

use super::contender::{Contender, ContenderError};
use super::limits::{Limits, Longest, shape};
use super::meter::{Gate, Meter, NO_FIGURE};
use crate::plan::metrics::to_f64;
use crate::policy::Shape;
use crate::sim::{self, Job, Outcome, Problem, Run};

/// Waits of the jobs of one shape, all of the stream.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Waits {
    /// Jobs of the shape.
    pub jobs: usize,
    /// Of these, those that never started.
    pub never: usize,
    /// The mean; `None`: one never started, so that there is none.
    pub mean_ms: Option<f64>,
    /// Half waited no longer; `None`: half of them never started.
    pub median_ms: Option<u64>,
    /// 95 of 100 waited no longer.
    pub p95_ms: Option<u64>,
    /// 99 of 100 waited no longer.
    pub p99_ms: Option<u64>,
    /// The longest.
    pub max_ms: Option<u64>,
    /// Waited longer than [`Figures::starved_after_ms`], or never started.
    pub starved: usize,
    /// The longest wait as a share of what the job was promised when it arrived; of all jobs that
    /// waited and were promised something.
    pub largest_of_bound: Option<f64>,
    /// Waited longer than that promise.
    pub over_bound: usize,
}

/// What a contender made of a stream.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// Who.
    pub name: String,
    /// The limits that it knew.
    pub limits: String,
    /// Whether the promises are its own; else they are those of the plain rule at the same place.
    pub own_bound: bool,
    /// One-GPU jobs.
    pub small: Waits,
    /// Jobs of several GPUs and not all; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wide_small: Option<Waits>,
    /// Whole-node jobs.
    pub whole_node_large: Waits,
    /// Share of all GPU-time until the last arrival in which a job ran.
    pub utilisation: f64,
    /// Share in which a GPU was free and kept for a large that waited.
    pub held_idle: f64,
    /// GPU-hours of that.
    pub held_idle_gpu_hours: f64,
    /// Share in which a GPU was free for which a small waited.
    pub idle_while_small_waits: f64,
    /// When the last job ended.
    pub end_ms: u64,
    /// A wait longer than this counts as starved.
    pub starved_after_ms: u64,
    /// How often it was asked.
    pub decisions: u64,
}

/// The figures, and what pictures need.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The figures.
    pub figures: Figures,
    /// Waits of smalls, ascending; those that never started are missing.
    pub small_waits_ms: Vec<u64>,
    /// Waits of larges, ascending; those that never started are missing.
    pub large_waits_ms: Vec<u64>,
    /// Who ran where.
    pub runs: Vec<Run>,
    /// When which node was kept for a large.
    pub gates: Vec<Gate>,
}

/// Why there are no figures.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// It cannot serve such work.
    #[error(transparent)]
    Contender(#[from] ContenderError),
    /// It did what cannot be done.
    #[error("{0} is at fault: {1}")]
    Fault(String, sim::Fault),
}

/// Plays the stream to one contender. `limits` are those that it knows unless it says otherwise.
pub fn play(
    stream: &Problem,
    contender: &Contender,
    limits: Limits,
    starved_after_ms: Option<u64>,
) -> Result<Measured, Error> {
    let mut problem = stream.clone();
    // Before limits are set, a job's estimate is its run time.
    Limits::Times(1000).apply(&mut problem);
    let runs = Longest::of(&problem);
    let default_ms = (runs.small_ms + runs.large_ms).saturating_mul(10);
    let starved_after_ms = starved_after_ms.unwrap_or(default_ms);
    let limits = contender.limits().unwrap_or(limits);
    limits.apply(&mut problem);
    let longest = Longest::of(&problem);
    let player = contender.player(&problem, longest)?;
    let own_bound = player.promises();
    let mut meter = Meter::new(player, &problem, longest);
    let outcome = sim::run(&problem, &mut meter)
        .map_err(|fault| Error::Fault(contender.name().to_owned(), fault))?;
    let known = Known { name: contender.name(), limits, own_bound, starved_after_ms };
    Ok(sum_up(&problem, &known, &meter, outcome))
}

struct Known<'a> {
    name: &'a str,
    limits: Limits,
    own_bound: bool,
    starved_after_ms: u64,
}

fn sum_up(problem: &Problem, known: &Known<'_>, meter: &Meter, outcome: Outcome) -> Measured {
    let mut tallies = [Tally::default(), Tally::default(), Tally::default()];
    let place = |job: &Job| match shape(problem, job) {
        Shape::Small => 0,
        Shape::Wide(_) => 1,
        Shape::Large => 2,
    };
    for job in &problem.jobs {
        tallies[place(job)].jobs += 1;
    }
    for run in &outcome.runs {
        let job = &problem.jobs[run.job];
        tallies[place(job)].add(run.start_ms - job.arrival_ms, meter.figures_ms[run.job]);
    }
    let [mut small, mut wide, mut large] = tallies;
    let until_ms = problem.jobs.last().map_or(0, |job| job.arrival_ms);
    let nodes = u64::try_from(problem.nodes).unwrap_or(u64::MAX);
    let all = f64::from(problem.gpus) * to_f64(nodes) * to_f64(until_ms.max(1));
    let hours = big(meter.sums.kept_ms) / 3_600_000.0;
    let after_ms = known.starved_after_ms;
    let figures = Figures {
        name: known.name.to_owned(),
        limits: known.limits.to_string(),
        own_bound: known.own_bound,
        small: small.waits(after_ms),
        wide_small: (wide.jobs > 0).then(|| wide.waits(after_ms)),
        whole_node_large: large.waits(after_ms),
        utilisation: big(meter.sums.busy_ms) / all,
        held_idle: big(meter.sums.kept_ms) / all,
        held_idle_gpu_hours: hours,
        idle_while_small_waits: big(meter.sums.wanted_ms) / all,
        end_ms: outcome.runs.iter().map(|run| run.end_ms).max().unwrap_or_default(),
        starved_after_ms: after_ms,
        decisions: outcome.decisions,
    };
    Measured {
        figures,
        small_waits_ms: small.waits_ms,
        large_waits_ms: large.waits_ms,
        runs: outcome.runs,
        gates: meter.gates.clone(),
    }
}

/// For shares: what is lost is far below what is printed.
fn big(value: u128) -> f64 {
    to_f64(u64::try_from(value).unwrap_or(u64::MAX))
}

#[derive(Default)]
struct Tally {
    jobs: usize,
    waits_ms: Vec<u64>,
    largest_of_bound: Option<f64>,
    over_bound: usize,
}

impl Tally {
    fn add(&mut self, wait_ms: u64, figure_ms: u64) {
        self.waits_ms.push(wait_ms);
        if wait_ms > 0 && figure_ms != NO_FIGURE {
            let share = to_f64(wait_ms) / to_f64(figure_ms.max(1));
            self.largest_of_bound = Some(self.largest_of_bound.map_or(share, |s| s.max(share)));
            self.over_bound += usize::from(wait_ms > figure_ms);
        }
    }

    fn waits(&mut self, starved_after_ms: u64) -> Waits {
        let jobs = self.jobs;
        self.waits_ms.sort_unstable();
        let waits = &self.waits_ms;
        let started = waits.len();
        let sum: u128 = waits.iter().copied().map(u128::from).sum();
        let count = to_f64(u64::try_from(started).unwrap_or(u64::MAX));
        let mean_ms = (started == jobs && jobs > 0).then(|| big(sum) / count);
        // Nearest rank; those that never started stand at the end.
        let at = |permille: usize| waits.get((jobs * permille).div_ceil(1000).max(1) - 1).copied();
        let longer = started - waits.partition_point(|&wait| wait <= starved_after_ms);
        Waits {
            jobs,
            never: jobs - started,
            mean_ms,
            median_ms: at(500),
            p95_ms: at(950),
            p99_ms: at(990),
            max_ms: at(1000),
            starved: longer + jobs - started,
            largest_of_bound: self.largest_of_bound,
            over_bound: self.over_bound,
        }
    }
}

//! Plays streams to schedulers on all cores, and folds what comes of it over the seeds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sluice::sim::Problem;
use sluice::stream::{Contender, Figures, Limits, Measured, Waits, play};

pub(crate) const HOUR_MS: f64 = 3_600_000.0;

/// The mean wait; without an end where one never started.
pub(crate) fn mean_hours(waits: &Waits) -> f64 {
    waits.mean_ms.map_or(f64::INFINITY, |mean_ms| mean_ms / HOUR_MS)
}

/// What is kept of one scheduler on one stream.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    pub(crate) figures: Figures,
    /// For each width: jobs, the sum of their waits, and the longest, in hours.
    pub(crate) widths: BTreeMap<u32, (f64, f64, f64)>,
    /// Of the GPU-time that was delivered until the last arrival, that of larges.
    pub(crate) large_share: f64,
}

impl Played {
    fn new(problem: &Problem, measured: Measured) -> Self {
        let until_ms = problem.jobs.last().map_or(0, |job| job.arrival_ms);
        let (mut widths, mut areas) = (BTreeMap::new(), [0.0, 0.0]);
        for run in &measured.runs {
            let job = &problem.jobs[run.job];
            let waited = ms(run.start_ms - job.arrival_ms) / HOUR_MS;
            let (jobs, sum, most) = widths.entry(job.width).or_insert((0.0, 0.0, 0.0));
            (*jobs, *sum, *most) = (*jobs + 1.0, *sum + waited, f64::max(*most, waited));
            areas[usize::from(job.width == problem.gpus)] += ms(run.area_ms(until_ms)) / HOUR_MS;
        }
        let large_share = areas[1] / (areas[0] + areas[1]);
        Self { figures: measured.figures, widths, large_share }
    }

    /// Mean wait of the jobs of a width, in hours.
    pub(crate) fn mean_h(&self, width: u32) -> f64 {
        self.widths.get(&width).map_or(0.0, |(jobs, sum, _)| sum / jobs)
    }

    /// Longest wait of the jobs of a width, in hours.
    pub(crate) fn most_h(&self, width: u32) -> f64 {
        self.widths.get(&width).map_or(0.0, |&(_, _, most)| most)
    }
}

/// For means and shares: exact to a second for 136 years.
pub(crate) fn ms(ms: u64) -> f64 {
    f64::from(u32::try_from(ms / 1000).unwrap_or(u32::MAX)) * 1000.0
}

pub(crate) fn contender(name: &str) -> Contender {
    name.parse().unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn play_one(problem: &Problem, name: &str) -> Played {
    let measured = play(problem, &contender(name), Limits::Times(1500), None);
    Played::new(problem, measured.unwrap_or_else(|error| panic!("{error}")))
}

/// Plays every stream to every scheduler on all cores; a row per stream. Of
/// a partition there is nothing on one node.
pub(crate) fn all(
    what: &str,
    streams: usize,
    names: &[&str],
    make: impl Fn(usize) -> Problem + Sync,
) -> Vec<Vec<Option<Played>>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut rows = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= streams {
                return rows;
            }
            let problem = make(at);
            let play = |name: &&str| playable(name, &problem).map(|name| play_one(&problem, &name));
            rows.push((at, names.iter().map(play).collect()));
            if (at + 1).is_multiple_of(8) || at + 1 == streams {
                eprintln!("{what}: {} of {streams} streams", at + 1);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut rows: Vec<(usize, Vec<Option<Played>>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|one| one.join().expect("it does not panic")).collect()
    });
    rows.sort_by_key(|&(at, _)| at);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// `N` in a name is the nodes that larges would fill; one node has none to spare.
fn playable(name: &str, problem: &Problem) -> Option<String> {
    if !name.contains("=N") {
        return Some(name.to_owned());
    }
    let work = |width: u32| -> f64 {
        let jobs = problem.jobs.iter().filter(|job| job.width == width);
        jobs.map(|job| ms(job.run_ms) * f64::from(width)).sum()
    };
    let (small, large) = (work(1), work(problem.gpus));
    let nodes = f64::from(u32::try_from(problem.nodes).expect("a few"));
    let larges = (1..problem.nodes).min_by(|one, other| {
        let off = |count: &usize| {
            let count = f64::from(u32::try_from(*count).expect("a few"));
            (count - nodes * large / (small + large)).abs()
        };
        off(one).total_cmp(&off(other))
    })?;
    Some(name.replace("=N", &format!("={larges}")))
}

pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[half - 1], values[half])
    } else {
        values[half]
    }
}

/// The least and the most.
pub(crate) fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    values.into_iter().fold(start, |(least, most), value| (least.min(value), most.max(value)))
}

/// As many digits as say something.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value.is_infinite() => "never".into(),
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// `least..most`, or nothing where there is one value.
pub(crate) fn spread(values: &[f64]) -> String {
    let (least, most) = range(values.iter().copied());
    if values.len() < 2 { String::new() } else { format!("{}..{}", number(least), number(most)) }
}

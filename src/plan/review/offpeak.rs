//! Pure side: jobs that waited or were late, and could have run while real-time demand was low.
//!
//! Jobs are moved one after another, the most important first, and each one moved is in the way of
//! the next: else one trough would be given to all of them. Demand is met all the time.

use serde_json::json;

use super::history::History;
use super::{Answer, hours, lacking};
use crate::plan::metrics;
use crate::policy::GpuSet;
use crate::sim::Curve;
use crate::sim::profile::Profile;
use crate::trace::{Column, Job, clock_time};

const QUESTION: &str =
    "4. Which jobs could have run during off-peak inference demand without hurting latency?";

struct Moved<'a> {
    job: &'a Job,
    start_ms: u64,
    saved_ms: u64,
    /// It was late or never ran, and would have met its deadline.
    rescued: bool,
    /// There was room only because demand was below its peak.
    in_trough: bool,
}

/// Someone's GPUs of a node, from when to when.
struct Taken<'a> {
    id: &'a str,
    node: usize,
    gpus: GpuSet,
    start_ms: u64,
    end_ms: u64,
}

pub(super) fn answer(history: &History<'_>) -> Answer {
    let mut needs = lacking(history, &[Column::ActualStart, Column::GpuIds]);
    if history.services.is_empty() {
        needs.push("a service (expected_duration demand-curve) with its demand file".to_owned());
    }
    if !needs.is_empty() {
        return Answer::cannot(QUESTION, needs);
    }
    let moved = moved(history);
    let rescued = moved.iter().filter(|moved| moved.rescued).count();
    let in_trough = moved.iter().filter(|moved| moved.in_trough).count();
    let figures = moved.iter().map(|moved| {
        json!({
            "job_id": moved.job.id,
            "start_min": moved.start_ms / 60_000,
            "earlier_hours": metrics::hours(moved.saved_ms),
            "in_trough": moved.in_trough,
            "would_have_been_in_time": moved.rescued,
        })
    });
    Answer {
        question: QUESTION,
        needs,
        summary: format!(
            "{in_trough} jobs in troughs, and {} more beside the peak itself; {rescued} of them \
             were late or never ran; all together, beside what ran, with demand met throughout",
            moved.len() - in_trough,
        ),
        details: moved.iter().map(detail).collect(),
        figures: json!({ "jobs": figures.collect::<Vec<_>>() }),
    }
}

fn detail(moved: &Moved<'_>) -> String {
    let Moved { job, start_ms, saved_ms, rescued, in_trough } = moved;
    let actual = job.actual.start_ms.map_or_else(
        || "never started".to_owned(),
        |start| format!("started {}", clock_time(start)),
    );
    format!(
        "{} (priority {}, needs {}): could have started {}{}, {} earlier; {actual}{}",
        job.id,
        job.priority,
        job.min_gpus,
        clock_time(*start_ms),
        if *in_trough { " in a trough" } else { "" },
        hours(*saved_ms),
        match (rescued, job.deadline_ms) {
            (true, Some(_)) => ", and would have met its deadline",
            (true, None) => ", and would have run",
            (false, _) => "",
        },
    )
}

fn moved<'a>(history: &History<'a>) -> Vec<Moved<'a>> {
    let taken = |run: &super::history::Ran<'a>| Taken {
        id: &run.job.id,
        node: run.node,
        gpus: run.gpus,
        start_ms: run.start_ms,
        end_ms: run.end_ms,
    };
    let mut runs: Vec<Taken<'a>> = history.runs.iter().map(taken).collect();
    let waited = |job: &&Job| history.waited_until(job) > job.arrival_ms || late(job);
    let mut candidates: Vec<&'a Job> = history.workload.jobs.iter().filter(waited).collect();
    candidates.sort_by_key(|job| (std::cmp::Reverse(job.priority), job.arrival_ms, job.line));
    let peak = Curve::new(vec![(0, history.demand.peak(u64::MAX))]);
    let mut moved = Vec::new();
    for job in candidates {
        let length_ms = job.ran_ms().unwrap_or(job.expected_ms).max(1);
        let until = history.waited_until(job);
        let place = Place { history, runs: &runs, job, length_ms, until };
        let found = (0..history.nodes).filter_map(|node| {
            let (start_ms, gpus) = place.earliest(node, &history.demand)?;
            Some((start_ms, node, gpus))
        });
        let Some((start_ms, node, gpus)) = found.min_by_key(|&(at, node, _)| (at, node)) else {
            continue;
        };
        let end_ms = start_ms + length_ms;
        let in_time = job.deadline_ms.is_none_or(|deadline| end_ms <= deadline);
        if start_ms >= until || !in_time {
            continue;
        }
        let beside_peak = (0..history.nodes).any(|node| place.fits(node, &peak, start_ms));
        runs.retain(|run| run.id != job.id);
        runs.push(Taken { id: &job.id, node, gpus, start_ms, end_ms });
        let rescued = late(job) || job.actual.start_ms.is_none();
        let saved_ms = until - start_ms;
        moved.push(Moved { job, start_ms, saved_ms, rescued, in_trough: !beside_peak });
    }
    moved
}

/// Where a job could go beside everything else.
struct Place<'a, 'b> {
    history: &'b History<'a>,
    runs: &'b [Taken<'a>],
    job: &'b Job,
    length_ms: u64,
    /// It is of no use to start later.
    until: u64,
}

impl Place<'_, '_> {
    fn profile(&self, node: usize, services: &Curve) -> Profile {
        let arrival_ms = self.job.arrival_ms;
        let idle = Curve::default();
        let services = if node == 0 { services } else { &idle };
        let mut profile = Profile::new(self.history.gpus, arrival_ms, services);
        let last_ms = self.until.saturating_add(self.length_ms);
        let near = |run: &&Taken<'_>| {
            let beside = run.end_ms > arrival_ms && run.start_ms < last_ms;
            run.node == node && beside && run.id != self.job.id
        };
        for run in self.runs.iter().filter(near) {
            profile.take(run.gpus, run.start_ms.max(arrival_ms), run.end_ms);
        }
        profile
    }

    fn earliest(&self, node: usize, services: &Curve) -> Option<(u64, GpuSet)> {
        let profile = self.profile(node, services);
        profile.earliest(self.job.arrival_ms, self.job.min_gpus, self.length_ms)
    }

    fn fits(&self, node: usize, services: &Curve, at_ms: u64) -> bool {
        let profile = self.profile(node, services);
        profile.fit(at_ms, self.job.min_gpus, self.length_ms).is_some()
    }
}

fn late(job: &Job) -> bool {
    match (job.actual.end_ms, job.deadline_ms) {
        (Some(end), Some(deadline)) => end > deadline,
        (None, Some(_)) => job.actual.start_ms.is_none(),
        _ => false,
    }
}

//! Pure side: figures of several policies beside one another, for programs and for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Schedule;
use super::bound::Bound;
use super::check::Violation;
use super::compare::{Entry, Name};
use super::explain::Reason;
use super::metrics::{hours, to_f64};
use super::score::Score;
use crate::sim::Problem;
use crate::trace::{Fault, clock_time};

/// A policy that gave no schedule, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Skipped {
    /// The policy.
    pub name: Name,
    /// Why.
    pub reason: String,
}

/// The ladder of policies over one problem.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The problem.
    pub problem: Problem,
    /// Seed of the search.
    pub seed: u64,
    /// What the policies made of it.
    pub entries: Vec<Entry>,
    /// What no schedule can exceed, where the problem is small enough to prove it.
    pub bound: Option<Bound>,
    /// Policies that cannot serve such work.
    pub skipped: Vec<Skipped>,
    /// What the checker found, where it was asked, in the order of `entries`.
    pub violations: Option<Vec<Vec<Violation>>>,
    /// Whether searches were ended early, so that the same seed gives other schedules.
    pub interrupted: bool,
    /// When the play begins, on the clock of the job list.
    pub begin_ms: u64,
    /// What was left out of the input or assumed, and should be known.
    pub remarks: Vec<Fault>,
}

/// Notes on the input that people are shown.
const REMARKS_SHOWN: usize = 5;
/// Types of work whose waits fit beside one another on a terminal.
const KINDS_SHOWN: usize = 8;

/// A figure with as many decimals as a short play needs.
fn figure(value: f64) -> String {
    if value > 0.0 && value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// A wait in the unit that suits it.
fn span(minutes: f64) -> String {
    if minutes >= 60.0 {
        format!("{:.1}h", minutes / 60.0)
    } else if minutes >= 1.0 {
        format!("{minutes:.0}m")
    } else {
        format!("{:.0}s", minutes * 60.0)
    }
}

/// What part of the upper bound was reached.
fn share(entry: &Entry, bound: &Bound) -> f64 {
    if bound.value_done > 0.0 { entry.metrics.value_done / bound.value_done } else { 1.0 }
}

/// Minutes, whole where they are.
struct Minutes(u64);

impl Serialize for Minutes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(60_000) {
            serializer.serialize_u64(self.0 / 60_000)
        } else {
            serializer.serialize_f64(to_f64(self.0) / 60_000.0)
        }
    }
}

/// One run, as programs read it.
#[derive(Serialize)]
struct RunView<'a> {
    job_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<usize>,
    gpus: Vec<u32>,
    start_min: Minutes,
    end_min: Minutes,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<Score>,
}

fn runs<'a>(problem: &'a Problem, entry: &Entry, begin_ms: u64) -> Vec<RunView<'a>> {
    let whys: BTreeMap<usize, _> = entry.explanations.iter().map(|why| (why.job, why)).collect();
    let view = |run: &crate::sim::Run| {
        let why = whys.get(&run.job);
        RunView {
            job_id: &problem.jobs[run.job].name,
            node: (problem.nodes > 1).then_some(run.node),
            gpus: run.gpus.iter().collect(),
            start_min: Minutes(run.start_ms + begin_ms),
            end_min: Minutes(run.end_ms + begin_ms),
            reason: why.map(|why| why.reason),
            score: why.map(|why| why.score),
        }
    };
    entry.schedule.runs.iter().map(view).collect()
}

fn services<'a>(problem: &'a Problem, schedule: &Schedule, begin_ms: u64) -> Vec<RunView<'a>> {
    let view = |held: &super::realtime::Held| RunView {
        job_id: &problem.services[held.service].name,
        node: None,
        gpus: held.gpus.iter().collect(),
        start_min: Minutes(held.start_ms + begin_ms),
        end_min: Minutes(held.end_ms + begin_ms),
        reason: None,
        score: None,
    };
    schedule.held.iter().map(view).collect()
}

impl Report {
    /// Breaches of all schedules, if they were looked for.
    pub fn breaches(&self) -> usize {
        self.violations.iter().flatten().map(Vec::len).sum()
    }

    /// For programs; the fields are those of docs/planning.md.
    pub fn json(&self) -> Result<Value, serde_json::Error> {
        let problem = &self.problem;
        let mut policies = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let mut object = serde_json::to_value(&entry.metrics)?;
            object["name"] = json!(entry.name);
            object["schedule"] = serde_json::to_value(runs(problem, entry, self.begin_ms))?;
            object["services"] =
                serde_json::to_value(services(problem, &entry.schedule, self.begin_ms))?;
            let rejected = entry.schedule.rejected.iter().map(|&job| &problem.jobs[job].name);
            object["rejected"] = json!(rejected.collect::<Vec<_>>());
            if let Some(bound) = &self.bound {
                object["upper_bound"] = json!(bound.value_done);
                object["share_of_upper_bound"] = json!(share(entry, bound));
            }
            if let Some(violations) = &self.violations {
                object["violations"] = json!(violations[at]);
            }
            policies.push(object);
        }
        Ok(json!({
            "version": 1,
            "seed": self.seed,
            "interrupted": self.interrupted,
            "problem": {
                "gpus": problem.gpus,
                "nodes": problem.nodes,
                "step_min": Minutes(problem.step_ms),
                "begin_min": Minutes(self.begin_ms),
                "horizon_min": Minutes(self.begin_ms + problem.horizon_ms),
                "churn_limit": problem.churn_limit,
                "jobs": problem.jobs.len(),
                "services": problem.services.len(),
                "inherited": problem.inherited.len(),
            },
            "bound": self.bound,
            "policies": policies,
            "skipped": self.skipped,
            "remarks": self.remarks,
        }))
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = self.heading();
        let _ = writeln!(
            out,
            "\n{:<20} {:>6} {:>7} {:>10} {:>6} {:>6} {:>7} {:>7} {:>7} {:>6} {:>6}",
            "policy",
            "util",
            "value",
            "by deadln",
            "bound",
            "short",
            "started",
            "missed",
            "mean w",
            "frag",
            "churn"
        );
        for entry in &self.entries {
            self.row(&mut out, entry);
        }
        if let Some(bound) = &self.bound {
            let _ = writeln!(
                out,
                "{:<20} {:>5.1}% {:>7} {:>10}  proved: no schedule can exceed it",
                "upper bound",
                bound.utilisation * 100.0,
                "",
                figure(bound.value_done),
            );
        }
        for skipped in &self.skipped {
            let _ = writeln!(out, "{:<20} left out: {}", skipped.name, skipped.reason);
        }
        out.push_str(
            "\nutil: GPU-time with a job or served demand. value: priority x GPU-hours run.\n\
             by deadln: the same of jobs done by their deadline, and bound: as a share of the\n\
             upper bound. short: GPU-hours of demand not served. mean w: mean wait of what\n\
             started. frag: GPU-hours free but apart while a job waited that would fit together.\n",
        );
        self.waits(&mut out);
        if self.interrupted {
            out.push_str("interrupted: planners show the best that they had found by then\n");
        }
        self.rejections(&mut out);
        self.checks(&mut out);
        out
    }

    fn row(&self, out: &mut String, entry: &Entry) {
        let m = &entry.metrics;
        let (waited, started) = m.waits.values().fold((0.0, 0_u32), |(sum, all), waits| {
            let started = u32::try_from(waits.started).unwrap_or(u32::MAX);
            (sum + waits.mean_min * f64::from(started), all + started)
        });
        let bound = self
            .bound
            .as_ref()
            .map_or_else(String::new, |bound| format!("{:.1}%", share(entry, bound) * 100.0));
        let _ = writeln!(
            out,
            "{:<20} {:>5.1}% {:>7} {:>10} {:>6} {:>6.2} {:>7} {:>7} {:>7} {:>6.1} {:>6}",
            entry.name,
            m.utilisation * 100.0,
            figure(m.value_gpu_hours),
            figure(m.value_done),
            bound,
            m.rt_shortfall_gpu_hours,
            m.jobs_started,
            m.deadline_misses,
            span(waited / f64::from(started.max(1))),
            m.fragmented_gpu_hours,
            m.realtime.churn,
        );
    }

    /// Median and longest wait of each type of work, where there are few enough types for a table.
    fn waits(&self, out: &mut String) {
        let kinds: BTreeSet<&String> =
            self.entries.iter().flat_map(|entry| entry.metrics.waits.keys()).collect();
        if !(2..=KINDS_SHOWN).contains(&kinds.len()) {
            return;
        }
        let _ = write!(out, "\n{:<20}", "wait, median/longest");
        for kind in &kinds {
            let _ = write!(out, " {:>13}", kind.chars().take(13).collect::<String>());
        }
        for entry in &self.entries {
            let _ = write!(out, "\n{:<20}", entry.name);
            for kind in &kinds {
                let waits = entry.metrics.waits.get(*kind);
                let cell = waits
                    .filter(|waits| waits.started > 0)
                    .map(|waits| format!("{}/{}", span(waits.median_min), span(waits.max_min)));
                let _ = write!(out, " {:>13}", cell.unwrap_or_else(|| "none ran".to_owned()));
            }
        }
        out.push('\n');
    }

    pub(super) fn heading(&self) -> String {
        let problem = &self.problem;
        let demand = problem.demand();
        let horizon = problem.horizon_ms;
        let asked = problem.jobs.iter().map(|job| hours(job.run_ms) * f64::from(job.width));
        let asked: f64 = asked.sum();
        let nodes =
            if problem.nodes == 1 { String::new() } else { format!("{} x ", problem.nodes) };
        let mut out = format!(
            "{} on {nodes}{} GPUs until {}, steps of {}: {} GPU-hours asked of {}",
            if problem.jobs.len() == 1 {
                "1 job".to_owned()
            } else {
                format!("{} jobs", problem.jobs.len())
            },
            problem.gpus,
            clock_time(self.begin_ms + horizon),
            clock_time(problem.step_ms),
            figure(asked),
            figure(hours(problem.capacity_ms())),
        );
        if !problem.services.is_empty() {
            let mean = to_f64(demand.area(horizon)) / to_f64(horizon);
            let peak = demand.peak(horizon);
            let ratio = if mean > 0.0 { f64::from(peak) / mean } else { 0.0 };
            let _ = write!(
                out,
                "\nreal-time demand in GPUs: peak {peak}, mean {mean:.2}, peak/mean {ratio:.1} \
                 (what a reservation of the peak costs)"
            );
        }
        let beyond = problem.jobs.iter().filter(|job| job.arrival_ms >= horizon).count();
        if beyond > 0 {
            let _ = write!(
                out,
                "\n{beyond} of the jobs arrive at or after the horizon and cannot start: see --horizon"
            );
        }
        out.push('\n');
        for fault in self.remarks.iter().take(REMARKS_SHOWN) {
            let _ = writeln!(out, "note: {fault}");
        }
        if let more @ 1.. = self.remarks.len().saturating_sub(REMARKS_SHOWN) {
            let _ = writeln!(out, "note: … and {more} more (--json has all)");
        }
        out
    }

    fn rejections(&self, out: &mut String) {
        for entry in &self.entries {
            let rejected = &entry.schedule.rejected;
            let names: Vec<&str> =
                rejected.iter().take(5).map(|&job| self.problem.jobs[job].name.as_str()).collect();
            if !names.is_empty() {
                let more = rejected.len().saturating_sub(names.len());
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let _ = writeln!(
                    out,
                    "{}: can never fit beside what is reserved, so not run at all: {}{more}",
                    entry.name,
                    names.join(", ")
                );
            }
        }
    }

    fn checks(&self, out: &mut String) {
        let Some(violations) = &self.violations else { return };
        for (entry, found) in self.entries.iter().zip(violations) {
            for violation in found {
                let _ = writeln!(out, "{}: BROKEN {violation}", entry.name);
            }
        }
        if self.breaches() == 0 {
            let _ = writeln!(out, "check: every schedule is legal");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_plays_have_figures_too() {
        assert_eq!([0.0, 0.194, 9.5, 482.4].map(figure), ["0", "0.19", "9.50", "482"]);
        assert_eq!([0.0, 0.25, 5.0, 90.0].map(span), ["0s", "15s", "5m", "1.5h"]);
    }
}

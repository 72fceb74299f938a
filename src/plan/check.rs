//! Pure side: whether a schedule is legal, found out without any code of those who make them.
//!
//! Rules are those of docs/planning.md: one job per GPU and step, neighbouring GPUs, nobody
//! interrupted, nobody before arrival, inherited work as it was, services within their churn
//! limit. The checker reads only the problem and the schedule.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Schedule;
use crate::policy::GpuSet;
use crate::sim::Problem;

/// The rule that a schedule breaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// At most one job or service per GPU and step.
    OneHolder,
    /// A job gets as many GPUs as it asks for, or as one of its wider shapes has.
    Width,
    /// The GPUs of a job are neighbours on one node that exists.
    Contiguous,
    /// A job runs once.
    Once,
    /// A job runs from its start to its end, without interruption, for as long as it takes.
    Length,
    /// Nothing starts before it arrives, or at or after the horizon.
    Begin,
    /// Everything starts and ends on the grid of time.
    Grid,
    /// What ran at the beginning goes on as it was.
    Inherited,
    /// A service grows by no more than the churn limit per step.
    Churn,
    /// A service holds no more than it has reason to.
    Demand,
}

/// One breach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// When.
    pub at_ms: u64,
    /// Who.
    pub who: String,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = crate::trace::clock_time(self.at_ms);
        write!(f, "{:?} at {at}: {}: {}", self.rule, self.who, self.detail)
    }
}

/// Everything that is not legal.
pub fn check(problem: &Problem, schedule: &Schedule) -> Vec<Violation> {
    let mut check = Check { problem, schedule, found: Vec::new() };
    check.runs();
    check.inherited();
    check.holders();
    check.held();
    check.services();
    check.found
}

/// From when, until when, who.
type Hold<'a> = (u64, u64, &'a str);

struct Check<'a> {
    problem: &'a Problem,
    schedule: &'a Schedule,
    found: Vec<Violation>,
}

impl Check<'_> {
    fn report(&mut self, rule: Rule, at_ms: u64, who: &str, detail: String) {
        self.found.push(breach(rule, at_ms, who, detail));
    }

    fn runs(&mut self) {
        let problem = self.problem;
        let mut seen = vec![false; problem.jobs.len()];
        for run in &self.schedule.runs {
            let at = run.start_ms;
            let Some(job) = problem.jobs.get(run.job) else {
                self.report(Rule::Once, at, &format!("job {}", run.job), "no such job".into());
                continue;
            };
            let name = &job.name;
            if std::mem::replace(&mut seen[run.job], true) {
                self.report(Rule::Once, at, name, "it runs twice".into());
            }
            let count = run.gpus.count();
            let wider = job.wider.iter().filter(|shape| shape.width == count);
            let asked = (count == job.width).then_some(job.run_ms);
            let takes = asked.or_else(|| wider.map(|shape| shape.run_ms).next());
            if takes.is_none() {
                let detail = format!("{count} GPUs instead of {}", job.width);
                self.report(Rule::Width, at, name, detail);
            }
            let takes = takes.unwrap_or(job.run_ms);
            let inherited = problem.inherited.contains(run);
            let apart = run.gpus.0.checked_shr(run.gpus.0.trailing_zeros()).unwrap_or(0);
            let line = apart & apart.wrapping_add(1) == 0 && apart != 0;
            let exists =
                run.gpus.is_within(GpuSet::first(problem.gpus)) && run.node < problem.nodes;
            if !exists || !(line || inherited) {
                let detail = format!("GPUs {:?} of node {}", run.gpus, run.node);
                self.report(Rule::Contiguous, at, name, detail);
            }
            if Some(run.end_ms) != at.checked_add(takes) {
                let detail = format!("ends at {} ms, takes {takes} ms", run.end_ms);
                self.report(Rule::Length, at, name, detail);
            }
            if self.schedule.rejected.contains(&run.job) {
                self.report(Rule::Once, at, name, "it runs, and is said to be refused".into());
            }
            if !inherited && (at < job.arrival_ms || at >= problem.horizon_ms) {
                let detail = format!("arrives at {} ms", job.arrival_ms);
                self.report(Rule::Begin, at, name, detail);
            }
            if at % problem.step_ms != 0 || run.end_ms % problem.step_ms != 0 {
                self.report(Rule::Grid, at, name, format!("steps are {} ms", problem.step_ms));
            }
        }
    }

    fn inherited(&mut self) {
        for run in &self.problem.inherited {
            if !self.schedule.runs.contains(run) {
                let name = &self.problem.jobs[run.job].name;
                self.report(Rule::Inherited, run.start_ms, name, "it was moved or ended".into());
            }
        }
    }

    /// Looks at each GPU alone, and at who follows whom on it.
    fn holders(&mut self) {
        let mut by_gpu: BTreeMap<(usize, u32), Vec<Hold<'_>>> = BTreeMap::new();
        for run in &self.schedule.runs {
            let name = self.problem.jobs.get(run.job).map_or("", |job| job.name.as_str());
            for gpu in run.gpus.iter() {
                let line = by_gpu.entry((run.node, gpu)).or_default();
                line.push((run.start_ms, run.end_ms, name));
            }
        }
        for held in &self.schedule.held {
            let service = self.problem.services.get(held.service);
            let name = service.map_or("", |service| service.name.as_str());
            for gpu in held.gpus.iter() {
                let line = by_gpu.entry((0, gpu)).or_default();
                line.push((held.start_ms, held.end_ms, name));
            }
        }
        for ((_, gpu), mut line) in by_gpu {
            line.sort_unstable();
            for pair in line.windows(2) {
                let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
                if start < end {
                    let detail = format!("shares GPU {gpu} with {first}");
                    self.report(Rule::OneHolder, start, second, detail);
                }
            }
        }
    }

    /// That what services hold exists, and lies on the grid.
    fn held(&mut self) {
        let Problem { step_ms, horizon_ms, gpus, .. } = *self.problem;
        for held in &self.schedule.held {
            let at = held.start_ms;
            let Some(service) = self.problem.services.get(held.service) else {
                let who = format!("service {}", held.service);
                self.report(Rule::Once, at, &who, "no such service".into());
                continue;
            };
            if !held.gpus.is_within(GpuSet::first(gpus)) || held.gpus.is_empty() {
                let detail = format!("GPUs {:?}", held.gpus);
                self.report(Rule::Contiguous, at, &service.name, detail);
            }
            if !(at % step_ms == 0 && held.end_ms % step_ms == 0) {
                self.report(Rule::Grid, at, &service.name, format!("steps are {step_ms} ms"));
            }
            if at >= held.end_ms || held.end_ms > horizon_ms {
                let detail = format!("until {} ms", held.end_ms);
                self.report(Rule::Begin, at, &service.name, detail);
            }
        }
    }

    fn services(&mut self) {
        for at in 0..self.problem.services.len() {
            self.service(at);
        }
    }

    /// Looks at one service step by step: by how much it grows, and whether it needs what it has.
    fn service(&mut self, at: usize) {
        let Problem { step_ms, churn_limit, .. } = *self.problem;
        let service = &self.problem.services[at];
        let reasons = self.ahead(at);
        let mut spans: Vec<_> = self.schedule.held.iter().filter(|h| h.service == at).collect();
        spans.sort_by_key(|held| held.start_ms);
        let mut spans = spans.into_iter().peekable();
        let mut holding: Vec<(u64, GpuSet)> = Vec::new();
        let mut before: Option<GpuSet> = None;
        for (step, ahead) in (0_u64..).zip(reasons) {
            let now_ms = step * step_ms;
            holding.retain(|(end_ms, _)| *end_ms > now_ms);
            while let Some(held) = spans.next_if(|held| held.start_ms <= now_ms) {
                holding.push((held.end_ms, held.gpus));
            }
            let now = holding.iter().fold(GpuSet::EMPTY, |set, (_, gpus)| set.union(*gpus));
            let grown = before.map_or(0, |before| now.minus(before).count());
            if grown > churn_limit {
                let detail = format!("{grown} new GPUs in one step, limit {churn_limit}");
                self.found.push(breach(Rule::Churn, now_ms, &service.name, detail));
            }
            let count = i64::from(now.count());
            if count > i64::from(service.demand.at(now_ms)).max(ahead) {
                let detail = format!("{count} GPUs, more than it needs");
                self.found.push(breach(Rule::Demand, now_ms, &service.name, detail));
            }
            before = Some(now);
        }
    }

    /// For each step, how many GPUs a service may hold only because the churn limit forbids to
    /// take them when the forecast rises: each step until the rise, one limit less.
    fn ahead(&self, at: usize) -> Vec<i64> {
        let Problem { step_ms, churn_limit, .. } = *self.problem;
        let forecast = &self.problem.services[at].forecast;
        let steps = usize::try_from(self.problem.steps()).unwrap_or(usize::MAX);
        let mut reasons = vec![i64::MIN; steps];
        let mut later = i64::MIN;
        for (step, reason) in (0..self.problem.steps()).rev().zip(reasons.iter_mut().rev()) {
            *reason = later.saturating_sub(i64::from(churn_limit));
            later = i64::from(forecast.at(step * step_ms)).max(*reason);
        }
        reasons
    }
}

fn breach(rule: Rule, at_ms: u64, who: &str, detail: String) -> Violation {
    Violation { rule, at_ms, who: who.to_owned(), detail }
}

//! Pure side: the schedules of several policies above one another on one time axis, as one SVG:
//! who ran on which GPUs, what services needed, how full the node was, and how value grew.
//!
//! A job is one block over its GPUs. Its name stands in it where it fits; every block tells all
//! about itself on pointing at it, so that sixty jobs stay readable. The same report gives the
//! same bytes.

mod style;

use std::collections::BTreeSet;

use super::compare::Entry;
use super::metrics::{in_time, to_f64, used_by_step};
use super::report::Report;
use crate::policy::GpuSet;
use crate::sim::{Problem, Run};
use crate::timeline::svg::draw::{Area, Elements, text_width};
use crate::trace::{HOUR_MS, clock_time};

const WIDTH: f64 = 1240.0;
const LEFT: f64 = 64.0;
const EDGE: f64 = WIDTH - 28.0;
const TOP: f64 = 118.0;
/// Height of all GPUs of one policy, and the least of one.
const GANTT: f64 = 136.0;
const ROW_MIN: f64 = 5.0;
const STRIP: f64 = 30.0;
const GAP: f64 = 22.0;
const VALUE: f64 = 190.0;
const NAME_SIZE: f64 = 9.5;

/// Draws the report. Only the first node is shown.
pub fn render(report: &Report, title: &str) -> String {
    let problem = &report.problem;
    let kinds: BTreeSet<&str> = problem.jobs.iter().map(|job| job.kind.as_str()).collect();
    let canvas = Canvas { problem, kinds: kinds.into_iter().collect() };
    let mut above = Elements::default();
    let mut y = TOP + 14.0;
    for entry in &report.entries {
        y = canvas.policy(&mut above, entry, y) + GAP;
    }
    y = canvas.values(&mut above, report, y);
    let mut all = Elements::default();
    all.rect("paper", Area { x: 0.0, y: 0.0, width: WIDTH, height: y + 34.0 }, 0.0, "");
    canvas.heading(&mut all, title);
    canvas.axis(&mut all, y);
    all.append(&above);
    all.document(title, (WIDTH, y + 34.0), style::HEAD)
}

struct Canvas<'a> {
    problem: &'a Problem,
    kinds: Vec<&'a str>,
}

impl Canvas<'_> {
    fn x(&self, ms: u64) -> f64 {
        let share = to_f64(ms.min(self.problem.horizon_ms)) / to_f64(self.problem.horizon_ms);
        LEFT + (EDGE - LEFT) * share
    }

    fn pitch(&self) -> f64 {
        (GANTT / f64::from(self.problem.gpus)).max(ROW_MIN)
    }

    fn fill(&self, kind: &str) -> usize {
        let place = self.kinds.iter().position(|known| *known == kind).unwrap_or_default();
        place.min(style::FILLS - 1)
    }

    fn heading(&self, out: &mut Elements, title: &str) {
        out.text("title", (28.0, 38.0), title);
        let problem = self.problem;
        let facts = format!(
            "{} jobs on {} GPUs until {}   ·   a block is one job on its GPUs; point at it for its facts",
            problem.jobs.len(),
            problem.gpus,
            clock_time(problem.horizon_ms),
        );
        out.text("facts", (28.0, 60.0), &facts);
        let mut x = 28.0;
        let mut item = |out: &mut Elements, class: &str, label: &str| {
            let y = if class.starts_with("demand") { 80.0 } else { 74.0 };
            if class == "demand" {
                out.line(class, (x, y), (x + 20.0, y), "");
            } else {
                out.rect(class, Area { x, y, width: 20.0, height: 12.0 }, 2.0, "");
            }
            out.text("facts", (x + 26.0, 85.0), label);
            x += 26.0 + text_width(label, 12.5) + 8.0;
        };
        for kind in &self.kinds {
            item(out, &format!("job k{}", self.fill(kind)), kind);
        }
        if !problem.services.is_empty() {
            item(out, "service", "service");
            item(out, "demand", "demand");
        }
        item(out, "job late", "ends late");
    }

    fn axis(&self, out: &mut Elements, bottom: f64) {
        let hours = self.problem.horizon_ms.div_ceil(HOUR_MS);
        let every = [1, 2, 3, 6, 12, 24].into_iter().find(|step| hours / step <= 16);
        let every = every.unwrap_or_else(|| hours.div_ceil(16).next_multiple_of(24)) * HOUR_MS;
        let ticks = (0..=self.problem.horizon_ms / every).map(|tick| tick * every);
        for at in ticks {
            let x = self.x(at);
            out.line("grid", (x, TOP), (x, bottom + 6.0), "");
            out.text("tick", (x, TOP - 5.0), &clock_time(at));
            out.text("tick", (x, bottom + 20.0), &clock_time(at));
        }
    }

    /// One policy: its figures, its blocks, and how full the node was.
    fn policy(&self, out: &mut Elements, entry: &Entry, top: f64) -> f64 {
        let m = &entry.metrics;
        out.text("policy", (LEFT, top + 12.0), entry.name.as_str());
        let facts = format!(
            "utilisation {:.1} %   ·   value {:.0}, by deadline {:.0}   ·   {} started, {} missed",
            m.utilisation * 100.0,
            m.value_gpu_hours,
            m.value_done,
            m.jobs_started,
            m.deadline_misses,
        );
        out.text("facts", (LEFT + 170.0, top + 12.0), &facts);
        let rows = top + 20.0;
        let pitch = self.pitch();
        for gpu in 0..self.problem.gpus {
            let y = rows + pitch * f64::from(gpu);
            let area = Area { x: LEFT, y, width: EDGE - LEFT, height: pitch - 1.0 };
            out.rect("row", area, 0.0, "");
            out.text("side", (LEFT - 6.0, y + pitch / 2.0 + 3.0), &gpu.to_string());
        }
        for held in &entry.schedule.held {
            let service = &self.problem.services[held.service].name;
            for part in blocks(held.gpus) {
                let area = self.area(rows, part, held.start_ms, held.end_ms);
                out.rect("service", area, 0.0, service);
            }
        }
        for run in entry.schedule.runs.iter().filter(|run| run.node == 0) {
            self.job(out, entry, run, rows);
        }
        let strip = rows + pitch * f64::from(self.problem.gpus) + 4.0;
        self.strip(out, entry, strip);
        strip + STRIP
    }

    fn area(&self, rows: f64, (first, count): (u32, u32), from_ms: u64, to_ms: u64) -> Area {
        let (x, pitch) = (self.x(from_ms), self.pitch());
        let width = (self.x(to_ms) - x).max(0.6);
        let y = rows + pitch * f64::from(first);
        Area { x, y, width, height: pitch * f64::from(count) - 1.0 }
    }

    fn job(&self, out: &mut Elements, entry: &Entry, run: &Run, rows: f64) {
        let job = &self.problem.jobs[run.job];
        let late = if in_time(self.problem, run) { "" } else { " late" };
        let mut hint = format!(
            "{} ({}), priority {}, {} to {}",
            job.name,
            job.kind,
            job.priority,
            clock_time(run.start_ms),
            clock_time(run.end_ms),
        );
        if let Some(deadline) = job.deadline_ms {
            hint = format!("{hint}, due {}", clock_time(deadline));
        }
        if let Some(why) = entry.explanations.iter().find(|why| why.job == run.job) {
            hint = format!("{hint}; {}: {}", why.reason, why.score);
        }
        let class = format!("job k{}{late}", self.fill(&job.kind));
        for part in blocks(run.gpus) {
            let area = self.area(rows, part, run.start_ms, run.end_ms);
            out.rect(&class, area, 2.0, &hint);
            let room = area.width - 6.0;
            let short = job.name.rsplit_once('-').map_or(job.name.as_str(), |(_, tail)| tail);
            let label = [job.name.as_str(), short].into_iter();
            let label = label.into_iter().find(|label| text_width(label, NAME_SIZE) <= room);
            if let (Some(label), true) = (label, area.height >= 10.0) {
                let (x, y) = area.middle();
                out.text("name", (x, y + 3.4), label);
            }
        }
    }

    /// GPUs in use over time, and what services needed of them.
    fn strip(&self, out: &mut Elements, entry: &Entry, top: f64) {
        let problem = self.problem;
        let height = |gpus: u32| {
            let share = f64::from(gpus.min(problem.gpus)) / f64::from(problem.gpus);
            top + (STRIP - 2.0) * (1.0 - share)
        };
        let mut used = vec![(LEFT, height(0))];
        let mut last = None;
        let demand = problem.demand();
        for (step, (jobs, services)) in (0_u64..).zip(used_by_step(problem, &entry.schedule)) {
            let serving = services.min(demand.at(step * problem.step_ms));
            if last != Some(jobs + serving) {
                let x = self.x(step * problem.step_ms);
                let before = used.last().map_or(height(0), |point| point.1);
                used.extend([(x, before), (x, height(jobs + serving))]);
                last = Some(jobs + serving);
            }
        }
        let before = used.last().map_or(height(0), |point| point.1);
        used.extend([(EDGE, before), (EDGE, height(0))]);
        out.rect("row", Area { x: LEFT, y: top, width: EDGE - LEFT, height: STRIP - 2.0 }, 0.0, "");
        out.polyline("used", &used, "GPUs in use");
        out.text("side", (LEFT - 6.0, top + STRIP / 2.0 + 3.0), "in use");
        if !problem.services.is_empty() {
            let mut line = vec![(LEFT, height(demand.at(0)))];
            for &(at, gpus) in demand.steps().iter().filter(|&&(at, _)| at < problem.horizon_ms) {
                let before = line.last().map_or(0.0, |point| point.1);
                line.extend([(self.x(at), before), (self.x(at), height(gpus))]);
            }
            let before = line.last().map_or(0.0, |point| point.1);
            line.push((EDGE, before));
            out.polyline("demand", &line, "demand of services");
        }
    }

    /// Value of finished work over time, one line per policy.
    fn values(&self, out: &mut Elements, report: &Report, top: f64) -> f64 {
        out.text("policy", (LEFT, top + 12.0), "value done by the deadline");
        let highest = report.entries.iter().map(|e| e.metrics.value_done).fold(0.0, f64::max);
        let highest = report.bound.as_ref().map_or(highest, |bound| bound.value_done.max(highest));
        let (low, high) = (top + VALUE, top + 28.0);
        let y = |value: f64| low - (low - high) * value / highest.max(1.0);
        if let Some(bound) = &report.bound {
            out.line("grid", (LEFT, y(bound.value_done)), (EDGE, y(bound.value_done)), "");
            out.text("facts", (LEFT + 220.0, y(bound.value_done) - 4.0), "proved upper bound");
        }
        let mut taken: Vec<f64> = Vec::new();
        for (at, entry) in report.entries.iter().enumerate() {
            let mut ends: Vec<(u64, u64)> = entry
                .schedule
                .runs
                .iter()
                .filter(|run| in_time(self.problem, run))
                .map(|run| {
                    let job = &self.problem.jobs[run.job];
                    (run.end_ms, run.work_ms(job, u64::MAX) * u64::from(job.priority))
                })
                .collect();
            ends.sort_unstable();
            let mut sum = 0;
            let mut line = vec![(LEFT, y(0.0))];
            for (end, worth) in ends {
                line.push((self.x(end), y(super::metrics::hours(sum))));
                sum += worth;
                line.push((self.x(end), y(super::metrics::hours(sum))));
            }
            let last = y(super::metrics::hours(sum));
            line.push((EDGE, last));
            let name = entry.name.as_str();
            out.polyline(&format!("curve c{}", at.min(style::FILLS - 1)), &line, name);
            // Names stand at the end of their line, apart from one another.
            let mut label = last - 4.0;
            while taken.iter().any(|other| (other - label).abs() < 12.0) {
                label += 12.0;
            }
            taken.push(label);
            let x = EDGE - 4.0 - text_width(name, 11.0);
            let from = (x - 22.0, label - 4.0);
            out.line(
                &format!("curve c{}", at.min(style::FILLS - 1)),
                from,
                (x - 6.0, label - 4.0),
                "",
            );
            out.text("label", (x, label), name);
        }
        low.max(taken.iter().copied().fold(low, f64::max))
    }
}

/// Runs of neighbours in a set: where each begins, and how many there are.
fn blocks(gpus: GpuSet) -> Vec<(u32, u32)> {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for gpu in gpus.iter() {
        match found.last_mut() {
            Some(last) if last.0 + last.1 == gpu => last.1 += 1,
            _ => found.push((gpu, 1)),
        }
    }
    found
}

//! Pure side: the schedules of several policies above one another on one time axis, as one SVG:
//! who ran on which GPUs, what services needed, how full the node was, and how value grew.
//!
//! A job is one block over its GPUs. Its name stands in it where it fits; every block tells all
//! about itself on pointing at it, so that sixty jobs stay readable. The same report gives the
//! same bytes.

mod style;

use std::collections::{BTreeMap, BTreeSet};

use super::compare::Entry;
use super::explain::Explanation;
use super::metrics::{hours, in_time, in_use, to_f64};
use super::report::Report;
use crate::policy::GpuSet;
use crate::sim::{Problem, Run};
use crate::timeline::svg::draw::{Area, Elements, text_width};
use crate::trace::{DAY_MS, HOUR_MS, MINUTE_MS, clock_time};

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
/// More nodes are not drawn: their rows would be too many to follow.
const NODES_SHOWN: usize = 8;
/// What the marks of the time axis may stand apart.
const MARKS_MS: [u64; 14] = [
    1_000,
    5_000,
    15_000,
    MINUTE_MS,
    5 * MINUTE_MS,
    15 * MINUTE_MS,
    30 * MINUTE_MS,
    HOUR_MS,
    2 * HOUR_MS,
    3 * HOUR_MS,
    6 * HOUR_MS,
    12 * HOUR_MS,
    DAY_MS,
    7 * DAY_MS,
];
const MARKS_MOST: u64 = 16;

/// Draws the report. Of many nodes the first eight are shown.
pub fn render(report: &Report, title: &str) -> String {
    let problem = &report.problem;
    let kinds: BTreeSet<&str> = problem.jobs.iter().map(|job| job.kind.as_str()).collect();
    let kinds = kinds.into_iter().collect();
    let canvas = Canvas { problem, kinds, begin_ms: report.begin_ms };
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
    all.document(title, (WIDTH, y + 34.0), &style::LOOK)
}

struct Canvas<'a> {
    problem: &'a Problem,
    kinds: Vec<&'a str>,
    /// What the clock shows when the play begins.
    begin_ms: u64,
}

impl Canvas<'_> {
    fn x(&self, ms: u64) -> f64 {
        let share = to_f64(ms.min(self.problem.horizon_ms)) / to_f64(self.problem.horizon_ms);
        LEFT + (EDGE - LEFT) * share
    }

    fn nodes(&self) -> usize {
        self.problem.nodes.min(NODES_SHOWN)
    }

    /// Rows of all nodes that are drawn.
    fn rows(&self) -> u32 {
        self.problem.gpus * u32::try_from(self.nodes()).unwrap_or(1)
    }

    fn pitch(&self) -> f64 {
        (GANTT / f64::from(self.rows())).max(ROW_MIN)
    }

    /// The first row of a node.
    fn first_row(&self, node: usize) -> u32 {
        self.problem.gpus * u32::try_from(node).unwrap_or_default()
    }

    fn clock(&self, ms: u64) -> String {
        clock_time(self.begin_ms + ms)
    }

    fn fill(&self, kind: &str) -> usize {
        let place = self.kinds.iter().position(|known| *known == kind).unwrap_or_default();
        place.min(style::FILLS - 1)
    }

    fn heading(&self, out: &mut Elements, title: &str) {
        out.text("title", (28.0, 38.0), title);
        let problem = self.problem;
        let nodes = match (problem.nodes, self.nodes()) {
            (1, _) => String::new(),
            (all, shown) if all == shown => format!("{all} nodes of "),
            (all, shown) => format!("{all} nodes (of which {shown} are drawn) of "),
        };
        let facts = format!(
            "{} jobs on {nodes}{} GPUs until {}   ·   a block is one job on its GPUs; point at it for \
             its facts",
            problem.jobs.len(),
            problem.gpus,
            self.clock(problem.horizon_ms),
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
        // Kinds beyond the last fill share it.
        for (place, kind) in self.kinds.iter().take(style::FILLS).enumerate() {
            let others = place + 1 == style::FILLS && self.kinds.len() > style::FILLS;
            let label = if others { "others" } else { kind };
            item(out, &format!("job k{}", self.fill(kind)), label);
        }
        if !problem.services.is_empty() {
            item(out, "service", "service");
            item(out, "demand", "demand");
        }
        item(out, "job late", "ends late");
    }

    fn axis(&self, out: &mut Elements, bottom: f64) {
        let horizon_ms = self.problem.horizon_ms;
        let every = MARKS_MS.into_iter().find(|every| horizon_ms / every <= MARKS_MOST);
        let every =
            every.unwrap_or_else(|| horizon_ms.div_ceil(MARKS_MOST).next_multiple_of(DAY_MS));
        // Marks stand at round times of the clock, wherever the play begins.
        let first = self.begin_ms.next_multiple_of(every) - self.begin_ms;
        let mut at = first;
        while at <= horizon_ms {
            let x = self.x(at);
            out.line("grid", (x, TOP), (x, bottom + 6.0), "");
            let label = self.clock(at);
            // The last one stays on the paper.
            let middle = x.min(WIDTH - 3.0 - text_width(&label, 11.0) / 2.0);
            out.text("tick", (middle, TOP - 5.0), &label);
            out.text("tick", (middle, bottom + 20.0), &label);
            at += every;
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
        for row in 0..self.rows() {
            let y = rows + pitch * f64::from(row);
            let (node, gpu) = (row / self.problem.gpus, row % self.problem.gpus);
            let area = Area { x: LEFT, y, width: EDGE - LEFT, height: pitch - 1.0 };
            out.rect("row", area, 0.0, "");
            if self.problem.nodes == 1 {
                out.text("side", (LEFT - 6.0, y + pitch / 2.0 + 3.0), &gpu.to_string());
            } else if gpu == 0 {
                let middle = y + pitch * f64::from(self.problem.gpus) / 2.0 + 3.0;
                out.text("side", (LEFT - 6.0, middle), &format!("node {node}"));
                out.line("node", (LEFT, y - 0.5), (EDGE, y - 0.5), "");
            }
        }
        for held in &entry.schedule.held {
            let service = &self.problem.services[held.service].name;
            for part in blocks(held.gpus) {
                let area = self.area(rows, part, held.start_ms, held.end_ms);
                out.rect("service", area, 0.0, service);
            }
        }
        let whys: BTreeMap<usize, &Explanation> =
            entry.explanations.iter().map(|why| (why.job, why)).collect();
        for run in entry.schedule.runs.iter().filter(|run| run.node < self.nodes()) {
            self.job(out, run, whys.get(&run.job).copied(), rows);
        }
        let strip = rows + pitch * f64::from(self.rows()) + 4.0;
        self.strip(out, entry, strip);
        strip + STRIP
    }

    fn area(&self, rows: f64, (first, count): (u32, u32), from_ms: u64, to_ms: u64) -> Area {
        let (x, pitch) = (self.x(from_ms), self.pitch());
        let width = (self.x(to_ms) - x).max(0.6);
        let y = rows + pitch * f64::from(first);
        Area { x, y, width, height: pitch * f64::from(count) - 1.0 }
    }

    fn job(&self, out: &mut Elements, run: &Run, why: Option<&Explanation>, rows: f64) {
        let job = &self.problem.jobs[run.job];
        let late = if in_time(self.problem, run) { "" } else { " late" };
        let mut hint = format!(
            "{} ({}), priority {}, {} to {}",
            job.name,
            job.kind,
            job.priority,
            self.clock(run.start_ms),
            self.clock(run.end_ms),
        );
        if let Some(deadline) = job.deadline_ms {
            hint = format!("{hint}, due {}", self.clock(deadline));
        }
        if let Some(why) = why {
            hint = format!("{hint}; {}: {}", why.reason, why.score);
        }
        let class = format!("job k{}{late}", self.fill(&job.kind));
        let node = self.first_row(run.node);
        for (first, count) in blocks(run.gpus) {
            let area = self.area(rows, (node + first, count), run.start_ms, run.end_ms);
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
        let all = problem.gpus * u32::try_from(problem.nodes).unwrap_or(u32::MAX / 64);
        let height = |gpus: u32| {
            let share = f64::from(gpus.min(all)) / f64::from(all);
            top + (STRIP - 2.0) * (1.0 - share)
        };
        let demand = problem.demand();
        let mut used = vec![(LEFT, height(0))];
        for (at, gpus) in in_use(problem, &entry.schedule) {
            let before = used.last().map_or(height(0), |point| point.1);
            used.extend([(self.x(at), before), (self.x(at), height(gpus))]);
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
        out.text("policy", (LEFT, top + 12.0), "value done by the deadline (priority × GPU-hours)");
        let highest = report.entries.iter().map(|e| e.metrics.value_done).fold(0.0, f64::max);
        let highest = report.bound.as_ref().map_or(highest, |bound| bound.value_done.max(highest));
        let (low, high) = (top + VALUE, top + 28.0);
        let y = |value: f64| low - (low - high) * value / highest.max(1.0);
        for quarter in 0..=4 {
            let value = highest * f64::from(quarter) / 4.0;
            out.line("grid", (LEFT, y(value)), (EDGE, y(value)), "");
            out.text("side", (LEFT - 6.0, y(value) + 3.0), &format!("{value:.0}"));
        }
        if let Some(bound) = &report.bound {
            out.line("bound", (LEFT, y(bound.value_done)), (EDGE, y(bound.value_done)), "");
            out.text("facts", (LEFT + 400.0, y(bound.value_done) - 4.0), "proved upper bound");
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
                line.push((self.x(end), y(hours(sum))));
                sum += worth;
                line.push((self.x(end), y(hours(sum))));
            }
            let last = y(hours(sum));
            line.push((EDGE, last));
            let name = entry.name.as_str();
            out.polyline(&format!("curve c{}", at.min(style::CURVES - 1)), &line, name);
            // Names stand at the end of their line, apart from one another.
            let mut label = last - 4.0;
            while taken.iter().any(|other| (other - label).abs() < 12.0) {
                label += 12.0;
            }
            taken.push(label);
            let x = EDGE - 4.0 - text_width(name, 11.0);
            let from = (x - 22.0, label - 4.0);
            out.line(
                &format!("curve c{}", at.min(style::CURVES - 1)),
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

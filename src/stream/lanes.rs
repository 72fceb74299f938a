//! Pure side: a stretch of a stream as an SVG: for each contender who ran on which GPU, what was
//! kept idle for a large, and how many of each shape waited.

use std::str::FromStr;

use super::measure::Measured;
use super::report::Report;
use super::{short, span, style};
use crate::plan::metrics::to_f64;
use crate::policy::GpuSet;
use crate::sim::{Problem, Run};
use crate::timeline::svg::draw::{Area, Elements};
use crate::trace::parse_duration;

const WIDTH: f64 = 1240.0;
const LEFT: f64 = 96.0;
const EDGE: f64 = WIDTH - 28.0;
const TOP: f64 = 122.0;
const ROW: f64 = 7.0;
const STRIP: f64 = 22.0;
const GAP: f64 = 26.0;
/// Nodes of each contender that are shown.
const NODES: usize = 4;
/// More blocks than this are a smear, and a file of many megabytes.
const BLOCKS_MAX: usize = 20_000;

/// The stretch of time that is drawn, counted from the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// From when.
    pub from_ms: u64,
    /// Until when.
    pub to_ms: u64,
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = |text: &str| if text == "0" { Some(0) } else { parse_duration(text) };
        let window = text.split_once("..").and_then(|(from, to)| {
            let (from_ms, to_ms) = (at(from)?, at(to)?);
            (from_ms < to_ms).then_some(Self { from_ms, to_ms })
        });
        window.ok_or_else(|| "expected FROM..TO in time since the beginning, such as 2d..3d".into())
    }
}

impl Window {
    /// The middle of the stream, as long as a dozen larges and their smalls take.
    fn usual(problem: &Problem) -> Self {
        let mean = |width: u32| {
            let jobs = problem.jobs.iter().filter(|job| job.width == width);
            let (count, sum) = jobs.fold((0, 0_u64), |(n, sum), job| (n + 1, sum + job.run_ms));
            sum.checked_div(count).unwrap_or_default()
        };
        let end_ms = problem.jobs.last().map_or(1, |job| job.arrival_ms.max(1));
        let length_ms = (12 * (mean(1) + mean(problem.gpus))).clamp(1, end_ms);
        let from_ms = (end_ms - length_ms) / 2;
        Self { from_ms, to_ms: from_ms + length_ms }
    }

    fn shows(self, run: &Run) -> bool {
        run.start_ms < self.to_ms && run.end_ms > self.from_ms && run.node < NODES
    }
}

/// Draws the report; fails where the window holds too much to be seen.
pub fn draw(report: &Report, window: Option<Window>) -> Result<String, String> {
    let problem = &report.problem;
    let end_ms = report.entries.iter().map(|entry| entry.figures.end_ms).max().unwrap_or(0);
    if let Some(Window { from_ms, .. }) = window.filter(|window| window.from_ms >= end_ms) {
        return Err(format!(
            "nothing runs from {} on: the last job ends after {}; use an earlier --window",
            span(from_ms),
            short(end_ms)
        ));
    }
    let window = window.unwrap_or_else(|| Window::usual(problem));
    let runs = report.entries.iter().flat_map(|entry| &entry.runs);
    let blocks = runs.filter(|run| window.shows(run)).count();
    if blocks > BLOCKS_MAX {
        return Err(format!(
            "{blocks} runs are too many for a picture (at most {BLOCKS_MAX}): use a shorter \
             --window"
        ));
    }
    let queues: Vec<[Queue; 2]> =
        report.entries.iter().map(|entry| Queue::both(problem, entry)).collect();
    let most = [0, 1].map(|shape| queues.iter().map(|both| both[shape].most(window)).max());
    let canvas = Canvas { problem, window, most: most.map(|most| most.unwrap_or(0).max(1)) };
    let (mut above, mut y) = (Elements::default(), TOP + 14.0);
    for (entry, queues) in report.entries.iter().zip(&queues) {
        y = canvas.contender(&mut above, entry, queues, y) + GAP;
    }
    let mut out = Elements::default();
    out.rect("paper", Area { x: 0.0, y: 0.0, width: WIDTH, height: y + 20.0 }, 0.0, "");
    Canvas::heading(&mut out, report);
    canvas.axis(&mut out, y - GAP);
    out.append(&above);
    Ok(out.document("A stretch of a stream", (WIDTH, y + 20.0), &style::LOOK))
}

/// Who of one shape waits, as time goes on.
struct Queue {
    arrivals: Vec<u64>,
    starts: Vec<u64>,
}

impl Queue {
    fn both(problem: &Problem, entry: &Measured) -> [Self; 2] {
        [false, true].map(|large| {
            let is = |width: u32| (width == problem.gpus) == large;
            let jobs = problem.jobs.iter().filter(|job| is(job.width));
            let runs = entry.runs.iter().filter(|run| is(problem.jobs[run.job].width));
            let mut starts: Vec<u64> = runs.map(|run| run.start_ms).collect();
            starts.sort_unstable();
            Self { arrivals: jobs.map(|job| job.arrival_ms).collect(), starts }
        })
    }

    fn at(&self, at_ms: u64) -> usize {
        let by = |times: &[u64]| times.partition_point(|&time| time <= at_ms);
        by(&self.arrivals).saturating_sub(by(&self.starts))
    }

    fn most(&self, window: Window) -> usize {
        moments(window).map(|at| self.at(at)).max().unwrap_or_default()
    }
}

/// As many moments as a strip has pixels to tell apart.
fn moments(window: Window) -> impl Iterator<Item = u64> {
    let length = window.to_ms - window.from_ms;
    (0..=500).map(move |step| window.from_ms + length / 500 * step)
}

struct Canvas<'a> {
    problem: &'a Problem,
    window: Window,
    /// The most smalls and larges that wait under any contender.
    most: [usize; 2],
}

impl Canvas<'_> {
    fn x(&self, ms: u64) -> f64 {
        let Window { from_ms, to_ms } = self.window;
        let past = to_f64(ms.clamp(from_ms, to_ms) - from_ms);
        LEFT + (EDGE - LEFT) * past / to_f64(to_ms - from_ms)
    }

    fn heading(out: &mut Elements, report: &Report) {
        out.text("title", (28.0, 38.0), "Who ran on which GPU");
        let nodes = report.problem.nodes;
        let cut =
            if nodes > NODES { format!(" (the first {NODES} are shown)") } else { String::new() };
        out.text("facts", (28.0, 60.0), &format!("{}{cut}", report.headline()));
        let items = [
            ("small", "one GPU"),
            ("large", "whole node"),
            ("kept", "free, and kept for a large"),
            ("queue-small", "smalls that wait"),
            ("queue-large", "larges that wait"),
        ];
        let mut x = 28.0;
        for (class, label) in items {
            out.rect(class, Area { x, y: 74.0, width: 20.0, height: 12.0 }, 2.0, "");
            out.text("facts", (x + 26.0, 85.0), label);
            x += 26.0 + crate::timeline::svg::draw::text_width(label, 12.5) + 8.0;
        }
    }

    fn axis(&self, out: &mut Elements, bottom: f64) {
        const STEPS_S: [u64; 15] = [
            1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000,
            864_000, 8_640_000,
        ];
        let Window { from_ms, to_ms } = self.window;
        let fits = |step: &u64| (to_ms - from_ms) / (step * 1_000) <= 14;
        let every = STEPS_S.into_iter().find(fits).unwrap_or(86_400_000) * 1_000;
        let mut at = from_ms.next_multiple_of(every);
        while at <= to_ms {
            let x = self.x(at);
            out.line("grid", (x, TOP), (x, bottom + 6.0), "");
            out.text("tick", (x, TOP - 5.0), &span(at));
            out.text("tick", (x, bottom + 20.0), &span(at));
            at += every;
        }
    }

    /// One contender: its figures, its nodes, and who waits.
    fn contender(
        &self,
        out: &mut Elements,
        entry: &Measured,
        queues: &[Queue; 2],
        top: f64,
    ) -> f64 {
        let figures = &entry.figures;
        out.text("head", (LEFT, top + 12.0), &figures.name);
        let facts = format!(
            "over the whole stream: {:.1} % used, {:.1} % held idle; 95 of 100 smalls waited {} at \
             most, larges {}",
            figures.utilisation * 100.0,
            figures.held_idle * 100.0,
            figures.small.p95_ms.map_or_else(|| "for ever".into(), short),
            figures.whole_node_large.p95_ms.map_or_else(|| "for ever".into(), short),
        );
        let x = LEFT + crate::timeline::svg::draw::text_width(&figures.name, 14.0) + 16.0;
        out.text("facts", (x, top + 12.0), &facts);
        let mut y = top + 20.0;
        for node in 0..self.problem.nodes.min(NODES) {
            self.node(out, entry, node, y);
            y += ROW * f64::from(self.problem.gpus) + 5.0;
        }
        for (shape, queue) in queues.iter().enumerate() {
            y = self.strip(out, queue, shape, y) + 3.0;
        }
        y
    }

    fn node(&self, out: &mut Elements, entry: &Measured, node: usize, top: f64) {
        let height = ROW * f64::from(self.problem.gpus);
        let all = Area { x: LEFT, y: top, width: EDGE - LEFT, height };
        out.rect("row", all, 0.0, "");
        out.text("side", (LEFT - 8.0, top + height / 2.0 + 3.0), &format!("node {}", node + 1));
        let mut since = None;
        let gates = entry.gates.iter().filter(|gate| gate.node == node);
        let end = (self.window.to_ms, false);
        for (at_ms, kept) in gates.map(|gate| (gate.at_ms, gate.kept)).chain([end]) {
            if let Some(from) = since.take().filter(|&from| from < self.window.to_ms)
                && at_ms > self.window.from_ms
            {
                let (x, to) = (self.x(from), self.x(at_ms));
                out.rect("kept", Area { x, width: to - x, ..all }, 0.0, "");
            }
            since = kept.then_some(at_ms);
        }
        let shown = |run: &&Run| run.node == node && self.window.shows(run);
        for run in entry.runs.iter().filter(shown) {
            let whole = run.gpus == GpuSet::first(self.problem.gpus);
            let class = if whole { "large" } else { "small" };
            let (x, to) = (self.x(run.start_ms), self.x(run.end_ms));
            let (Some(first), count) = (run.gpus.iter().next(), run.gpus.count()) else { continue };
            let (y, height) = (top + ROW * f64::from(first), ROW * f64::from(count));
            let waited = run.start_ms - self.problem.jobs[run.job].arrival_ms;
            let ran = run.end_ms - run.start_ms;
            let hint = format!("job {}: waited {}, ran {}", run.job, span(waited), span(ran));
            out.rect(class, Area { x, y, width: to - x, height }, 0.0, &hint);
        }
    }

    fn strip(&self, out: &mut Elements, queue: &Queue, shape: usize, top: f64) -> f64 {
        let (class, name) = [("queue-small", "smalls"), ("queue-large", "larges")][shape];
        let bottom = top + STRIP;
        let mut points = vec![(LEFT, bottom)];
        let height = |waiting: usize| {
            let whole = |count: usize| to_f64(u64::try_from(count).unwrap_or(u64::MAX));
            // The root keeps two in sight beside a hundred.
            bottom - STRIP * libm::sqrt(whole(waiting) / whole(self.most[shape]))
        };
        let mut before = None;
        for at in moments(self.window) {
            let y = height(queue.at(at));
            points.extend(before.map(|before| (self.x(at), before)));
            points.push((self.x(at), y));
            before = Some(y);
        }
        points.push((EDGE, bottom));
        out.rect("row", Area { x: LEFT, y: top, width: EDGE - LEFT, height: STRIP }, 0.0, "");
        out.polyline(class, &points, "");
        let most = queue.most(self.window);
        out.text("side", (LEFT - 8.0, bottom - 7.0), &format!("{name} ≤ {most}"));
        bottom
    }
}

//! Pure side: how waits are distributed, as an SVG: for each shape the share of jobs that waited
//! longer than a time, both axes logarithmic, so that the tail is as plain as the middle.
//!
//! A line ends in a dot at the longest wait. One that runs on to the edge belongs to a contender
//! under which jobs never started.

use super::measure::Measured;
use super::report::Report;
use super::{span, style};
use crate::plan::metrics::to_f64;
use crate::timeline::svg::draw::{Area, Elements, text_width};

const WIDTH: f64 = 1240.0;
const TOP: f64 = 150.0;
const HEIGHT: f64 = 360.0;
const PANEL: f64 = 540.0;
const LEFTS: [f64; 2] = [76.0, 672.0];
/// Points of a line.
const POINTS: u32 = 270;
/// Times that an axis may name, in seconds.
const TICKS_S: [u64; 12] =
    [1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800, 2_592_000, 8_640_000, 31_536_000, 315_360_000];

/// Draws the report.
pub fn draw(report: &Report) -> String {
    let axes = Axes::of(report);
    let mut out = Elements::default();
    let height = TOP + HEIGHT + 56.0;
    out.rect("paper", Area { x: 0.0, y: 0.0, width: WIDTH, height }, 0.0, "");
    out.text("title", (28.0, 38.0), "How long jobs wait");
    out.text("facts", (28.0, 60.0), &report.headline());
    legend(&mut out, report);
    let panels = [("One-GPU jobs", true), ("Whole-node jobs", false)];
    for ((title, small), left) in panels.into_iter().zip(LEFTS) {
        axes.frame(&mut out, left, title);
        for (at, entry) in report.entries.iter().enumerate() {
            axes.line(&mut out, left, entry, small, at.min(style::LOOKS - 1));
        }
    }
    out.document("How long jobs wait", (WIDTH, height), &style::LOOK)
}

fn legend(out: &mut Elements, report: &Report) {
    let (mut x, mut y) = (28.0, 84.0);
    for (at, entry) in report.entries.iter().enumerate() {
        let name = &entry.figures.name;
        let width = 30.0 + text_width(name, 12.5) + 18.0;
        if x + width > WIDTH - 28.0 {
            (x, y) = (28.0, y + 20.0);
        }
        let class = format!("curve c{}", at.min(style::LOOKS - 1));
        out.line(&class, (x, y - 4.0), (x + 24.0, y - 4.0), "");
        out.text("facts", (x + 30.0, y), name);
        x += width;
    }
}

struct Axes {
    from: f64,
    to: f64,
    decades: f64,
}

/// Of a time in milliseconds.
fn log(ms: u64) -> f64 {
    libm::log10(to_f64(ms.max(1)))
}

impl Axes {
    fn of(report: &Report) -> Self {
        let waits = report.entries.iter();
        let waits = waits.flat_map(|e| [e.small_waits_ms.last(), e.large_waits_ms.last()]);
        let longest = waits.flatten().copied().max().unwrap_or(0).max(10_000);
        let to = log(longest) + 0.1;
        // Five decades show all that matters; whoever waited less stands at the left edge.
        let ticks = TICKS_S.iter().rev().map(|seconds| log(seconds * 1_000));
        let from = ticks.into_iter().find(|&tick| tick <= to - 4.0).unwrap_or(3.0).min(to - 1.0);
        let jobs = report
            .entries
            .iter()
            .map(|e| e.figures.small.jobs.max(e.figures.whole_node_large.jobs));
        let most = u64::try_from(jobs.max().unwrap_or(1)).unwrap_or(u64::MAX);
        let decades = libm::ceil(libm::log10(to_f64(most.max(10)))).clamp(1.0, 5.0);
        Self { from, to, decades }
    }

    fn x(&self, left: f64, log_ms: f64) -> f64 {
        left + PANEL * ((log_ms - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn y(&self, share: f64) -> f64 {
        let down = -libm::log10(share.max(1e-9)) / self.decades;
        TOP + HEIGHT * down.clamp(0.0, 1.0)
    }

    fn frame(&self, out: &mut Elements, left: f64, title: &str) {
        let area = Area { x: left, y: TOP, width: PANEL, height: HEIGHT };
        out.rect("row", area, 0.0, "");
        out.text("head", (left, TOP - 12.0), title);
        for seconds in TICKS_S {
            let at = log(seconds * 1_000);
            if at < self.from || at > self.to {
                continue;
            }
            let x = self.x(left, at);
            out.line("grid", (x, TOP), (x, TOP + HEIGHT + 5.0), "");
            out.text("tick", (x, TOP + HEIGHT + 19.0), &span(seconds * 1_000));
        }
        let mut share = 1.0;
        let mut label = 100.0;
        while self.y(share) < TOP + HEIGHT - 0.5 || share > 0.99 {
            let y = self.y(share);
            out.line("grid", (left - 4.0, y), (left + PANEL, y), "");
            out.text("side", (left - 8.0, y + 3.5), &format!("{label} %"));
            share /= 10.0;
            label /= 10.0;
        }
        let what = "waited longer than this";
        out.text("tick", (left + PANEL / 2.0, TOP + HEIGHT + 40.0), what);
    }

    fn line(&self, out: &mut Elements, left: f64, entry: &Measured, small: bool, look: usize) {
        let (waits, figures) = if small {
            (&entry.small_waits_ms, &entry.figures.small)
        } else {
            (&entry.large_waits_ms, &entry.figures.whole_node_large)
        };
        if figures.jobs == 0 {
            return;
        }
        let jobs = to_f64(u64::try_from(figures.jobs).unwrap_or(u64::MAX));
        let longer = |log_ms: f64| {
            let within = waits.partition_point(|&wait| log(wait) <= log_ms);
            to_f64(u64::try_from(figures.jobs - within).unwrap_or(u64::MAX)) / jobs
        };
        let mut points = Vec::new();
        for point in 0..=POINTS {
            let step = f64::from(point) / f64::from(POINTS);
            let at = self.from + (self.to - self.from) * step;
            let share = longer(at);
            if share <= 0.0 {
                break;
            }
            points.push((self.x(left, at), self.y(share)));
        }
        let end = waits.last().map(|&longest| (self.x(left, log(longest)), self.y(1.0 / jobs)));
        points.extend(end.filter(|_| figures.never == 0));
        out.polyline(&format!("curve c{look}"), &points, &entry.figures.name);
        if let Some(end) = end.filter(|_| figures.never == 0) {
            out.dot(&format!("d{look}"), end, 3.2);
        }
    }
}

//! Pure side: the timeline as one SVG picture.
//!
//! The elements are written by hand rather than by a charting library: what makes this picture
//! readable is text that fits its bar, rounded bars, a hatch and a hint on each shape, and a
//! chart's axes are the smaller part of it. The same input gives the same bytes.

pub(crate) mod draw;
mod queue;
mod style;

use std::time::Duration;

use super::build::bare;
use super::check::overlapping;
use super::text::{counted, short_ids};
use super::time::{length, tick, tick_step_ms, utc};
use super::{Node, Phase, Pod, Run, Shape, Timeline};
use draw::{Area, Elements, text_width};

const WIDTH: f64 = 1200.0;
/// Where time begins, right of the names of GPUs.
const LEFT: f64 = 128.0;
const RIGHT: f64 = 28.0;
/// Where time ends.
const EDGE: f64 = WIDTH - RIGHT;
const ROW: f64 = 21.0;
const ROW_PITCH: f64 = 24.0;
const PHASE_HEIGHT: f64 = 20.0;
const NODE_GAP: f64 = 18.0;
/// Size of the text in a bar.
const NAME_SIZE: f64 = 11.0;

/// Draws the picture.
pub fn render(timeline: &Timeline, title: &str) -> String {
    let scale = Scale::new(timeline);
    let axis_top = 112.0;
    let mut y = axis_top + 8.0;
    let mut above = Elements::default();
    for node in &timeline.nodes {
        y = NodeView { timeline, scale, node }.draw(&mut above, y) + NODE_GAP;
    }
    y = queue::draw(&mut above, timeline, scale, y);

    let mut all = Elements::default();
    let paper = Area { x: 0.0, y: 0.0, width: WIDTH, height: y + 34.0 };
    all.rect("paper", paper, 0.0, "");
    heading(&mut all, timeline, title);
    axis(&mut all, timeline, scale, (axis_top, y));
    all.append(&above);
    all.document(title, (paper.width, paper.height), &style::LOOK)
}

/// Time to pixels.
#[derive(Clone, Copy)]
struct Scale {
    begin_ms: u64,
    shown_ms: f64,
}

impl Scale {
    /// A little room stays at the end for the phase that the last event began.
    fn new(timeline: &Timeline) -> Self {
        let shown_ms = (to_f64(timeline.span_ms()) * 1.02).max(1.0);
        Self { begin_ms: timeline.begin_ms, shown_ms }
    }

    fn x(self, time_ms: u64) -> f64 {
        let since_ms = to_f64(time_ms.saturating_sub(self.begin_ms));
        LEFT + (EDGE - LEFT) * (since_ms / self.shown_ms).min(1.0)
    }

    /// How long something of that width lasts.
    fn length(self, width: f64) -> Duration {
        Duration::from_secs_f64(self.shown_ms / 1000.0 * width / (EDGE - LEFT))
    }
}

/// Lengths of up to 49 days, which is far beyond what a picture of this kind can show.
fn to_f64(ms: u64) -> f64 {
    f64::from(u32::try_from(ms).unwrap_or(u32::MAX))
}

fn heading(out: &mut Elements, timeline: &Timeline, title: &str) {
    out.text("title", (28.0, 38.0), title);
    let gpus = timeline.nodes.iter().map(|node| node.gpus.len()).sum();
    let wide = match timeline.count(Shape::Wide) {
        0 => String::new(),
        wide => format!(", {wide} wide-small"),
    };
    let mut facts = vec![
        format!(
            "{} small{wide} and {} whole-node-large pods on {} with {}",
            timeline.count(Shape::Small),
            timeline.count(Shape::Large),
            counted(timeline.nodes.len(), "node"),
            counted(gpus, "GPU"),
        ),
        format!("{} from {}", length(timeline.span_ms()), utc(timeline.begin_ms)),
    ];
    let longest = [(Shape::Small, "small"), (Shape::Wide, "wide small"), (Shape::Large, "large")];
    for (shape, name) in longest {
        let pods = timeline.pods.iter().filter(|pod| pod.shape == shape);
        if let Some(wait_ms) = pods.filter_map(Pod::waited_ms).max() {
            facts.push(format!("longest wait of a {name}: {}", length(wait_ms)));
        }
    }
    out.text("facts", (28.0, 60.0), &facts.join("   ·   "));

    let mut x = 28.0;
    let mut item = |out: &mut Elements, class: &str, label: &str| {
        let sample = Area { x, y: 73.0, width: 26.0, height: 13.0 };
        let (_, middle) = sample.middle();
        if let Some(shape) = class.strip_prefix("wait-") {
            out.line(class, (x, middle), (x + 26.0, middle), "");
            out.dot(&format!("go-{shape}"), (x + 26.0, middle), 2.6);
        } else if class == "idle" {
            out.rect("row", sample, 0.0, "");
            out.rect(class, sample, 0.0, "");
        } else {
            out.rect(class, sample, 3.5, "");
        }
        out.text("facts", (x + 34.0, 84.0), label);
        x += 34.0 + text_width(label, 12.5) + 12.0;
    };
    item(out, "small", "small: one GPU");
    item(out, "large", "whole-node-large: every GPU of a node");
    item(out, "idle", "idle behind a closed gate");
    item(out, "wait-small", "waits until it starts");
    // What should not be needs a word only where it is.
    let runs = || timeline.nodes.iter().flat_map(|node| &node.runs);
    if runs().any(|run| !run.ended) {
        item(out, "small open", "no end reported");
    }
    if timeline.nodes.iter().any(has_clash) {
        item(out, "clash", "held twice");
    }
}

fn has_clash(node: &Node) -> bool {
    (0..node.gpus.len()).any(|gpu| {
        let holders = node.runs.iter().filter(|run| run.gpus.contains(&gpu));
        !overlapping(holders).is_empty()
    })
}

fn axis(out: &mut Elements, timeline: &Timeline, scale: Scale, (top, bottom): (f64, f64)) {
    let span_ms = timeline.span_ms();
    let step_ms = tick_step_ms(span_ms, 12);
    for tick_ms in (0..=span_ms / step_ms).map(|tick| tick * step_ms) {
        let x = scale.x(timeline.begin_ms + tick_ms);
        let label = tick(tick_ms, step_ms, span_ms);
        out.line("grid", (x, top + 4.0), (x, bottom + 6.0), "");
        out.text("tick", (x, top - 1.0), &label);
        out.text("tick", (x, bottom + 20.0), &label);
    }
}

struct NodeView<'a> {
    timeline: &'a Timeline,
    scale: Scale,
    node: &'a Node,
}

impl NodeView<'_> {
    /// Draws from `top` down and returns where it ends.
    fn draw(&self, out: &mut Elements, top: f64) -> f64 {
        let mut y = top;
        out.text("node", (28.0, y + 14.0), &self.node.name);
        // A long name needs a line for itself.
        if text_width(&self.node.name, 13.0) > LEFT - 40.0 || self.node.phases.is_empty() {
            y += 22.0;
        }
        if !self.node.phases.is_empty() {
            self.phases(out, y);
            y += PHASE_HEIGHT + 5.0;
        }
        for (gpu, label) in short_ids(&self.node.gpus).iter().enumerate() {
            let area = row(y, gpu);
            out.rect("row", area, 0.0, &self.node.gpus[gpu]);
            out.text("side", (LEFT - 10.0, area.middle().1 + 4.0), label);
        }
        self.gates(out, y);
        for run in &self.node.runs {
            self.run(out, y, run);
        }
        self.clashes(out, y);
        y + ROW_PITCH * count(self.node.gpus.len())
    }

    /// Left and right of each phase; the last one goes on to the edge.
    fn phase_spans(&self) -> impl Iterator<Item = (&super::PhaseSpan, f64, f64)> {
        let last = self.node.phases.len().saturating_sub(1);
        self.node.phases.iter().enumerate().filter_map(move |(at, span)| {
            let from = self.scale.x(span.from_ms);
            let to = if at == last { EDGE } else { self.scale.x(span.to_ms) };
            (to > from).then_some((span, from, to))
        })
    }

    fn phases(&self, out: &mut Elements, top: f64) {
        for (span, from, to) in self.phase_spans() {
            let width = (to - from - 1.0).max(0.8);
            let area = Area { x: from, y: top, width, height: PHASE_HEIGHT };
            let plain = span.phase.to_string();
            let full = match &span.for_pod {
                Some(pod) if span.phase == Phase::Exclusive => format!("{plain}: {}", bare(pod)),
                Some(pod) => format!("{plain} for {}", bare(pod)),
                None => plain.clone(),
            };
            let hint = format!("{full}, {}", length(span.to_ms.saturating_sub(span.from_ms)));
            out.rect(&plain, area, 2.5, &hint);
            if let Some(label) = fitting([full, plain], width - 10.0) {
                out.text("phase", (from + 6.0, top + 14.0), &label);
            }
        }
    }

    /// Shows which GPUs are kept idle: all rows of a phase with a closed gate are hatched, and
    /// what runs is painted over it.
    fn gates(&self, out: &mut Elements, top: f64) {
        for (span, from, to) in self.phase_spans() {
            if !matches!(span.phase, Phase::Draining | Phase::Wave) {
                continue;
            }
            for gpu in 0..self.node.gpus.len() {
                let area = Area { x: from, width: to - from, ..row(top, gpu) };
                out.rect("idle", area, 0.0, "");
            }
        }
    }

    fn run(&self, out: &mut Elements, top: f64, run: &Run) {
        let pod = &self.timeline.pods[run.pod];
        let (from, to) = self.run_x(run);
        let class = match (pod.shape, run.ended) {
            (Shape::Small | Shape::Wide, true) => "small",
            (Shape::Small | Shape::Wide, false) => "small open",
            (Shape::Large, true) => "large",
            (Shape::Large, false) => "large open",
        };
        let hint = hint(self.node, pod, run);
        let blocks = blocks(&run.gpus);
        let widest = blocks.iter().max_by_key(|(first, last)| last - first).copied();
        for (first, last) in blocks {
            let (first_row, last_row) = (row(top, first), row(top, last));
            let area = Area {
                x: from + 0.6,
                y: first_row.y + 0.5,
                width: (to - from - 1.2).max(1.2),
                height: last_row.y + last_row.height - first_row.y - 1.0,
            };
            out.rect(class, area, if pod.shape.is_small() { 4.5 } else { 7.0 }, &hint);
            if widest == Some((first, last)) {
                self.name(out, pod, area);
            }
        }
    }

    fn run_x(&self, run: &Run) -> (f64, f64) {
        let to = if run.ended { self.scale.x(run.to_ms) } else { EDGE };
        (self.scale.x(run.from_ms), to)
    }

    fn name(&self, out: &mut Elements, pod: &Pod, area: Area) {
        let (x, y) = area.middle();
        match pod.shape {
            Shape::Small | Shape::Wide => {
                let names = [Some(bare(&pod.name).to_owned()), self.distinct_tail(pod)];
                if let Some(name) = fitting(names.into_iter().flatten(), area.width - 6.0) {
                    out.text("small-name", (x, y + 4.0), &name);
                }
            }
            Shape::Large => large_name(out, pod, area),
        }
    }

    /// What follows the last dash of a name, if that tells the pod from all others.
    fn distinct_tail(&self, pod: &Pod) -> Option<String> {
        let tail = |pod: &Pod| pod.name.rsplit_once('-').map(|(_, tail)| tail.to_owned());
        let own = tail(pod)?;
        let smalls = self.timeline.pods.iter().filter(|other| other.shape.is_small());
        let same = smalls.filter(|other| tail(other).as_ref() == Some(&own)).count();
        (same == 1).then_some(own)
    }

    /// Two containers on one GPU must not be overlooked.
    fn clashes(&self, out: &mut Elements, top: f64) {
        for gpu in 0..self.node.gpus.len() {
            let mut held_to = LEFT;
            for run in self.node.runs.iter().filter(|run| run.gpus.contains(&gpu)) {
                let (from, to) = self.run_x(run);
                if from < held_to {
                    let width = (held_to.min(to) - from).max(1.5);
                    let area = Area { x: from, width, ..row(top, gpu) };
                    out.rect("clash", area, 0.0, "two containers on one GPU at once");
                }
                held_to = held_to.max(to);
            }
        }
    }
}

/// Writes a large's name and times into its block, or what of it has room.
fn large_name(out: &mut Elements, pod: &Pod, area: Area) {
    const SIZE: f64 = 13.0;
    const LINE: f64 = 17.0;
    let (x, y) = area.middle();
    let mut lines = vec![bare(&pod.name).to_owned()];
    lines.extend(pod.waited_ms().map(|ms| format!("waited {}", length(ms))));
    lines.extend(pod.ran_ms().map(|ms| format!("ran {}", length(ms))));
    if LINE * count(lines.len()) > area.height {
        lines.truncate(1);
    }
    let wide = lines.iter().map(|line| text_width(line, SIZE)).fold(0.0, f64::max);
    if wide + 8.0 <= area.width {
        let first = y + 4.5 - LINE / 2.0 * count(lines.len() - 1);
        for (at, line) in lines.iter().enumerate() {
            let class = if at == 0 { "large-name" } else { "large-more" };
            out.text(class, (x, first + LINE * count(at)), line);
        }
    } else if area.width >= 16.0 && text_width(&lines[0], SIZE) <= area.height {
        out.text_upwards("large-name", (x + 4.5, y), &lines[0]);
    }
}

/// The row of a GPU, where the first one's begins at `top`.
fn row(top: f64, gpu: usize) -> Area {
    Area { x: LEFT, y: top + ROW_PITCH * count(gpu), width: EDGE - LEFT, height: ROW }
}

/// The first label that has room.
fn fitting(labels: impl IntoIterator<Item = String>, room: f64) -> Option<String> {
    labels.into_iter().find(|label| text_width(label, NAME_SIZE) <= room)
}

/// First and last of each stretch of neighbours.
fn blocks(gpus: &[usize]) -> Vec<(usize, usize)> {
    let mut blocks: Vec<(usize, usize)> = Vec::new();
    for gpu in gpus {
        match blocks.last_mut() {
            Some((_, last)) if *last + 1 == *gpu => *last = *gpu,
            _ => blocks.push((*gpu, *gpu)),
        }
    }
    blocks
}

fn count(items: usize) -> f64 {
    f64::from(u32::try_from(items).unwrap_or(u32::MAX))
}

fn hint(node: &Node, pod: &Pod, run: &Run) -> String {
    let gpus: Vec<&str> = run.gpus.iter().map(|gpu| node.gpus[*gpu].as_str()).collect();
    let mut parts = vec![format!("{} ({})", pod.name, pod.shape)];
    parts.extend(pod.waited_ms().map(|ms| format!("waited {}", length(ms))));
    parts.push(if run.ended {
        format!("ran {}", length(run.to_ms.saturating_sub(run.from_ms)))
    } else {
        "reported no end".to_owned()
    });
    parts.extend(run.exit.filter(|code| *code != 0).map(|code| format!("exit {code}")));
    parts.push(gpus.join(" "));
    parts.join(", ")
}

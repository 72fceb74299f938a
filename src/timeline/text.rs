//! Pure side: the timeline as lines of text, for a terminal and for a log.
//!
//! Smalls are thin bars with lower-case letters, larges solid ones with capitals, so that the
//! picture stands without colour.

use std::fmt::Write as _;

use super::build::bare;
use super::time::{length, tick, tick_step_ms, utc};
use super::{Node, Phase, Pod, Shape, Timeline};

/// How to write.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Columns of the terminal.
    pub width: usize,
    /// Whether to use ANSI colours.
    pub color: bool,
}

/// Fewest columns for bars, however narrow the terminal is said to be.
const CELLS_MIN: usize = 20;

/// Writes the whole view.
pub fn render(timeline: &Timeline, options: Options) -> String {
    let labels: Vec<Vec<String>> =
        timeline.nodes.iter().map(|node| short_ids(&node.gpus)).collect();
    let names = labels.iter().flatten().map(|label| label.chars().count());
    let margin = names.max().unwrap_or(0).max("waiting large".len()) + 2;
    let cells = options.width.saturating_sub(margin).max(CELLS_MIN);
    let canvas = Canvas { timeline, margin, cells, color: options.color };

    let mut out = header(timeline);
    out.push('\n');
    canvas.axis(&mut out);
    for (node, labels) in timeline.nodes.iter().zip(&labels) {
        canvas.node(&mut out, node, labels);
    }
    canvas.waiting(&mut out);
    out.push('\n');
    out.push_str(LEGEND);
    out.push('\n');
    table(&mut out, timeline, &labels);
    out
}

const LEGEND: &str = "\
╺a━╸ small   █A█ whole-node-large   ··· idle behind a closed gate   ??? end not reported
!!! two containers on one GPU       waiting: how many pods, + for ten or more
";

fn header(timeline: &Timeline) -> String {
    let (pods, nodes) = (timeline.pods.len(), timeline.nodes.len());
    let gpus: usize = timeline.nodes.iter().map(|node| node.gpus.len()).sum();
    let wide = match timeline.count(Shape::Wide) {
        0 => String::new(),
        wide => format!("{wide} wide-small, "),
    };
    format!(
        "{} ({} small, {wide}{} whole-node-large) on {}, {}\n\
         {}, {} from the first pod to the last event\n",
        counted(pods, "pod"),
        timeline.count(Shape::Small),
        timeline.count(Shape::Large),
        counted(nodes, "node"),
        counted(gpus, "GPU"),
        utc(timeline.begin_ms),
        length(timeline.span_ms()),
    )
}

/// A number and what it counts.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Ids that fit beside a row: a long one is cut where the ids of the node stay distinct.
pub(super) fn short_ids(ids: &[String]) -> Vec<String> {
    const MOST: usize = 12;
    if ids.iter().all(|id| id.chars().count() <= MOST) {
        return ids.to_vec();
    }
    let head = |id: &String| format!("{}…", id.chars().take(MOST).collect::<String>());
    let tail = |id: &String| {
        let skip = id.chars().count().saturating_sub(MOST);
        format!("…{}", id.chars().skip(skip).collect::<String>())
    };
    let distinct =
        |short: &Vec<String>| short.iter().enumerate().all(|(at, id)| !short[..at].contains(id));
    let heads: Vec<String> = ids.iter().map(head).collect();
    let tails: Vec<String> = ids.iter().map(tail).collect();
    [heads, tails]
        .into_iter()
        .find(distinct)
        .unwrap_or_else(|| (0..ids.len()).map(|at| format!("GPU {at}")).collect())
}

/// How a cell looks where colour is allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Small(usize),
    Large,
    Dim,
    Alarm,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            // Neighbours on a GPU are seldom a multiple of three apart.
            Self::Small(at) => ["\x1b[36m", "\x1b[34m", "\x1b[32m"][at % 3],
            Self::Large => "\x1b[1;33m",
            Self::Dim => "\x1b[2m",
            Self::Alarm => "\x1b[1;31m",
        }
    }
}

type Cells = Vec<(char, Style)>;

struct Canvas<'a> {
    timeline: &'a Timeline,
    margin: usize,
    cells: usize,
    color: bool,
}

impl Canvas<'_> {
    /// The cell that holds a moment. A little room stays at the end for the phase that the last
    /// event began.
    fn cell(&self, time_ms: u64) -> usize {
        let since = u128::from(time_ms.saturating_sub(self.timeline.begin_ms));
        let shown = u128::from(self.timeline.span_ms());
        let shown = (shown + shown / 40).max(1);
        let cells = u128::try_from(self.cells).unwrap_or(u128::MAX);
        let cell = (since * cells + shown / 2) / shown;
        usize::try_from(cell).unwrap_or(self.cells).min(self.cells)
    }

    fn line(&self, out: &mut String, label: &str, cells: &Cells) {
        let mut line = format!("{label:margin$}", margin = self.margin);
        let mut style = Style::Plain;
        for (letter, next) in cells {
            if self.color && *next != style {
                line.push_str(if style == Style::Plain { "" } else { "\x1b[0m" });
                line.push_str(next.code());
                style = *next;
            }
            line.push(*letter);
        }
        if style != Style::Plain {
            line.push_str("\x1b[0m");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }

    fn empty(&self) -> Cells {
        vec![(' ', Style::Plain); self.cells]
    }

    fn axis(&self, out: &mut String) {
        let span_ms = self.timeline.span_ms();
        let most = u64::try_from(self.cells / 9).unwrap_or(1);
        let step_ms = tick_step_ms(span_ms, most);
        let mut cells = self.empty();
        let mut free = 0;
        for tick_ms in (0..=span_ms / step_ms).map(|tick| tick * step_ms) {
            let at = self.cell(self.timeline.begin_ms + tick_ms);
            let label = format!("╷{}", tick(tick_ms, step_ms, span_ms));
            if at >= free && at + label.chars().count() <= self.cells {
                write_at(&mut cells, at, &label, Style::Dim);
                free = at + label.chars().count() + 1;
            }
        }
        self.line(out, "", &cells);
    }

    fn node(&self, out: &mut String, node: &Node, labels: &[String]) {
        let _ = writeln!(out, "{}", node.name);
        if !node.phases.is_empty() {
            self.line(out, "  phase", &self.phases(node));
        }
        for (gpu, label) in labels.iter().enumerate() {
            self.line(out, &format!("  {label}"), &self.gpu(node, gpu));
        }
    }

    /// Where each phase of a node is shown: the last one goes on to the edge.
    fn phase_cells(&self, node: &Node) -> Vec<(usize, usize)> {
        let last = node.phases.len().saturating_sub(1);
        let spans = node.phases.iter().enumerate().map(|(at, span)| {
            let to = if at == last { self.cells } else { self.cell(span.to_ms) };
            (self.cell(span.from_ms), to)
        });
        spans.collect()
    }

    fn phases(&self, node: &Node) -> Cells {
        let mut cells = self.empty();
        for (span, (from, to)) in node.phases.iter().zip(self.phase_cells(node)) {
            if from >= to {
                continue;
            }
            let room = to - from;
            let plain = span.phase.to_string();
            let mut names = Vec::new();
            if let Some(pod) = &span.for_pod {
                names.push(format!("{plain} {}", bare(pod)));
                names.extend(self.mark(pod).map(|mark| format!("{plain} {mark}")));
            }
            // The first that fits beside the stroke; else the plain word is cut.
            let fits = names.into_iter().find(|name| name.chars().count() < room);
            let name = fits.unwrap_or(plain);
            let text: String =
                "│".chars().chain(name.chars()).chain(std::iter::repeat('─')).take(room).collect();
            write_at(&mut cells, from, &text, Style::Dim);
        }
        cells
    }

    /// The letters of a pod that a phase names.
    fn mark(&self, name: &str) -> Option<&str> {
        let pods = &self.timeline.pods;
        let same = |pod: &&Pod| pod.name == name || pod.name == bare(name);
        pods.iter().find(same).map(|pod| pod.mark.as_str())
    }

    fn gpu(&self, node: &Node, gpu: usize) -> Cells {
        let mut cells = self.empty();
        for (span, (from, to)) in node.phases.iter().zip(self.phase_cells(node)) {
            if matches!(span.phase, Phase::Draining | Phase::Wave) {
                write_at(&mut cells, from, &"·".repeat(to.saturating_sub(from)), Style::Dim);
            }
        }
        let mut free = 0;
        // The latest end of the runs so far: what begins before it holds the GPU twice.
        let mut held_to_ms = 0;
        for run in node.runs.iter().filter(|run| run.gpus.contains(&gpu)) {
            let pod = &self.timeline.pods[run.pod];
            let to = if run.ended { self.cell(run.to_ms) } else { self.cells };
            // A short run has one cell, and moves on if the one before it has that.
            let from = self.cell(run.from_ms).max(free).min(self.cells - 1);
            let to = to.max(from + 1);
            let bar = bar(pod, to - from, run.ended);
            let style = match pod.shape {
                Shape::Small | Shape::Wide => Style::Small(run.pod),
                Shape::Large => Style::Large,
            };
            write_at(&mut cells, from, &bar, style);
            if run.from_ms < held_to_ms {
                let first = self.cell(run.from_ms).min(self.cells - 1);
                let last = self.cell(held_to_ms.min(run.to_ms)).max(first + 1);
                write_at(&mut cells, first, &"!".repeat(last - first), Style::Alarm);
            }
            held_to_ms = held_to_ms.max(run.to_ms);
            free = to;
        }
        cells
    }

    /// For each shape, how many pods wait at the middle of each cell.
    fn waiting(&self, out: &mut String) {
        if self.timeline.pods.iter().all(|pod| pod.created_ms.is_none()) {
            return;
        }
        for (shape, label) in [(Shape::Small, "waiting small"), (Shape::Large, "waiting large")] {
            let mut counts = vec![0_usize; self.cells];
            let alike = |pod: &&Pod| pod.shape.is_small() == shape.is_small();
            let pods = self.timeline.pods.iter().filter(alike);
            for (created_ms, pod) in pods.filter_map(|pod| Some((pod.created_ms?, pod))) {
                let from = self.cell(created_ms);
                let to = pod.started_ms.map_or(self.cells, |time_ms| self.cell(time_ms));
                counts.iter_mut().take(to).skip(from).for_each(|count| *count += 1);
            }
            let digit = |count| match count {
                0 => ' ',
                1..=9 => char::from_digit(count, 10).unwrap_or('+'),
                _ => '+',
            };
            let cells = counts
                .into_iter()
                .map(|count| (digit(u32::try_from(count).unwrap_or(u32::MAX)), Style::Plain));
            self.line(out, label, &cells.collect());
        }
    }
}

/// Writes over cells; what does not fit is cut.
fn write_at(cells: &mut Cells, from: usize, text: &str, style: Style) {
    for (cell, letter) in cells.iter_mut().skip(from).zip(text.chars()) {
        *cell = (letter, style);
    }
}

/// A bar of that many cells.
fn bar(pod: &Pod, room: usize, ended: bool) -> String {
    let mark = pod.mark.as_str();
    let letters = mark.chars().count();
    let body = if pod.shape.is_small() {
        match room {
            1 if letters == 1 => mark.to_owned(),
            1 => "▪".to_owned(),
            room if room < letters + 2 => format!("{mark:━<room$}"),
            room => format!("╺{mark:━<fill$}╸", fill = room - 2),
        }
    } else if room < letters {
        "█".repeat(room)
    } else {
        format!("{mark:█^room$}")
    };
    let keep = if ended { room } else { room.saturating_sub(3).max(1) };
    body.chars().take(keep).chain(std::iter::repeat('?')).take(room).collect()
}

/// One line per pod.
fn table(out: &mut String, timeline: &Timeline, labels: &[Vec<String>]) {
    let mut rows = vec![["", "pod", "shape", "waited", "ran", "GPUs"].map(str::to_owned)];
    for (at, pod) in timeline.pods.iter().enumerate() {
        let time = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), length);
        rows.push([
            pod.mark.clone(),
            pod.name.clone(),
            pod.shape.to_string(),
            time(pod.waited_ms()),
            time(pod.ran_ms()),
            place(timeline, at, labels),
        ]);
    }
    let mut widths = [0; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let [mark, name, shape, waited, ran, _] = widths;
    for [a, b, c, d, e, f] in &rows {
        let _ = writeln!(out, "{a:mark$}  {b:name$}  {c:shape$}  {d:>waited$}  {e:>ran$}  {f}");
    }
}

/// On which GPUs a pod ran, and what was unusual about it.
fn place(timeline: &Timeline, pod: usize, labels: &[Vec<String>]) -> String {
    let mut parts = Vec::new();
    for (node, labels) in timeline.nodes.iter().zip(labels) {
        for run in node.runs.iter().filter(|run| run.pod == pod) {
            let mut text = if run.gpus.is_empty() {
                "none".to_owned()
            } else if run.gpus.len() == node.gpus.len() && run.gpus.len() > 1 {
                format!("all {}", run.gpus.len())
            } else {
                run.gpus.iter().map(|gpu| labels[*gpu].as_str()).collect::<Vec<_>>().join(" ")
            };
            if timeline.nodes.len() > 1 {
                let _ = write!(text, " of {}", node.name);
            }
            match run.exit {
                Some(0) | None if run.ended => {}
                Some(code) => {
                    let _ = write!(text, " (exit {code})");
                }
                None => text.push_str(" (end not reported)"),
            }
            parts.push(text);
        }
    }
    if parts.is_empty() { "never started".to_owned() } else { parts.join(", then ") }
}

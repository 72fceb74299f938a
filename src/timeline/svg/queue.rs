//! Pure side: the lane below the nodes, with one line per pod from its creation to its start.

use std::borrow::Cow;

use super::draw::{Area, Elements, text_width};
use super::{EDGE, LEFT, Scale, count};
use crate::timeline::build::bare;
use crate::timeline::time::length;
use crate::timeline::{Pod, Shape, Timeline};

/// Most lines one above the other that still carry names.
const NAMED_LANES_MAX: usize = 14;
/// Height of all lines of one shape when they are many.
const HEIGHT_MAX: f64 = 210.0;
/// A wait shorter than this is a speck that says nothing: it is left out, and the lane says so.
const WIDTH_MIN: f64 = 10.0;

/// A wait with the lane that it lies in.
struct Line<'a> {
    pod: &'a Pod,
    from: f64,
    to: f64,
    lane: usize,
    label: Label,
}

/// Where a pod's name stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    After,
    Before,
    Nowhere,
}

/// The waits of one shape, placed.
struct Packed<'a> {
    lines: Vec<Line<'a>>,
    lanes: usize,
    left_out: usize,
}

/// Draws from `top` down and returns where it ends.
pub(super) fn draw(out: &mut Elements, timeline: &Timeline, scale: Scale, top: f64) -> f64 {
    let mut y = top;
    for shape in [Shape::Large, Shape::Small] {
        y = draw_shape(out, timeline, scale, (shape, y));
    }
    y
}

fn draw_shape(
    out: &mut Elements,
    timeline: &Timeline,
    scale: Scale,
    (shape, top): (Shape, f64),
) -> f64 {
    let mut named = true;
    let mut packed = pack(timeline, scale, shape, named);
    if packed.lanes > NAMED_LANES_MAX {
        named = false;
        packed = pack(timeline, scale, shape, named);
    }
    let Packed { lines, lanes, left_out } = packed;
    if lanes == 0 {
        return top;
    }
    let (name, more) = match shape {
        Shape::Small | Shape::Wide => ("small", "smalls"),
        Shape::Large => ("large", "larges"),
    };
    let pitch = if named { 14.0 } else { (HEIGHT_MAX / count(lanes)).min(7.0) };
    let height = (pitch * count(lanes)).max(24.0) + 6.0;
    let area = Area { x: LEFT, y: top, width: EDGE - LEFT, height };
    out.rect("row", area, 0.0, "");
    let middle = area.middle().1;
    let side = LEFT - 10.0;
    if left_out == 0 {
        out.text("side", (side, middle + 4.0), &format!("{more} waiting"));
    } else {
        out.text("side", (side, middle - 2.0), &format!("{more} waiting"));
        let shortest = scale.length(WIDTH_MIN).as_millis();
        let shortest = length(u64::try_from(shortest).unwrap_or(u64::MAX));
        out.text("wait-note", (side, middle + 10.5), &format!("{shortest} or longer"));
    }
    for line in lines {
        let y = middle + pitch * (count(line.lane) + 0.5 - count(lanes) / 2.0);
        let waited = match line.pod.waited_ms() {
            Some(ms) => format!("waited {}", length(ms)),
            None => "never started".to_owned(),
        };
        let hint = format!("{} {waited}", line.pod.name);
        out.line(&format!("wait-{name}"), (line.from, y), (line.to, y), &hint);
        if line.pod.started_ms.is_some() {
            let radius = if shape == Shape::Large { 3.4 } else { (pitch * 0.4).min(2.6) };
            out.dot(&format!("go-{name}"), (line.to, y), radius);
        }
        match line.label {
            Label::After => out.text("wait-name", (line.to + 7.0, y + 3.5), &label(line.pod)),
            Label::Before => out.text("wait-note", (line.from - 7.0, y + 3.5), &label(line.pod)),
            Label::Nowhere => {}
        }
    }
    top + height + 8.0
}

fn label(pod: &Pod) -> Cow<'_, str> {
    match pod.started_ms {
        Some(_) => Cow::Borrowed(bare(&pod.name)),
        None => Cow::Owned(format!("{}, never started", bare(&pod.name))),
    }
}

/// Puts every wait that is long enough to be seen into the first lane that is free.
fn pack(timeline: &Timeline, scale: Scale, shape: Shape, named: bool) -> Packed<'_> {
    let mut pods: Vec<(u64, &Pod)> = timeline
        .pods
        .iter()
        .filter(|pod| pod.shape.is_small() == shape.is_small())
        .filter_map(|pod| Some((pod.created_ms?, pod)))
        .collect();
    pods.sort_by_key(|(created_ms, _)| *created_ms);
    let mut free: Vec<f64> = Vec::new();
    let mut packed = Packed { lines: Vec::new(), lanes: 0, left_out: 0 };
    for (created_ms, pod) in pods {
        let from = scale.x(created_ms);
        let to = pod.started_ms.map_or(EDGE, |time_ms| scale.x(time_ms));
        if to - from < WIDTH_MIN {
            packed.left_out += 1;
            continue;
        }
        let room = 9.0 + text_width(&label(pod), 10.0);
        let (place, left, right) = if !named {
            (Label::Nowhere, from, to)
        } else if to + room <= EDGE {
            (Label::After, from, to + room)
        } else if from - room >= LEFT {
            (Label::Before, from - room, to)
        } else {
            (Label::Nowhere, from, to)
        };
        let lane = free.iter().position(|free| *free <= left).unwrap_or(free.len());
        if lane == free.len() {
            free.push(0.0);
        }
        free[lane] = right + 6.0;
        packed.lines.push(Line { pod, from, to, lane, label: place });
    }
    packed.lanes = free.len();
    packed
}

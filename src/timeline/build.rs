//! Pure side: puts the records together.

use std::collections::{BTreeMap, BTreeSet};

use super::record::Record;
use super::{Node, Phase, PhaseSpan, Pod, Run, Shape, Timeline};

/// What the records say of one pod.
#[derive(Default)]
struct Draft {
    names: BTreeSet<String>,
    shapes: BTreeSet<Shape>,
    asked: Option<u32>,
    created_ms: Option<u64>,
    admitted_ms: Option<u64>,
    bound_ms: Option<u64>,
    /// Ascending.
    starts: Vec<Start>,
    /// Time and exit code, ascending.
    ends: Vec<(u64, Option<i32>)>,
}

struct Start {
    time_ms: u64,
    node: String,
    gpus: Vec<String>,
}

/// A phase record without its node: when, which, for whom.
type Change = (u64, Phase, Option<String>);

/// Records by what they are about.
#[derive(Default)]
struct Sorted {
    pods: BTreeMap<String, Draft>,
    lists: BTreeMap<String, BTreeSet<Vec<String>>>,
    changes: BTreeMap<String, Vec<Change>>,
}

pub(super) fn timeline(records: Vec<Record>) -> Timeline {
    let Sorted { mut pods, lists, changes } = sort(records);
    strip_namespace(&mut pods);
    let mut timeline = Timeline::default();
    (timeline.begin_ms, timeline.end_ms) = span(&pods, &changes);

    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for (name, lists) in lists {
        let node = nodes.entry(name).or_default();
        node.listed = true;
        node.gpus = joined(lists);
    }
    for (name, changes) in changes {
        nodes.entry(name).or_default().phases = phases(changes, timeline.end_ms);
    }
    add_seen_gpus(&pods, &mut nodes, &mut timeline.contradictions);

    let mut drafts: Vec<(String, Draft)> = pods.into_iter().collect();
    drafts.sort_by_cached_key(|(uid, draft)| {
        let first = draft.starts.first().map_or(u64::MAX, |start| start.time_ms);
        (first, draft.created_ms.unwrap_or(u64::MAX), draft.names.clone(), uid.clone())
    });
    let mut marks = Marks::default();
    for (uid, draft) in drafts {
        let at = timeline.pods.len();
        let pod = pod(uid, &draft, &mut marks, &mut timeline.contradictions);
        let (runs, stray) = runs(at, &draft, &nodes, timeline.end_ms);
        timeline
            .contradictions
            .extend((0..stray).map(|_| format!("pod {} reports an end without a start", pod.name)));
        timeline.pods.push(pod);
        for (name, run) in runs {
            nodes.entry(name).or_default().runs.push(run);
        }
    }
    timeline.nodes = nodes.into_iter().map(|(name, node)| Node { name, ..node }).collect();
    for node in &mut timeline.nodes {
        node.runs.sort_by_key(|run| (run.from_ms, run.pod));
    }
    timeline
}

fn sort(mut records: Vec<Record>) -> Sorted {
    let mut sorted = Sorted::default();
    // Phases first, in the order of the input: it alone tells which of two in the same
    // millisecond came later. Of everything else the order must not matter.
    records.retain(|record| {
        let Record::Phase { time_ms, node, phase, for_pod } = record else { return true };
        let changes = sorted.changes.entry(node.clone()).or_default();
        changes.push((*time_ms, *phase, for_pod.clone()));
        false
    });
    for changes in sorted.changes.values_mut() {
        changes.sort_by_key(|(time_ms, ..)| *time_ms);
    }
    records.sort();
    records.dedup();
    for record in records {
        match record {
            Record::Node { node, gpus } => {
                sorted.lists.entry(node).or_default().insert(gpus);
            }
            Record::Phase { .. } => {}
            Record::Pod { pod, uid, shape, gpus, created_ms, admitted_ms, bound_ms, .. } => {
                let draft = sorted.pods.entry(uid).or_default();
                draft.names.insert(pod);
                draft.shapes.insert(shape);
                draft.asked = draft.asked.max(gpus);
                draft.created_ms = earlier(draft.created_ms, created_ms);
                // A pod may be set back and admitted again: the last time is the one it ran by.
                draft.admitted_ms = draft.admitted_ms.max(admitted_ms);
                draft.bound_ms = draft.bound_ms.max(bound_ms);
            }
            Record::Start { time_ms, pod, uid, node, gpus } => {
                let draft = sorted.pods.entry(uid).or_default();
                draft.names.insert(pod);
                draft.starts.push(Start { time_ms, node, gpus });
            }
            Record::End { time_ms, pod, uid, exit } => {
                let draft = sorted.pods.entry(uid).or_default();
                draft.names.insert(pod);
                draft.ends.push((time_ms, exit));
            }
        }
    }
    sorted
}

fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Leaves the namespace out of the pods' names where there is only one. A name without one is
/// taken to be of that namespace: a container may know its name only.
fn strip_namespace(pods: &mut BTreeMap<String, Draft>) {
    let names = pods.values().flat_map(|draft| &draft.names);
    let namespaces: BTreeSet<&str> =
        names.filter_map(|name| Some(name.split_once('/')?.0)).collect();
    if namespaces.len() > 1 {
        return;
    }
    for draft in pods.values_mut() {
        draft.names = draft.names.iter().map(|name| bare(name).to_owned()).collect();
    }
}

/// A pod's name without its namespace.
pub(super) fn bare(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, bare)| bare)
}

/// From the first creation or start to the last moment of any record. A watcher that was there
/// long before the first pod does not stretch it.
fn span(pods: &BTreeMap<String, Draft>, changes: &BTreeMap<String, Vec<Change>>) -> (u64, u64) {
    let mut times: Vec<u64> = Vec::new();
    for draft in pods.values() {
        times.extend(draft.starts.iter().map(|start| start.time_ms));
        times.extend(draft.ends.iter().map(|(time_ms, _)| *time_ms));
        times.extend([draft.created_ms, draft.admitted_ms, draft.bound_ms].iter().flatten());
    }
    let changes = changes.values().flatten().map(|(time_ms, ..)| *time_ms);
    let begin = times.iter().copied().min().or(changes.clone().min()).unwrap_or(0);
    (begin, times.into_iter().chain(changes).max().unwrap_or(0))
}

/// The longest list, and then what only others name: a node is watched while its agent still
/// finds GPUs, or after one was taken out.
fn joined(lists: BTreeSet<Vec<String>>) -> Vec<String> {
    let mut lists: Vec<Vec<String>> = lists.into_iter().collect();
    // Stable, so that among lists of one length the alphabet decides, not the input.
    lists.sort_by_key(|list| std::cmp::Reverse(list.len()));
    let mut gpus: Vec<String> = Vec::new();
    for gpu in lists.into_iter().flatten() {
        if !gpus.contains(&gpu) {
            gpus.push(gpu);
        }
    }
    gpus
}

/// Spans of the phases, one after the other. A watcher may tell the same phase several times.
fn phases(changes: Vec<Change>, end_ms: u64) -> Vec<PhaseSpan> {
    let mut spans: Vec<PhaseSpan> = Vec::new();
    for (from_ms, phase, for_pod) in changes {
        if let Some(last) = spans.last_mut() {
            if (last.phase, &last.for_pod) == (phase, &for_pod) {
                continue;
            }
            last.to_ms = from_ms;
            if last.from_ms == from_ms {
                spans.pop();
            }
        }
        spans.push(PhaseSpan { phase, for_pod, from_ms, to_ms: end_ms });
    }
    // A phase that lasted no measurable time was taken out; what stood around it may be one.
    spans.dedup_by(|next, last| {
        let same = (last.phase, &last.for_pod) == (next.phase, &next.for_pod);
        if same {
            last.to_ms = next.to_ms;
        }
        same
    });
    spans
}

/// Adds GPUs that some container saw and that no `node` record lists.
fn add_seen_gpus(
    pods: &BTreeMap<String, Draft>,
    nodes: &mut BTreeMap<String, Node>,
    contradictions: &mut Vec<String>,
) {
    for start in pods.values().flat_map(|draft| &draft.starts) {
        let node = nodes.entry(start.node.clone()).or_default();
        for gpu in &start.gpus {
            if node.gpus.contains(gpu) {
                continue;
            }
            if node.listed {
                contradictions.push(format!(
                    "a container on node {} saw GPU {gpu}, which the node's list does not have",
                    start.node
                ));
            }
            node.gpus.push(gpu.clone());
        }
    }
    for node in nodes.values_mut().filter(|node| !node.listed) {
        node.gpus.sort_by_cached_key(|gpu| (natural(gpu), gpu.clone()));
    }
}

/// Sorting key in which numbers count as numbers: `gpu-2` comes before `gpu-10`.
fn natural(id: &str) -> Vec<(String, u64)> {
    let mut parts = vec![(String::new(), 0_u64)];
    let mut in_number = false;
    for letter in id.chars() {
        let digit = letter.to_digit(10).map(u64::from);
        if in_number && digit.is_none() {
            parts.push((String::new(), 0));
        }
        in_number = digit.is_some();
        let Some((text, number)) = parts.last_mut() else { continue };
        match digit {
            Some(digit) => *number = number.saturating_mul(10).saturating_add(digit),
            None => text.push(letter),
        }
    }
    parts
}

fn pod(uid: String, draft: &Draft, marks: &mut Marks, contradictions: &mut Vec<String>) -> Pod {
    let name = draft.names.first().cloned().unwrap_or_else(|| uid.clone());
    if draft.names.len() > 1 {
        let all: Vec<&str> = draft.names.iter().map(String::as_str).collect();
        contradictions.push(format!("one pod has the names {}", all.join(" and ")));
    }
    if draft.shapes.len() > 1 {
        let all: Vec<String> = draft.shapes.iter().map(ToString::to_string).collect();
        contradictions.push(format!("pod {name} is said to be {}", all.join(" and ")));
    }
    let most = draft.starts.iter().map(|start| start.gpus.len()).max().unwrap_or(0);
    let guess = if most > 1 { Shape::Large } else { Shape::Small };
    let shape = draft.shapes.first().copied().unwrap_or(guess);
    // As many ends as starts is the only case in which the last end is the pod's.
    let all_ended = !draft.starts.is_empty() && draft.starts.len() == draft.ends.len();
    Pod {
        name,
        uid,
        shape,
        asked: draft.asked,
        shape_known: !draft.shapes.is_empty(),
        created_ms: draft.created_ms,
        admitted_ms: draft.admitted_ms,
        bound_ms: draft.bound_ms,
        started_ms: draft.starts.first().map(|start| start.time_ms),
        ended_ms: draft.ends.last().map(|(time_ms, _)| *time_ms).filter(|_| all_ended),
        mark: marks.next(shape),
    }
}

/// Pairs starts with ends, and counts the ends that have none. A container may be started again
/// in the same pod, and one that was killed reports no end.
fn runs(
    pod: usize,
    draft: &Draft,
    nodes: &BTreeMap<String, Node>,
    end_ms: u64,
) -> (Vec<(String, Run)>, usize) {
    let mut ends = draft.ends.iter().copied().peekable();
    let mut stray = 0;
    let mut runs = Vec::new();
    for (at, start) in draft.starts.iter().enumerate() {
        while ends.next_if(|(time_ms, _)| *time_ms < start.time_ms).is_some() {
            stray += 1;
        }
        let next_ms = draft.starts.get(at + 1).map(|next| next.time_ms);
        let end = ends.next_if(|(time_ms, _)| next_ms.is_none_or(|next_ms| *time_ms <= next_ms));
        let ids = nodes.get(&start.node).map_or(&[][..], |node| &node.gpus);
        let mut gpus: Vec<usize> =
            start.gpus.iter().filter_map(|gpu| ids.iter().position(|id| id == gpu)).collect();
        gpus.sort_unstable();
        let run = Run {
            pod,
            gpus,
            from_ms: start.time_ms,
            to_ms: end.map_or(next_ms.unwrap_or(end_ms), |(time_ms, _)| time_ms),
            ended: end.is_some(),
            exit: end.and_then(|(_, exit)| exit),
        };
        runs.push((start.node.clone(), run));
    }
    (runs, stray + ends.count())
}

/// Hands out letters: `a` to `z`, then `aa`, `ab`, and so on, in capitals for larges.
#[derive(Default)]
struct Marks {
    smalls: u32,
    larges: u32,
}

impl Marks {
    fn next(&mut self, shape: Shape) -> String {
        let (count, first) = match shape {
            Shape::Small | Shape::Wide => (&mut self.smalls, b'a'),
            Shape::Large => (&mut self.larges, b'A'),
        };
        *count += 1;
        let mut letters = Vec::new();
        let mut rest = *count;
        while rest > 0 {
            rest -= 1;
            // The remainder is below 26.
            letters.push(char::from(first + u8::try_from(rest % 26).unwrap_or(0)));
            rest /= 26;
        }
        letters.iter().rev().collect()
    }
}

//! Pure: why a pod waits and until when at the latest: a reason for programs and a sentence for
//! people, as the pod's condition has them.

use super::names::{counted, list};
use super::{Context, Words};
use crate::policy::{
    Basis, Bound, Explanation, Gap, Holders, JobId, Millis, NoFit, NodeId, Shape, UnreserveReason,
    Wait, Waits,
};

/// What stands before and after a latest start.
const BY: &str = "It starts by ";
const LATEST: &str = " at the latest.";

/// The rule that holds a pod: a reason for programs and a sentence for people.
pub fn rule(
    waits: &Waits,
    explanation: &Explanation,
    context: &Context<'_>,
) -> (&'static str, String) {
    let words = &context.words;
    let now = explanation.now;
    let shape = explanation.known.as_ref().map_or(Shape::Small, |job| job.shape);
    let message = match &waits.wait {
        Wait::Paused => "The pool is paused: it admits nothing.".to_owned(),
        Wait::BackingOff { until, attempts, last } => backing_off(words, *until, *attempts, *last),
        Wait::Quota { .. } | Wait::QuotaTurn { .. } => quota(&waits.wait, shape, context),
        Wait::NoNodeFits(why) => no_fit(*why, shape, context),
        Wait::Behind { ahead, first } => format!(
            "{} before it; {} goes first.",
            counted(*ahead, "pod of this shape stands", "pods of this shape stand"),
            words.pod(*first)
        ),
        Wait::Draining { node, latest_end, .. } => format!(
            "Node {} is being emptied for this pod. {} GPUs there{}.",
            words.node(*node),
            holders(waits, words, "still holds", "still hold"),
            until(waits, now, words, *latest_end)
        ),
        Wait::Wave { node, latest_end } => format!(
            "Node {} is next for this pod, after one wave of small pods: {} there{}.",
            words.node(*node),
            holders(waits, words, "runs", "run"),
            until(waits, now, words, *latest_end)
        ),
        Wait::NodesHeld { exclusive } => format!(
            "{}, and no other that this pod fits can be emptied now.",
            counted(
                *exclusive,
                "node is held by another whole-node pod",
                "nodes are held by other whole-node pods"
            )
        ),
        Wait::KeptOpen { keep } => format!(
            "The pool keeps {} open for small pods, and no other can be emptied for this pod now.",
            counted(*keep, "node", "nodes")
        ),
        Wait::GateClosed { .. }
        | Wait::Exclusive { .. }
        | Wait::Gathering { .. }
        | Wait::Kept { .. }
        | Wait::Busy { .. } => small(&waits.wait, shape, words),
    };
    (reason(&waits.wait), message)
}

/// The reason of a rule, in the form of the API.
pub const fn reason(wait: &Wait) -> &'static str {
    match wait {
        Wait::Paused => "Paused",
        Wait::BackingOff { .. } => "BackingOff",
        Wait::Quota { .. } => "Quota",
        Wait::QuotaTurn { .. } => "QuotaTurn",
        Wait::NoNodeFits(_) => "NoNodeFits",
        Wait::Behind { .. } => "Behind",
        Wait::Draining { .. } => "Draining",
        Wait::Wave { .. } => "Wave",
        Wait::NodesHeld { .. } => "NodesHeld",
        Wait::KeptOpen { .. } => "KeptOpen",
        Wait::GateClosed { .. } => "GateClosed",
        Wait::Exclusive { .. } => "Exclusive",
        Wait::Gathering { .. } => "Gathering",
        Wait::Kept { .. } => "Kept",
        Wait::Busy { .. } => "Busy",
    }
}

/// Reason and sentence of a pod that waits, with its latest start: its condition.
pub fn condition(
    explanation: &Explanation,
    context: &Context<'_>,
) -> Option<(&'static str, String)> {
    let waits = explanation.waits()?;
    let (reason, mut message) = rule(waits, explanation, context);
    if let Some(bound) = bound(waits.bound, explanation.now, &context.words) {
        message.push(' ');
        message.push_str(&bound);
    }
    Some((reason, message))
}

/// The time in a condition's message by which the pod starts, as it is written there.
pub fn told(message: &str) -> Option<&str> {
    message.rsplit_once(BY)?.1.strip_suffix(LATEST)
}

/// When at the latest the pod starts, or why nobody can say; nothing where that is plain already.
pub fn bound(bound: Bound, now: Millis, words: &Words<'_>) -> Option<String> {
    if let Some(at) = bound.latest_start {
        return (at > now).then(|| format!("{BY}{}{LATEST}", words.at(at)));
    }
    match bound.basis {
        Basis::Unlimited(job) => Some(format!(
            "No latest start can be given: {} has no activeDeadlineSeconds.",
            words.pod(job)
        )),
        Basis::Outlasted(job) => Some(format!(
            "No latest start can be given: {} should have ended already.",
            words.pod(job)
        )),
        Basis::NoLimit(shape) => Some(format!(
            "No latest start can be given: the pool sets no maxSeconds for {} pods.",
            super::shape_name(shape)
        )),
        Basis::Wide => Some(
            "No latest start is given for a pod that needs several GPUs and not all.".to_owned(),
        ),
        Basis::Drain | Basis::Place(_) | Basis::HeldBack | Basis::Quota(_) => None,
    }
}

fn holders(waits: &Waits, words: &Words<'_>, one: &str, many: &str) -> String {
    let Holders { named, more } = &waits.holders;
    let mut jobs: Vec<JobId> = named.iter().map(|holder| holder.job).collect();
    jobs.sort_unstable();
    let all = jobs.len() + *more as usize;
    let jobs: Vec<String> = jobs.into_iter().map(|job| words.pod(job)).collect();
    format!("{} {}", list(&jobs, all), if all == 1 { one } else { many })
}

fn backing_off(
    words: &Words<'_>,
    until: Millis,
    attempts: u32,
    last: Option<(NodeId, UnreserveReason)>,
) -> String {
    let until = words.at(until);
    let Some((node, reason)) = last else {
        return format!("The pod stands back until {until}; others pass meanwhile.");
    };
    let node = words.node(node);
    let what = match reason {
        UnreserveReason::Expired => {
            format!("was not bound to node {node} in time, see the scheduler's events")
        }
        UnreserveReason::BindFailed => format!("could not be bound to node {node}"),
        UnreserveReason::NodeUnfit => format!("lost its GPUs: node {node} became unfit"),
        UnreserveReason::Displaced => {
            format!("lost its GPUs on node {node} to a pod that went round Sluice")
        }
        UnreserveReason::NodeGone => format!("lost its GPUs: node {node} is gone"),
    };
    format!(
        "The pod {what}. It stands back until {until}, others pass meanwhile (attempt {attempts})."
    )
}

fn quota(wait: &Wait, shape: Shape, context: &Context<'_>) -> String {
    let words = &context.words;
    match *wait {
        Wait::Quota { tenant, most, .. } if shape.gpus(context.gpus_per_node) > most => format!(
            "The pod needs {} GPUs, and pods of namespace {} may hold {most} in this pool.",
            shape.gpus(context.gpus_per_node),
            words.namespace(tenant)
        ),
        Wait::Quota { tenant, held, most } => format!(
            "Pods of namespace {} hold {held} of the {most} GPUs that they may hold in this pool; \
             the pod waits until enough of them are free.",
            words.namespace(tenant)
        ),
        Wait::QuotaTurn { tenant, earlier } => format!(
            "Not all pods of namespace {} fit into the GPUs that they may hold in this pool, so \
             they go in order; {} goes first.",
            words.namespace(tenant),
            words.pod(earlier)
        ),
        _ => String::new(),
    }
}

fn small(wait: &Wait, shape: Shape, words: &Words<'_>) -> String {
    match *wait {
        Wait::GateClosed { node, job: large, free, gap } => {
            let large = words.pod(large);
            format!(
                "Node {} is being emptied for {large}{}.",
                words.node(node),
                idle(free, gap, words)
            )
        }
        Wait::Exclusive { node, job: large } => {
            format!("{} holds every GPU of node {}.", words.pod(large), words.node(node))
        }
        Wait::Gathering { node, free, asked, latest_end } => format!(
            "Node {} keeps its free GPUs for this pod, which needs {asked} of one node: {} now{}.",
            words.node(node),
            counted(free, "is free there", "are free there"),
            enough_by(words, latest_end)
        ),
        Wait::Kept { node, job: wide, free } => format!(
            "Node {} keeps {} for {}, which is served before and needs more of one node.",
            words.node(node),
            counted(free, "free GPU", "free GPUs"),
            words.pod(wide)
        ),
        Wait::Busy { ahead } => {
            let before = counted(ahead, "small pod waits before", "small pods wait before");
            match shape {
                Shape::Wide(asked) => {
                    format!("No node that the pod could use has {asked} free GPUs; {before} it.")
                }
                Shape::Small | Shape::Large => {
                    format!("Every GPU that the pod could use is held; {before} it.")
                }
            }
        }
        _ => String::new(),
    }
}

/// What becomes of the GPUs that are free behind a closed gate.
fn idle(free: u32, gap: Gap, words: &Words<'_>) -> String {
    let idle = format!("; {} idle until it has started", counted(free, "GPU stays", "GPUs stay"));
    match gap {
        Gap::Full => ", and takes no small pod until that has started".to_owned(),
        Gap::NotFilled(_) | Gap::TooShort(_) => idle,
        Gap::Endless => format!("{idle}, and nothing limits how long that takes"),
        Gap::TooFew => format!("{idle}, and this pod needs more"),
        Gap::Protects(older) => format!(
            "{idle}, since nobody passes {} any more: a gate opened over pods that had passed it",
            words.pod(older)
        ),
        Gap::TooDeep => format!("{idle}, and too many pods before this one are tried for them"),
    }
}

fn no_fit(why: NoFit, shape: Shape, context: &Context<'_>) -> String {
    let (pool, asked) = (context.pool, shape.gpus(context.gpus_per_node));
    match why {
        NoFit::NoNodes => format!("Pool {pool} has no nodes."),
        NoFit::NoneMatches => format!(
            "No node of pool {pool} matches the pod's node selector, affinity and tolerations."
        ),
        NoFit::Unschedulable => "The nodes that the pod matches take no new work: they are \
                                 cordoned, not ready, or give out no GPUs."
            .to_owned(),
        NoFit::WrongSize => {
            format!("No node that the pod matches has the {asked} GPUs that it needs.")
        }
        NoFit::Unhealthy if shape.is_small() => {
            format!("No node that the pod matches has {asked} healthy GPUs.")
        }
        NoFit::Unhealthy => "Each node that the pod matches has a GPU that is not healthy, or \
                             takes no new work; it waits until one is whole again."
            .to_owned(),
    }
}

/// Until when the pods that a large waits for hold their GPUs. One that has outlasted its limit is
/// the only one that counts: when it ends nobody knows.
fn until(waits: &Waits, now: Millis, words: &Words<'_>, latest_end: Option<Millis>) -> String {
    let late =
        waits.holders.named.iter().find(|holder| holder.latest_end.is_some_and(|end| end < now));
    if let Some((late, end)) = late.and_then(|late| late.latest_end.map(|end| (late, end))) {
        let (pod, end) = (words.pod(late.job), words.at(end));
        return format!("; {pod} should have ended by {end}");
    }
    match latest_end {
        Some(end) => format!(", until {} at the latest", words.at(end)),
        None => ", and nothing limits how long".to_owned(),
    }
}

fn enough_by(words: &Words<'_>, latest_end: Option<Millis>) -> String {
    match latest_end {
        Some(end) => format!(", and enough by {} at the latest if it stays open", words.at(end)),
        None => ", and nothing limits how long until there are enough".to_owned(),
    }
}

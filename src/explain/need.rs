//! Pure: what must happen before a pod starts, and what would change when it does.

use super::Context;
use super::names::{counted, gpus};
use crate::policy::{Basis, Bound, Change, Enough, Holder, Millis, Need, NodeId, Shape, Unfit};

/// Something that must happen first: a sentence, and what belongs under it.
pub fn need(need: &Need, now: Millis, context: &Context<'_>) -> (String, Vec<String>) {
    let words = &context.words;
    match need {
        Need::Setting => {
            ("The pool's settings must change: nothing else helps.".to_owned(), Vec::new())
        }
        Need::Time { until } => (format!("It must be {}.", words.at(*until)), Vec::new()),
        Need::Fit { nodes, more } => {
            let told = |&(node, unfit): &(NodeId, Unfit)| {
                format!("node {} {}", words.node(node), self::unfit(unfit))
            };
            let told = nodes.iter().map(told).chain(others(*more, "node"));
            ("A node must be there that the pod fits.".to_owned(), told.collect())
        }
        Need::Ends { node, holders, more, enough } => {
            let place = node.map(|node| words.node(node));
            let told = holders.iter().map(|holder| self::holder(holder, now, context));
            let sentence = ends(place.as_deref(), *enough, holders.len() + *more as usize);
            (sentence, told.chain(others(*more, "pod")).collect())
        }
        Need::Starts { jobs, more } => {
            let told = jobs.iter().map(|&job| words.pod(job));
            let sentence = match (&jobs[..], more) {
                ([only], 0) => return (format!("{} must start.", words.pod(*only)), Vec::new()),
                _ => "These must start, in this order:".to_owned(),
            };
            (sentence, told.chain(others(*more, "pod")).collect())
        }
        Need::Runs { job, limit } => {
            let within = match limit {
                Some(limit) => format!("within {}", length(*limit)),
                None => "and nothing limits how long it runs".to_owned(),
            };
            (format!("{} must start and end, {within}.", words.pod(*job)), Vec::new())
        }
    }
}

fn ends(node: Option<&str>, enough: Enough, all: usize) -> String {
    match (enough, node) {
        (Enough::All, Some(node)) if all == 1 => {
            format!("The pod that holds GPUs of node {node} must end:")
        }
        (Enough::All, Some(node)) => format!("Every pod that holds GPUs of node {node} must end:"),
        (Enough::All, None) => "All of these must end:".to_owned(),
        (Enough::One, _) if all == 1 => "This pod must end:".to_owned(),
        (Enough::One, _) => "One of these must end:".to_owned(),
        (Enough::Gpus(count), Some(node)) => {
            let gpus = counted(count, "GPU more", "GPUs more");
            format!("Pods that hold GPUs of node {node} must end, until {gpus} came free there:")
        }
        (Enough::Gpus(count), None) => {
            let gpus = counted(count, "GPU", "GPUs");
            format!("Some of these must end, until {gpus} came free for it:")
        }
    }
}

fn holder(holder: &Holder, now: Millis, context: &Context<'_>) -> String {
    let until = match holder.latest_end {
        Some(end) if end < now => {
            format!("should have ended by {}", context.words.at(end))
        }
        Some(end) => format!("until {} at the latest", context.words.at(end)),
        None => "nothing limits how long".to_owned(),
    };
    format!("{}: {}, {until}", context.words.pod(holder.job), gpus(holder.gpus))
}

fn others(more: u32, noun: &str) -> impl Iterator<Item = String> {
    (more > 0)
        .then(|| counted(more, &format!("other {noun}"), &format!("other {noun}s")))
        .into_iter()
}

fn unfit(unfit: Unfit) -> String {
    match unfit {
        Unfit::NotMatched => {
            "does not match its node selector, affinity and tolerations".to_owned()
        }
        Unfit::Unschedulable => {
            "takes no new work: it is cordoned, not ready, or gives out no GPUs".to_owned()
        }
        Unfit::Size(has) => format!("has {}", counted(has, "GPU", "GPUs")),
        Unfit::Unhealthy(set) => format!("has {} unhealthy", gpus(set)),
    }
}

/// What a latest start rests on.
pub fn basis(bound: Bound, context: &Context<'_>) -> String {
    match bound.basis {
        Basis::Drain => "the limits of the pods that it waits for".to_owned(),
        Basis::Place(place) => {
            format!("place {place} of its queue, and the longest limit of each shape")
        }
        Basis::Unlimited(job) => {
            format!("{} has no activeDeadlineSeconds", context.words.pod(job))
        }
        Basis::Outlasted(job) => {
            format!("{} should have ended already", context.words.pod(job))
        }
        Basis::NoLimit(shape) => {
            format!("the pool sets no maxSeconds for {} pods", super::shape_name(shape))
        }
        Basis::HeldBack => "no time limit ends what holds it".to_owned(),
        Basis::Wide => "it needs several GPUs and not all, for which none is promised".to_owned(),
    }
}

/// A change as the condition of a sentence.
pub fn change(change: &Change, shape: Shape, context: &Context<'_>) -> String {
    let words = &context.words;
    match change {
        Change::Resume => "the pool is resumed (spec.paused)".to_owned(),
        Change::Quota(tenant, most) => {
            let namespace = words.namespace(*tenant);
            format!("pods of namespace {namespace} may hold {most} GPUs (spec.quotas)")
        }
        Change::Binding => "what kept it from being bound is put right: see its events".to_owned(),
        Change::NodeFit(node, Unfit::Unhealthy(set)) => {
            let are = if set.count() == 1 { "is" } else { "are" };
            format!("{} of node {} {are} healthy again", gpus(*set), words.node(*node))
        }
        Change::NodeFit(node, _) => format!("node {} takes new work again", words.node(*node)),
        Change::NodeJoins(count) => {
            let count = counted(*count, "GPU", "GPUs");
            format!("a node with {count} that it matches joins the pool")
        }
        Change::Placement => "it is created anew so that it matches a node".to_owned(),
        Change::EarlyEnds => "those that it waits for end before their limits".to_owned(),
        Change::Evict(node) => format!(
            "the pods that hold up the drain of node {} are deleted, or the pool evicts such pods \
             (spec.drain)",
            words.node(*node)
        ),
        Change::Priority(job) => {
            format!("it is created anew with a higher priority than {}", words.pod(*job))
        }
        Change::KeepFewerOpen => "the pool keeps fewer nodes open".to_owned(),
        Change::Backfill(most) => format!(
            "the pool lets small pods start behind a closed gate, for pods that hold their GPUs \
             for {} or less",
            length(*most)
        ),
        Change::ShorterLimit(most) => format!(
            "it is created anew to hold its GPUs for {} or less, which may start behind the gate",
            length(*most)
        ),
        Change::LimitOn(job) => format!("{} had activeDeadlineSeconds", words.pod(*job)),
        Change::LimitOf(shape) => {
            format!("the pool sets maxSeconds for {} pods", super::shape_name(*shape))
        }
        Change::Overtaken => format!(
            "a {} pod with a higher priority arrives",
            if shape.is_small() { "small" } else { "whole-node" }
        ),
        Change::NodeLost(node) => format!(
            "node {} loses a GPU or is cordoned: then another is emptied",
            words.node(*node)
        ),
    }
}

/// A length of time.
fn length(span: Millis) -> String {
    crate::timeline::length(span.0)
}

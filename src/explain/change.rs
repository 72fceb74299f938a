//! Pure: what a latest start rests on, and what would change when a pod starts.

use serde_json::{Value, json};

use super::Context;
use super::names::{counted, gpus};
use super::need::length;
use crate::policy::{Basis, Change, Millis, Rests, Shape, Unfit, Wait, Waits};

/// What a latest start rests on, or why there is none.
pub fn basis(waits: &Waits, shape: Shape, context: &Context<'_>) -> String {
    let words = &context.words;
    match waits.bound.basis {
        Basis::Drain => {
            format!("the limits of the pods that it waits for, {}", share(context))
        }
        Basis::Place(place) => {
            format!("place {place} of its queue, {}", spans(waits.rests, shape, context))
        }
        Basis::Unlimited(job) => format!("{} has no activeDeadlineSeconds", words.pod(job)),
        Basis::Outlasted(job) => format!("{} should have ended already", words.pod(job)),
        Basis::NoLimit(shape) => {
            format!("the pool sets no maxSeconds for {} pods", super::shape_name(shape))
        }
        Basis::HeldBack => "no time limit ends what holds it".to_owned(),
        Basis::Quota(tenant) => {
            let held = matches!(waits.wait, Wait::Quota { .. } | Wait::QuotaTurn { .. });
            let holds = if held { "holds" } else { "may hold" };
            let namespace = words.namespace(tenant);
            format!(
                "none is promised to a pod that the quota of namespace {namespace} {holds} back"
            )
        }
        Basis::Wide => "it needs several GPUs and not all, for which none is promised".to_owned(),
    }
}

fn spans(rests: Rests, shape: Shape, context: &Context<'_>) -> String {
    let Rests { small, large, turn, failures, .. } = rests;
    let mut spans = vec![
        format!("{} for a small pod and {} for a whole-node pod", length(small), length(large)),
        share(context),
    ];
    if shape.is_small() && turn > large {
        spans.push(format!("{} for whole-node pods that follow one another", length(turn)));
    }
    if shape.is_small() && failures > Millis::default() {
        spans.push(format!("and {} for whole-node pods that fail at once", length(failures)));
    }
    // What it came to when it was told is not known any more.
    let sum = if rests.told_before {
        "counted from when it was told".to_owned()
    } else {
        format!("in all {}", rounds(rests))
    };
    format!("{}, {sum}", spans.join(", "))
}

/// What the spans come to.
fn rounds(rests: Rests) -> String {
    let Rests { once, rounds, round, .. } = rests;
    let rounds = (rounds > 0).then(|| {
        let count = u32::try_from(rounds).unwrap_or(u32::MAX);
        format!("{} of {}", counted(count, "round", "rounds"), length(round))
    });
    let once = (once > Millis::default() || rounds.is_none()).then(|| length(once));
    let sum: Vec<String> = once.into_iter().chain(rounds).collect();
    sum.join(" and ")
}

/// Of each pod's limit what is not its own.
fn share(context: &Context<'_>) -> String {
    format!("{} of each for the control plane", length(context.control_plane))
}

/// The same for programs.
pub fn basis_facts(waits: &Waits, context: &Context<'_>) -> Value {
    let words = &context.words;
    match waits.bound.basis {
        Basis::Drain => json!({"kind": "Drain", "control_plane_ms": context.control_plane}),
        Basis::Place(place) => {
            let Rests { small, large, turn, failures, once, rounds, round, told_before } =
                waits.rests;
            json!({
                "kind": "Place", "place": place, "small_ms": small, "large_ms": large,
                "turn_ms": turn, "failures_ms": failures, "told_before": told_before,
                "once_ms": (!told_before).then_some(once),
                "rounds": (!told_before).then_some(rounds),
                "round_ms": (!told_before).then_some(round),
                "control_plane_ms": context.control_plane,
            })
        }
        Basis::Unlimited(job) => json!({"kind": "Unlimited", "pod": words.pod(job)}),
        Basis::Outlasted(job) => json!({"kind": "Outlasted", "pod": words.pod(job)}),
        Basis::NoLimit(shape) => json!({"kind": "NoLimit", "shape": super::shape_name(shape)}),
        Basis::HeldBack => json!({"kind": "HeldBack"}),
        Basis::Quota(tenant) => json!({"kind": "Quota", "namespace": words.namespace(tenant)}),
        Basis::Wide => json!({"kind": "Wide"}),
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
        Change::OtherNode => "another node that it fits is empty before".to_owned(),
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
            "it is created anew to hold its GPUs for {} at most: such a pod may start behind the gate",
            length(*most)
        ),
        Change::LimitOn(job) => format!("{} had activeDeadlineSeconds", words.pod(*job)),
        Change::LimitOf(shape) => {
            format!("the pool set maxSeconds for {} pods", super::shape_name(*shape))
        }
        Change::Overtaken => format!(
            "a {} pod with a higher priority arrives",
            if shape.is_small() { "small" } else { "whole-node" }
        ),
        Change::Servable(job) => {
            format!("{}, which is served first and held back, can be served", words.pod(*job))
        }
        Change::Arrival(Shape::Large) => {
            "a whole-node pod arrives, for which a node is then emptied".to_owned()
        }
        Change::Arrival(_) => "small pods arrive, which then have a wave before it".to_owned(),
        Change::TurnGoesOn { ends, by, then } => format!(
            "{} ends by {}: then {} still follows in the same turn",
            words.pod(*ends),
            words.at(*by),
            words.pod(*then)
        ),
        Change::NodeLost(node) => format!(
            "node {} loses a GPU or is cordoned: then another is emptied",
            words.node(*node)
        ),
    }
}

/// The same for programs.
pub fn change_facts(change: &Change, context: &Context<'_>) -> Value {
    let words = &context.words;
    match change {
        Change::Resume => json!({"kind": "Resume"}),
        Change::Quota(tenant, most) => {
            json!({"kind": "Quota", "namespace": words.namespace(*tenant), "gpus": most})
        }
        Change::Binding => json!({"kind": "Binding"}),
        Change::NodeFit(node, unfit) => {
            json!({"kind": "NodeFit", "node": words.node(*node), "unfit": unfit})
        }
        Change::NodeJoins(gpus) => json!({"kind": "NodeJoins", "gpus": gpus}),
        Change::Placement => json!({"kind": "Placement"}),
        Change::EarlyEnds => json!({"kind": "EarlyEnds"}),
        Change::OtherNode => json!({"kind": "OtherNode"}),
        Change::Priority(job) => json!({"kind": "Priority", "pod": words.pod(*job)}),
        Change::KeepFewerOpen => json!({"kind": "KeepFewerOpen"}),
        Change::Backfill(most) => json!({"kind": "Backfill", "limit_ms": most}),
        Change::ShorterLimit(most) => json!({"kind": "ShorterLimit", "limit_ms": most}),
        Change::LimitOn(job) => json!({"kind": "LimitOn", "pod": words.pod(*job)}),
        Change::LimitOf(shape) => json!({"kind": "LimitOf", "shape": super::shape_name(*shape)}),
        Change::Overtaken => json!({"kind": "Overtaken"}),
        Change::Servable(job) => json!({"kind": "Servable", "pod": words.pod(*job)}),
        Change::Arrival(shape) => json!({"kind": "Arrival", "shape": super::shape_name(*shape)}),
        Change::TurnGoesOn { ends, by, then } => json!({
            "kind": "TurnGoesOn", "pod": words.pod(*ends), "by_ms": by, "then": words.pod(*then),
        }),
        Change::NodeLost(node) => json!({"kind": "NodeLost", "node": words.node(*node)}),
        Change::Evict(node) => json!({"kind": "Evict", "node": words.node(*node)}),
    }
}

//! Pure: an explanation as JSON with names in it, for programs. `docs/records.md` describes it.

use serde_json::{Value, json};

use super::need::{basis, change, need};
use super::{Context, hold, shape_name, standing};
use crate::policy::{Enough, Explanation, GpuSet, Holds, Need, Shape, Standing, Waits};

/// The version of this JSON.
pub const VERSION: u32 = 1;

/// An explanation as JSON.
pub fn json(explanation: &Explanation, context: &Context<'_>) -> Value {
    let (reason, message) = standing(explanation, context);
    let shape = explanation.known.as_ref().map(|job| job.shape);
    let mut value = json!({
        "version": VERSION,
        "pod": context.words.pod(explanation.job),
        "pool": context.pool,
        "now_ms": explanation.now,
        "shape": shape.map(shape_name),
        "gpus": shape.map(|shape| shape.gpus(context.gpus_per_node)),
        "reason": reason,
        "message": message,
    });
    let (key, below) = match &explanation.standing {
        Standing::Waits(waits) => ("waits", self::waits(waits, explanation, context)),
        Standing::Holds(holds) => ("holds", self::holds(holds, context)),
    };
    value[key] = below;
    value
}

fn waits(waits: &Waits, explanation: &Explanation, context: &Context<'_>) -> Value {
    let shape = explanation.known.as_ref().map_or(Shape::Small, |job| job.shape);
    let needs = waits.needs.iter().map(|wanted| {
        let mut value = facts(wanted, context);
        value["sentence"] = need(wanted, explanation.now, context).0.into();
        value
    });
    let changes = waits
        .changes
        .iter()
        .map(|wanted| json!({"effect": wanted.effect(), "if": change(wanted, shape, context)}));
    json!({
        "place": waits.place,
        "of": waits.of,
        "created_ms": explanation.known.as_ref().map(|job| job.created),
        "first": needs.collect::<Vec<_>>(),
        "latest_start_ms": waits.bound.latest_start,
        "rests_on": basis(waits.bound, context),
        "changes": changes.collect::<Vec<_>>(),
    })
}

fn facts(need: &Need, context: &Context<'_>) -> Value {
    let words = &context.words;
    match need {
        Need::Setting => json!({"kind": "Setting"}),
        Need::Time { until } => json!({"kind": "Time", "until_ms": until}),
        Need::Fit { nodes, more } => {
            let nodes = nodes
                .iter()
                .map(|(node, unfit)| json!({"node": words.node(*node), "unfit": unfit}));
            json!({"kind": "Fit", "nodes": nodes.collect::<Vec<_>>(), "more": more})
        }
        Need::Ends { node, holders, more, enough } => {
            let holders = holders.iter().map(|holder| {
                json!({
                    "pod": words.pod(holder.job),
                    "gpus": indexes(holder.gpus),
                    "stage": holder.stage,
                    "latest_end_ms": holder.latest_end,
                })
            });
            let enough = match enough {
                Enough::All => json!("All"),
                Enough::One => json!("One"),
                Enough::Gpus(count) => json!({"gpus": count}),
            };
            json!({
                "kind": "Ends",
                "node": node.map(|node| words.node(node)),
                "pods": holders.collect::<Vec<_>>(),
                "more": more,
                "enough": enough,
            })
        }
        Need::Starts { jobs, more } => {
            let pods: Vec<String> = jobs.iter().map(|&job| words.pod(job)).collect();
            json!({"kind": "Starts", "pods": pods, "more": more})
        }
        Need::Runs { job, limit } => {
            json!({"kind": "Runs", "pod": words.pod(*job), "limit_ms": limit})
        }
    }
}

fn holds(holds: &Holds, context: &Context<'_>) -> Value {
    let Holds { node, holding, emptied_for } = holds;
    json!({
        "node": context.words.node(*node),
        "gpus": indexes(holding.gpus),
        "stage": holding.stage,
        "admitted_as": holding.kind,
        "since_ms": holding.since,
        "bind_by_ms": holding.expires,
        "latest_end_ms": holding.latest_end,
        "evicting": holding.evicting,
        "emptied_for": emptied_for.map(|job| context.words.pod(job)),
        "sentences": hold::further(holds, &context.words),
    })
}

fn indexes(gpus: GpuSet) -> Vec<u32> {
    gpus.iter().collect()
}

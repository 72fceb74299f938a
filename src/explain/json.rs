//! Pure: an explanation as JSON with names in it, for programs. `docs/records.md` describes it.

use serde_json::{Value, json};

use super::change::{basis, basis_facts, change, change_facts};
use super::need::need;
use super::{Context, hold, shape_name, standing};
use crate::policy::{
    Enough, Explanation, GpuSet, Holder, Holders, Holds, JobId, Need, Shape, Standing, Waits,
};

/// The version of this JSON.
pub const VERSION: u32 = 2;

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
    let changes = waits.changes.iter().map(|wanted| {
        let mut value = change_facts(wanted, context);
        value["effect"] = json!(wanted.effect());
        value["if"] = change(wanted, shape, context).into();
        value
    });
    json!({
        "place": waits.place,
        "of": waits.of,
        "created_ms": explanation.known.as_ref().map(|job| job.created),
        "first": needs.collect::<Vec<_>>(),
        "rough": waits.rough,
        "foreseen_start_ms": waits.foreseen,
        "latest_start_ms": waits.bound.latest_start,
        "basis": basis_facts(waits, context),
        "rests_on": basis(waits, shape, context),
        "changes": changes.collect::<Vec<_>>(),
    })
}

fn facts(need: &Need, context: &Context<'_>) -> Value {
    let words = &context.words;
    let pods = |jobs: &[JobId]| -> Vec<String> { jobs.iter().map(|&job| words.pod(job)).collect() };
    match need {
        Need::Resume => json!({"kind": "Resume"}),
        Need::Setting => json!({"kind": "Setting"}),
        Need::Time { until } => json!({"kind": "Time", "until_ms": until}),
        Need::Fit { nodes, more } => {
            let nodes = nodes
                .iter()
                .map(|(node, unfit)| json!({"node": words.node(*node), "unfit": unfit}));
            json!({"kind": "Fit", "nodes": nodes.collect::<Vec<_>>(), "more": more})
        }
        Need::Ends { node, holders: Holders { named, more }, enough } => json!({
            "kind": "Ends",
            "node": node.map(|node| words.node(node)),
            "pods": named.iter().map(|one| holder(one, context)).collect::<Vec<_>>(),
            "more": more,
            "enough": self::enough(*enough),
        }),
        Need::Runs { jobs, more, enough, limit, wave, credit } => json!({
            "kind": "Runs",
            "pods": pods(jobs),
            "more": more,
            "enough": self::enough(*enough),
            "limit_ms": limit,
            "wave": wave,
            "credit": credit,
        }),
        Need::Starts { jobs, more } => {
            json!({"kind": "Starts", "pods": pods(jobs), "more": more})
        }
        Need::Rounds { larges, smalls, first, at_least } => json!({
            "kind": "Rounds",
            "larges": larges,
            "smalls": smalls,
            "pods": [words.pod(*first)],
            "at_least": at_least,
        }),
    }
}

fn enough(enough: Enough) -> Value {
    match enough {
        Enough::All => json!("All"),
        Enough::Any(count) => json!({"any": count}),
    }
}

fn holder(holder: &Holder, context: &Context<'_>) -> Value {
    json!({
        "pod": context.words.pod(holder.job),
        "node": context.words.node(holder.node),
        "gpus": indexes(holder.gpus),
        "stage": holder.stage,
        "latest_end_ms": holder.latest_end,
    })
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

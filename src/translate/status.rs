//! Pure: a pool's state as the status of its `GpuPool`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::ledger::counters;
use super::time::{began, ends};
use super::{Known, World, text};
use crate::api::{
    Counters, GpuPool, GpuPoolStatus, GpuTotals, NodeTotals, PodRef, ShapeQueue, ShapeStatus,
};
use crate::policy::{Holding, JobId, Millis, Node, Phase, Pool, Shape, Stage};

/// What the controller knows of itself that a pool's status tells.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    /// Commits that the policy refused since the controller started.
    pub refused_commits: u64,
    /// Nodes that match this pool and belong to another.
    pub claimed_elsewhere: Vec<String>,
    /// What is wrong with the spec, if it is not followed.
    pub bad_spec: Option<String>,
    /// Why the pool's state cannot be read back from its ledgers, if it cannot.
    pub not_restored: Option<String>,
}

/// The status that the pool's object should have.
pub fn render(pool: &Pool, known: &Known, world: &World, troubles: &Troubles) -> GpuPoolStatus {
    let totals = node_totals(pool);
    let gpus = gpu_totals(pool);
    let head = pool.queue(Shape::Large).next().or_else(|| pool.queue(Shape::Small).next());
    let head_pod = head.and_then(|waiting| known.ids.pod(waiting.job.id));
    GpuPoolStatus {
        observed_generation: world.pool.metadata.generation.unwrap_or_default(),
        phases: phases(&totals),
        free_of_total: format!("{}/{}", gpus.free, gpus.capacity),
        head: head_pod.map(|who| format!("{}/{}", who.namespace, who.name)),
        head_since: head.map(|waiting| began(waiting.job.created)),
        drained_by: drained_by(pool).map(ends),
        small: shape_status(pool, known, Shape::Small),
        whole_node_large: shape_status(pool, known, Shape::Large),
        elsewhere: Counters {
            small: counters(&pool.counters_elsewhere().small),
            whole_node_large: counters(&pool.counters_elsewhere().large),
        },
        gpus,
        conditions: conditions(pool, known, world, troubles, &gpus, &totals),
        nodes: totals,
    }
}

/// The status of a pool that is not run and has not been since the controller started: what it was,
/// and why. Nothing where nothing is known to be wrong.
pub fn unusable(pool: &GpuPool, troubles: &Troubles, now: Millis) -> Option<GpuPoolStatus> {
    let (_, reason, message) = in_the_way(troubles)?;
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation;
    let ready = condition(&status.conditions, "Ready", false, reason, message, generation, now);
    status.conditions.retain(|condition| condition.type_ != "Ready");
    status.conditions.push(ready);
    status.observed_generation = generation.unwrap_or_default();
    Some(status)
}

/// What a pool is told whose object could not be read at all.
pub fn never_readable(error: &str, now: Millis) -> Condition {
    let troubles = Troubles { bad_spec: Some(unreadable(error)), ..Troubles::default() };
    let (_, reason, message) = in_the_way(&troubles).unwrap_or_default();
    condition(&[], "Ready", false, reason, message, None, now)
}

/// What is wrong with the spec of a pool whose object cannot be read.
pub fn unreadable(error: &str) -> String {
    format!("this version of Sluice cannot read the object ({error})")
}

/// What keeps a pool from being run as its spec says.
fn in_the_way(troubles: &Troubles) -> Option<Verdict> {
    if let Some(why) = &troubles.bad_spec {
        return Some((false, "BadSpec", format!("The spec is not followed: {why}.")));
    }
    let why = troubles.not_restored.as_ref()?;
    let message = format!("The pool's state cannot be read back from its ledgers: {why}.");
    Some((false, "NotRestored", message))
}

/// A condition that keeps the time of its last change while its status stays.
pub fn condition(
    before: &[Condition],
    kind: &str,
    yes: bool,
    reason: &str,
    message: String,
    generation: Option<i64>,
    now: Millis,
) -> Condition {
    let status = if yes { "True" } else { "False" };
    let same = before.iter().find(|c| c.type_ == kind && c.status == status);
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: same.map_or_else(|| began(now), |c| c.last_transition_time.clone()),
    }
}

fn holdings(pool: &Pool) -> impl Iterator<Item = (JobId, &Holding)> {
    pool.nodes().values().flat_map(|node| node.holdings.iter().map(|(&job, h)| (job, h)))
}

fn node_totals(pool: &Pool) -> NodeTotals {
    let count =
        |wanted: fn(&Node) -> bool| int(pool.nodes().values().filter(|node| wanted(node)).count());
    NodeTotals {
        total: int(pool.nodes().len()),
        open: count(Node::is_open),
        draining: count(|node| matches!(node.phase, Phase::Draining(_))),
        exclusive: count(|node| matches!(node.phase, Phase::Exclusive(_))),
        wave: count(|node| matches!(node.phase, Phase::Wave { .. })),
        unschedulable: count(|node| !node.spec.schedulable),
    }
}

fn phases(totals: &NodeTotals) -> String {
    let parts: Vec<String> = [
        ("Open", totals.open),
        ("Draining", totals.draining),
        ("Exclusive", totals.exclusive),
        ("Wave", totals.wave),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(name, count)| format!("{name} {count}"))
    .collect();
    if parts.is_empty() { "no nodes".to_owned() } else { parts.join(", ") }
}

fn gpu_totals(pool: &Pool) -> GpuTotals {
    let sum = |of: fn(&Node) -> u32| int(pool.nodes().values().map(of).sum::<u32>() as usize);
    let held = |wanted: fn(&Holding) -> bool| {
        let gpus = holdings(pool).filter(|(_, h)| wanted(h)).map(|(_, h)| h.gpus.count());
        int(gpus.sum::<u32>() as usize)
    };
    GpuTotals {
        capacity: sum(|node| node.spec.gpus.count()),
        healthy: sum(|node| node.spec.healthy.intersection(node.spec.gpus).count()),
        free: sum(|node| node.free().count()),
        reserved: held(|h| h.shape.is_some() && h.stage == Stage::Reserved),
        held: held(|h| h.shape.is_some() && h.stage > Stage::Reserved),
        foreign: held(|h| h.shape.is_none()),
    }
}

/// When the node that drains for the first large is drained at the latest.
fn drained_by(pool: &Pool) -> Option<Millis> {
    let first = pool.queue(Shape::Large).next()?.job.id;
    let gated = |node: &&Node| node.gate().is_some_and(|gate| gate.job == first);
    let node = pool.nodes().values().find(gated)?;
    node.latest_end(Millis(0)).filter(|&end| end > Millis(0))
}

fn shape_status(pool: &Pool, known: &Known, shape: Shape) -> ShapeStatus {
    let alike = |held: Shape| held.is_small() == shape.is_small();
    let of_shape = || holdings(pool).filter(|(_, h)| h.shape.is_some_and(alike));
    let counted = pool.counters();
    let counted = match shape {
        Shape::Small | Shape::Wide(_) => counted.small,
        Shape::Large => counted.large,
    };
    ShapeStatus {
        queue: ShapeQueue {
            depth: int(pool.queue(shape).count()),
            head: pool.queue(shape).next().and_then(|w| known.ids.pod(w.job.id)).cloned(),
            oldest: pool.queue(shape).map(|waiting| waiting.job.created).min().map(began),
        },
        admitted: int(of_shape().filter(|(_, h)| h.stage < Stage::Running).count()),
        running: int(of_shape().filter(|(_, h)| h.stage == Stage::Running).count()),
        releasing: int(of_shape().filter(|(_, h)| h.stage == Stage::Releasing).count()),
        counters: counters(&counted),
    }
}

fn conditions(
    pool: &Pool,
    known: &Known,
    world: &World,
    troubles: &Troubles,
    gpus: &GpuTotals,
    nodes: &NodeTotals,
) -> Vec<Condition> {
    let before = world.pool.status.as_ref().map(|status| status.conditions.as_slice());
    [
        ("Ready", ready(world, troubles, nodes)),
        ("DrainBounded", drain_bounded(pool, known)),
        ("Degraded", degraded(pool, known, troubles, gpus)),
        ("Bypassed", bypassed(pool, known)),
    ]
    .into_iter()
    .map(|(kind, (yes, reason, message))| {
        let generation = world.pool.metadata.generation;
        condition(before.unwrap_or_default(), kind, yes, reason, message, generation, world.now)
    })
    .collect()
}

type Verdict = (bool, &'static str, String);

fn ready(world: &World, troubles: &Troubles, nodes: &NodeTotals) -> Verdict {
    if let Some(verdict) = in_the_way(troubles) {
        return verdict;
    }
    if world.config.paused {
        return (false, "Paused", "The pool is paused and admits nothing.".to_owned());
    }
    if nodes.total == 0 {
        return (false, "NoNodes", "No node with GPUs matches the node selector.".to_owned());
    }
    if nodes.unschedulable == nodes.total {
        return (false, "NoNodeTakesWork", "No node takes new work.".to_owned());
    }
    (true, "AdmitsPods", "Pods are admitted.".to_owned())
}

fn drain_bounded(pool: &Pool, known: &Known) -> Verdict {
    let unlimited: Vec<PodRef> = holdings(pool)
        .filter(|(_, holding)| holding.latest_end.is_none())
        .filter_map(|(job, _)| known.ids.pod(job))
        .cloned()
        .collect();
    if unlimited.is_empty() {
        let message = "Every pod that holds GPUs has an enforced limit.".to_owned();
        return (true, "EveryPodHasALimit", message);
    }
    let message = format!(
        "No wait behind these pods can be bounded, since nothing ends them in time: {}. Give them \
         activeDeadlineSeconds.",
        text::pods(&unlimited)
    );
    (false, "PodsWithoutLimit", message)
}

fn degraded(pool: &Pool, known: &Known, troubles: &Troubles, gpus: &GpuTotals) -> Verdict {
    let mut parts = Vec::new();
    let mut reason = "NothingWrong";
    if !troubles.claimed_elsewhere.is_empty() {
        reason = "NodesClaimedTwice";
        let nodes = troubles.claimed_elsewhere.join(", ");
        parts.push(format!("nodes that match belong to another pool: {nodes}"));
    }
    if let Some(none) = pool.no_node_for_larges() {
        reason = "NoNodeForLarges";
        parts.push(format!(
            "no whole-node pod ever starts, since keepOpen is {} and {} them: write {}, or add \
             nodes",
            none.kept_open,
            match none.takers {
                1 => "1 node takes".to_owned(),
                takers => format!("{takers} nodes take"),
            },
            if none.takers > 1 { format!("{} or less", none.takers - 1) } else { "0".to_owned() },
        ));
    }
    let unhealthy = gpus.capacity - gpus.healthy;
    if unhealthy > 0 {
        reason = "UnhealthyGpus";
        parts.push(format!("{unhealthy} GPUs are unhealthy"));
    }
    let silent = known.agents.iter().filter(|(_, word)| !word.ready);
    let silent: Vec<&str> = silent.filter_map(|(&id, _)| known.ids.node_name(id)).collect();
    if let Some(first) = silent.first() {
        reason = "AgentsNotReady";
        let (count, example) = (silent.len(), format!("kubectl describe gnode {first}"));
        let nodes = if count == 1 { "node" } else { "nodes" };
        parts.push(format!("the agents of {count} {nodes} cannot be relied upon ({example})"));
    }
    if troubles.refused_commits > 0 {
        reason = "CommitsRefused";
        let count = troubles.refused_commits;
        parts.push(format!("{count} commits were refused because they would have broken a rule"));
    }
    if parts.is_empty() {
        return (false, reason, "Nothing is wrong.".to_owned());
    }
    (true, reason, format!("Needs attention: {}.", parts.join("; ")))
}

fn bypassed(pool: &Pool, known: &Known) -> Verdict {
    let strangers: Vec<PodRef> = holdings(pool)
        .filter(|(_, holding)| holding.shape.is_none())
        .filter_map(|(job, _)| known.ids.pod(job))
        .cloned()
        .collect();
    if strangers.is_empty() {
        return (false, "NoForeignPods", "Every holder went through Sluice.".to_owned());
    }
    let message = format!(
        "Pods hold GPUs and did not go through Sluice, so stated waits do not hold: {}.",
        text::pods(&strangers)
    );
    (true, "ForeignPods", message)
}

fn int(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::json;

    use super::*;
    use crate::translate::fixture::Scene;

    #[test]
    fn a_pool_that_keeps_every_node_open_says_that_no_large_ever_starts() {
        for (nodes, keep_open, wanted) in [
            (&["m", "n"][..], 0, None),
            (&["m", "n"][..], 1, None),
            (&["m", "n"][..], 2, Some("keepOpen is 2 and 2 nodes take them: write 1 or less")),
            (&["n"][..], 5, Some("keepOpen is 5 and 1 node takes them: write 0")),
        ] {
            let scene = Scene::with(nodes, json!({"keepOpen": keep_open}));
            let Scene { world, pool, known } = &scene;
            let status = render(pool, known, world, &Troubles::default());
            let degraded = status.conditions.iter().find(|c| c.type_ == "Degraded").unwrap();
            let reason = if wanted.is_some() { "NoNodeForLarges" } else { "NothingWrong" };
            assert_eq!(degraded.reason, reason, "{keep_open}");
            assert!(degraded.message.contains(wanted.unwrap_or_default()), "{}", degraded.message);
        }
    }
}

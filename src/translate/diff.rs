//! Pure: what the world says now against what the policy believes, as inputs for its next step.
//!
//! Each look compares whole states, so that an event that nobody saw is no event that was missed.
//! A promise that the ledger does not show yet is the policy's own and is left alone.

use std::collections::BTreeSet;

use super::time::{began, millis};
use super::world::{Fitting, holders};
use super::{Known, NodeFacts, PodFacts, World, limits, node};
use crate::api::{GpuNodeStatus, Reservation};
use crate::policy::{GpuSet, Holding, Input, JobId, Millis, NodeId, Outcome, Pool, Shape, Stage};

/// What the policy must be told. `known` has learned the names of `world` already.
pub fn diff(world: &World, pool: &Pool, known: &Known) -> Vec<Input> {
    let mut inputs = Vec::new();
    if *pool.config() != world.config {
        inputs.push(Input::Configured(Box::new(world.config.clone())));
    }
    nodes(world, pool, known, &mut inputs);
    holdings(world, pool, known, &mut inputs);
    foreign(world, pool, known, &mut inputs);
    queues(world, pool, known, &mut inputs);
    inputs
}

fn nodes(world: &World, pool: &Pool, known: &Known, inputs: &mut Vec<Input>) {
    for facts in world.nodes.values() {
        let Some(id) = known.ids.node(&facts.name, &facts.uid) else { continue };
        let mut spec = node::spec(facts, world.ledger(facts), world.resource());
        spec.schedulable &= !world.leaving.contains(&facts.name);
        if pool.nodes().get(&id).is_none_or(|known| known.spec != spec) {
            inputs.push(Input::NodeChanged { node: id, spec });
        }
    }
    for &id in pool.nodes().keys() {
        if node_facts(world, known, id).is_none() {
            inputs.push(Input::NodeGone { node: id });
        }
    }
}

fn holdings(world: &World, pool: &Pool, known: &Known, inputs: &mut Vec<Input>) {
    for (&id, node) in pool.nodes() {
        let Some(facts) = node_facts(world, known, id) else { continue };
        let status = world.ledger(facts);
        for (&job, holding) in &node.holdings {
            let Some(who) = known.ids.pod(job) else { continue };
            let place = Place { world, known, facts, status, job, holding, uid: &who.uid };
            let fate = match world.pods.get(&who.uid) {
                Some(pod) => place.present(pod),
                None => place.gone(),
            };
            let over = matches!(fate, Some(Input::Released { .. }));
            inputs.extend(fate);
            let ours = holding.shape.is_some();
            if ours
                && !over
                && let Some(gpus) = place.really_held()
            {
                inputs.push(Input::Holds { job, gpus });
            }
        }
    }
}

/// One pod's GPUs on one node, as the policy has them and as the world shows them.
struct Place<'a> {
    world: &'a World,
    known: &'a Known,
    facts: &'a NodeFacts,
    status: Option<&'a GpuNodeStatus>,
    job: JobId,
    holding: &'a Holding,
    uid: &'a str,
}

impl Place<'_> {
    fn released(&self, outcome: Outcome) -> Input {
        Input::Released { job: self.job, outcome }
    }

    fn reservation(&self) -> Option<&Reservation> {
        self.status?.reservations.iter().find(|reservation| reservation.uid == self.uid)
    }

    fn bind_posted(&self) -> bool {
        self.reservation().is_some_and(|reservation| reservation.bound_at.is_some())
    }

    fn present(&self, pod: &PodFacts) -> Option<Input> {
        if let Some(outcome) = pod.ended {
            return Some(self.released(outcome));
        }
        let job = self.job;
        match &pod.node {
            Some(node) if *node == self.facts.name => {
                if pod.running && self.holding.stage < Stage::Running {
                    Some(Input::Started { job, latest_end: limits::from_start(pod) })
                } else if self.holding.stage < Stage::Bound {
                    Some(Input::Bound { job })
                } else {
                    None
                }
            }
            // Bound elsewhere: this promise can no longer be used.
            Some(_) => Some(self.released(Outcome::Cancelled)),
            // The API server binds no pod whose deletion was asked for.
            None if pod.deleting => Some(self.released(Outcome::Cancelled)),
            None => self.bind_undone().then_some(Input::BindFailed { job }),
        }
    }

    /// Whether an extender gave its claim back because the binding was refused: it lets the
    /// reservation end at once, which nobody else does.
    fn bind_undone(&self) -> bool {
        let Some(reservation) = self.reservation() else { return false };
        let deadline = reservation.deadline.as_ref().map(millis);
        let cut = deadline.zip(self.holding.expires).is_some_and(|(cut, meant)| cut < meant);
        // A ledger that trails may still show an earlier reservation of the pod.
        let same = reservation.since == began(self.holding.since);
        same && cut && reservation.bound_at.is_none()
    }

    /// The object is gone. That says nothing of the containers, unless the pod was never bound or
    /// its last state was terminal.
    fn gone(&self) -> Option<Input> {
        let last = self.world.last_words.get(self.uid);
        if let Some(outcome) = last.and_then(|pod| pod.ended) {
            return Some(self.released(outcome));
        }
        // The pod's watch may be ahead of the ledger's, which does not show the claim then.
        let bound = last.is_some_and(|pod| pod.node.as_ref() == Some(&self.facts.name));
        if self.holding.stage == Stage::Reserved && !self.bind_posted() && !bound {
            return Some(self.released(Outcome::Cancelled));
        }
        if self.holding.stage < Stage::Releasing {
            return Some(Input::Vanished { job: self.job });
        }
        let agent = self.status.filter(|status| status.agent_seen.is_some());
        let over = if let Some(status) = agent {
            status.released.iter().any(|uid| uid == self.uid)
        } else {
            let until = self.known.release_at.get(&self.job);
            until.is_none_or(|&until| until <= self.world.now)
        };
        over.then(|| self.released(Outcome::Cancelled))
    }

    /// The GPUs that the node gave the pod, where they are others than those promised. Containers
    /// of a pod get theirs one after another, so fewer than promised is not the last word.
    fn really_held(&self) -> Option<GpuSet> {
        let gpus = held_by(self.status?, self.uid);
        let complete = gpus.count() >= self.holding.gpus.count();
        (complete && gpus != self.holding.gpus).then_some(gpus)
    }
}

fn held_by(status: &GpuNodeStatus, uid: &str) -> GpuSet {
    let held = status.gpus.iter().filter(|gpu| gpu.holder.as_ref().is_some_and(|h| h.uid == uid));
    held.filter_map(node::index).collect()
}

/// Pods that hold GPUs and did not go through the rule.
fn foreign(world: &World, pool: &Pool, known: &Known, inputs: &mut Vec<Input>) {
    for pod in world.pods.values() {
        let count = pod.gpus(world.resource());
        let facts = pod.node.as_ref().and_then(|name| world.nodes.get(name));
        let Some(facts) = facts.filter(|_| count > 0 && pod.ended.is_none()) else { continue };
        if known.accounts_for(&pod.who.uid, facts, pool) {
            continue;
        }
        let gpus = world.ledger(facts).map(|status| held_by(status, &pod.who.uid));
        let gpus = gpus.filter(|gpus| gpus.count() >= count);
        let latest_end = limits::from_start(pod);
        found(Found { facts, uid: &pod.who.uid, count, gpus, latest_end }, pool, known, inputs);
    }
    // Holders whose objects are gone, or were never seen.
    for facts in world.nodes.values() {
        let Some(status) = world.ledger(facts) else { continue };
        let mut seen = BTreeSet::new();
        for who in holders(status) {
            let known_otherwise = known.accounts_for(&who.uid, facts, pool)
                || world.pods.contains_key(&who.uid)
                || world.last_words.contains_key(&who.uid)
                || known.released.contains_key(&who.uid)
                || status.released.contains(&who.uid);
            if known_otherwise || !seen.insert(&who.uid) {
                continue;
            }
            let gpus = held_by(status, &who.uid);
            let found_one = Found {
                facts,
                uid: &who.uid,
                count: gpus.count(),
                gpus: Some(gpus),
                latest_end: None,
            };
            found(found_one, pool, known, inputs);
        }
    }
}

#[derive(Clone, Copy)]
struct Found<'a> {
    facts: &'a NodeFacts,
    uid: &'a str,
    count: u32,
    gpus: Option<GpuSet>,
    latest_end: Option<Millis>,
}

fn found(found: Found<'_>, pool: &Pool, known: &Known, inputs: &mut Vec<Input>) {
    let Found { facts, uid, count, gpus, latest_end } = found;
    let Some(job) = known.ids.foreign(uid) else { return };
    let Some(node) = known.ids.node(&facts.name, &facts.uid) else { return };
    let same = pool.holding(job).is_some_and(|holding| {
        pool.node_of(job) == Some(node)
            && gpus.is_none_or(|gpus| gpus == holding.gpus)
            && (latest_end == holding.latest_end || holding.stage == Stage::Releasing)
    });
    if !same {
        inputs.push(Input::Foreign { job, node, count, gpus, latest_end });
    }
}

fn queues(world: &World, pool: &Pool, known: &Known, inputs: &mut Vec<Input>) {
    let waiting = pool.queue(Shape::Large).chain(pool.queue(Shape::Small));
    for job in waiting.map(|waiting| waiting.job.id) {
        let pod = known.ids.pod(job).and_then(|who| world.pods.get(&who.uid));
        if !pod.is_some_and(|pod| world.waits(pod)) {
            inputs.push(Input::Withdrawn { job });
        }
    }
    let mut fitting = Fitting::default();
    for pod in world.ours().filter(|pod| world.waits(pod)) {
        let Some(id) = known.ids.job(&pod.who.uid) else { continue };
        if pool.node_of(id).is_some() {
            continue;
        }
        let job = world.job(pod, id, &known.ids, &mut fitting);
        if pool.job(id) != Some(&job) {
            inputs.push(Input::Queued(Box::new(job)));
        }
    }
}

fn node_facts<'a>(world: &'a World, known: &Known, id: NodeId) -> Option<&'a NodeFacts> {
    let facts = world.nodes.get(known.ids.node_name(id)?)?;
    (known.ids.node_uid(id) == Some(&facts.uid)).then_some(facts)
}

#[cfg(test)]
mod tests;

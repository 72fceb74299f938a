//! Pure: the policy's state, read back from ledgers.

use std::collections::BTreeMap;

use super::ledger::gpu_set;
use super::pod::shape_named;
use super::time::millis;
use super::world::Fitting;
use super::{Known, NodeFacts, World, node};
use crate::api::{
    self, DrainStatus, GpuNodeStatus, NodePhase, Reservation, ReservationKind, ReservationState,
};
use crate::policy::{
    ConfigError, Counters, Fits, Gate, Holding, Job, JobId, Kind, Millis, Node, Phase, Pool,
    ShapeCounters, Stage, Turn,
};

/// For how long a posted binding may still take effect without our hearing of it. The API server
/// ends every request after a minute; the rest is slack for clocks.
pub const BIND_DOUBT: Millis = Millis::from_secs(75);

/// The policy's state as the ledgers of `world` recorded it, with the names that go with it.
pub fn restore(world: &World) -> Result<(Pool, Known), ConfigError> {
    let mut known = Known::default();
    // In the order in which the settings gave quotas their numbers.
    for quota in &world.pool.spec.quotas {
        known.ids.tenant(&quota.namespace);
    }
    adopt_sequences(world, &mut known);
    let mut nodes = BTreeMap::new();
    let mut jobs = Vec::new();
    let homes = homes(world);
    for facts in world.nodes.values() {
        let id = known.ids.learn_node(&facts.name, &facts.uid);
        let status = world.ledger(facts);
        let restored = match status {
            Some(status) => restore_node(world, facts, status, &homes, &mut known, &mut jobs),
            None => Node::new(node::spec(facts, None, world.resource()), world.now),
        };
        nodes.insert(id, restored);
    }
    let elsewhere = world.pool.status.as_ref().map(|status| counters(&status.elsewhere));
    let elsewhere = elsewhere.unwrap_or_default();
    let pool = Pool::restore(world.config.clone(), nodes, jobs, elsewhere)?;
    Ok((pool, known))
}

/// Where each pod belongs, by UID, that has a reservation on several nodes. That happens when the
/// write of a leader that was superseded arrives late, on a node of which the next one has not
/// written since. What a binding was posted for counts for more than what nobody used yet, and
/// where the pod is bound, for most.
fn homes(world: &World) -> BTreeMap<&str, &str> {
    let mut places: BTreeMap<&str, Vec<(&NodeFacts, &Reservation)>> = BTreeMap::new();
    for facts in world.nodes.values() {
        for reservation in world.ledger(facts).into_iter().flat_map(|s| &s.reservations) {
            places.entry(&reservation.uid).or_default().push((facts, reservation));
        }
    }
    places.retain(|_, places| places.len() > 1);
    places.into_iter().filter_map(|(uid, places)| Some((uid, home(world, uid, places)?))).collect()
}

fn home<'a>(
    world: &World,
    uid: &str,
    places: Vec<(&'a NodeFacts, &Reservation)>,
) -> Option<&'a str> {
    let bound = world.pods.get(uid).and_then(|pod| pod.node.as_ref());
    let best = places.into_iter().max_by_key(|&(facts, reservation)| {
        let here = bound.is_some_and(|node| *node == facts.name);
        (here, may_be_bound(reservation), reservation.bound_at.as_ref().map(millis))
    });
    best.map(|(facts, _)| facts.name.as_str())
}

/// Whether a binding was posted by this reservation.
fn may_be_bound(reservation: &Reservation) -> bool {
    reservation.bound_at.is_some() || reservation.state != ReservationState::Reserved
}

/// Numbers that ledgers recorded come first: what a ledger says was decided upon.
fn adopt_sequences(world: &World, known: &mut Known) {
    for facts in world.nodes.values() {
        for reservation in world.ledger(facts).into_iter().flat_map(|s| &s.reservations) {
            let sequence = reservation.sequence.and_then(|number| u64::try_from(number).ok());
            if let Some(sequence) = sequence {
                known.ids.adopt(&who(reservation), sequence);
            }
        }
    }
    for pod in world.ours() {
        known.ids.tenant(&pod.who.namespace);
    }
    known.ids.learn_pods(world.ours().map(AsRef::as_ref).filter(|pod| pod.ended.is_none()));
}

fn who(reservation: &Reservation) -> api::PodRef {
    api::PodRef {
        namespace: reservation.namespace.clone(),
        name: reservation.name.clone(),
        uid: reservation.uid.clone(),
    }
}

fn restore_node(
    world: &World,
    facts: &NodeFacts,
    status: &GpuNodeStatus,
    homes: &BTreeMap<&str, &str>,
    known: &mut Known,
    jobs: &mut Vec<Job>,
) -> Node {
    let mut spec = node::spec(facts, Some(status), world.resource());
    spec.schedulable &= !world.leaving.contains(&facts.name);
    let mut holdings = BTreeMap::new();
    let mut large = None;
    for reservation in &status.reservations {
        if homes.get(&*reservation.uid).is_some_and(|home| *home != facts.name) {
            // Nobody binds by one that the next write leaves out. Otherwise the pod may run here.
            if may_be_bound(reservation) {
                let (job, holding) = doubtful(world, status, reservation, known);
                holdings.insert(job, holding);
            }
            continue;
        }
        let Some((job, holding)) = holding(world, status, reservation, known) else { continue };
        if let Some(shape) = holding.shape {
            let pod = world.pods.get(&reservation.uid).filter(|pod| pod.is_ours());
            let from_ledger = || Job {
                id: job,
                shape,
                priority: 0,
                created: holding.since,
                limit: holding.latest_end.map(|end| end.since(holding.since)),
                tenant: known.ids.known_tenant(&reservation.namespace),
                fits: Fits::Any,
            };
            jobs.push(pod.map_or_else(from_ledger, |pod| {
                world.job(pod, job, &known.ids, &mut Fitting::default())
            }));
            if shape == crate::policy::Shape::Large {
                large = Some(job);
            }
        }
        holdings.insert(job, holding);
    }
    Node {
        spec,
        phase: phase(world, status, large, known),
        phase_since: status.phase_since.as_ref().map_or(world.now, millis),
        turn: status.turn.as_ref().map(|turn| Turn {
            since: millis(&turn.since),
            early_failures: u32::try_from(turn.early_failures).unwrap_or_default(),
            failed_early: false,
        }),
        given_up: status.given_up.as_ref().map(millis),
        holdings,
        counters: counters(&status.counters),
    }
}

fn holding(
    world: &World,
    status: &GpuNodeStatus,
    reservation: &Reservation,
    known: &mut Known,
) -> Option<(JobId, Holding)> {
    let who = who(reservation);
    known.ids.tenant(&who.namespace);
    let label = reservation.shape.as_deref().and_then(shape_named);
    // How many GPUs a wide small asked for, its pod says, as long as there is one.
    let pod = world.pods.get(&who.uid).filter(|pod| pod.shape == label);
    let held = gpu_set(status, &reservation.gpus);
    let asked = pod.map_or(held.count(), |pod| pod.gpus(world.resource()));
    let shape = label.map(|label| label.shape(asked));
    let job = match shape {
        // Without a number of its own (somebody removed it) the pod keeps one of this process.
        Some(_) => known.ids.job(&who.uid).or_else(|| Some(known.ids.learn_foreign(&who))),
        None => Some(known.ids.learn_foreign(&who)),
    }?;
    let bound_at = reservation.bound_at.as_ref().map(millis);
    let bound = world.pods.get(&who.uid).is_some_and(|pod| pod.node.is_some());
    let stage = match reservation.state {
        ReservationState::Reserved => Stage::Reserved,
        // A posted binding is not one yet: the pod's own word counts.
        ReservationState::Bound if world.pods.contains_key(&who.uid) && !bound => Stage::Reserved,
        ReservationState::Bound => Stage::Bound,
        ReservationState::Running => Stage::Running,
        ReservationState::Releasing => Stage::Releasing,
    };
    let deadline = reservation.deadline.as_ref().map(millis);
    let expires = (stage == Stage::Reserved).then(|| {
        let doubt = bound_at.map(|at| at + BIND_DOUBT);
        deadline.max(doubt).unwrap_or(world.now)
    });
    if let Some(until) = deadline.filter(|_| stage == Stage::Releasing) {
        known.release_at.insert(job, until);
    }
    let holding = Holding {
        shape,
        kind: kind(reservation.kind),
        stage,
        gpus: gpu_set(status, &reservation.gpus),
        since: millis(&reservation.since),
        expires,
        latest_end: reservation.latest_end.as_ref().map(millis),
        evicting: false,
    };
    Some((job, holding))
}

/// GPUs of a pod that belongs to another node by all that is known, and that may have been bound
/// here: counted as a foreign pod's, until it is seen elsewhere or is gone, or the binding can no
/// longer take effect.
fn doubtful(
    world: &World,
    status: &GpuNodeStatus,
    reservation: &Reservation,
    known: &mut Known,
) -> (JobId, Holding) {
    let unbound = world.pods.get(&reservation.uid).is_some_and(|pod| pod.node.is_none());
    let until = reservation.bound_at.as_ref().map(|at| millis(at) + BIND_DOUBT);
    let expires = until.filter(|_| unbound);
    let holding = Holding {
        shape: None,
        kind: Kind::Foreign,
        stage: if expires.is_some() { Stage::Reserved } else { Stage::Bound },
        gpus: gpu_set(status, &reservation.gpus),
        since: millis(&reservation.since),
        expires,
        latest_end: reservation.latest_end.as_ref().map(millis),
        evicting: false,
    };
    (known.ids.learn_foreign(&who(reservation)), holding)
}

fn phase(world: &World, status: &GpuNodeStatus, large: Option<JobId>, known: &mut Known) -> Phase {
    let condition = status.conditions.iter().find(|c| c.type_ == "DrainOverdue");
    // Where overdue drains evict, the drain is found overdue anew: the order to evict is not in
    // the ledger.
    let overdue = condition.is_some_and(|c| c.status == "True") && !world.config.evict_overdue;
    let gate = |drain: &DrainStatus, known: &mut Known| {
        let job = known.ids.job(&drain.pod.uid);
        // A large that is gone meanwhile: the next step finds the gate another, or opens it.
        let job = job.unwrap_or_else(|| known.ids.learn_foreign(&drain.pod));
        Gate { job, since: millis(&drain.since), overdue }
    };
    match (status.phase, &status.drain, large) {
        (NodePhase::Exclusive, _, Some(large)) => Phase::Exclusive(large),
        (NodePhase::Draining, Some(drain), _) => Phase::Draining(gate(drain, known)),
        (NodePhase::Wave, Some(drain), _) => {
            let admitted = status.wave.as_ref().map_or(0, |wave| wave.admitted);
            let admitted = u32::try_from(admitted).unwrap_or_default();
            Phase::Wave { admitted, gate: gate(drain, known) }
        }
        (NodePhase::Open | NodePhase::Draining | NodePhase::Exclusive | NodePhase::Wave, _, _) => {
            Phase::Open
        }
    }
}

const fn kind(kind: ReservationKind) -> Kind {
    match kind {
        ReservationKind::Direct => Kind::Direct,
        ReservationKind::Wave => Kind::Wave,
        ReservationKind::Backfill => Kind::Backfill,
        ReservationKind::Foreign => Kind::Foreign,
    }
}

fn counters(counters: &api::Counters) -> Counters {
    Counters {
        small: shape_counters(&counters.small),
        large: shape_counters(&counters.whole_node_large),
    }
}

fn shape_counters(counters: &api::ShapeCounters) -> ShapeCounters {
    let whole = |number: i64| u64::try_from(number).unwrap_or_default();
    ShapeCounters {
        admitted: whole(counters.admitted),
        completed: whole(counters.completed),
        failed: whole(counters.failed),
        cancelled: whole(counters.cancelled),
    }
}

#[cfg(test)]
mod tests;

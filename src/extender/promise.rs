//! Cluster side, without calls: what a claim on a reservation needs and changes in the ledger, what
//! a Binding that failed may have done, and when a claim may be given back.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::bind::BindError;
use super::filter::{Standing, find, standing};
use super::wire::BindArgs;
use crate::api::{GpuHealth, GpuNode, GpuNodeStatus, Reservation, ReservationState};
use crate::clock::to_timestamp;
use crate::policy::Millis;
use crate::translate::time::{began, millis};

/// Tries to post a Binding whose answer was lost and which took no effect. More are the
/// scheduler's business, which comes again.
pub const POST_ATTEMPTS: u32 = 2;

/// Where a claim comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// This call made it, at this time as the ledger has it.
    Made(Time),
    /// It was there: an earlier call made it, or this one did and the answer was lost.
    Found,
}

impl Claimed {
    /// The claim of a pod as it was just written to a ledger.
    pub fn made(written: &GpuNode, uid: &str) -> Self {
        match find(written, uid).and_then(|reservation| reservation.bound_at.clone()) {
            Some(at) => Self::Made(at),
            None => Self::Found,
        }
    }
}

/// What a claim needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum May {
    /// To be written.
    Claim,
    /// Nothing: it is made.
    Done,
}

/// Whether the reservation of a pod may be claimed.
pub fn may_claim(ledger: &GpuNode, uid: &str, now: Millis) -> Result<May, BindError> {
    let node = ledger.metadata.name.clone().unwrap_or_default();
    let Some(reservation) = find(ledger, uid) else {
        return Err(BindError::NotReserved { node, uid: uid.to_owned() });
    };
    match standing(ledger, reservation, now) {
        Standing::Claimed => return Ok(May::Done),
        Standing::Promised => {}
        Standing::Expired(at) => return Err(BindError::Expired { node, at: at.0 }),
        Standing::Releasing => {
            let why = "its GPUs are being released".to_owned();
            return Err(BindError::Unusable { node, why });
        }
        Standing::Foreign => {
            return Err(BindError::NotReserved { node, uid: uid.to_owned() });
        }
    }
    match ledger.status.as_ref().and_then(|status| unfit(status, reservation)) {
        Some(why) => Err(BindError::Unusable { node, why }),
        None => Ok(May::Claim),
    }
}

/// Why GPUs that were fit when they were reserved are not now.
fn unfit(status: &GpuNodeStatus, reservation: &Reservation) -> Option<String> {
    for id in &reservation.gpus {
        match status.gpus.iter().find(|gpu| gpu.id == *id) {
            Some(gpu) if gpu.health == GpuHealth::Healthy => {}
            Some(gpu) => {
                let reason = gpu.reason.as_deref().unwrap_or("no reason given");
                return Some(format!("GPU {id} is unhealthy: {reason}"));
            }
            None => return Some(format!("GPU {id} is not on the node")),
        }
        let mut others = status.reservations.iter().filter(|other| other.uid != reservation.uid);
        if let Some(other) = others.find(|other| other.gpus.contains(id)) {
            return Some(format!("GPU {id} is held by {}/{}", other.namespace, other.name));
        }
    }
    reservation.gpus.is_empty().then(|| "it names no GPU".to_owned())
}

/// The ledger with the claims of these pods made.
#[must_use]
pub fn claimed(ledger: &GpuNode, whose: impl Fn(&str) -> bool, now: Millis) -> GpuNode {
    let now = Time(to_timestamp(now));
    changed(ledger, whose, |reservation| {
        reservation.state = ReservationState::Bound;
        reservation.bound_at = Some(now.clone());
    })
}

/// The ledger with a claim that was found made anew, before another Binding is posted by it;
/// nothing, where the pod is known to run.
///
/// The new Binding may be under way for as long as the first one could, so the doubt begins again;
/// and whoever made the claim no longer finds it as its own, and does not give it back.
pub fn renewed(ledger: &GpuNode, uid: &str, now: Millis) -> Result<Option<GpuNode>, BindError> {
    may_claim(ledger, uid, now)?;
    let Some(reservation) = find(ledger, uid) else { return Ok(None) };
    if reservation.state > ReservationState::Bound {
        return Ok(None);
    }
    // The API keeps whole seconds, and a later claim is told from an earlier one by them alone.
    let before = reservation.bound_at.as_ref().map(millis);
    let at = before.map_or(now, |before| now.max(before + Millis::from_secs(1)));
    Ok(Some(claimed(ledger, |of| of == uid, at)))
}

/// The ledger with the claim of a pod given back, and its reservation at its end; nothing, where
/// the claim is not the one that was made then.
#[must_use]
pub fn given_back(ledger: &GpuNode, uid: &str, made: &Time, now: Millis) -> Option<GpuNode> {
    let reservation = find(ledger, uid)?;
    let same = reservation.bound_at.as_ref().is_some_and(|at| same_second(at, made));
    if reservation.state != ReservationState::Bound || !same {
        return None;
    }
    let now = Time(to_timestamp(now));
    let end = |reservation: &mut Reservation| {
        reservation.state = ReservationState::Reserved;
        reservation.bound_at = None;
        reservation.deadline = Some(now.clone());
    };
    Some(changed(ledger, |of| of == uid, end))
}

fn same_second(one: &Time, other: &Time) -> bool {
    began(millis(one)) == began(millis(other))
}

/// A ledger with some reservations changed, as the next revision.
fn changed(
    ledger: &GpuNode,
    which: impl Fn(&str) -> bool,
    change: impl Fn(&mut Reservation),
) -> GpuNode {
    let mut ledger = ledger.clone();
    if let Some(status) = &mut ledger.status {
        status.reservations.iter_mut().filter(|of| which(&of.uid)).for_each(change);
        status.revision += 1;
    }
    ledger
}

/// What a call that posted a Binding heard instead of a success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The API server will not do it.
    Definite(String),
    /// No clear answer: it may have taken effect, or may still.
    Unclear(String),
}

/// A pod as it is found after a Binding that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It could not be read, for this reason.
    Unread(String),
    /// It is gone, or another pod has its name.
    Gone,
    /// It is on no node.
    Unbound,
    /// It is on this node.
    On(String),
}

/// Whether the pod is bound to the node that was asked for.
pub fn is_bound(args: &BindArgs, seen: Seen) -> Result<bool, BindError> {
    match seen {
        Seen::Unread(why) => Err(BindError::Unclear(why)),
        Seen::Gone => Err(BindError::PodGone {
            namespace: args.pod_namespace.clone(),
            name: args.pod_name.clone(),
            uid: args.pod_uid.clone(),
        }),
        Seen::Unbound => Ok(false),
        Seen::On(node) if node == args.node => Ok(true),
        Seen::On(node) => Err(BindError::Elsewhere(node)),
    }
}

/// What follows from a Binding that failed.
#[derive(Debug)]
pub enum Next {
    /// The pod is bound all the same.
    Bound,
    /// To be posted once more.
    Again,
    /// Nothing more can be done now.
    Fail(BindError),
}

/// Judges a Binding of which this was the `attempt`, counted from one, and after which the pod was
/// read.
pub fn after_post(args: &BindArgs, attempt: u32, failure: Failure, seen: Seen) -> Next {
    // One of these calls may have bound the pod, or still will.
    let doubt = attempt > 1 || matches!(failure, Failure::Unclear(_));
    match is_bound(args, seen) {
        Ok(true) => return Next::Bound,
        Ok(false) => {}
        Err(gone @ BindError::PodGone { .. }) if doubt => {
            return Next::Fail(BindError::Unclear(format!("{gone}, and may have run")));
        }
        Err(error) => return Next::Fail(error),
    }
    match failure {
        Failure::Unclear(_) if attempt < POST_ATTEMPTS => Next::Again,
        Failure::Unclear(text) => Next::Fail(BindError::Unclear(text)),
        // Neither gone nor bound: the pod is being deleted, or a policy forbids it.
        Failure::Definite(text) if doubt => {
            let refused = BindError::Refused(text);
            Next::Fail(BindError::Unclear(format!("{refused}, an earlier try may yet count")))
        }
        Failure::Definite(text) => Next::Fail(BindError::Refused(text)),
    }
}

/// When the claim was made that may be given back after this error, if it may.
///
/// Only whoever made a claim may, and only where no Binding of its own ever took effect, nor will.
/// By a claim that was found, an earlier call may have posted a Binding that is still under way or
/// has counted: the claim stays, and the controller ends it when none can count any more.
pub fn to_give_back(claimed: Claimed, error: &BindError) -> Option<Time> {
    match (claimed, error) {
        (Claimed::Found, _) | (_, BindError::Unclear(_)) => None,
        (Claimed::Made(at), _) => Some(at),
    }
}

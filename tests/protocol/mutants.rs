//! Protocols that are wrong on purpose, so that each property is known to be able to fail.
//!
//! The real functions decide here too; what they are shown, what they want written or what becomes
//! of it is then spoilt as a fault in that place would.

use std::sync::Arc;

use sluice::api::{GpuNode, GpuNodeStatus, NodePhase, ReservationState};
use sluice::policy::{Input, Outcome, Pool};
use sluice::translate::World;
use sluice::translate::plan::{Action, Plan};

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// Ledgers are written without a condition.
    WritesAnyway,
    /// A write that was refused is forgotten.
    GivesUp,
    /// A write to a pod that is gone is repeated at once, for ever.
    TriesAgain,
    /// A leader whose time was over while it was stopped looks at what is new, and decides.
    LooksAgain,
    /// The gate goes before the ledger shows the reservation.
    UngatesFirst,
    /// A large's gate goes as soon as a node drains for it.
    UngatesDrain,
    /// Pods are written to by name.
    IgnoresUid,
    /// The controller does not see what extenders claimed.
    IgnoresClaims,
    /// A pod that was deleted by force is taken to have ended.
    FreesEarly,
    /// That a pod has ended is not noticed.
    MissesEnds,
    /// Two pods are promised the same GPU.
    PromisesTwice,
    /// A new leader does not read who has a reservation.
    ForgetsReservations,
    /// A new leader does not read for whom a gate is closed.
    ForgetsGates,
    /// An extender believes its memory of a ledger, and writes no claim.
    ClaimsUnseen,
    /// A claim that was found is not made anew.
    RenewsNothing,
    /// A claim is given back although the Binding may still arrive.
    GivesBackUnclear,
    /// A claim is given back by whoever found it.
    GivesBackFound,
    /// A claim is given back although another call went on from it.
    GivesBackOthers,
    /// An extender that was stopped posts a Binding when it wakes.
    PostsLate,
}

impl Mutant {
    /// What a new leader reads otherwise than it is.
    pub(crate) fn spoil_restored(self, world: &mut World) {
        match self {
            Self::ForgetsReservations => each_status(world, |status| status.reservations.clear()),
            Self::ForgetsGates => each_status(world, |status| {
                status.drain = None;
                status.phase = NodePhase::Open;
            }),
            _ => {}
        }
    }

    /// What a leader sees otherwise than it is.
    pub(crate) fn spoil_world(self, world: &mut World) {
        if self == Self::IgnoresClaims {
            each_status(world, |status| {
                for of in &mut status.reservations {
                    if of.state == ReservationState::Bound {
                        of.state = ReservationState::Reserved;
                        of.bound_at = None;
                    }
                }
            });
        }
    }

    /// What the policy is told otherwise than it is.
    pub(crate) fn spoil_inputs(self, inputs: &mut Vec<Input>) {
        match self {
            Self::FreesEarly => {
                for input in inputs {
                    if let Input::Vanished { job } = *input {
                        *input = Input::Released { job, outcome: Outcome::Cancelled };
                    }
                }
            }
            Self::MissesEnds => inputs.retain(|i| !matches!(i, Input::Released { .. })),
            _ => {}
        }
    }

    /// What is to be written otherwise than it should.
    pub(crate) fn spoil_plan(self, plan: &mut Plan, world: &World, pool: &Pool) {
        if self == Self::PromisesTwice {
            plan.actions.iter_mut().for_each(promise_twice);
        }
        let draining = pool.nodes().values().any(|node| node.gate().is_some());
        for pod in world.ours().filter(|pod| pod.gated && pod.can_be_bound()) {
            let early = match self {
                Self::UngatesFirst => pod.nominated.is_none(),
                Self::UngatesDrain => draining && pod.nominated.is_some(),
                _ => false,
            };
            if early {
                plan.actions.insert(0, Action::Ungate { pod: pod.who.clone(), sequence: None });
            }
        }
    }
}

fn promise_twice(action: &mut Action) {
    let Action::WriteLedger { object, .. } = action else { return };
    let reservations = object.status.iter_mut().flat_map(|status| &mut status.reservations);
    let mut first: Option<Vec<String>> = None;
    for of in reservations {
        of.gpus = first.get_or_insert_with(|| of.gpus.clone()).clone();
    }
}

fn each_status(world: &mut World, change: impl Fn(&mut GpuNodeStatus)) {
    for ledger in world.ledgers.values_mut() {
        let mut spoilt = GpuNode::clone(ledger);
        spoilt.status.as_mut().map(&change);
        *ledger = Arc::new(spoilt);
    }
}

//! What an extender does with a request to bind: the real judgements, on what the ledger and the
//! pod are at that moment.

use std::sync::Arc;

use sluice::api::ReservationState;
use sluice::extender::BindError;
use sluice::extender::filter::find;
use sluice::extender::promise::{
    Claimed, Failure, May, Next, Seen, after_post, claimed, given_back, may_claim, renewed,
    to_give_back,
};
use sluice::extender::wire::BindArgs;

use super::Protocol;
use super::mutants::Mutant;
use super::state::{BindStage, Binding, Fault, Marks, State, Underway};
use super::steps::{Fate, REQUEST_LIFE, Step, TICK};

impl Protocol {
    pub(crate) fn bind(&self, state: &mut State, step: &Step) {
        match step {
            Step::Claim(uid, node, heard) => self.claim(state, uid, node, *heard),
            Step::ClaimLate(uid, node) => {
                state.left.sleepers -= 1;
                let ledger = Arc::clone(&state.server.ledgers[node]);
                let next = claimed(&ledger, |of| of == uid, state.now.since(TICK));
                state.write_ledger(&next);
                state.mark(Marks::LATE_CLAIM);
                if self.mutant == Some(Mutant::PostsLate) {
                    let made = Claimed::made(&next, uid);
                    push(state, uid, node, made, BindStage::Post(1));
                }
            }
            Step::Renew(index) => Self::renew(state, *index),
            Step::Refuse(index) => {
                state.left.refusals -= 1;
                self.failed(state, *index, Failure::Definite("a policy".to_owned()));
            }
            Step::GiveBack(index) => self.give_back(state, *index),
            Step::Forget(index) => {
                state.left.crashes -= 1;
                state.bindings.remove(*index);
            }
            Step::BindLate(index) => {
                let late = state.underway.remove(*index);
                // Whoever is bound already, deleted or gone is not bound.
                if self.arrives(state, &late.uid, &late.node).is_ok() {
                    state.mark(Marks::LATE_BINDING);
                }
            }
            Step::Post(index, fate) => self.post(state, *index, *fate),
            _ => unreachable!("{step:?} is no extender's"),
        }
    }

    /// What an extender's memory shows is tried first and proved by the condition of the write;
    /// where that fails, and to refuse, the ledger itself is read: it is what decides.
    fn claim(&self, state: &mut State, uid: &str, node: &str, heard: bool) {
        let busy = |of: &Binding| of.uid == uid && of.stage != BindStage::GiveBack;
        if state.bindings.iter().any(busy) {
            state.left.rivals -= 1;
        }
        let ledger = Arc::clone(&state.server.ledgers[node]);
        if self.mutant == Some(Mutant::ClaimsUnseen) {
            return push(state, uid, node, Claimed::Found, BindStage::Post(1));
        }
        let (by, then) = match may_claim(&ledger, uid, state.now) {
            Ok(May::Done) if self.mutant == Some(Mutant::RenewsNothing) => {
                (Claimed::Found, BindStage::Post(1))
            }
            // The pod was read as well: it is on no node.
            Ok(May::Done) => (Claimed::Found, BindStage::Renew),
            Ok(May::Claim) => {
                let next = claimed(&ledger, |of| of == uid, state.now);
                let written = state.write_ledger(&next).unwrap();
                if heard {
                    (Claimed::made(&written, uid), BindStage::Post(1))
                } else {
                    state.left.losses -= 1;
                    state.mark(Marks::LOST_DONE);
                    (Claimed::Found, BindStage::Renew)
                }
            }
            Err(_) => return,
        };
        push(state, uid, node, by, then);
    }

    fn renew(state: &mut State, index: usize) {
        let Binding { uid, node, .. } = state.bindings[index].clone();
        let ledger = Arc::clone(&state.server.ledgers[&node]);
        match renewed(&ledger, &uid, state.now) {
            Ok(next) => {
                if let Some(next) = next {
                    state.write_ledger(&next);
                    state.mark(Marks::RENEWED);
                }
                state.bindings[index].stage = BindStage::Post(1);
            }
            Err(_) => {
                state.bindings.remove(index);
            }
        }
    }

    fn give_back(&self, state: &mut State, index: usize) {
        let binding = state.bindings.remove(index);
        let ledger = Arc::clone(&state.server.ledgers[&binding.node]);
        let of = find(&ledger, &binding.uid);
        let blindly = [Mutant::GivesBackOthers, Mutant::GivesBackFound, Mutant::GivesBackUnclear];
        let made = match binding.claimed {
            Claimed::Made(at) if self.mutant != Some(Mutant::GivesBackOthers) => Some(at),
            _ if self.mutant.is_some_and(|mutant| blindly.contains(&mutant)) => {
                of.and_then(|of| of.bound_at.clone())
            }
            Claimed::Made(_) | Claimed::Found => None,
        };
        match made.and_then(|made| given_back(&ledger, &binding.uid, &made, state.now)) {
            Some(next) => {
                state.write_ledger(&next);
                state.mark(Marks::GIVEN_BACK);
            }
            None => state.mark(Marks::NOT_GIVEN_BACK),
        }
    }

    fn post(&self, state: &mut State, index: usize, fate: Fate) {
        let Binding { uid, node, .. } = state.bindings[index].clone();
        if fate != Fate::Answered {
            state.left.losses -= 1;
        }
        if fate == Fate::RequestLost {
            let until = state.now + REQUEST_LIFE;
            state.underway.push(Underway { uid, node, until });
            state.underway.sort();
            state.mark(Marks::LOST_UNDONE);
            return self.failed(state, index, Failure::Unclear("no answer".to_owned()));
        }
        let done = self.arrives(state, &uid, &node);
        if fate == Fate::AnswerLost {
            state.mark(if done.is_ok() { Marks::LOST_DONE } else { Marks::LOST_UNDONE });
            return self.failed(state, index, Failure::Unclear("no answer".to_owned()));
        }
        match done {
            Ok(()) => {
                state.bindings.remove(index);
            }
            Err(why) => self.failed(state, index, Failure::Definite(why.to_owned())),
        }
    }

    /// A Binding failed, as far as its sender knows, who reads the pod.
    fn failed(&self, state: &mut State, index: usize, failure: Failure) {
        let Binding { uid, node, claimed, stage } = state.bindings[index].clone();
        let BindStage::Post(attempt) = stage else { unreachable!("{stage:?} posts nothing") };
        let seen = match state.server.pods.get(&uid) {
            None => Seen::Gone,
            Some(pod) => pod.node.clone().map_or(Seen::Unbound, Seen::On),
        };
        let args = BindArgs { pod_uid: uid, node, ..BindArgs::default() };
        match after_post(&args, attempt, failure, seen) {
            Next::Bound => {
                state.bindings.remove(index);
            }
            Next::Again => state.bindings[index].stage = BindStage::Post(attempt + 1),
            Next::Fail(error) => {
                let spoilt = self.mutant == Some(Mutant::GivesBackFound)
                    && !matches!(error, BindError::Unclear(_))
                    || self.mutant == Some(Mutant::GivesBackUnclear);
                if spoilt || to_give_back(claimed, &error).is_some() {
                    state.bindings[index].stage = BindStage::GiveBack;
                } else {
                    state.bindings.remove(index);
                }
            }
        }
    }

    /// A Binding arrives.
    fn arrives(&self, state: &mut State, uid: &str, node: &str) -> Result<(), &'static str> {
        let cancelled = !state.server.pods.contains_key(uid);
        let mut uid = uid.to_owned();
        if self.mutant == Some(Mutant::IgnoresUid) {
            let name = self.pods.iter().find(|pod| pod.uid == uid).map(|pod| &pod.name);
            let named = name.and_then(|name| state.server.named(name));
            uid = named.map_or(uid, |pod| pod.who.uid.clone());
        }
        let Some(pod) = state.server.pods.get(&uid).cloned() else { return Err("not found") };
        if pod.gated || pod.node.is_some() || pod.ended.is_some() {
            return Err("it has a gate or a node");
        }
        if pod.deleting {
            return Err("it is being deleted");
        }
        if cancelled {
            state.fail(Fault::BoundCancelled);
        }
        let claim = find(&state.server.ledgers[node], &uid);
        if claim.is_none_or(|of| of.state < ReservationState::Bound) {
            state.fail(Fault::BoundUnclaimed);
        }
        let node = node.to_owned();
        state.write_pod(&pod, |pod| pod.node = Some(node));
        Ok(())
    }
}

fn push(state: &mut State, uid: &str, node: &str, by: Claimed, then: BindStage) {
    let (uid, node) = (uid.to_owned(), node.to_owned());
    state.bindings.push(Binding { uid, node, claimed: by, stage: then });
}

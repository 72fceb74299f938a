//! What a step does, where users, nodes or leaders take it.

use std::sync::Arc;

use sluice::api::{GpuNode, ReservationState};
use sluice::extender::filter::find;
use sluice::translate::plan::{Action, Nomination};
use sluice::translate::pod::Admitted;
use sluice::translate::restore::BIND_DOUBT;
use sluice::translate::time::millis;

use super::Protocol;
use super::mutants::Mutant;
use super::replica::{Outcome, Sent};
use super::server::{PodEvent, RESOURCE, Wanted, pod};
use super::state::{BindStage, Fault, Left, Marks, State};
use super::steps::{Fate, Step, TICK};

impl Protocol {
    pub(crate) fn after(&self, before: &State, step: &Step) -> State {
        let mut state = before.clone();
        match step {
            Step::Create | Step::Delete(_) | Step::Force(_) => self.user(&mut state, step),
            Step::End(_) | Step::Remove(_) | Step::Die(_) => node(&mut state, step),
            Step::Claim(..)
            | Step::ClaimLate(..)
            | Step::Renew(_)
            | Step::Post(..)
            | Step::Refuse(_)
            | Step::GiveBack(_)
            | Step::Forget(_)
            | Step::BindLate(_) => self.bind(&mut state, step),
            Step::Tick => {
                state.left.ticks -= 1;
                self.tick(&mut state);
            }
            Step::Idle => {
                state.idle += 1;
                self.tick(&mut state);
            }
            _ => self.leader(&mut state, step),
        }
        state.seal(self.marked);
        state
    }

    /// The pod that may be created next.
    pub(crate) fn next_pod(&self, state: &State) -> Option<&Wanted> {
        let wanted = self.pods.get(state.created)?;
        let free = wanted.after.as_ref().is_none_or(|before| {
            let known = self.pods[..state.created].iter().any(|pod| pod.uid == *before);
            known && !state.server.pods.contains_key(before)
        });
        free.then_some(wanted)
    }

    fn user(&self, state: &mut State, step: &Step) {
        match step {
            Step::Create => {
                let wanted = self.next_pod(state).unwrap().clone();
                state.created += 1;
                let number = self.numbered.then_some(state.created as u64);
                let created = state.server.create(pod(&wanted, number));
                state.pod_changed(&PodEvent::Is(created));
            }
            Step::Delete(uid) => {
                state.left.deletions -= 1;
                let pod = Arc::clone(&state.server.pods[uid]);
                if pod.node.is_some() {
                    state.write_pod(&pod, |pod| pod.deleting = true);
                } else {
                    state.remove_pod(uid);
                }
            }
            Step::Force(uid) => {
                state.left.forced -= 1;
                let pod = Arc::clone(&state.server.pods[uid]);
                let left = Left { node: pod.node.clone().unwrap(), gpus: pod.gpus(RESOURCE) };
                state.containers.insert(uid.clone(), left);
                state.remove_pod(uid);
            }
            _ => unreachable!("{step:?} is no user's"),
        }
    }

    fn tick(&self, state: &mut State) {
        state.now = state.now + TICK;
        let now = state.now;
        state.underway.retain(|late| late.until >= now);
        // Containers that outlive their pod do so for less than that.
        state.containers.clear();
        if self.mutant != Some(Mutant::PostsLate) {
            // Whoever was stopped meanwhile finds that its time is over.
            state.bindings.retain(|binding| binding.stage == BindStage::GiveBack);
        }
        for replica in &mut state.replicas {
            replica.news = replica.run.is_some();
        }
    }

    fn leader(&self, state: &mut State, step: &Step) {
        match *step {
            Step::Acquire(index) => self.acquire(state, index),
            Step::Restart(index) => self.lead(state, index),
            Step::Round(index, ledgers, pods) => {
                let replica = &mut state.replicas[index];
                replica.see_ledgers(ledgers);
                replica.see_pods(pods);
                let refused = replica.round(&self.settings, state.now);
                let last = std::mem::take(&mut replica.late);
                if replica.starts_over {
                    state.mark(Marks::STARTED_OVER);
                }
                if refused {
                    state.fail(Fault::CommitRefused);
                }
                if last {
                    stop(state, index);
                }
            }
            Step::Carry(index, call, fate) => {
                let Sent { action, .. } = state.replicas[index].sent.remove(call);
                if fate != Fate::Answered {
                    state.left.losses -= 1;
                }
                self.carry(state, index, &action, fate);
            }
            Step::Arrive(index, call) => {
                let action = Arc::clone(&state.replicas[index].sent[call].action);
                let outcome = self.write(state, &action);
                old_refused(state, Some(index), &outcome);
                state.replicas[index].sent[call].arrived = Some(outcome);
            }
            Step::Hear(index, call) => {
                let sent = state.replicas[index].sent.remove(call);
                let outcome = sent.arrived.unwrap();
                self.hear(state, index, &sent.action, &outcome);
            }
            Step::Notice(index) => stop(state, index),
            Step::Pause(index) => {
                state.left.pauses -= 1;
                state.replicas[index].paused = true;
            }
            Step::Wake(index) => {
                state.replicas[index].paused = false;
                if state.lease != Some(index) {
                    state.replicas[index].late = true;
                    state.mark(Marks::AWAKENED);
                }
            }
            Step::Crash(index) => {
                state.left.crashes -= 1;
                stop(state, index);
            }
            Step::Drift(index) => {
                let sent = state.adrift.remove(index);
                let outcome = self.write(state, &sent.action);
                old_refused(state, None, &outcome);
            }
            _ => unreachable!("{step:?} is no leader's"),
        }
    }

    fn acquire(&self, state: &mut State, index: usize) {
        if let Some(holder) = state.lease.filter(|&holder| holder != index) {
            let other = &state.replicas[holder];
            if other.believes() && !other.paused {
                state.left.usurpers -= 1;
            }
            if !other.sent.is_empty() || !state.adrift.is_empty() {
                state.mark(Marks::TAKEOVER);
            }
        }
        state.lease = Some(index);
        self.lead(state, index);
    }

    fn lead(&self, state: &mut State, index: usize) {
        state.replicas[index].lead(&state.server, &self.settings, state.now);
    }

    /// One write of a leader, and what it hears of it.
    fn carry(&self, state: &mut State, index: usize, action: &Action, fate: Fate) {
        let outcome = match fate {
            Fate::RequestLost => Outcome::Conflict,
            Fate::Answered | Fate::AnswerLost => self.write(state, action),
        };
        old_refused(state, Some(index), &outcome);
        if fate == Fate::Answered {
            return self.hear(state, index, action, &outcome);
        }
        let done = matches!(outcome, Outcome::Ledger(_) | Outcome::Pod(_));
        state.mark(if done { Marks::LOST_DONE } else { Marks::LOST_UNDONE });
        // Without an answer, a ledger is read; a pod's write is tried again.
        self.hear(state, index, action, &Outcome::Conflict);
        state.replicas[index].news = state.replicas[index].run.is_some();
    }

    fn hear(&self, state: &mut State, index: usize, action: &Action, outcome: &Outcome) {
        state.replicas[index].hear(action, outcome, &state.server, self.settings.mutant);
        if state.replicas[index].starts_over {
            state.mark(Marks::STARTED_OVER);
        }
    }

    /// A write arrives at the API server.
    fn write(&self, state: &mut State, action: &Action) -> Outcome {
        match action {
            Action::WriteLedger { object, .. } => self.write_ledger(state, object),
            Action::Tell { pod, admitted, nominate, .. } => {
                let change = (admitted.clone(), nominate.clone());
                self.write_pod(state, pod, move |pod| told(pod, change))
            }
            Action::Ungate { pod, sequence } => {
                let named = |(uid, _): &(String, String)| *uid == self.meant(state, pod).uid;
                if !state.promised.iter().any(named) {
                    state.fail(Fault::UngatedUnpromised);
                }
                let held =
                    state.server.ledgers.values().any(|ledger| find(ledger, &pod.uid).is_some());
                if !held && state.server.pods.get(&pod.uid).is_some_and(|pod| pod.gated) {
                    state.mark(Marks::LATE_GATE);
                }
                let sequence = *sequence;
                self.write_pod(state, pod, move |pod| {
                    pod.gated = false;
                    pod.sequence = sequence.or(pod.sequence);
                })
            }
            Action::Number { pod, sequence } => {
                let sequence = Some(*sequence);
                self.write_pod(state, pod, move |pod| pod.sequence = sequence)
            }
            other => unreachable!("{other:?} is not sent here"),
        }
    }

    fn write_pod(
        &self,
        state: &mut State,
        who: &sluice::api::PodRef,
        change: impl FnOnce(&mut sluice::translate::PodFacts),
    ) -> Outcome {
        let who = self.meant(state, who);
        let Some(pod) = state.server.pods.get(&who.uid).cloned() else { return Outcome::Gone };
        state.write_pod(&pod, change).map_or(Outcome::Gone, Outcome::Pod)
    }

    /// The pod that a write is for: that of the UID, unless nobody asks for it.
    fn meant(&self, state: &State, who: &sluice::api::PodRef) -> sluice::api::PodRef {
        let by_name = self.mutant == Some(Mutant::IgnoresUid);
        let named = state.server.named(&who.name).filter(|_| by_name);
        named.map_or_else(|| who.clone(), |pod| pod.who.clone())
    }

    fn write_ledger(&self, state: &mut State, object: &GpuNode) -> Outcome {
        let mut object = object.clone();
        let node = object.metadata.name.clone().unwrap_or_default();
        let before = Arc::clone(&state.server.ledgers[&node]);
        if self.mutant == Some(Mutant::WritesAnyway) {
            object.metadata.resource_version.clone_from(&before.metadata.resource_version);
        }
        let Some(written) = state.write_ledger(&object) else {
            state.mark(Marks::CONFLICT);
            return Outcome::Conflict;
        };
        if drops_claim(state, &before, &written) {
            state.fail(Fault::DroppedClaim);
        }
        if unused_dropped(&before, &written) {
            state.mark(Marks::TAKEN_BACK);
        }
        Outcome::Ledger(written)
    }
}

/// Notes that a write was refused which came from a replica that no longer leads.
fn old_refused(state: &mut State, from: Option<usize>, outcome: &Outcome) {
    if matches!(outcome, Outcome::Conflict) && (from.is_none() || state.lease != from) {
        state.mark(Marks::OLD_REFUSED);
    }
}

/// A replica no longer leads; what it has sent may still arrive.
fn stop(state: &mut State, index: usize) {
    let sent = state.replicas[index].stop();
    state.adrift.extend(sent.into_iter().filter(|sent| sent.arrived.is_none()));
}

fn told(pod: &mut sluice::translate::PodFacts, (admitted, nominate): (Admitted, Nomination)) {
    pod.admitted = Some(admitted);
    match nominate {
        Nomination::Keep => {}
        Nomination::Clear => pod.nominated = None,
        Nomination::Node(node) => pod.nominated = Some(node),
    }
}

/// Whether GPUs were taken from a pod that is bound to the node, or by whose claim it may yet be.
fn drops_claim(state: &State, before: &GpuNode, after: &GpuNode) -> bool {
    let node = before.metadata.name.as_deref();
    let reservations = before.status.iter().flat_map(|status| &status.reservations);
    let mut claimed = reservations.filter(|of| of.state >= ReservationState::Bound);
    claimed.any(|of| {
        let kept = find(after, &of.uid).is_some_and(|now| now.gpus == of.gpus);
        let needed = match state.server.pods.get(&of.uid) {
            Some(pod) if pod.ended.is_some() || pod.deleting && pod.node.is_none() => false,
            Some(pod) => match &pod.node {
                Some(on) => Some(on.as_str()) == node,
                None => of.bound_at.as_ref().is_some_and(|at| millis(at) + BIND_DOUBT > state.now),
            },
            None => state.containers.contains_key(&of.uid),
        };
        needed && !kept
    })
}

/// Whether a reservation was taken back that nobody had used.
fn unused_dropped(before: &GpuNode, after: &GpuNode) -> bool {
    let mut reservations = before.status.iter().flat_map(|status| &status.reservations);
    reservations.any(|of| of.state == ReservationState::Reserved && find(after, &of.uid).is_none())
}

/// What nodes do.
fn node(state: &mut State, step: &Step) {
    match step {
        Step::End(uid) => state.end_pod(uid),
        Step::Remove(uid) => state.remove_pod(uid),
        Step::Die(uid) => {
            state.containers.remove(uid);
        }
        _ => unreachable!("{step:?} is no node's"),
    }
}

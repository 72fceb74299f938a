//! What must hold whatever is lost, late or stale. Seen from the API server and the nodes.

use sluice::api::GpuNode;
use sluice::extender::promise::may_claim;
use sluice::policy::{JobId, Shape};
use sluice::translate::plan::Action;
use stateright::{Model, Property};

use super::Protocol;
use super::replica::Replica;
use super::server::{GPUS, RESOURCE};
use super::state::{Fault, Marks, State};
use super::steps::Step;

pub(crate) const ONCE: &str = "no ledger promises a GPU twice";
pub(crate) const GATE: &str = "no gate goes before a ledger has shown the reservation";
pub(crate) const CLAIMED: &str = "no pod is bound without its claim in the ledger of that node";
pub(crate) const CANCELLED: &str = "no binding of a deleted pod takes effect";
pub(crate) const KEPT: &str = "who is bound keeps the GPUs in the ledger";
pub(crate) const NOT_TAKEN: &str = "nobody who is bound or may yet be has GPUs taken away";
pub(crate) const ROOM: &str = "no more is bound to a node, or lives there, than it has GPUs for";
pub(crate) const ALONE: &str = "a large is bound alone";
pub(crate) const SOUND: &str = "no commit is refused";
pub(crate) const REBUILT: &str = "who starts anew from the ledgers has nothing to write";
pub(crate) const SERVED: &str = "every history ends with everybody served";

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.first_state()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        // A spoilt protocol goes on, so that what follows is seen as well.
        if state.fault.is_none() || self.mutant.is_some() {
            self.possible(state, steps);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        Some(self.after(before, &step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always(ONCE, |_, state: &State| {
                state.server.ledgers.values().all(|ledger| once(ledger))
            }),
            Property::always(GATE, |_, state: &State| {
                state.fault != Some(Fault::UngatedUnpromised)
            }),
            Property::always(CLAIMED, |_, state: &State| {
                state.fault != Some(Fault::BoundUnclaimed)
            }),
            Property::always(CANCELLED, |_, state: &State| {
                state.fault != Some(Fault::BoundCancelled)
            }),
            Property::always(NOT_TAKEN, |_, state: &State| {
                state.fault != Some(Fault::DroppedClaim)
            }),
            Property::always(SOUND, |_, state: &State| state.fault != Some(Fault::CommitRefused)),
            Property::always(ROOM, |_, state: &State| {
                state.server.ledgers.keys().all(|node| state.in_use(node) <= GPUS)
            }),
            Property::always(ALONE, |_, state: &State| alone(state)),
            Property::always(KEPT, |_, state: &State| kept(state)),
            Property::always(REBUILT, rebuilt),
            Property::always(SERVED, |protocol: &Protocol, state: &State| {
                let mut steps = Vec::new();
                protocol.actions(state, &mut steps);
                !steps.is_empty() || state.fault.is_some() || protocol.over(state)
            }),
            Property::sometimes("everybody has been served", |protocol: &Protocol, state| {
                protocol.over(state) && state.created == protocol.pods.len()
            }),
        ];
        all.extend(self.wanted.iter().map(|&(name, seen)| Property::sometimes(name, seen)));
        all
    }
}

fn once(ledger: &GpuNode) -> bool {
    let reservations = ledger.status.iter().flat_map(|status| &status.reservations);
    let mut gpus: Vec<&String> = reservations.flat_map(|of| &of.gpus).collect();
    let all = gpus.len();
    gpus.sort();
    gpus.dedup();
    gpus.len() == all
}

fn alone(state: &State) -> bool {
    let bound = || state.server.pods.values().filter(|pod| pod.ended.is_none());
    let mut larges = bound().filter(|pod| pod.gpus(RESOURCE) == GPUS);
    larges.all(|large| match &large.node {
        Some(node) => state.in_use(node) == GPUS,
        None => true,
    })
}

fn kept(state: &State) -> bool {
    let mut bound = state.server.pods.values().filter(|pod| pod.ended.is_none());
    bound.all(|pod| {
        let Some(node) = &pod.node else { return true };
        let status = state.server.ledgers[node].status.as_ref();
        status.is_some_and(|status| {
            let mut reservations = status.reservations.iter();
            reservations
                .any(|of| of.uid == pod.who.uid && of.gpus.len() == pod.gpus(RESOURCE) as usize)
        })
    })
}

/// Where a leader has nothing left to see, to hear or to do, another one would find just that: no
/// decision to make, and nothing in a ledger to change.
fn rebuilt(protocol: &Protocol, state: &State) -> bool {
    let quiet = |replica: &&Replica| {
        let heard = replica.sent.is_empty() && !replica.news && !replica.paused && !replica.late;
        heard && replica.ledgers_to_see.is_empty() && replica.pods_to_see.is_empty()
    };
    let leader = state.replicas.iter().filter(quiet).find_map(|replica| replica.run.as_ref());
    let Some(run) = leader.filter(|_| state.adrift.is_empty()) else { return true };
    // Where a pod is gone, what is given back later may show that it was never bound: whoever held
    // its GPUs until then goes on to.
    let mut holders = run.0.nodes().values().flat_map(|node| node.holdings.keys());
    let gone = |job: &JobId| {
        run.1.ids.pod(*job).is_none_or(|who| !state.server.pods.contains_key(&who.uid))
    };
    if holders.any(gone) {
        return true;
    }
    // A back-off is not recorded: it begins anew.
    let mut waiting = run.0.queue(Shape::Small).chain(run.0.queue(Shape::Large));
    if waiting.any(|waiting| waiting.retry_at > state.now) {
        return true;
    }
    let mut other = Replica::default();
    other.lead(&state.server, &protocol.settings, state.now);
    other.round(&protocol.settings, state.now);
    let writes = |action: &Action| matches!(action, Action::WriteLedger { urgent: true, .. });
    !other.starts_over && !other.sent.iter().any(|sent| writes(&sent.action))
}

/// A state or a step that a run must reach.
pub(crate) type Wanted = (&'static str, fn(&Protocol, &State) -> bool);

pub(crate) const TAKEOVER: Wanted =
    ("another leads while writes of the last are under way", |_, s| s.did(Marks::TAKEOVER));
pub(crate) const CONFLICT: Wanted =
    ("a ledger's write is refused, since another came first", |_, s| s.did(Marks::CONFLICT));
pub(crate) const LOST_DONE: Wanted =
    ("a reply is lost to a call that took effect", |_, s| s.did(Marks::LOST_DONE));
pub(crate) const LOST_UNDONE: Wanted =
    ("a reply is lost to a call that took none", |_, s| s.did(Marks::LOST_UNDONE));
pub(crate) const AWAKENED: Wanted =
    ("a leader wakes after another took over", |_, s| s.did(Marks::AWAKENED));
pub(crate) const OLD_REFUSED: Wanted =
    ("a write of a leader that was superseded is refused", |_, s| s.did(Marks::OLD_REFUSED));
pub(crate) const TWO_LEAD: Wanted = ("two lead and know nothing of it", |_, s| {
    s.replicas.iter().all(|replica| replica.believes() && !replica.paused)
});
pub(crate) const STARTED_OVER: Wanted =
    ("a leader starts over from the ledgers", |_, s| s.did(Marks::STARTED_OVER));
pub(crate) const STALE_BIND: Wanted = ("a bind by a stale memory is refused", |_, state| {
    state.promised.iter().any(|(uid, node)| {
        let pod = state.server.pods.get(uid).filter(|pod| !pod.gated && pod.can_be_bound());
        pod.is_some() && may_claim(&state.server.ledgers[node], uid, state.now).is_err()
    })
});
pub(crate) const TAKEN_BACK: Wanted =
    ("a reservation that nobody used is taken back", |_, s| s.did(Marks::TAKEN_BACK));
pub(crate) const GIVEN_BACK: Wanted = ("a claim is given back", |_, s| s.did(Marks::GIVEN_BACK));
pub(crate) const NOT_GIVEN_BACK: Wanted =
    ("a claim that another went on from is not given back", |_, s| s.did(Marks::NOT_GIVEN_BACK));
pub(crate) const RENEWED: Wanted =
    ("a claim that was found is made anew", |_, s| s.did(Marks::RENEWED));
pub(crate) const LATE_BINDING: Wanted =
    ("a binding counts of which nobody knew any more", |_, s| s.did(Marks::LATE_BINDING));
pub(crate) const LATE_CLAIM: Wanted =
    ("a claim is written after its time", |_, s| s.did(Marks::LATE_CLAIM));
pub(crate) const LATE_GATE: Wanted =
    ("a gate goes after the reservation went", |_, s| s.did(Marks::LATE_GATE));
pub(crate) const VANISHED: Wanted = ("a pod that is gone holds its GPUs", |_, state| {
    let all = state.server.ledgers.values().filter_map(|ledger| ledger.status.as_ref());
    let mut all = all.flat_map(|status| &status.reservations);
    all.any(|of| state.containers.contains_key(&of.uid))
});
pub(crate) const NAMESAKE: Wanted =
    ("a pod takes over the name of another that has a promise", |_, state| {
        state.promised.iter().any(|(uid, node)| {
            !state.server.pods.contains_key(uid)
                && state.server.pods.values().any(|pod| uid.starts_with(&pod.who.name))
                && may_claim(&state.server.ledgers[node], uid, state.now).is_ok()
        })
    });

//! What may happen.

use sluice::api::ReservationState;
use sluice::extender::filter::find;
use sluice::extender::promise::{May, may_claim};
use sluice::policy::Millis;

use super::Protocol;
use super::mutants::Mutant;
use super::server::RESOURCE;
use super::state::{BindStage, State};

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Answered,
    /// It takes effect, and the caller hears nothing.
    AnswerLost,
    /// It does not arrive while the caller waits, who hears nothing.
    RequestLost,
}

/// One thing that happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The next pod is created.
    Create,
    /// A pod is deleted by its user.
    Delete(String),
    /// A pod is deleted by force.
    Force(String),
    /// A pod that is bound runs and ends.
    End(String),
    /// The object of a deleted pod that has ended goes.
    Remove(String),
    /// Containers that outlived their pod end.
    Die(String),
    /// A replica gets the lease, and leads.
    Acquire(usize),
    /// A leader that starts over reads everything anew.
    Restart(usize),
    /// A leader looks, decides and sends; before that its watches show so many events of ledgers
    /// and of pods.
    Round(usize, usize, usize),
    /// One of a leader's writes arrives, and it hears of that or not.
    Carry(usize, usize, Fate),
    /// One of the writes of a leader that is stopped arrives.
    Arrive(usize, usize),
    /// A leader hears what became of a write that arrived while it was stopped.
    Hear(usize, usize),
    /// A leader finds that it no longer leads.
    Notice(usize),
    /// A leader is stopped in its tracks, or wakes.
    Pause(usize),
    Wake(usize),
    /// A leader's process ends at once.
    Crash(usize),
    /// A write that nobody waits for arrives.
    Drift(usize),
    /// kube-scheduler asks an extender, in whose memory a ledger shows the reservation on this
    /// node. It makes the claim or finds it made; whether the answer to that is heard.
    Claim(String, String, bool),
    /// An extender that was stopped since it judged the ledger, before time passed, writes the
    /// claim.
    ClaimLate(String, String),
    /// An extender makes a claim anew that it found.
    Renew(usize),
    /// An extender posts a Binding.
    Post(usize, Fate),
    /// The API server refuses a Binding.
    Refuse(usize),
    /// An extender gives a claim back.
    GiveBack(usize),
    /// An extender's process ends at once.
    Forget(usize),
    /// A Binding that nobody waits for arrives.
    BindLate(usize),
    /// Time passes, although other things could happen.
    Tick,
    /// Time passes, since nothing else can happen.
    Idle,
}

/// How much time passes at once: longer than a reservation may wait for its binding, than an
/// extender takes for one, and than containers outlive their pod; and shorter than the API server
/// lets a request live.
pub(crate) const TICK: Millis = Millis::from_secs(40);
/// How long a request may be under way without anybody waiting for it.
pub(crate) const REQUEST_LIFE: Millis = Millis::from_secs(60);
/// How often time may pass in a history because nothing else can happen, before it is taken for
/// vain: a claim whose Binding never came holds GPUs for two ticks, and a pod that stood back for it
/// waits another.
pub(crate) const IDLE: u8 = 9;

impl Protocol {
    pub(crate) fn possible(&self, state: &State, steps: &mut Vec<Step>) {
        self.users(state, steps);
        for index in 0..state.replicas.len() {
            self.leaders(state, index, steps);
        }
        extenders(state, steps);
        nodes(state, steps);
        if steps.is_empty() && !self.over(state) && state.idle < IDLE {
            steps.push(Step::Idle);
        }
        if state.left.ticks > 0 && !self.over(state) {
            steps.push(Step::Tick);
        }
        troubles(state, steps);
    }

    /// Whether everybody who came has been served or is gone, and nothing is left of it.
    pub(crate) fn over(&self, state: &State) -> bool {
        let reserved = |ledger: &sluice::api::GpuNode| {
            ledger.status.iter().any(|status| !status.reservations.is_empty())
        };
        state.server.pods.values().all(|pod| pod.ended.is_some())
            && !state.server.ledgers.values().any(|ledger| reserved(ledger))
            && self.next_pod(state).is_none()
    }

    /// What a leader does by itself.
    fn leaders(&self, state: &State, index: usize, steps: &mut Vec<Step>) {
        let replica = &state.replicas[index];
        if replica.paused {
            steps.push(Step::Wake(index));
            let sent = replica.sent.iter().enumerate();
            let open = sent.filter(|(_, sent)| sent.arrived.is_none());
            steps.extend(open.map(|(call, _)| Step::Arrive(index, call)));
            return;
        }
        if !replica.believes() {
            if may_acquire(state, index) {
                steps.push(Step::Acquire(index));
            }
            return;
        }
        if state.lease != Some(index) {
            steps.push(Step::Notice(index));
        }
        if replica.starts_over && replica.sent.is_empty() && !replica.late {
            steps.push(Step::Restart(index));
        }
        if replica.run.is_some() {
            // Once its time is over it looks at nothing any more.
            let looks = !replica.late || self.mutant == Some(Mutant::LooksAgain);
            let to_see = |events: usize| if looks { events } else { 0 };
            for ledgers in 0..=to_see(replica.ledgers_to_see.len()) {
                for pods in 0..=to_see(replica.pods_to_see.len()) {
                    if ledgers + pods > 0 || replica.news {
                        steps.push(Step::Round(index, ledgers, pods));
                    }
                }
            }
        }
        for (call, sent) in replica.sent.iter().enumerate() {
            let step = match sent.arrived {
                Some(_) => Step::Hear(index, call),
                None => Step::Carry(index, call, Fate::Answered),
            };
            steps.push(step);
        }
    }

    fn users(&self, state: &State, steps: &mut Vec<Step>) {
        if self.next_pod(state).is_some() {
            steps.push(Step::Create);
        }
    }
}

fn nodes(state: &State, steps: &mut Vec<Step>) {
    for (uid, pod) in &state.server.pods {
        match (pod.ended, &pod.node) {
            (Some(_), _) if pod.deleting => steps.push(Step::Remove(uid.clone())),
            (None, Some(_)) => steps.push(Step::End(uid.clone())),
            _ => {}
        }
    }
    steps.extend(state.containers.keys().cloned().map(Step::Die));
}

/// Whether a replica can get the lease without any clock being wrong: nobody has it, or its holder
/// has fallen silent for so long that it would have given up by itself, were it at work.
fn may_acquire(state: &State, index: usize) -> bool {
    state.lease.is_none_or(|holder| {
        let other = &state.replicas[holder];
        holder == index || other.paused || !other.believes()
    })
}

fn extenders(state: &State, steps: &mut Vec<Step>) {
    // However old its memory of a ledger is, it has shown no more than was ever promised.
    for (uid, node) in &state.promised {
        let asked = state.server.pods.get(uid).is_some_and(|pod| !pod.gated && pod.can_be_bound());
        // One that gives its claim back may take longer than kube-scheduler waits for it.
        let mut others = state.bindings.iter().filter(|of| of.uid == *uid);
        let busy = others.any(|of| of.stage != BindStage::GiveBack);
        if asked && !busy {
            claims(state, uid, node, steps);
        }
    }
    for (index, binding) in state.bindings.iter().enumerate() {
        steps.push(match binding.stage {
            BindStage::Renew => Step::Renew(index),
            BindStage::Post(_) => Step::Post(index, Fate::Answered),
            BindStage::GiveBack => Step::GiveBack(index),
        });
    }
    steps.extend((0..state.underway.len()).map(Step::BindLate));
    steps.extend((0..state.adrift.len()).map(Step::Drift));
}

/// Claims that would not be refused: what is refused changes nothing.
fn claims(state: &State, uid: &str, node: &str, steps: &mut Vec<Step>) {
    let ledger = &state.server.ledgers[node];
    let may = may_claim(ledger, uid, state.now);
    let (uid, node) = (uid.to_owned(), node.to_owned());
    if may.is_ok() {
        steps.push(Step::Claim(uid.clone(), node.clone(), true));
        if may.is_ok_and(|may| may == May::Claim) && state.left.losses > 0 {
            steps.push(Step::Claim(uid, node, false));
        }
    } else if state.left.sleepers > 0
        && state.now > super::server::START
        && state.written_at.get(&node).is_none_or(|&at| at < state.now)
        && may_claim(ledger, &uid, state.now.since(TICK)).is_ok_and(|may| may == May::Claim)
    {
        steps.push(Step::ClaimLate(uid, node));
    }
}

/// What goes wrong, as often as it still may.
fn troubles(state: &State, steps: &mut Vec<Step>) {
    let left = &state.left;
    for (index, replica) in state.replicas.iter().enumerate() {
        let awake = !replica.paused;
        if replica.run.is_some() && awake && left.crashes > 0 {
            steps.push(Step::Crash(index));
        }
        if replica.run.is_some() && awake && left.pauses > 0 {
            steps.push(Step::Pause(index));
        }
        if !replica.believes() && awake && left.usurpers > 0 && !may_acquire(state, index) {
            steps.push(Step::Acquire(index));
        }
        if awake && left.losses > 0 {
            for (call, _) in replica.sent.iter().enumerate().filter(|(_, s)| s.arrived.is_none()) {
                steps.push(Step::Carry(index, call, Fate::AnswerLost));
                steps.push(Step::Carry(index, call, Fate::RequestLost));
            }
        }
    }
    for (uid, pod) in state.server.pods.iter().filter(|(_, pod)| pod.ended.is_none()) {
        if left.deletions > 0 && !pod.deleting {
            steps.push(Step::Delete(uid.clone()));
        }
        if left.forced > 0 && pod.node.is_some() && pod.gpus(RESOURCE) > 0 {
            steps.push(Step::Force(uid.clone()));
        }
    }
    for (index, binding) in state.bindings.iter().enumerate() {
        if left.crashes > 0 {
            steps.push(Step::Forget(index));
        }
        if !matches!(binding.stage, BindStage::Post(_)) {
            continue;
        }
        if left.losses > 0 {
            steps.push(Step::Post(index, Fate::AnswerLost));
            steps.push(Step::Post(index, Fate::RequestLost));
        }
        if left.refusals > 0 {
            steps.push(Step::Refuse(index));
        }
        let claim = find(&state.server.ledgers[&binding.node], &binding.uid);
        let found = claim.is_some_and(|of| of.state == ReservationState::Bound);
        let alone = state.bindings.iter().filter(|of| of.uid == binding.uid).count() == 1;
        let pod = state.server.pods.get(&binding.uid);
        if left.rivals > 0 && found && alone && pod.is_some_and(|pod| pod.can_be_bound()) {
            steps.push(Step::Claim(binding.uid.clone(), binding.node.clone(), true));
        }
    }
}

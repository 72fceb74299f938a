//! What must hold in every state, and what must be reached in some. Written from the texts of the
//! contract and from what is seen of the world and the ledgers; nothing here asks the rule's own
//! invariants.

use sluice::policy::{GpuSet, JobId, NodeId, Phase, Pool, Shape};
use stateright::{Model, Property};

use super::actions::{Action, possible};
use super::setup::{Setup, ticks};
use super::state::{Fault, Grip, Key, Marks, Place, State, queue};
use super::steps::Rule;
use super::world::waiting_jobs;

impl Model for Rule {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.first_state()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What follows a fault says nothing.
        if state.fault.is_none() {
            possible(&self.setup, state, actions);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        Some(self.after(before, &action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = safety();
        all.extend(liveness());
        all.extend(self.reached());
        all
    }
}

pub(crate) const DISJOINT: &str = "free and held GPUs are disjoint";
pub(crate) const ONCE: &str = "no GPU is held twice";
pub(crate) const SMALL_ONE: &str = "a small holds exactly one GPU, a wide one what it asked for";
pub(crate) const LARGE_ALL: &str = "a large holds every GPU of its node";
pub(crate) const ALONE: &str = "nothing holds a GPU beside a large";
pub(crate) const GATE: &str = "no small is admitted behind a closed gate";
pub(crate) const WAVE: &str = "one wave for one large, no larger than its size";
pub(crate) const WINNER: &str = "cancel and reserve have one winner";
pub(crate) const RELEASED: &str = "each GPU is released exactly once";
pub(crate) const REBUILT: &str = "a controller that starts anew knows and decides the same";
pub(crate) const TRUE: &str = "the ledgers say what is so";
pub(crate) const KEPT: &str = "nothing is taken from who has started";
pub(crate) const SOUND: &str = "no commit is refused, and binding decides nothing";
pub(crate) const DECIDED: &str = "nothing is left undecided, and no wake-up is in the past";
pub(crate) const SERVED: &str = "an empty pool leaves no work standing";
pub(crate) const ENDS: &str = "each step comes nearer to the end";
pub(crate) const LARGE_BOUND: &str = "a large starts within its bound";
pub(crate) const SMALL_BOUND: &str = "a small starts within its bound";
pub(crate) const TOLD: &str = "nobody starts later than ever told";
pub(crate) const MOVED: &str = "nobody is told a later time than before";
pub(crate) const WAVES_PASSED: &str = "at most one wave passes a large for each place in the queue";
pub(crate) const LARGES_PASSED: &str = "at most one large passes a small for each wave before it";
pub(crate) const OVER: &str = "in the end everybody has been served";

fn no_fault(state: &State, fault: Fault) -> bool {
    state.fault != Some(fault)
}

fn safety() -> Vec<Property<Rule>> {
    vec![
        Property::always(DISJOINT, |_, state: &State| disjoint(state)),
        Property::always(ONCE, |_, state: &State| once(state)),
        Property::always(SMALL_ONE, |_, state: &State| {
            state.grips().all(|(_, job, grip)| match job.shape {
                Some(Shape::Small) => grip.gpus.count() == 1,
                Some(Shape::Wide(asked)) => grip.gpus.count() == asked,
                Some(Shape::Large) | None => true,
            })
        }),
        Property::always(LARGE_ALL, |rule: &Rule, state: &State| {
            let all = GpuSet::first(rule.setup.config.gpus_per_node);
            let mut larges = state.grips().filter(|(_, job, _)| job.shape == Some(Shape::Large));
            larges.all(|(_, _, grip)| grip.gpus == all)
        }),
        Property::always(ALONE, |_, state: &State| alone(state)),
        Property::always(GATE, |_, state: &State| no_fault(state, Fault::BehindGate)),
        Property::always(WAVE, |_, state: &State| {
            no_fault(state, Fault::WaveUnearned) && no_fault(state, Fault::WaveTooLarge)
        }),
        Property::always(WINNER, |_, state: &State| no_fault(state, Fault::NotWaiting)),
        Property::always(RELEASED, |_, state: &State| counted(state)),
        Property::always(REBUILT, rebuilt),
        Property::always(TRUE, |_, state: &State| ledgers_are_true(state)),
        Property::always(KEPT, |_, state: &State| no_fault(state, Fault::TakenFromRunning)),
        Property::always(SOUND, |_, state: &State| {
            no_fault(state, Fault::Refused) && no_fault(state, Fault::BindingDecides)
        }),
        Property::always(DECIDED, |_, state: &State| decided(state)),
    ]
}

fn liveness() -> Vec<Property<Rule>> {
    vec![
        Property::always(SERVED, served),
        Property::always(ENDS, |_, state: &State| no_fault(state, Fault::NoProgress)),
        Property::always(LARGE_BOUND, |_, state: &State| in_time(state, Shape::Large)),
        Property::always(SMALL_BOUND, |_, state: &State| in_time(state, Shape::Small)),
        Property::always(TOLD, |_, state: &State| {
            state.waiting().all(|(_, job)| job.told.is_none_or(|told| state.now <= told))
        }),
        Property::always(MOVED, |_, state: &State| no_fault(state, Fault::Moved)),
        Property::always(WAVES_PASSED, waves_passed),
        Property::always(LARGES_PASSED, larges_passed),
        Property::eventually(OVER, |_, state: &State| {
            let all_came = state.to_come.iter().all(|&count| count == 0);
            all_came && state.jobs.iter().all(|job| job.place == Place::Gone)
        }),
    ]
}

fn disjoint(state: &State) -> bool {
    state.pool.nodes().iter().all(|(&NodeId(id), node)| {
        let free = node.free();
        !free.overlaps(state.held(id)) && free.is_within(node.spec.healthy)
    })
}

fn once(state: &State) -> bool {
    (0..).zip(&state.nodes).all(|(node, _)| {
        let sum: u32 = state.grips_on(node).map(|(_, _, grip)| grip.gpus.count()).sum();
        sum == state.held(node).count()
    })
}

fn alone(state: &State) -> bool {
    let large = |job: Option<Shape>| job == Some(Shape::Large);
    state
        .grips()
        .filter(|(_, job, _)| large(job.shape))
        .all(|(id, _, grip)| state.grips_on(grip.node).all(|(other, _, _)| other == id))
}

/// Who was admitted holds GPUs or has ended, once, in the way in which it ended.
fn counted(state: &State) -> bool {
    let mut counters = state.pool.counters();
    [Shape::Small, Shape::Large].into_iter().all(|shape| {
        let counted = *counters.of(shape);
        let ended = state.ends[queue(shape)];
        counted.completed == ended.completed
            && counted.failed == ended.failed
            && counted.cancelled == ended.cancelled
    })
}

/// Whoever starts anew has the same state, and nothing to decide that is not decided.
fn rebuilt(rule: &Rule, state: &State) -> bool {
    let backing_off = state
        .waiting()
        .any(|(id, _)| state.pool.waiting(id).is_some_and(|w| w.retry_at > ticks(state.now)));
    let forgets = |node: &sluice::policy::Node| {
        let failed = node.turn.is_some_and(|turn| turn.failed_early);
        failed || node.holdings.values().any(|holding| holding.evicting)
    };
    // A back-off and an order to evict are not recorded: they begin anew.
    if backing_off || state.pool.nodes().values().any(forgets) {
        return true;
    }
    let mut anew = rule.restored(state);
    let decided = anew.step(waiting_jobs(state), ticks(state.now));
    decided.is_empty() && bytes(state, &anew) == bytes(state, &state.pool)
}

fn bytes(state: &State, pool: &Pool) -> Vec<u8> {
    let mut key = Key(Vec::new());
    key.pool(state, pool);
    key.0
}

/// The rule knows of exactly those who wait and of exactly those who hold GPUs, and which.
fn ledgers_are_true(state: &State) -> bool {
    let held: usize = state.pool.nodes().values().map(|node| node.holdings.len()).sum();
    let waits = [Shape::Small, Shape::Large].map(|shape| state.pool.queue(shape).count());
    let truly = |(id, _, grip): (JobId, _, Grip)| {
        let holding = state.pool.nodes().get(&NodeId(grip.node));
        let holding = holding.and_then(|node| node.holdings.get(&id));
        holding.is_some_and(|h| h.gpus == grip.gpus && h.stage == grip.stage)
    };
    state.grips().all(truly)
        && held == state.grips().count()
        && waits.iter().sum::<usize>() == state.waiting().count()
        && state.waiting().all(|(id, _)| state.pool.waiting(id).is_some())
        && state.pool.nodes().values().all(|node| match node.phase {
            Phase::Exclusive(large) => node.holdings.contains_key(&large),
            Phase::Open | Phase::Draining(_) | Phase::Wave { .. } => true,
        })
}

fn decided(state: &State) -> bool {
    let now = ticks(state.now);
    let wakeup = state.pool.next_wakeup(now);
    state.pool.clone().step(Vec::new(), now).is_empty() && wakeup.is_none_or(|at| at > now)
}

/// Where nobody holds a GPU and nobody stands back, nobody waits whom some node could take. A node
/// that is kept open takes no large: with no more nodes left than that, larges wait for one to come.
fn served(rule: &Rule, state: &State) -> bool {
    let back = |id: JobId| {
        let waiting = state.pool.waiting(id);
        waiting.is_some_and(|waiting| waiting.retry_at > ticks(state.now))
    };
    if state.paused || state.grips().next().is_some() {
        return true;
    }
    let nodes = || state.nodes.iter().flatten().filter(|spec| spec.schedulable);
    let all_kept = nodes().count() <= rule.setup.config.keep_open as usize;
    state.waiting().filter(|&(id, _)| !back(id)).all(|(_, job)| match job.shape {
        Some(Shape::Large) => all_kept || nodes().all(|spec| spec.healthy != spec.gpus),
        Some(Shape::Wide(asked)) => nodes().all(|spec| spec.healthy.count() < asked),
        Some(Shape::Small) | None => nodes().all(|spec| spec.healthy.is_empty()),
    })
}

fn in_time(state: &State, shape: Shape) -> bool {
    let mut waiting = state.waiting().filter(|(_, job)| job.shape == Some(shape));
    waiting.all(|(_, job)| job.due.is_none_or(|due| state.now <= due))
}

/// Counted rather than timed: on one node a large at place k sees at most k waves, each of at most
/// their size, and no other small.
fn waves_passed(rule: &Rule, state: &State) -> bool {
    let (nodes, size) = (rule.setup.nodes, rule.setup.config.wave_size);
    let backfill = rule.setup.config.backfill;
    let mut larges = state.waiting().filter(|(_, job)| job.shape == Some(Shape::Large));
    larges.all(|(_, job)| {
        let (rank, passed) = (u32::from(job.rank), u32::from(job.passed));
        let overtaken = u32::from(job.overtaken);
        passed <= rank * nodes && (nodes > 1 || backfill || overtaken <= rank * size)
    })
}

/// On one node a small at place p sees at most one large end for each wave that it takes until its
/// turn comes. With more nodes, a turn of several larges or wide smalls, only time says how long
/// that is.
fn larges_passed(rule: &Rule, state: &State) -> bool {
    if rule.setup.nodes > 1 || rule.setup.config.turn.is_some() {
        return true;
    }
    let size = rule.setup.config.wave_size;
    let wide = |job: &super::state::JobFact| matches!(job.shape, Some(Shape::Wide(_)));
    if state.jobs.iter().any(wide) {
        return true;
    }
    let mut smalls = state.waiting().filter(|(_, job)| job.queues_with(Shape::Small));
    smalls.all(|(_, job)| u32::from(job.passed) <= u32::from(job.rank).div_ceil(size))
}

/// That the simpler formula for smalls is wrong: it leaves out that each large between two waves
/// may cost both open service and a drain. The due time is ceil(p/wave)(L+2S) after the arrival.
fn surpasses(rule: &Rule, state: &State) -> bool {
    let Some(s) = rule.setup.limit(Shape::Small) else { return false };
    let mut smalls = state.waiting().filter(|(_, job)| job.queues_with(Shape::Small));
    smalls.any(|(_, job)| {
        let rounds = u64::from(u32::from(job.rank).div_ceil(rule.setup.config.wave_size));
        job.due.is_some_and(|due| state.now + (rounds - 1) * s > due)
    })
}

impl Rule {
    /// States that must be reachable, where the run allows for them.
    fn reached(&self) -> Vec<Property<Self>> {
        type Seen = fn(&Rule, &State) -> bool;
        let Setup { nodes, arrivals, config, .. } = &self.setup;
        let (smalls, larges) = (u32::from(arrivals[0].count), u32::from(arrivals[1].count));
        // A wave needs a turn that has ended, a large that is next, and no other node that is open.
        let limit = self.setup.limit(Shape::Large).unwrap_or(1);
        let turn =
            config.turn.map_or(1, |turn| u32::try_from(turn.0 / ticks(limit).0).unwrap_or(1));
        let waves = larges > *nodes * turn.max(1) && smalls > 0 && config.keep_open == 0;
        let all: [(bool, &'static str, Seen); 4] = [
            (larges > 0 && smalls > 0, "a drain", |_, state| {
                phase(state, |phase| matches!(phase, Phase::Draining(_)))
            }),
            (waves && smalls >= config.wave_size, "a wave of full size", |rule, state| {
                let size = rule.setup.config.wave_size;
                phase(state, |p| matches!(p, Phase::Wave { admitted, .. } if *admitted == size))
            }),
            (waves && config.wave_size > 1, "a wave of fewer", |rule, state| {
                let size = rule.setup.config.wave_size;
                phase(state, |p| matches!(p, Phase::Wave { admitted, .. } if *admitted < size))
            }),
            (larges > 1, "a second large follows the first", |_, state| {
                state.ends[1].completed > 0
                    && phase(state, |phase| matches!(phase, Phase::Exclusive(_)))
            }),
        ];
        let wanted = all.into_iter().filter(|(wanted, _, _)| *wanted);
        let mut all: Vec<_> =
            wanted.map(|(_, name, seen)| Property::sometimes(name, seen)).collect();
        if self.setup.surpasses {
            let name = "a small waits longer than S + ceil(p/wave)(L+S)";
            all.push(Property::sometimes(name, surpasses));
        }
        if self.setup.marks {
            all.extend(self.marked());
        }
        all
    }

    /// Steps that must be taken somewhere.
    fn marked(&self) -> Vec<Property<Self>> {
        type Seen = fn(&Rule, &State) -> bool;
        let Setup { troubles, config, slow, nodes, .. } = &self.setup;
        let turns = config.turn.is_some() || troubles.failures > 0;
        let one = config.one_wave;
        let all: [(bool, &'static str, Seen); 13] = [
            (true, "a credit consumed by open service", |_, s| s.did(Marks::CREDIT_CONSUMED)),
            (troubles.cancels > 0, "a drain aborted", |_, s| s.did(Marks::DRAIN_ABORTED)),
            (troubles.cancels > 0, "a gate turned to another", |_, s| s.did(Marks::RETARGETED)),
            (troubles.breaks > 0, "a gate opened by a bad GPU", |_, s| s.did(Marks::GATE_UNFIT)),
            (*nodes > 2, "no wave beside an open node", |_, s| s.did(Marks::OTHER_OPEN)),
            (one, "no wave beside another node's", |_, s| s.did(Marks::OTHER_NEXT)),
            (turns, "a turn goes on", |_, s| s.did(Marks::TURN_CONTINUES)),
            (config.backfill, "a small behind the gate", |_, s| s.did(Marks::BACKFILLED)),
            (troubles.expiries > 0, "a reservation runs out", |_, s| s.did(Marks::EXPIRED)),
            (troubles.refusals > 0, "a binding refused", |_, s| s.did(Marks::REFUSED)),
            (troubles.foreign > 0 && *slow, "a promise gives way", |_, s| s.did(Marks::DISPLACED)),
            (troubles.losses > 0 && *slow, "a promise lost", |_, s| s.did(Marks::NODE_GONE)),
            (config.evict_overdue, "an overdue drain evicts", |_, s| s.did(Marks::EVICTED)),
        ];
        let wanted = all.into_iter().filter(|(wanted, _, _)| *wanted);
        wanted.map(|(_, name, seen)| Property::sometimes(name, seen)).collect()
    }
}

fn phase(state: &State, wanted: impl Fn(&Phase) -> bool) -> bool {
    state.pool.nodes().values().any(|node| wanted(&node.phase))
}

//! One state: the world as it is, the rule's own state beside it, and the key that two states
//! share if nothing that can follow tells them apart.

use std::fmt;
use std::hash::{Hash, Hasher};

use sluice::policy::{
    GpuSet, JobId, Kind, Node, NodeId, NodeSpec, Phase, Pool, Promises, Shape, Stage,
};

use super::setup::{TICK, Troubles};

/// Where a job is in the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Waits,
    Holds(Grip),
    Gone,
}

/// GPUs in a job's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grip {
    pub(crate) node: u32,
    pub(crate) gpus: GpuSet,
    pub(crate) stage: Stage,
    /// The tick of its reservation.
    pub(crate) since: u64,
    /// The tick by which something ends it.
    pub(crate) end: Option<u64>,
    /// Whether its eviction was asked for.
    pub(crate) evicted: bool,
}

/// One job of the world; its number is its place in the list plus one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct JobFact {
    /// `None`: it went round the rule.
    pub(crate) shape: Option<Shape>,
    pub(crate) limit: Option<u64>,
    /// The tick of its arrival.
    pub(crate) created: u64,
    pub(crate) place: Place,
    /// Its place among the waiting of its shape when it came.
    pub(crate) rank: u8,
    /// The tick by which it must start, by the formula of its rank.
    pub(crate) due: Option<u64>,
    /// The tick by which it starts according to the best that it was ever told.
    pub(crate) told: Option<u64>,
    /// What it is told now. After a crash that may be later than before.
    pub(crate) tells: Option<u64>,
    /// Whether that rests on its place, and not on the gate that is closed for it.
    pub(crate) by_place: bool,
    /// A large: waves that started while it waits. A small: larges that have ended meanwhile.
    pub(crate) passed: u8,
    /// A large: smalls admitted while it waits.
    pub(crate) overtaken: u8,
}

/// What a step did wrong, seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Fault {
    BehindGate,
    WaveUnearned,
    WaveTooLarge,
    NotWaiting,
    Refused,
    TakenFromRunning,
    BindingDecides,
    NoProgress,
    Moved,
}

/// What a step did that is worth being reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Marks(pub(crate) u16);

impl Marks {
    pub(crate) const CREDIT_CONSUMED: Self = Self(1);
    pub(crate) const DRAIN_ABORTED: Self = Self(1 << 1);
    pub(crate) const GATE_UNFIT: Self = Self(1 << 2);
    pub(crate) const RETARGETED: Self = Self(1 << 3);
    pub(crate) const TURN_CONTINUES: Self = Self(1 << 4);
    pub(crate) const OTHER_OPEN: Self = Self(1 << 5);
    pub(crate) const BACKFILLED: Self = Self(1 << 6);
    pub(crate) const EXPIRED: Self = Self(1 << 7);
    pub(crate) const REFUSED: Self = Self(1 << 8);
    pub(crate) const DISPLACED: Self = Self(1 << 9);
    pub(crate) const UNFIT: Self = Self(1 << 10);
    pub(crate) const NODE_GONE: Self = Self(1 << 11);
    pub(crate) const EVICTED: Self = Self(1 << 12);
    pub(crate) const OTHER_NEXT: Self = Self(1 << 13);

    pub(crate) fn set(&mut self, mark: Self) {
        self.0 |= mark.0;
    }
}

/// How jobs of one shape have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
}

/// One state of the model.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) pool: Pool,
    /// What those who wait are told, where waits have bounds. Of it the key has what `jobs` repeat;
    /// the rest follows from the pool, as long as nobody comes back or goes before others.
    pub(crate) promises: Promises,
    /// In ticks.
    pub(crate) now: u64,
    pub(crate) jobs: Vec<JobFact>,
    /// `None`: the node is gone.
    pub(crate) nodes: Vec<Option<NodeSpec>>,
    pub(crate) paused: bool,
    /// How many of each kind of arrival are still to come.
    pub(crate) to_come: Vec<u8>,
    pub(crate) left: Troubles,
    /// Of smalls, wide ones among them, and of larges; no part of the key: what follows does not depend on it.
    pub(crate) ends: [Ends; 2],
    pub(crate) fault: Option<Fault>,
    pub(crate) marks: Marks,
    pub(crate) key: Vec<u8>,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tick {}", self.now)?;
        for (id, node) in self.pool.nodes() {
            write!(f, "; {id} {:?}", node.phase)?;
            let unhealthy = node.spec.gpus.minus(node.spec.healthy);
            if !unhealthy.is_empty() {
                write!(f, " unhealthy {unhealthy:?}")?;
            }
        }
        for (index, job) in self.jobs.iter().enumerate() {
            let name = index + 1;
            match (job.place, job.shape) {
                (Place::Waits, Some(shape)) => write!(f, "; {shape:?} {name} waits")?,
                (Place::Holds(Grip { node, gpus, stage, .. }), Some(shape)) => {
                    write!(f, "; {shape:?} {name} {stage:?} on {node}{gpus:?}")?;
                }
                (Place::Holds(Grip { node, gpus, .. }), None) => {
                    write!(f, "; foreign {name} on {node}{gpus:?}")?;
                }
                (Place::Waits, None) | (Place::Gone, _) => {}
            }
        }
        match self.fault {
            Some(fault) => write!(f, "; FAULT {fault:?}"),
            None => Ok(()),
        }
    }
}

impl JobFact {
    /// A job that waits from now on.
    pub(crate) fn new(shape: Option<Shape>, limit: Option<u64>, place: Place) -> Self {
        Self {
            shape,
            limit,
            created: 0,
            place,
            rank: 0,
            due: None,
            told: None,
            tells: None,
            by_place: false,
            passed: 0,
            overtaken: 0,
        }
    }

    /// Whether it waits in the queue of this shape: wide smalls wait among the smalls.
    pub(crate) fn queues_with(&self, shape: Shape) -> bool {
        self.shape.is_some_and(|own| own.is_small() == shape.is_small())
    }
}

/// The place of a shape's queue where both have one.
pub(crate) fn queue(shape: Shape) -> usize {
    usize::from(!shape.is_small())
}

impl State {
    /// The jobs with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (JobId, &JobFact)> {
        (1..).map(JobId).zip(&self.jobs)
    }

    pub(crate) fn job(&self, id: JobId) -> Option<&JobFact> {
        self.jobs.get(usize::try_from(id.0).ok()?.checked_sub(1)?)
    }

    pub(crate) fn job_mut(&mut self, id: JobId) -> Option<&mut JobFact> {
        self.jobs.get_mut(usize::try_from(id.0).ok()?.checked_sub(1)?)
    }

    /// Jobs that hold GPUs, in order of their numbers.
    pub(crate) fn grips(&self) -> impl Iterator<Item = (JobId, &JobFact, Grip)> {
        self.numbered().filter_map(|(id, job)| match job.place {
            Place::Holds(grip) => Some((id, job, grip)),
            Place::Waits | Place::Gone => None,
        })
    }

    pub(crate) fn grips_on(&self, node: u32) -> impl Iterator<Item = (JobId, &JobFact, Grip)> {
        self.grips().filter(move |(_, _, grip)| grip.node == node)
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = (JobId, &JobFact)> {
        self.numbered().filter(|(_, job)| job.place == Place::Waits)
    }

    /// The GPUs of a node in anybody's hands, as the world has it.
    pub(crate) fn held(&self, node: u32) -> GpuSet {
        self.grips_on(node).fold(GpuSet::EMPTY, |set, (_, _, grip)| set.union(grip.gpus))
    }

    /// Whether the last step did this.
    pub(crate) fn did(&self, mark: Marks) -> bool {
        self.marks.0 & mark.0 != 0
    }

    /// Recomputes the key; to be called when a step is over.
    pub(crate) fn seal(&mut self, marks: bool) {
        if !marks {
            self.marks = Marks::default();
        }
        self.key = Key::of(self).0;
    }
}

/// The bytes by which states are told apart.
///
/// Points in time appear as distances from now, and as nothing where the rule cannot tell them
/// apart any more. Jobs appear by their order of arrival among those that are left. GPUs of a node
/// appear as a multiset: the rule takes the lowest free ones, and everything that happens to a
/// GPU may happen to any, so that which one it is makes no difference to what can follow.
pub(crate) struct Key(pub(crate) Vec<u8>);

impl Key {
    fn of(state: &State) -> Self {
        let mut key = Self(Vec::with_capacity(64));
        key.pool(state, &state.pool);
        for job in state.jobs.iter().filter(|job| job.place != Place::Gone) {
            key.job(state, job);
        }
        key.0.extend(&state.to_come);
        key.0.extend(state.nodes.iter().map(|node| u8::from(node.is_some())));
        key.0.push(u8::from(state.paused));
        let left = state.left;
        key.0.extend([left.failures, left.cancels, left.refusals, left.expiries, left.moves]);
        key.0.extend([left.breaks, left.losses, left.cordons, left.foreign, left.crashes]);
        key.0.push(left.pauses);
        key.0.push(state.fault.map_or(0, |fault| 1 + fault as u8));
        key.0.extend(state.marks.0.to_be_bytes());
        key
    }

    /// The rule's own state, without what was counted and without what can decide nothing.
    pub(crate) fn pool(&mut self, state: &State, pool: &Pool) {
        for (id, node) in pool.nodes() {
            self.0.extend([251, byte(u64::from(id.0))]);
            self.node(state, node);
        }
        for (id, _) in state.numbered() {
            if let Some(waiting) = pool.waiting(id) {
                // How often it failed says how long it stands back: always less than a tick here.
                let back = waiting.retry_at.0.saturating_sub(now(state)).div_ceil(TICK.0);
                self.0.extend([252, label(state, id), byte(back)]);
            }
            let foreign = pool.holding(id).is_some_and(|holding| holding.kind == Kind::Foreign);
            let NodeId(at) = pool.node_of(id).unwrap_or(NodeId(u32::MAX));
            self.0.extend([u8::from(foreign), u8::try_from(at).unwrap_or(u8::MAX)]);
        }
    }

    pub(crate) fn node(&mut self, state: &State, node: &Node) {
        let gate = |job: JobId, overdue: bool| [label(state, job), u8::from(overdue)];
        self.0.push(u8::from(node.spec.schedulable));
        match node.phase {
            Phase::Open => self.0.push(0),
            Phase::Draining(of) => {
                self.0.push(1);
                self.0.extend(gate(of.job, of.overdue));
            }
            Phase::Exclusive(job) => self.0.extend([2, label(state, job)]),
            Phase::Wave { admitted, gate: of } => {
                self.0.extend([3, byte(admitted.into())]);
                self.0.extend(gate(of.job, of.overdue));
            }
        }
        // How long a gate has been closed matters where drains have a time limit.
        let limited = state.pool.config().drain_limit.is_some();
        if let Some(of) = node.gate().filter(|_| limited) {
            self.span(now(state).saturating_sub(of.since.0));
        }
        // Who waited when a gate was given up matters to backfill, and whether that is just now.
        if let Some(at) = node.given_up.filter(|_| state.pool.config().backfill) {
            self.0.extend([249, u8::from(at.0 == now(state))]);
            let waited = |job: &JobFact| u8::from(job.created * TICK.0 <= at.0);
            self.0.extend(state.waiting().map(|(_, job)| waited(job)));
        }
        let turn = node.turn.map(|turn| {
            let age = now(state).saturating_sub(turn.since.0);
            // Without a turn by time only a failure of this very instant matters.
            let age = if state.pool.config().turn.is_some() { age } else { age.min(1) };
            let failed = turn.failed_early && turn.since.0 >= now(state);
            (age, turn.early_failures, failed)
        });
        if let Some((age, failures, failed)) = turn {
            self.0.extend([253, byte(failures.into()), u8::from(failed)]);
            self.span(age);
        }
        let mut gpus: Vec<(bool, Vec<u8>)> = Vec::new();
        for gpu in node.spec.gpus.iter().map(GpuSet::single) {
            let holders = node.holdings.iter().filter(|(_, holding)| holding.gpus.overlaps(gpu));
            let holders = holders.map(|(&job, _)| label(state, job)).collect();
            gpus.push((node.spec.healthy.overlaps(gpu), holders));
        }
        // A foreign pod of which the node says nothing is taken to have the highest of the promised
        // GPUs: as long as one may come, GPUs are not all alike.
        if state.left.foreign == 0 {
            gpus.sort_unstable();
        }
        for (healthy, holders) in gpus {
            self.0.push(u8::from(healthy) + 2 * byte(holders.len() as u64));
            self.0.extend(holders);
        }
        for (&job, holding) in &node.holdings {
            let kind = match holding.kind {
                Kind::Direct => 0,
                Kind::Wave => 1,
                Kind::Backfill => 2,
                Kind::Foreign => 3,
            };
            self.0.extend([label(state, job), kind, holding.stage as u8]);
            self.0.push(u8::from(holding.evicting));
            // A large that ends within a tick has failed at once; later its age says nothing.
            let age = now(state).saturating_sub(holding.since.0);
            self.span(if holding.shape == Some(Shape::Large) { age.min(TICK.0) } else { 0 });
            for at in [holding.expires, holding.latest_end] {
                match at.map(|at| at.0.checked_sub(now(state))) {
                    None => self.0.push(0),
                    Some(None) => self.0.push(1),
                    Some(Some(rest)) => {
                        self.0.push(2);
                        self.span(rest);
                    }
                }
            }
        }
    }

    fn job(&mut self, state: &State, job: &JobFact) {
        // A foreign job is told from ours by its shape, which it has not.
        let shape = job.shape.map_or(200, |shape| byte(shape.gpus(100).into()));
        // What is past is another state than what is due now.
        let rest = |tick: Option<u64>| match tick {
            None => 0,
            Some(tick) if tick < state.now => 1,
            Some(tick) => byte(2 + tick - state.now),
        };
        self.0.extend([254, shape, rest(job.limit.map(|limit| limit + state.now))]);
        self.0.extend([rest(job.due), rest(job.told), rest(job.tells), u8::from(job.by_place)]);
        self.0.extend([job.rank, job.passed, job.overtaken]);
        if let Place::Holds(grip) = job.place {
            self.0.extend([grip.stage as u8, rest(grip.end), u8::from(grip.evicted)]);
        }
    }

    /// A span: whole ticks where it is that, else all of it.
    fn span(&mut self, millis: u64) {
        match (millis / TICK.0, millis % TICK.0) {
            (ticks, 0) if ticks < 128 => self.0.push(byte(ticks)),
            _ => {
                self.0.push(255);
                self.0.extend(millis.to_be_bytes());
            }
        }
    }
}

fn now(state: &State) -> u64 {
    state.now * TICK.0
}

/// The place of a job among those that are left; 15 for one that is gone.
fn label(state: &State, job: JobId) -> u8 {
    if state.job(job).is_none_or(|job| job.place == Place::Gone) {
        return 15;
    }
    let left = state.numbered().filter(|(_, job)| job.place != Place::Gone);
    byte(left.take_while(|(id, _)| *id < job).count().try_into().unwrap_or(u64::MAX))
}

fn byte(number: u64) -> u8 {
    u8::try_from(number).expect("small configurations have small numbers")
}

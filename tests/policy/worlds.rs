//! Random worlds from a seed: an adversary that acts at the instants at which something happens
//! anyway, just before or just after, since that is where waits become long.
//!
//! After every step each waiting job is told its latest start ([`Promises`]). A job that starts
//! later than it was told, or that is told a later time in a step in which nothing happened but
//! what the proofs allow, fails the test with the seed of its world.

use std::collections::{BTreeMap, BTreeSet};

use sluice::policy::{
    BoundMoved, Cause, Config, Decision, Fits, GpuSet, Input, Job, JobId, Kind, Millis, Node,
    NodeId, NodeSpec, Outcome, Pool, Promises, Shape, TenantId,
};

/// One unit of a world's time. Longer than a failure at once, and than a reservation lasts.
const UNIT: u64 = 100_000;

/// By how much larges that fail at once lengthen a turn: three of a minute.
const AT_ONCE: u64 = 180_000;

/// What a world is made of.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) nodes: u32,
    /// Events that the adversary adds.
    pub(crate) events: u32,
    /// Whether smalls may be cancelled, and larges.
    pub(crate) cancels: bool,
    /// Whether nodes fail, foreign pods come, limits are overrun, bindings fail, settings change.
    pub(crate) faults: bool,
    /// Whether some work fits some nodes only.
    pub(crate) pinned: bool,
    /// Unhealthy GPUs of the last node, which thus takes no larges.
    pub(crate) bad: u32,
}

impl Setup {
    /// Whether quotas bind, and so priorities differ too, and what a job fits changes while it waits.
    pub(crate) fn is_shuffled(&self) -> bool {
        !self.config.quotas.is_empty()
    }
}

/// What came of it: for each job that started, what it waited and what it had been told.
pub(crate) struct Waited {
    pub(crate) shape: Shape,
    pub(crate) span: u64,
    pub(crate) told: u64,
    /// What the proof allows where no large fails at once, in worlds where none does.
    pub(crate) proved: Option<u64>,
}

/// Deterministic and fast; its quality is good enough to choose what happens next.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, most: u32) -> u32 {
        u32::try_from(self.next() % u64::from(most)).unwrap()
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D).rotate_right(11)
    }

    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    Ends,
    Returns(u32),
}

struct World<'a> {
    setup: &'a Setup,
    random: Random,
    pool: Pool,
    promises: Promises,
    now: u64,
    next_id: u64,
    /// What is to come: at, rank among what is due then, whose, what.
    agenda: BTreeSet<(u64, u64, JobId, Due)>,
    /// How long each job runs once it is admitted.
    runs: BTreeMap<JobId, u64>,
    arrived: BTreeMap<JobId, (u64, Option<u64>)>,
    foreign: BTreeSet<JobId>,
    waited: Vec<Waited>,
    moved: Vec<BoundMoved>,
    /// How likely each kind of event is in this world.
    bias: [u32; 5],
    seed: u64,
    history: Vec<(u64, Vec<Input>, Vec<Decision>)>,
}

#[expect(clippy::print_stderr, reason = "what a failed test is understood by")]
impl Drop for World<'_> {
    /// A world that fails tells its history.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {} of {:?}", self.seed, self.setup);
            for (at, inputs, decided) in &self.history {
                eprintln!("{} {inputs:?} -> {decided:?}", at / UNIT);
            }
        }
    }
}

/// Times that moved in a world in which nothing happens that no proof covers.
pub(crate) fn unexplained(setup: &Setup, moved: &[BoundMoved]) -> Vec<BoundMoved> {
    if setup.faults { Vec::new() } else { moved.to_vec() }
}

/// Plays a world to its end; every job must have started by then.
pub(crate) fn play(setup: &Setup, seed: u64) -> (Vec<Waited>, Vec<BoundMoved>) {
    let mut world = World::new(setup, seed);
    for _ in 0..setup.events {
        world.event();
    }
    let moved = std::mem::take(&mut world.moved);
    world.calm_down();
    while !world.agenda.is_empty() || world.pool.next_wakeup(Millis(world.now)).is_some() {
        world.pass();
    }
    let left: Vec<JobId> = world.waiting().collect();
    assert_eq!(left, [], "left waiting");
    (std::mem::take(&mut world.waited), moved)
}

/// Shows a pool as it is after each event of a world, and what was told by then.
pub(crate) fn visit(setup: &Setup, seed: u64, mut look: impl FnMut(&Pool, &Promises, Millis)) {
    let mut world = World::new(setup, seed);
    for _ in 0..setup.events {
        world.event();
        look(&world.pool, &world.promises, Millis(world.now));
    }
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup, seed: u64) -> Self {
        let mut random = Random::new(seed);
        // How often: time passes, larges, cancellations, the longest limit, failures at once.
        let bias = [
            30 + random.below(50),
            5 + random.below(40),
            random.below(40),
            20 + random.below(80),
            random.below(50) * u32::from(random.chance(50)),
        ];
        let mut world = Self {
            setup,
            random,
            pool: Pool::new(setup.config.clone()).unwrap(),
            promises: Promises::default(),
            now: 0,
            next_id: 1,
            agenda: BTreeSet::new(),
            runs: BTreeMap::new(),
            arrived: BTreeMap::new(),
            foreign: BTreeSet::new(),
            waited: Vec::new(),
            moved: Vec::new(),
            bias,
            seed,
            history: Vec::new(),
        };
        for id in 0..setup.nodes {
            let bad = if id + 1 == setup.nodes { setup.bad } else { 0 };
            world.node(id, GpuSet::first(bad), true);
        }
        world
    }

    fn event(&mut self) {
        let idle = self.agenda.is_empty() && self.wakeup().is_none();
        match self.random.chance(self.bias[0]) {
            true if idle => self.now += UNIT,
            true => self.pass(),
            false => self.happen(),
        }
    }

    fn waiting(&self) -> impl Iterator<Item = JobId> {
        let queues = [Shape::Large, Shape::Small].into_iter();
        queues.flat_map(|shape| self.pool.queue(shape)).map(|waiting| waiting.job.id)
    }

    fn wakeup(&self) -> Option<u64> {
        let now = Millis(self.now);
        let wakeups = self.pool.next_wakeup(now).into_iter().chain(self.promises.next_wakeup(now));
        wakeups.min().map(|at| at.0)
    }

    /// The next thing that is due.
    fn pass(&mut self) {
        let wakeup = self.wakeup();
        let due = self.agenda.first().copied();
        if let Some(at) = wakeup.filter(|&at| due.is_none_or(|due| at <= due.0)) {
            self.now = at;
            return self.step(&[]);
        }
        let Some((at, rank, job, what)) = due else { return };
        self.agenda.remove(&(at, rank, job, what));
        self.now = at;
        match what {
            Due::Ends => {
                self.foreign.remove(&job);
                let at_once = self.runs.get(&job).is_some_and(|&runs| runs < UNIT);
                let fails = at_once || self.random.chance(10);
                let outcome = if fails { Outcome::Failed } else { Outcome::Completed };
                self.step(&[Input::Released { job, outcome }]);
            }
            Due::Returns(node) => self.node(node, GpuSet::EMPTY, true),
        }
    }

    fn happen(&mut self) {
        if self.setup.faults && self.random.chance(12) {
            return self.fault();
        }
        if self.setup.cancels && self.random.chance(self.bias[2]) {
            let waiting: Vec<JobId> = self.waiting().collect();
            let all = u32::try_from(waiting.len()).unwrap();
            let among = if self.random.chance(60) { 1 } else { all };
            if !waiting.is_empty() {
                let job = waiting[usize::try_from(self.random.below(among)).unwrap()];
                self.step(&[Input::Withdrawn { job }]);
            }
            return;
        }
        if self.setup.is_shuffled() && self.random.chance(15) && self.refit() {
            return;
        }
        let large = self.random.chance(self.bias[1]);
        self.arrive(large);
    }

    fn arrive(&mut self, large: bool) {
        let config = &self.setup.config;
        let most = if large { config.large_limit } else { config.small_limit }.unwrap().0;
        let most = u32::try_from(most / UNIT).unwrap();
        let longest = self.random.chance(self.bias[3]);
        let limit = if longest { most } else { 1 + self.random.below(most) };
        let full = self.random.chance(70);
        let mut runs = UNIT * u64::from(if full { limit } else { 1 + self.random.below(limit) });
        let (faults, shuffled) = (self.setup.faults, self.setup.is_shuffled());
        if faults && self.random.chance(3) {
            runs += UNIT * u64::from(1 + self.random.below(4));
        } else if large && self.random.chance(self.bias[4]) {
            runs = 1_000 * u64::from(1 + self.random.below(59));
        }
        let id = self.new_id();
        let on = self.setup.pinned && self.random.chance(25);
        let on = on.then(|| NodeId(self.random.below(self.setup.nodes)));
        let job = Job {
            id,
            shape: if large { Shape::Large } else { Shape::Small },
            priority: i32::from((faults || shuffled) && self.random.chance(5)),
            created: Millis(self.now),
            limit: (!faults || !self.random.chance(2)).then_some(Millis(u64::from(limit) * UNIT)),
            tenant: TenantId(u32::from(shuffled && self.random.chance(40))),
            fits: on.map_or(Fits::Any, |node| Fits::Only([node].into())),
        };
        self.runs.insert(id, runs);
        self.step(&[Input::Queued(Box::new(job))]);
        if self.pool.waiting(id).is_some() {
            let told = self.promises.bound(id).and_then(|bound| bound.latest_start);
            self.arrived.insert(id, (self.now, told.map(|at| at.0)));
        }
    }

    /// Who waits fits another node, or any. Says whether anybody waits.
    fn refit(&mut self) -> bool {
        let waiting: Vec<JobId> = self.waiting().collect();
        let Some(all) = u32::try_from(waiting.len()).ok().filter(|&all| all > 0) else {
            return false;
        };
        let job = waiting[usize::try_from(self.random.below(all)).unwrap()];
        let node = NodeId(self.random.below(self.setup.nodes));
        let fits = if self.random.chance(40) { Fits::Any } else { Fits::Only([node].into()) };
        let job = Job { fits, ..self.pool.job(job).unwrap().clone() };
        self.step(&[Input::Queued(Box::new(job))]);
        true
    }

    fn new_id(&mut self) -> JobId {
        let id = JobId(self.next_id);
        self.next_id += 1;
        id
    }

    fn node(&mut self, id: u32, bad: GpuSet, schedulable: bool) {
        let gpus = GpuSet::first(self.setup.config.gpus_per_node);
        let spec = NodeSpec { gpus, healthy: gpus.minus(bad), schedulable };
        self.step(&[Input::NodeChanged { node: NodeId(id), spec }]);
    }

    fn fault(&mut self) {
        let node = self.random.below(self.setup.nodes);
        let back = self.now + UNIT * u64::from(self.random.below(6));
        let rank = self.random.next();
        let due = (back, rank, JobId(0), Due::Returns(node));
        match self.random.below(7) {
            0 => {
                let all = 1 << self.setup.config.gpus_per_node;
                self.agenda.insert(due);
                let bad = GpuSet(u64::from(1 + self.random.below(all - 1)));
                self.node(node, bad, true);
            }
            1 => {
                self.agenda.insert(due);
                self.node(node, GpuSet::EMPTY, false);
            }
            2 => {
                self.agenda.insert(due);
                self.step(&[Input::NodeGone { node: NodeId(node) }]);
            }
            3 | 4 => self.foreign(NodeId(node), back + UNIT),
            5 => {
                let mut config = self.pool.config().clone();
                match self.random.below(4) {
                    0 => config.paused = !config.paused,
                    1 => config.backfill = !config.backfill,
                    2 => config.one_wave = !config.one_wave,
                    _ => config.wave_size = 1 + self.random.below(config.wave_size),
                }
                self.step(&[Input::Configured(Box::new(config))]);
            }
            _ => {
                let job = JobId(self.random.next() % self.next_id);
                self.step(&[Input::BindFailed { job }]);
            }
        }
    }

    fn foreign(&mut self, node: NodeId, end: u64) {
        let free = self.pool.nodes().get(&node).map(Node::free).unwrap_or_default();
        let Some(gpu) = free.highest(1) else { return };
        let job = self.new_id();
        let limited = self.random.chance(60);
        let latest_end = limited.then_some(Millis(end));
        let rank = self.random.next();
        if limited {
            self.agenda.insert((end, rank, job, Due::Ends));
        }
        self.foreign.insert(job);
        self.step(&[Input::Foreign { job, node, count: 1, gpus: Some(gpu), latest_end }]);
    }

    /// Everything is as it should be again, so that everybody can start.
    fn calm_down(&mut self) {
        for job in std::mem::take(&mut self.foreign) {
            self.step(&[Input::Released { job, outcome: Outcome::Completed }]);
        }
        if self.pool.config().paused {
            let config = Config { paused: false, ..self.pool.config().clone() };
            self.step(&[Input::Configured(Box::new(config))]);
        }
        for id in 0..self.setup.nodes {
            self.node(id, GpuSet::EMPTY, true);
        }
    }

    fn step(&mut self, inputs: &[Input]) {
        let now = Millis(self.now);
        let disturbed = self.disturbs(inputs);
        let decided = self.pool.step(inputs.to_vec(), now);
        self.history.push((self.now, inputs.to_vec(), decided.clone()));
        let mut later = Vec::new();
        for decision in &decided {
            match *decision {
                Decision::Reserved { job, kind, .. } => later.extend(self.admitted(job, kind)),
                Decision::Refused { .. } => panic!("{decision:?}"),
                _ => {}
            }
        }
        let disturbed = disturbed
            || decided.iter().any(|decision| match decision {
                Decision::Unreserved { .. } => true,
                // It may pass one that stands back, or that fits other nodes only.
                Decision::Reserved { job, .. } => {
                    self.pool.job(*job).is_some_and(|job| job.limit.is_none())
                }
                _ => false,
            });
        self.note(inputs, &decided, disturbed);
        if !later.is_empty() {
            let decided = self.pool.step(later.clone(), now);
            assert_eq!(decided, [], "binding changes nothing");
            self.note(&later, &decided, disturbed);
        }
    }

    fn note(&mut self, inputs: &[Input], decided: &[Decision], disturbed: bool) {
        let before: BTreeMap<JobId, Option<Millis>> = self
            .waiting()
            .filter_map(|job| Some((job, self.promises.bound(job)?.latest_start)))
            .collect();
        let moved = self.promises.note(&self.pool, inputs, decided, Millis(self.now));
        for (job, told) in before {
            let now = self.promises.bound(job).and_then(|bound| bound.latest_start);
            let Some(told) = told.filter(|&told| now.is_none_or(|now| now > told)) else {
                continue;
            };
            let why = moved.iter().find(|moved| moved.job == job);
            let why = why.unwrap_or_else(|| panic!("{job}: {told} became {now:?} without a cause"));
            assert_eq!((why.from, why.to), (told, now));
        }
        // Also where somebody need not stand back any more.
        let again = |moved: &BoundMoved| matches!(moved.cause, Cause::ServableAgain(_));
        let moved_by_nothing = !disturbed && !moved.iter().all(again);
        assert!(!moved_by_nothing, "nothing happened, and yet {moved:?}");
        // What was told at arrival does not hold any more.
        for moved in &moved {
            self.arrived.remove(&moved.job);
        }
        self.moved.extend(moved);
    }

    /// Whether something happens that no proof covers.
    fn disturbs(&self, inputs: &[Input]) -> bool {
        let holdings = self.pool.nodes().values().flat_map(|node| node.holdings.values());
        let mut ends = holdings.filter_map(|holding| holding.latest_end);
        self.setup.is_shuffled()
            || ends.any(|end| end.0 < self.now)
            || inputs.iter().any(|input| match input {
                Input::Queued(job) => job.priority > 0 || job.limit.is_none(),
                Input::Released { .. } | Input::Withdrawn { .. } | Input::Bound { .. } => false,
                _ => true,
            })
    }

    /// What was told at arrival, without the share of larges that fail at once. A small was told so
    /// many rounds of B + 2S; each round has room for three such failures, of a minute each.
    fn proved(&self, shape: Shape, told: u64) -> Option<u64> {
        if self.setup.faults || self.setup.is_shuffled() || self.bias[4] > 0 {
            return None;
        }
        if shape == Shape::Large {
            return Some(told);
        }
        let config = &self.setup.config;
        let (s, l) = (config.small_limit?.0, config.large_limit?.0);
        let round = config.turn.map_or(l, |turn| turn.0.max(l)) + 2 * s;
        let once = if config.backfill { s } else { 0 };
        let rounds = (told - once) / (round + AT_ONCE);
        assert_eq!(told, once + rounds * (round + AT_ONCE));
        Some(once + rounds * round)
    }

    /// What follows an admission: it is bound at once or later, and ends in its time.
    fn admitted(&mut self, job: JobId, kind: Kind) -> Option<Input> {
        let placed = self.pool.holding(job)?;
        if placed.since.0 < self.now {
            return None;
        }
        if let Some(told) = self.promises.bound(job).and_then(|bound| bound.latest_start)
            && self.agenda.iter().all(|due| due.2 != job)
        {
            assert!(self.now <= told.0, "{job} was told {told} and has {kind:?} at {}", self.now);
        }
        if let Some((arrived, Some(told))) = self.arrived.remove(&job) {
            let shape = placed.shape.unwrap();
            let (span, told) = (self.now - arrived, told - arrived);
            let proved = self.proved(shape, told);
            assert!(proved.is_none_or(|most| span <= most), "{job} waited {span} of {proved:?}");
            self.waited.push(Waited { shape, span, told, proved });
        }
        if self.setup.faults && self.random.chance(8) {
            return None;
        }
        let rank = self.random.next();
        self.agenda.insert((self.now + self.runs[&job], rank, job, Due::Ends));
        Some(Input::Bound { job })
    }
}

//! How long a job can wait at most, found by trying every timeline of a small pool.
//!
//! An adversary drives the real [`Pool`]: work arrives when it likes, in whatever number, and ends
//! when it likes within its limit; larges may fail at once, and who waits may be cancelled. Every
//! state that can be reached is visited, with every order of what happens at one instant. One job
//! is marked as it arrives, and the longest way from there to its start is its worst wait. The
//! timeline that gives it is then played again on a fresh pool, so that a worst wait is always
//! one that the rule really has somebody wait. What was found is in `docs/bounds.md`.

use std::collections::{BTreeMap, VecDeque};

use sluice::policy::{
    Config, Decision, Fits, GpuSet, Input, Job, JobId, Kind, Millis, NodeId, NodeSpec, Outcome,
    Phase, Pool, Shape, TenantId,
};

/// What the adversary has at hand.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) config: Config,
    pub(crate) nodes: u32,
    /// Whose waits are asked for.
    pub(crate) shape: Shape,
    /// Of that shape, places in the queue that are tried.
    pub(crate) places: u32,
    /// Of that shape, how many may wait behind the one that is asked for.
    pub(crate) behind: u32,
    /// Of the other shape, how many may wait at a time.
    pub(crate) others: u32,
    /// Limits in ticks.
    pub(crate) limits: Limits,
    pub(crate) tick: Millis,
    /// Whether larges may fail at once.
    pub(crate) failures: bool,
    /// Whether who waits may be cancelled.
    pub(crate) cancels: bool,
}

/// The longest that a job of each shape holds GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) small: u64,
    pub(crate) large: u64,
}

impl Instance {
    /// Smalls or larges on one node, under the plain rule.
    pub(crate) fn new(shape: Shape, gpus: u32, small: u64, large: u64, places: u32) -> Self {
        let tick = Millis::from_secs(60);
        let config = Config {
            gpus_per_node: gpus,
            wave_size: gpus,
            small_limit: Some(Millis(tick.0 * small)),
            large_limit: Some(Millis(tick.0 * large)),
            ..Config::default()
        };
        let others = if shape == Shape::Small { 2 } else { gpus };
        Self {
            config,
            nodes: 1,
            shape,
            places,
            behind: 1,
            others,
            limits: Limits { small, large },
            tick,
            failures: false,
            cancels: false,
        }
    }

    /// Limits with which jobs of a shape arrive, in ticks. Where who ends in time may pass others,
    /// smalls have every limit up to the longest, else that one.
    fn limits(&self, shape: Shape) -> std::ops::RangeInclusive<u64> {
        match shape {
            Shape::Large => self.limits.large..=self.limits.large,
            _ if self.config.backfill => 1..=self.limits.small,
            _ => self.limits.small..=self.limits.small,
        }
    }

    /// How many of a shape may wait at a time.
    fn most(&self, shape: Shape, marked: bool) -> u32 {
        match (shape == self.shape, marked) {
            (false, _) => self.others,
            (true, false) => self.places - 1,
            (true, true) => self.behind,
        }
    }
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    /// Time passes.
    Tick,
    /// The one that is asked for arrives, with so many ticks for its limit.
    Marked(u64),
    Arrives(Shape, u64),
    /// One on this node ends that has so much of its limit left.
    Ends(NodeId, Millis),
    /// A large fails at once.
    Fails(NodeId),
    /// The waiting job at this place of its queue is cancelled.
    Cancelled(Shape, usize),
}

/// A pool, and who in it is asked for.
#[derive(Clone)]
struct World {
    pool: Pool,
    now: Millis,
    next: u64,
    marked: Option<JobId>,
}

impl World {
    fn new(of: &Instance) -> Self {
        let mut pool = Pool::new(of.config.clone()).unwrap();
        let gpus = GpuSet::first(of.config.gpus_per_node);
        let spec = NodeSpec { gpus, healthy: gpus, schedulable: true };
        let appear = |id| Input::NodeChanged { node: NodeId(id), spec };
        pool.step((0..of.nodes).map(appear).collect(), Millis(0));
        Self { pool, now: Millis(0), next: 1, marked: None }
    }

    /// Whether the one that is asked for has started.
    fn over(&self) -> bool {
        self.marked.is_some_and(|job| self.pool.waiting(job).is_none())
    }

    fn place(&self, shape: Shape) -> u32 {
        u32::try_from(self.pool.queue(shape).count()).unwrap()
    }

    /// What may happen now.
    fn moves(&self, of: &Instance) -> Vec<Move> {
        let mut moves = Vec::new();
        let holdings = || self.pool.nodes().values().flat_map(|node| node.holdings.values());
        if holdings().next().is_some() && holdings().all(|h| h.latest_end.unwrap() > self.now) {
            moves.push(Move::Tick);
        }
        if self.marked.is_none() {
            moves.extend(of.limits(of.shape).map(Move::Marked));
        }
        for shape in [Shape::Small, Shape::Large] {
            let waiting = self.pool.queue(shape).map(|waiting| waiting.job.id);
            let before = waiting.take_while(|&id| Some(id) != self.marked).count();
            let own = shape == of.shape && self.marked.is_some();
            let all = self.place(shape) as usize;
            let counted = if own { all - before - 1 } else { all };
            if counted < of.most(shape, self.marked.is_some()) as usize {
                moves.extend(of.limits(shape).map(|limit| Move::Arrives(shape, limit)));
            }
            if of.cancels {
                // Smalls of one limit are all alike.
                let alike = shape == Shape::Small && !of.config.backfill;
                let places = if alike { before.min(1) } else { before };
                moves.extend((0..places).map(|place| Move::Cancelled(shape, place)));
            }
        }
        for (&id, node) in self.pool.nodes() {
            let mut ends: Vec<Millis> =
                node.holdings.values().map(|h| h.latest_end.unwrap().since(self.now)).collect();
            ends.sort_unstable();
            ends.dedup();
            moves.extend(ends.into_iter().map(|rest| Move::Ends(id, rest)));
            let age = |h: &sluice::policy::Holding| self.now.since(h.since);
            let at_once = node.holdings.values().any(|h| age(h) < Millis::from_secs(60));
            if of.failures && at_once && matches!(node.phase, Phase::Exclusive(_)) {
                moves.push(Move::Fails(id));
            }
        }
        moves
    }

    /// The rule is told of it, and whoever it admits is bound.
    fn apply(&mut self, of: &Instance, what: Move) {
        let inputs = match what {
            Move::Tick => {
                self.now = self.now + of.tick;
                vec![]
            }
            Move::Marked(limit) => {
                self.marked = Some(JobId(self.next));
                vec![self.arrival(of, of.shape, limit)]
            }
            Move::Arrives(shape, limit) => vec![self.arrival(of, shape, limit)],
            Move::Ends(node, rest) => {
                let end = Some(self.now + rest);
                let mut held = self.pool.nodes()[&node].holdings.iter();
                let (&job, _) = held.find(|(_, h)| h.latest_end == end).unwrap();
                vec![Input::Released { job, outcome: Outcome::Completed }]
            }
            Move::Fails(node) => {
                let (&job, _) = self.pool.nodes()[&node].holdings.iter().next().unwrap();
                vec![Input::Released { job, outcome: Outcome::Failed }]
            }
            Move::Cancelled(shape, place) => {
                let job = self.pool.queue(shape).nth(place).unwrap().job.id;
                vec![Input::Withdrawn { job }]
            }
        };
        let decided = self.pool.step(inputs, self.now);
        let reserved = decided.iter().filter_map(|decision| match *decision {
            Decision::Reserved { job, .. } => Some(Input::Bound { job }),
            _ => None,
        });
        assert_eq!(self.pool.step(reserved.collect(), self.now), [], "binding decides nothing");
    }

    fn arrival(&mut self, of: &Instance, shape: Shape, ticks: u64) -> Input {
        let job = Job {
            id: JobId(self.next),
            shape,
            priority: 0,
            created: self.now,
            limit: Some(Millis(of.tick.0 * ticks)),
            tenant: TenantId(0),
            fits: Fits::Any,
        };
        self.next += 1;
        Input::Queued(Box::new(job))
    }

    /// The bytes by which states are told apart: all that can decide what follows, with times as
    /// they are from now. Jobs of one shape and limit are alike but for their order, and so are
    /// the GPUs of a node. Without a time limit of drains it does not matter since when one lasts.
    fn key(&self, of: &Instance) -> Vec<u64> {
        let mut key = Vec::new();
        let place = |job: JobId| {
            let mut larges = self.pool.queue(Shape::Large).map(|waiting| waiting.job.id);
            larges.position(|id| id == job).map_or(0, |place| 1 + place as u64)
        };
        for node in self.pool.nodes().values() {
            key.extend(match node.phase {
                Phase::Open => [0, 0],
                Phase::Draining(gate) => [1, place(gate.job)],
                Phase::Exclusive(_) => [2, 0],
                Phase::Wave { gate, .. } => [3, place(gate.job)],
            });
            let turn = node.turn.as_ref().map(|turn| {
                // Once the time for it is over, or without such a time, it only matters whether it
                // has begun at all, and a fourth failure at once is like a third.
                let most = of.config.turn.map_or(1, |turn| turn.0.max(1));
                let age = self.now.since(turn.since).0.min(most);
                [1 + age, turn.early_failures.min(3).into(), turn.failed_early.into()]
            });
            key.extend(turn.unwrap_or_default());
            let large = matches!(node.phase, Phase::Exclusive(_));
            let held = node.holdings.values().map(|h| {
                let age = if large && of.failures { self.now.since(h.since).0 } else { 0 };
                let filled = u64::from(h.kind == Kind::Backfill);
                (h.latest_end.unwrap().since(self.now)).0 << 24 | filled << 20 | age.min(60_000)
            });
            let from = key.len();
            key.extend(held);
            key[from..].sort_unstable();
            key.push(u64::MAX);
        }
        for shape in [Shape::Small, Shape::Large] {
            let waiting = self.pool.queue(shape).map(|waiting| waiting.job.id);
            key.push(u64::from(self.place(shape)));
            key.push(waiting.take_while(|&id| Some(id) != self.marked).count() as u64);
        }
        key.push(self.marked.is_some().into());
        if of.config.backfill {
            // Who fits behind a gate, and who waited when one was given up.
            let given_up = self.pool.nodes().values().filter_map(|node| node.given_up).max();
            key.push((given_up == Some(self.now)).into());
            key.extend(self.pool.queue(Shape::Small).map(|waiting| {
                let spared = given_up.is_some_and(|at| waiting.job.created <= at);
                waiting.job.limit.unwrap().0 << 1 | u64::from(spared)
            }));
        }
        key
    }
}

/// The longest wait of a job that arrives at a place of its queue, by that place and by whether a
/// large runs then; in ticks.
pub(crate) type Worst = BTreeMap<(u32, bool), u64>;

/// What was found.
pub(crate) struct Found {
    pub(crate) worst: Worst,
    pub(crate) states: usize,
}

/// A way on from a state.
#[derive(Clone, Copy)]
struct Way {
    what: Move,
    /// `None`: the one that is asked for starts.
    to: Option<usize>,
}

/// Somebody's arrival.
struct Arrival {
    from: usize,
    what: Move,
    place: u32,
    large_runs: bool,
    to: Option<usize>,
    /// In ticks, what the rule tells it.
    told: u64,
}

struct Search<'a> {
    of: &'a Instance,
    index: BTreeMap<Vec<u64>, usize>,
    /// Of states in which somebody is marked.
    ways: Vec<Vec<Way>>,
    /// How each state was first reached.
    from: Vec<Option<(usize, Move)>>,
    arrivals: Vec<Arrival>,
    ahead: VecDeque<(usize, World)>,
}

/// Tries everything. Panics where somebody waits longer than the rule told it, or where the
/// timeline that was found does not come out the same when it is played again.
pub(crate) fn search(of: &Instance) -> Found {
    let (index, ways, from) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut search = Search { of, index, ways, from, arrivals: Vec::new(), ahead: VecDeque::new() };
    search.visit(World::new(of), None);
    while let Some((state, world)) = search.ahead.pop_front() {
        search.expand(state, &world);
    }
    let (spans, chosen) = search.longest();
    let mut worst: BTreeMap<(u32, bool), (u64, usize)> = BTreeMap::new();
    for (index, arrival) in search.arrivals.iter().enumerate() {
        let span = arrival.to.map_or(0, |to| spans[to]);
        assert!(span <= arrival.told, "told {} of {span}: {of:?}", arrival.told);
        let most = worst.entry((arrival.place, arrival.large_runs)).or_insert((span, index));
        if span > most.0 {
            *most = (span, index);
        }
    }
    for &(span, arrival) in worst.values() {
        assert_eq!(search.replay(arrival, &chosen), span, "played again: {of:?}");
    }
    let worst = worst.into_iter().map(|(at, (span, _))| (at, span)).collect();
    Found { worst, states: search.index.len() }
}

impl Search<'_> {
    /// The number of a state; `None` where the one that is asked for has started.
    fn visit(&mut self, world: World, from: Option<(usize, Move)>) -> Option<usize> {
        if world.over() {
            return None;
        }
        let next = self.index.len();
        let state = *self.index.entry(world.key(self.of)).or_insert(next);
        if state == next {
            self.ways.push(Vec::new());
            self.from.push(from);
            self.ahead.push_back((state, world));
        }
        Some(state)
    }

    fn expand(&mut self, state: usize, world: &World) {
        for what in world.moves(self.of) {
            let mut after = world.clone();
            let place = world.place(self.of.shape) + 1;
            let exclusive = |node: &sluice::policy::Node| matches!(node.phase, Phase::Exclusive(_));
            let large_runs = world.pool.nodes().values().any(exclusive);
            after.apply(self.of, what);
            let told = after.marked.and_then(|job| after.pool.bound(job, after.now));
            let told = told.map_or(0, |bound| bound.latest_start.unwrap().0 - after.now.0);
            let to = self.visit(after, Some((state, what)));
            if matches!(what, Move::Marked(_)) {
                let told = told / self.of.tick.0;
                self.arrivals.push(Arrival { from: state, what, place, large_runs, to, told });
            }
            if world.marked.is_some() {
                self.ways[state].push(Way { what, to });
            }
        }
    }

    /// The longest time from each state to the start of the one that is asked for, with the way
    /// that leads there.
    fn longest(&self) -> (Vec<u64>, Vec<Option<Way>>) {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.ways.len()];
        for (state, ways) in self.ways.iter().enumerate() {
            for to in ways.iter().filter_map(|way| way.to) {
                before[to].push(state);
            }
        }
        let mut spans = vec![0; self.ways.len()];
        let mut chosen: Vec<Option<Way>> = vec![None; self.ways.len()];
        let mut due: VecDeque<usize> = (0..self.ways.len()).rev().collect();
        let mut is_due = vec![true; self.ways.len()];
        while let Some(state) = due.pop_front() {
            is_due[state] = false;
            for &way in &self.ways[state] {
                let span = u64::from(way.what == Move::Tick) + way.to.map_or(0, |to| spans[to]);
                assert!(span < 10_000, "waits for ever: {:?}", self.of);
                if chosen[state].is_some() && span <= spans[state] {
                    continue;
                }
                // A way that gains nothing and is no end may lead round in a circle.
                if span == 0 && way.to.is_some_and(|to| chosen[to].is_none()) {
                    continue;
                }
                (spans[state], chosen[state]) = (span, Some(way));
                for &earlier in &before[state] {
                    if !is_due[earlier] {
                        is_due[earlier] = true;
                        due.push_back(earlier);
                    }
                }
            }
        }
        (spans, chosen)
    }

    /// Plays a timeline on a fresh pool; how long the one that is asked for waits, in ticks.
    fn replay(&self, arrival: usize, chosen: &[Option<Way>]) -> u64 {
        let Arrival { from, what, to, .. } = self.arrivals[arrival];
        let mut moves = Vec::new();
        let mut state = from;
        while let Some((earlier, what)) = self.from[state] {
            moves.push(what);
            state = earlier;
        }
        moves.reverse();
        moves.push(what);
        let mut world = World::new(self.of);
        for what in moves {
            world.apply(self.of, what);
        }
        let (begun, mut next) = (world.now, to);
        while let Some(way) = next.and_then(|state| chosen[state]) {
            world.apply(self.of, way.what);
            next = way.to;
        }
        assert!(world.over(), "it starts");
        world.now.since(begun).0 / self.of.tick.0
    }
}

//! No job waits longer than it was ever told, in random worlds where limits are kept.
//!
//! Work ends at its limit or before, may fail, and may be cancelled while it waits; what happens
//! at one instant comes in any order, each fact in a step of its own.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sluice::policy::{
    Basis, Config, Decision, Fits, GpuSet, Input, Job, JobId, Millis, NodeId, NodeSpec, Outcome,
    Pool, Shape, TenantId,
};

use super::timeline::examine;

#[derive(Clone, Debug)]
struct Work {
    large: bool,
    /// Of one that is not large: the GPUs that it asks for.
    gpus: u32,
    arrives: u64,
    /// Seconds that it really runs.
    runs: u64,
    /// How many more its limit would allow.
    slack: u64,
    fails: bool,
    cancelled_after: Option<u64>,
    on: Option<BTreeSet<u32>>,
    /// Its place among what happens at one instant.
    rank: u8,
}

#[derive(Clone, Debug)]
struct Limits {
    small: u64,
    large: u64,
}

fn work(limits: &Limits, pinned: bool, widest: u32) -> impl Strategy<Value = Work> + use<> {
    let (small, large) = (limits.small, limits.large);
    let cancelled = prop_oneof![9 => Just(None), 1 => (0..20_u64).prop_map(Some)];
    let on = proptest::collection::btree_set(0..3_u32, 1..3);
    let on = prop_oneof![3 => Just(None), u32::from(pinned) => on.prop_map(Some)];
    let size = (prop::bool::weighted(0.25), 1..=large, 0..3_u64, prop::bool::weighted(0.1));
    let gpus = prop_oneof![Just(1), 1..=widest];
    (size, gpus, 0..60_u64, cancelled, on, any::<u8>()).prop_map(
        move |((is_large, runs, slack, fails), gpus, arrives, cancelled_after, on, rank)| {
            let most = if is_large { large } else { small };
            let runs = runs.min(most);
            let slack = slack.min(most - runs);
            Work { large: is_large, gpus, arrives, runs, slack, fails, cancelled_after, on, rank }
        },
    )
}

fn world(pinned: bool, wide: bool) -> impl Strategy<Value = (Config, u32, Vec<Work>)> {
    let limits = (1..=4_u64, 1..=12_u64).prop_map(|(small, large)| Limits { small, large });
    let turn = prop_oneof![Just(None), (1..40_u64).prop_map(|s| Some(Millis::from_secs(s)))];
    let waves = (any::<bool>(), any::<bool>());
    let options = (waves, turn, 0..=u32::from(pinned), 1..=3_u32);
    let shape = (1..=4_u32, 1..=4_u32, 1..=3_u32);
    (limits, options, shape).prop_flat_map(move |(limits, options, (gpus, wave, nodes))| {
        let ((backfill, one_wave), turn, keep_open, max_drains) = options;
        let config = Config {
            gpus_per_node: gpus,
            wave_size: wave.min(gpus),
            max_drains,
            backfill,
            one_wave,
            turn,
            keep_open: keep_open.min(nodes - 1),
            small_limit: Some(Millis::from_secs(limits.small)),
            large_limit: Some(Millis::from_secs(limits.large)),
            ..Config::default()
        };
        let widest = if wide { gpus.saturating_sub(1).max(1) } else { 1 };
        let work = proptest::collection::vec(work(&limits, pinned, widest), 1..60);
        (Just(config), Just(nodes), work)
    })
}

struct World {
    pool: Pool,
    now: u64,
    work: BTreeMap<JobId, Work>,
    /// What is to come: at, rank, what.
    agenda: BTreeSet<(u64, u8, JobId, Event)>,
    /// The earliest time that each waiting job was ever promised, and on which basis.
    promised: BTreeMap<JobId, (u64, Basis)>,
    promises: u32,
    /// The wide small that is first among the smalls, and since when.
    head: Option<(JobId, u64)>,
    /// How long one may be.
    head_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Ends,
    IsCancelled,
}

impl World {
    fn new(config: &Config, nodes: u32) -> Self {
        let mut pool = Pool::new(config.clone()).unwrap();
        let gpus = GpuSet::first(config.gpus_per_node);
        let spec = NodeSpec { gpus, healthy: gpus, schedulable: true };
        let appear = |id| Input::NodeChanged { node: NodeId(id), spec };
        pool.step((0..nodes).map(appear).collect(), Millis(0));
        Self {
            pool,
            now: 0,
            work: BTreeMap::new(),
            agenda: BTreeSet::new(),
            promised: BTreeMap::new(),
            promises: 0,
            head: None,
            head_ms: head_ms(config, nodes),
        }
    }

    fn run(&mut self, mut arrivals: Vec<Work>) {
        arrivals.sort_by_key(|work| (work.arrives, work.rank));
        for work in arrivals {
            self.pass_until(work.arrives * 1_000, work.rank);
            self.arrive(work);
        }
        self.pass_until(u64::MAX, 0);
        let waiting = [Shape::Small, Shape::Large].map(|shape| self.pool.queue(shape).count());
        assert_eq!(waiting.iter().sum::<usize>(), 0, "left waiting: {:?}", self.promised);
    }

    fn pass_until(&mut self, time: u64, rank: u8) {
        while let Some(&next) = self.agenda.first()
            && (next.0, next.1) < (time, rank)
        {
            self.agenda.remove(&next);
            let (at, _, job, event) = next;
            self.now = at;
            let input = match event {
                Event::IsCancelled => Input::Withdrawn { job },
                Event::Ends => {
                    let fails = self.work[&job].fails;
                    let outcome = if fails { Outcome::Failed } else { Outcome::Completed };
                    Input::Released { job, outcome }
                }
            };
            self.step(input);
        }
        if time < u64::MAX {
            self.now = time;
        }
    }

    fn arrive(&mut self, work: Work) {
        let id = JobId(self.work.len() as u64 + 1);
        if let Some(after) = work.cancelled_after {
            self.agenda.insert((self.now + after * 1_000, work.rank, id, Event::IsCancelled));
        }
        let job = Job {
            id,
            shape: match work.gpus {
                _ if work.large => Shape::Large,
                1 => Shape::Small,
                gpus => Shape::Wide(gpus),
            },
            priority: 0,
            created: Millis(self.now),
            limit: Some(Millis::from_secs(work.runs + work.slack)),
            tenant: TenantId(0),
            fits: work
                .on
                .as_ref()
                .map_or(Fits::Any, |on| Fits::Only(on.iter().copied().map(NodeId).collect())),
        };
        let fits = job.fits.clone();
        if !self.pool.nodes().keys().any(|&id| fits.on(id)) {
            return;
        }
        self.work.insert(id, work);
        self.step(Input::Queued(Box::new(job)));
    }

    fn step(&mut self, input: Input) {
        let decided = self.pool.step(vec![input], Millis(self.now));
        examine(&self.pool, &decided);
        let mut bound = Vec::new();
        for decision in decided {
            let Decision::Reserved { job, .. } = decision else { continue };
            bound.push(Input::Bound { job });
            let work = &self.work[&job];
            self.agenda.insert((self.now + work.runs * 1_000, work.rank, job, Event::Ends));
            if let Some((latest, basis)) = self.promised.remove(&job) {
                assert!(self.now <= latest, "{job}: told {latest} by {basis:?}, at {}", self.now);
            }
        }
        assert_eq!(self.pool.step(bound, Millis(self.now)), []);
        self.note_promises();
        self.note_the_first_small();
    }

    /// A wide small that is first among the smalls starts within (N+1)S + B.
    fn note_the_first_small(&mut self) {
        let wide = |shape: Shape| shape.is_small() && shape != Shape::Small;
        let first = self.pool.queue(Shape::Small).next().map(|waiting| &waiting.job);
        let first = first.filter(|job| wide(job.shape)).map(|job| job.id);
        if let Some((job, since)) = self.head {
            let waited = self.now - since;
            assert!(waited <= self.head_ms, "{job} was first for {waited} of {}", self.head_ms);
        }
        self.head = match (first, self.head) {
            (Some(first), Some((head, since))) if first == head => Some((head, since)),
            (Some(first), _) => Some((first, self.now)),
            (None, _) => None,
        };
    }

    fn note_promises(&mut self) {
        let waiting: Vec<JobId> = [Shape::Small, Shape::Large]
            .into_iter()
            .flat_map(|shape| self.pool.queue(shape))
            .map(|waiting| waiting.job.id)
            .collect();
        self.promised.retain(|job, _| waiting.contains(job));
        for job in waiting {
            let bound = self.pool.bound(job, Millis(self.now)).unwrap();
            let Some(latest) = bound.latest_start else { continue };
            self.promises += 1;
            let told = self.promised.entry(job).or_insert((latest.0, bound.basis));
            if latest.0 < told.0 {
                *told = (latest.0, bound.basis);
            }
        }
    }
}

/// (N+1)S + B on N nodes, B with the larges that fail at once. Where nodes are kept open or work
/// fits some nodes only, nothing is said.
fn head_ms(config: &Config, nodes: u32) -> u64 {
    let limit = |limit: Option<Millis>| limit.unwrap().0;
    let (s, l) = (limit(config.small_limit), limit(config.large_limit));
    let turn = config.turn.map_or(l, |turn| turn.0.max(l));
    u64::from(nodes + 1) * s + turn + 3 * l.min(60_000)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn nobody_waits_longer_than_ever_told((config, nodes, work) in world(false, false)) {
        let mut world = World::new(&config, nodes);
        world.run(work);
    }

    #[test]
    fn nobody_waits_longer_than_ever_told_where_work_fits_some_nodes_only(
        (config, nodes, work) in world(true, false),
    ) {
        let mut world = World::new(&config, nodes);
        world.run(work);
    }

    /// Larges and smalls keep their figures beside wide smalls; and every wide one is served.
    #[test]
    fn nobody_waits_longer_than_ever_told_beside_wide_smalls(
        (config, nodes, work) in world(false, true),
    ) {
        let mut world = World::new(&config, nodes);
        world.run(work);
    }

    #[test]
    fn nor_beside_wide_smalls_where_work_fits_some_nodes_only(
        (config, nodes, work) in world(true, true),
    ) {
        let mut world = World::new(&config, nodes);
        world.head_ms = u64::MAX;
        world.run(work);
    }
}

//! Random histories: the rule against the specification of it, step by step.

use proptest::prelude::*;
use proptest::sample::Index;
use sluice::explain::NameTable;
use sluice::journal::Recorder;
use sluice::policy::{
    Config, Decision, Fits, GpuSet, Input, Job, JobId, Kind, Millis, Node, NodeId, NodeSpec,
    Outcome, Phase, Pool, Promises, Shape, Stage, TenantId,
};

use super::model::{Deed, Grip, Model, ModelJob, ModelPhase, Place};
use super::records::replays;
use super::timeline::{examine, restore};
use super::transitions::{Arrival, Transition, config, history};

/// Both side by side.
pub(crate) struct Machine {
    pub(crate) pool: Pool,
    model: Model,
    pub(crate) now: u64,
    next_id: u64,
    recorder: Recorder,
    promises: Promises,
}

impl Machine {
    pub(crate) fn new(config: &Config, nodes: u32) -> Self {
        let pool = Pool::new(config.clone()).unwrap();
        let (model, recorder) = (Model::new(config.clone()), Recorder::unbounded("default"));
        let promises = Promises::default();
        let mut machine = Self { pool, model, now: 0, next_id: 1, recorder, promises };
        let appear = |id| Transition::AddNode { id, small: false };
        machine.play(&(0..nodes).map(appear).collect::<Vec<_>>());
        machine
    }

    /// What the node gave to whom is told in steps of its own: it must not contradict what is told
    /// beside it, as the world does not.
    pub(crate) fn play(&mut self, transitions: &[Transition]) {
        let alone = |transition: &&Transition| {
            use Transition::{Foreign, Move, Swap};
            matches!(transition, Foreign { .. } | Move(..) | Swap(..))
        };
        let (alone, together): (Vec<_>, Vec<_>) = transitions.iter().partition(alone);
        self.step(&together);
        for transition in alone {
            self.step(&[transition]);
        }
    }

    fn step(&mut self, transitions: &[&Transition]) {
        self.model.at(self.now);
        let mut inputs = Vec::new();
        for transition in transitions {
            inputs.extend(self.inputs(transition));
        }
        inputs.sort_by_key(|input| (input.rank(), subject(input)));
        for input in &inputs {
            self.tell_model(input);
        }
        let (now, nobody) = (Millis(self.now), NameTable::default());
        let (pool, promises) = (&mut self.pool, &mut self.promises);
        let decided = self.recorder.step(pool, promises, inputs, now, &nobody).decisions;
        let expected = self.model.decide();
        let deeds: Vec<Deed> = decided.iter().filter_map(deed).collect();
        assert_eq!(deeds, expected, "at {}", self.now);
        examine(&self.pool, &decided);
        self.compare();
        let wakeup = self.pool.next_wakeup(Millis(self.now));
        assert!(wakeup.is_none_or(|at| at.0 > self.now), "the wake-up spins at {}", self.now);
        assert_eq!(self.pool.clone().step(Vec::new(), Millis(self.now)), [], "undecided");
    }

    /// Time passes, with a step at each wake-up; nothing may be decided at any other time.
    pub(crate) fn pass(&mut self, span: u64) {
        let until = self.now + span;
        while let Some(due) = self.pool.next_wakeup(Millis(self.now)).filter(|at| at.0 <= until) {
            let before = due.0 - 1;
            if before > self.now {
                let idle = self.pool.clone().step(Vec::new(), Millis(before));
                assert_eq!(idle, [], "due before the wake-up at {due}");
            }
            self.now = due.0;
            self.step(&[]);
        }
        self.now = until;
    }

    fn inputs(&mut self, transition: &Transition) -> Vec<Input> {
        let pick = |index: &Index, wanted: &dyn Fn(&ModelJob) -> bool| {
            let jobs: Vec<u64> =
                self.model.jobs.iter().filter(|job| wanted(job)).map(|job| job.id).collect();
            (!jobs.is_empty()).then(|| JobId(*index.get(&jobs)))
        };
        let holder = |index: &Index| pick(index, &|job| matches!(job.place, Place::Holds(_)));
        let staged = |index: &Index, stage: Stage| {
            pick(index, &|job| grip(job).is_some_and(|grip| grip.stage == stage))
        };
        let released = |job: Option<JobId>, outcome| {
            job.map(|job| Input::Released { job, outcome }).into_iter().collect()
        };
        match transition {
            Transition::Arrive(arrival) => vec![self.arrival(arrival)],
            Transition::Complete(index) => released(holder(index), Outcome::Completed),
            Transition::Fail(index) => released(holder(index), Outcome::Failed),
            Transition::Cancel(index) => {
                let job = pick(index, &|job| job.place != Place::Gone);
                let Some(job) = job else { return Vec::new() };
                vec![Input::Withdrawn { job }, Input::Released { job, outcome: Outcome::Cancelled }]
            }
            Transition::Bind(index) => {
                staged(index, Stage::Reserved).map(|job| Input::Bound { job }).into_iter().collect()
            }
            Transition::Start(index) => {
                let job = staged(index, Stage::Bound);
                let latest_end = job.and_then(|job| self.model.job(job.0)?.limit);
                let latest_end = latest_end.map(|limit| Millis(self.now + limit));
                job.map(|job| Input::Started { job, latest_end }).into_iter().collect()
            }
            Transition::Refuse(index) => {
                holder(index).map(|job| Input::BindFailed { job }).into_iter().collect()
            }
            Transition::Vanish(index) => {
                holder(index).map(|job| Input::Vanished { job }).into_iter().collect()
            }
            Transition::Move(job, gpu) => self.moved(*job, *gpu),
            Transition::Swap(one, other) => self.swapped(*one, *other),
            Transition::Foreign { node, gpus, counted, end } => {
                self.foreign(*node, *gpus, *counted, *end)
            }
            Transition::Restart => {
                self.restart();
                Vec::new()
            }
            Transition::Pause(paused) => {
                let config = Config { paused: *paused, ..self.model.config.clone() };
                vec![Input::Configured(Box::new(config))]
            }
            Transition::Gpu { .. }
            | Transition::Cordon { .. }
            | Transition::LoseNode(_)
            | Transition::AddNode { .. } => self.node_changes(transition),
        }
    }

    fn arrival(&mut self, arrival: &Arrival) -> Input {
        let id = JobId(self.next_id);
        self.next_id += 1;
        let on = arrival.on.as_ref();
        Input::Queued(Box::new(Job {
            id,
            shape: match arrival.wide {
                _ if arrival.large => Shape::Large,
                Some(gpus) => Shape::Wide(gpus),
                None => Shape::Small,
            },
            priority: arrival.priority,
            created: Millis(self.now.saturating_sub(arrival.age * 1_000)),
            limit: arrival.limit.map(Millis::from_secs),
            tenant: TenantId(arrival.tenant),
            fits: on.map_or(Fits::Any, |on| Fits::Only(on.iter().copied().map(NodeId).collect())),
        }))
    }

    /// A small was really given another GPU that was free.
    fn moved(&self, job: Index, gpu: Index) -> Vec<Input> {
        let started = |job: &&ModelJob| {
            let small = job.shape == Some(Shape::Small);
            small && grip(job).is_some_and(|grip| grip.stage == Stage::Running)
        };
        let jobs: Vec<&ModelJob> = self.model.jobs.iter().filter(started).collect();
        let Some(job) = (!jobs.is_empty()).then(|| job.get(&jobs)) else { return Vec::new() };
        let free: Vec<u32> = self.model.free(grip(job).unwrap().node).iter().collect();
        let Some(gpu) = (!free.is_empty()).then(|| gpu.get(&free)) else { return Vec::new() };
        vec![Input::Holds { job: JobId(job.id), gpus: GpuSet::single(*gpu) }]
    }

    /// Two smalls of one node were really given each other's GPUs.
    fn swapped(&self, one: Index, other: Index) -> Vec<Input> {
        let started = |job: &&ModelJob| {
            let small = job.shape == Some(Shape::Small);
            small && grip(job).is_some_and(|grip| grip.stage >= Stage::Running)
        };
        let jobs: Vec<&ModelJob> = self.model.jobs.iter().filter(started).collect();
        if jobs.is_empty() {
            return Vec::new();
        }
        let (one, other) = (one.get(&jobs), other.get(&jobs));
        let (a, b) = (grip(one).unwrap(), grip(other).unwrap());
        if a.node != b.node || one.id == other.id {
            return Vec::new();
        }
        vec![
            Input::Holds { job: JobId(one.id), gpus: b.gpus },
            Input::Holds { job: JobId(other.id), gpus: a.gpus },
        ]
    }

    /// A pod that went round the rule takes GPUs that nothing uses yet.
    fn foreign(&mut self, node: Index, mask: u64, counted: bool, end: Option<u64>) -> Vec<Input> {
        let ids: Vec<u32> = self.model.nodes.iter().map(|node| node.id).collect();
        let Some(&id) = (!ids.is_empty()).then(|| node.get(&ids)) else { return Vec::new() };
        let used = self.model.grips(id).into_iter().filter(|(_, g)| g.stage > Stage::Reserved);
        let used = used.fold(GpuSet::EMPTY, |set, (_, grip)| set.union(grip.gpus));
        let free = self.model.free(id);
        let all = self.model.node(id).unwrap().gpus;
        let gpus = if counted {
            free.highest(free.count().min(mask.count_ones())).unwrap()
        } else {
            GpuSet(mask).intersection(all).minus(used)
        };
        if gpus.is_empty() {
            return Vec::new();
        }
        let job = JobId(self.next_id);
        self.next_id += 1;
        vec![Input::Foreign {
            job,
            node: NodeId(id),
            count: gpus.count(),
            gpus: (!counted).then_some(gpus),
            latest_end: end.map(|end| Millis(self.now + end * 1_000)),
        }]
    }

    fn node_changes(&self, transition: &Transition) -> Vec<Input> {
        let nodes = &self.model.nodes;
        let pick = |index: &Index| (!nodes.is_empty()).then(|| index.get(nodes));
        let changed = |id: u32, gpus, healthy, schedulable| {
            let spec = NodeSpec { gpus, healthy, schedulable };
            vec![Input::NodeChanged { node: NodeId(id), spec }]
        };
        match transition {
            Transition::Gpu { node, gpu, healthy } => {
                let Some(node) = pick(node) else { return Vec::new() };
                let gpus: Vec<u32> = node.gpus.iter().collect();
                let gpu = GpuSet::single(*gpu.get(&gpus));
                let rest = node.healthy.minus(gpu);
                let now_healthy = if *healthy { rest.union(gpu) } else { rest };
                changed(node.id, node.gpus, now_healthy, node.schedulable)
            }
            Transition::Cordon { node, cordoned } => {
                let Some(node) = pick(node) else { return Vec::new() };
                changed(node.id, node.gpus, node.healthy, !cordoned)
            }
            Transition::LoseNode(node) => {
                let Some(node) = pick(node) else { return Vec::new() };
                vec![Input::NodeGone { node: NodeId(node.id) }]
            }
            Transition::AddNode { id, small } => {
                if nodes.iter().any(|node| node.id == *id) {
                    return Vec::new();
                }
                let size = self.model.config.gpus_per_node + u32::from(*small);
                let gpus = GpuSet::first(size);
                changed(*id, gpus, gpus, true)
            }
            _ => unreachable!("not about nodes"),
        }
    }

    fn tell_model(&mut self, input: &Input) {
        let model = &mut self.model;
        let millis = |at: Option<Millis>| at.map(|at| at.0);
        match input {
            Input::Released { job, outcome } => model.release(job.0, *outcome),
            Input::Withdrawn { job } => model.withdraw(job.0),
            Input::NodeGone { node } => model.lose_node(node.0),
            Input::Configured(config) => model.config = (**config).clone(),
            Input::NodeChanged { node, spec } => {
                model.change_node(node.0, spec.gpus, spec.healthy, spec.schedulable);
            }
            Input::Bound { job } => model.bind(job.0),
            Input::Started { job, latest_end } => model.start(job.0, millis(*latest_end)),
            Input::Vanished { job } => model.vanish(job.0),
            Input::Holds { job, gpus } => model.holds(job.0, *gpus),
            Input::Foreign { job, node, count, gpus, latest_end } => {
                if model.node(node.0).is_some() {
                    let gpus = gpus.unwrap_or_else(|| model.free(node.0).highest(*count).unwrap());
                    model.foreign(job.0, node.0, gpus, millis(*latest_end));
                }
            }
            Input::BindFailed { job } => model.refuse(job.0),
            Input::Queued(job) => model.arrive(ModelJob {
                id: job.id.0,
                shape: Some(job.shape),
                priority: job.priority,
                created: job.created.0,
                limit: millis(job.limit),
                tenant: job.tenant.0,
                on: match &job.fits {
                    Fits::Any => None,
                    Fits::Only(nodes) => Some(nodes.iter().map(|node| node.0).collect()),
                },
                place: Place::Waits { attempts: 0, retry_at: 0 },
            }),
        }
    }

    fn restart(&mut self) {
        let waiting: Vec<Input> = [Shape::Small, Shape::Large]
            .into_iter()
            .flat_map(|shape| self.pool.queue(shape))
            .map(|waiting| Input::Queued(Box::new(waiting.job.clone())))
            .collect();
        self.replay();
        self.recorder = Recorder::unbounded("default");
        self.promises = Promises::default();
        self.pool = restore(&self.pool);
        // Who stood back may be admitted at once: the ledger does not know of it.
        self.model.restart();
        let decided = self.pool.step(waiting, Millis(self.now));
        let deeds: Vec<Deed> = decided.iter().filter_map(deed).collect();
        assert_eq!(deeds, self.model.decide(), "after a restart at {}", self.now);
    }

    /// Its records, decided again, are the same.
    fn replay(&mut self) {
        let nobody = NameTable::default();
        let (pool, promises) = (&self.pool, &self.promises);
        let snapshot = self.recorder.snapshot(pool, promises, Millis(self.now), &nobody);
        replays(&snapshot.into_lines().collect::<String>());
    }

    fn compare(&self) {
        let ids: Vec<u32> = self.pool.nodes().keys().map(|id| id.0).collect();
        assert_eq!(ids, self.model.nodes.iter().map(|node| node.id).collect::<Vec<_>>());
        for (id, node) in self.pool.nodes() {
            assert_eq!(phase(node), self.model.node(id.0).unwrap().phase, "{id} at {}", self.now);
            let held: Vec<(u64, GpuSet, Kind, Stage)> =
                node.holdings.iter().map(|(job, h)| (job.0, h.gpus, h.kind, h.stage)).collect();
            let grips = self.model.grips(id.0).into_iter();
            let expected: Vec<_> = grips.map(|(j, g)| (j, g.gpus, g.kind, g.stage)).collect();
            assert_eq!(held, expected, "{id} at {}", self.now);
        }
        for job in &self.model.jobs {
            let waits = self.pool.waiting(JobId(job.id)).map(|w| (w.attempts, w.retry_at.0));
            let expected = match job.place {
                Place::Waits { attempts, retry_at } => Some((attempts, retry_at)),
                Place::Holds(_) | Place::Gone => None,
            };
            assert_eq!(waits, expected, "job {} at {}", job.id, self.now);
            assert_eq!(self.pool.why(JobId(job.id), Millis(self.now)).is_some(), waits.is_some());
        }
        self.compare_counters();
    }

    /// Every job that was admitted runs or has ended, once.
    fn compare_counters(&self) {
        let counters = self.pool.counters();
        for (shape, counted) in [(Shape::Small, counters.small), (Shape::Large, counters.large)] {
            let of_shape = self
                .model
                .jobs
                .iter()
                .filter(|job| job.shape.is_some_and(|own| own.is_small() == shape.is_small()));
            let (mut holds, mut gone) = (0, 0);
            for job in of_shape {
                match job.place {
                    Place::Holds(_) => holds += 1,
                    Place::Gone => gone += 1,
                    Place::Waits { .. } => {}
                }
            }
            let ended = counted.completed + counted.failed + counted.cancelled;
            assert_eq!(ended, gone, "{shape:?} at {}", self.now);
            assert!(counted.admitted >= holds && counted.admitted <= holds + gone);
        }
    }
}

fn grip(job: &ModelJob) -> Option<Grip> {
    match job.place {
        Place::Holds(grip) => Some(grip),
        Place::Waits { .. } | Place::Gone => None,
    }
}

fn subject(input: &Input) -> u64 {
    match input {
        Input::Released { job, .. }
        | Input::Withdrawn { job }
        | Input::Bound { job }
        | Input::Started { job, .. }
        | Input::Vanished { job }
        | Input::Holds { job, .. }
        | Input::Foreign { job, .. }
        | Input::BindFailed { job } => job.0,
        Input::Queued(job) => job.id.0,
        Input::NodeGone { node } | Input::NodeChanged { node, .. } => u64::from(node.0),
        Input::Configured(_) => 0,
    }
}

fn deed(decision: &Decision) -> Option<Deed> {
    match *decision {
        Decision::Reserved { job, node, gpus, kind } => {
            Some(Deed::Admitted { job: job.0, node: node.0, gpus, kind })
        }
        Decision::Unreserved { job, retry_at, .. } => {
            Some(Deed::TakenBack { job: job.0, retry_at: retry_at.0 })
        }
        Decision::Evict { job, .. } => Some(Deed::Evicted { job: job.0 }),
        _ => None,
    }
}

fn phase(node: &Node) -> ModelPhase {
    match node.phase {
        Phase::Open => ModelPhase::Open,
        Phase::Draining(gate) => {
            ModelPhase::Draining { job: gate.job.0, since: gate.since.0, overdue: gate.overdue }
        }
        Phase::Exclusive(job) => ModelPhase::Exclusive(job.0),
        Phase::Wave { admitted, gate } => ModelPhase::Wave {
            admitted,
            job: gate.job.0,
            since: gate.since.0,
            overdue: gate.overdue,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_rule_is_what_its_specification_says(
        config in config(),
        nodes in 1..=4_u32,
        history in history(40, 1),
    ) {
        let mut machine = Machine::new(&config, nodes);
        for (seconds, transitions) in history {
            machine.pass(seconds * 1_000);
            machine.play(&transitions);
        }
    }

    #[test]
    fn the_rule_with_wide_smalls_is_what_its_specification_says(
        config in config(),
        nodes in 1..=4_u32,
        history in history(40, 3),
    ) {
        let mut machine = Machine::new(&config, nodes);
        for (seconds, transitions) in history {
            machine.pass(seconds * 1_000);
            machine.play(&transitions);
        }
        machine.replay();
    }
}

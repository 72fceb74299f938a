//! What a step does to the world, what the rule is told of it, and what it is seen to do.

use sluice::policy::{
    Basis, Config, Decision, GpuSet, Input, Job, JobId, Millis, NodeId, NodeSpec, Outcome, Phase,
    Pool, Promises, Shape, Stage,
};

use super::actions::{Action, distance};
use super::mutants::Mutant;
use super::setup::{Setup, ticks};
use super::state::{Ends, Fault, JobFact, Marks, Place, State};
use super::watch::note;
use super::world::{
    change_node, delete, end, grip_mut, intrude, job, stage, started, waiting_jobs,
};

/// The model: the real rule in a world of its own, or a spoilt one.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) setup: Setup,
    pub(crate) mutant: Option<Mutant>,
}

impl Rule {
    pub(crate) fn new(setup: Setup) -> Self {
        Self { setup, mutant: None }
    }

    pub(crate) fn first_state(&self) -> State {
        let gpus = GpuSet::first(self.setup.config.gpus_per_node);
        let spec = NodeSpec { gpus, healthy: gpus, schedulable: true };
        let mut pool = Pool::new(self.setup.config.clone()).expect("settings keep the bounds");
        let appear = |id| Input::NodeChanged { node: NodeId(id), spec };
        pool.step((0..self.setup.nodes).map(appear).collect(), Millis(0));
        let mut state = State {
            pool,
            promises: Promises::default(),
            now: 0,
            jobs: Vec::new(),
            nodes: vec![Some(spec); self.setup.nodes as usize],
            paused: false,
            to_come: self.setup.arrivals.iter().map(|of| of.count).collect(),
            left: self.setup.troubles,
            ends: [Ends::default(); 2],
            fault: None,
            marks: Marks::default(),
            key: Vec::new(),
        };
        state.seal(self.setup.marks);
        state
    }

    /// The state that follows.
    pub(crate) fn after(&self, before: &State, action: &Action) -> State {
        let mut state = State { marks: Marks::default(), ..before.clone() };
        let inputs = self.happen(&mut state, action);
        let anew = *action == Action::Crash;
        self.decide(before, &mut state, inputs, anew);
        if !self.setup.slow {
            self.start_all(&mut state);
        }
        if distance(&state) >= distance(before) {
            state.fault.get_or_insert(Fault::NoProgress);
        }
        state.seal(self.setup.marks);
        state
    }

    /// Changes the world, and says what the rule is told of it.
    fn happen(&self, state: &mut State, action: &Action) -> Vec<Input> {
        match *action {
            Action::Arrive(kind) => vec![self.arrive(state, kind)],
            Action::ArriveTogether => vec![self.arrive(state, 0), self.arrive(state, 1)],
            Action::Bind(job) => {
                stage(state, job, Stage::Bound);
                vec![Input::Bound { job }]
            }
            Action::Start(job) => vec![started(state, job)],
            Action::StartElsewhere(job, gpu) => {
                state.left.moves -= 1;
                let gpus = GpuSet::single(gpu);
                if let Some(grip) = grip_mut(state, job) {
                    grip.gpus = gpus;
                }
                vec![started(state, job), Input::Holds { job, gpus }]
            }
            Action::Refuse(job) => {
                state.left.refusals -= 1;
                vec![Input::BindFailed { job }]
            }
            Action::Finish(job) => vec![end(state, job, Outcome::Completed)],
            Action::FinishTogether(one, other) => {
                [one, other].map(|job| end(state, job, Outcome::Completed)).into()
            }
            Action::Fail(job) => {
                let evicted = grip_mut(state, job).is_some_and(|grip| grip.evicted);
                state.left.failures -= u8::from(!evicted);
                vec![end(state, job, Outcome::Failed)]
            }
            Action::Delete(job) => vec![delete(state, job)],
            Action::Clear(job) => vec![end(state, job, Outcome::Cancelled)],
            Action::Tick => {
                state.now += 1;
                Vec::new()
            }
            Action::Crash => {
                state.left.crashes -= u8::from(self.mutant != Some(Mutant::CrashesOn));
                state.promises = Promises::default();
                let restored = self.restored(state);
                state.pool = restored;
                waiting_jobs(state)
            }
            Action::Pause | Action::Resume => {
                state.paused = *action == Action::Pause;
                state.left.pauses -= u8::from(state.paused);
                let config = Config { paused: state.paused, ..self.setup.config.clone() };
                vec![Input::Configured(Box::new(config))]
            }
            Action::Intrude(node, gpu, named) => vec![intrude(state, node, gpu, named)],
            Action::Break(..)
            | Action::Mend(..)
            | Action::Lose(_)
            | Action::Return(_)
            | Action::Cordon(_)
            | Action::Uncordon(_) => vec![change_node(state, action)],
        }
    }

    fn arrive(&self, state: &mut State, kind: usize) -> Input {
        state.to_come[kind] -= 1;
        let of = self.setup.arrivals[kind];
        let mut fact = JobFact::new(Some(of.shape), of.limit, Place::Waits);
        fact.created = state.now;
        if self.setup.bounds {
            let ahead = state.waiting().filter(|(_, job)| job.queues_with(of.shape));
            let ahead: Vec<Shape> = ahead.filter_map(|(_, job)| job.shape).collect();
            fact.rank = 1 + u8::try_from(ahead.len()).unwrap_or(u8::MAX);
            fact.due = self.formula(state, of.shape, &ahead).map(|wait| state.now + wait);
        }
        state.jobs.push(fact);
        let id = JobId(state.jobs.len() as u64);
        Input::Queued(Box::new(job(state, id)))
    }

    /// The longest wait of a job that arrives at this place, in ticks, where everything has a
    /// limit. Written from the text of the bounds, not from `bound.rs`.
    fn formula(&self, state: &State, shape: Shape, ahead: &[Shape]) -> Option<u64> {
        let (s, l) = (self.setup.limit(Shape::Small)?, self.setup.limit(Shape::Large)?);
        match shape {
            Shape::Wide(_) => None,
            Shape::Large if self.setup.config.keep_open > 0 => {
                Some(2 * (ahead.len() as u64 + 1) * (l + s))
            }
            Shape::Large => {
                let place = ahead.len() as u64 + 1;
                let large = |node: u32| {
                    state.grips_on(node).any(|(_, job, _)| job.shape == Some(Shape::Large))
                };
                let without = (0..self.setup.nodes).filter(|&node| !large(node)).count();
                Some(place * s + place.saturating_sub(without as u64) * l)
            }
            Shape::Small => {
                let turn = self.setup.config.turn.map_or(0, |turn| turn.0.div_ceil(ticks(1).0));
                // Wide ones before it count by their GPUs, and may leave some of a wave unused.
                let asked = ahead.iter().map(|shape| shape.gpus(0)).sum::<u32>() + 1;
                let widest = ahead.iter().map(|shape| shape.gpus(0)).fold(1, u32::max);
                let Config { wave_size, gpus_per_node, backfill, .. } = self.setup.config;
                let each = wave_size.min(gpus_per_node - (widest - 1));
                let once = if backfill { s } else { 0 };
                Some(u64::from(asked.div_ceil(each)) * (l.max(turn) + 2 * s) + once)
            }
        }
    }

    /// What a controller that starts now takes from the ledgers. They do not record the back-off
    /// of a job, that an eviction was asked for, and whether the last large failed at once.
    pub(crate) fn restored(&self, state: &State) -> Pool {
        let mut nodes = state.pool.nodes().clone();
        for node in nodes.values_mut() {
            if let Some(turn) = &mut node.turn {
                turn.failed_early = false;
            }
            for holding in node.holdings.values_mut() {
                holding.evicting = false;
            }
            if let Phase::Draining(gate) | Phase::Wave { gate, .. } = &mut node.phase {
                gate.overdue &= !self.setup.config.evict_overdue;
            }
        }
        if let Some(mutant) = self.mutant {
            mutant.spoil_ledgers(&mut nodes);
        }
        let ours = state.grips().filter(|(_, job, _)| job.shape.is_some());
        let jobs: Vec<Job> = ours.map(|(id, _, _)| job(state, id)).collect();
        let config = state.pool.config().clone();
        Pool::restore(config, nodes, jobs, *state.pool.counters_elsewhere())
            .expect("settings keep the bounds")
    }

    /// The rule decides, and is watched.
    fn decide(&self, before: &State, state: &mut State, mut inputs: Vec<Input>, anew: bool) {
        if let Some(mutant) = self.mutant {
            mutant.spoil_inputs(state, &mut inputs);
        }
        let decisions = state.pool.step(inputs.clone(), ticks(state.now));
        if let Some(mutant) = self.mutant {
            mutant.spoil_decisions(state);
        }
        for decision in &decisions {
            note(state, decision);
        }
        self.observe(before, state);
        self.note_promises(state, &inputs, &decisions, anew);
    }

    /// Tells everybody who waits, as the controller does. Nothing happens in a run with bounds that
    /// the proofs do not cover, so nobody is told a later time than before; but a controller that
    /// starts anew does not know what was told.
    fn note_promises(&self, state: &mut State, inputs: &[Input], decided: &[Decision], anew: bool) {
        if !self.setup.bounds {
            return;
        }
        let now = ticks(state.now);
        if self.mutant == Some(Mutant::Forgets) {
            state.promises = Promises::default();
        }
        let moved = state.promises.note(&state.pool, inputs, decided, now);
        let mut later = !moved.is_empty();
        let waiting: Vec<JobId> = state.waiting().map(|(id, _)| id).collect();
        for id in waiting {
            let bound = state.promises.bound(id);
            let figure = state.pool.bound(id, now);
            let at = |told: sluice::policy::Bound| told.latest_start.map(|at| at.0 / ticks(1).0);
            let boasts = self.mutant == Some(Mutant::Boasts);
            let tells = bound.and_then(at).map(|at| if boasts { state.now } else { at });
            // Told as the figure stands, or as it stood: then what that rested on is what counts.
            let fresh = figure.filter(|_| bound.and_then(at) == figure.and_then(at));
            let Some(job) = state.job_mut(id) else { continue };
            later |= !anew && job.tells.is_some_and(|was| tells.is_none_or(|is| is > was));
            job.tells = tells;
            job.told = job.told.into_iter().chain(tells).min();
            job.by_place = fresh.map_or(job.by_place, |figure| figure.basis != Basis::Drain);
        }
        if later {
            state.fault.get_or_insert(Fault::Moved);
        }
    }

    /// Whoever is admitted is bound and runs at once.
    fn start_all(&self, state: &mut State) {
        let reserved: Vec<JobId> = state
            .grips()
            .filter(|(_, _, grip)| grip.stage == Stage::Reserved)
            .map(|(id, _, _)| id)
            .collect();
        let mut inputs = Vec::new();
        for job in reserved {
            inputs.push(Input::Bound { job });
            inputs.push(started(state, job));
        }
        if inputs.is_empty() {
            return;
        }
        if !state.pool.step(inputs.clone(), ticks(state.now)).is_empty() {
            state.fault.get_or_insert(Fault::BindingDecides);
        }
        self.note_promises(state, &inputs, &[], false);
    }
}

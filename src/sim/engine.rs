//! Pure: plays a problem to a policy, event by event, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{Problem, Run};
use crate::policy::GpuSet;

/// A job that a policy starts now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    /// The job.
    pub job: usize,
    /// The node.
    pub node: usize,
    /// The GPUs.
    pub gpus: GpuSet,
}

/// A job that runs, as far as a policy may know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Running {
    /// The node.
    pub node: usize,
    /// The GPUs.
    pub gpus: GpuSet,
    /// Since when.
    pub start_ms: u64,
    /// When it was expected to end. It may be past.
    pub expected_end_ms: u64,
}

/// What runs now.
#[derive(Clone, Debug)]
pub struct State {
    /// Per node, the GPUs that jobs hold.
    pub taken: Vec<GpuSet>,
    /// What runs.
    pub running: BTreeMap<usize, Running>,
}

/// What happened at one instant, and what is known then.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// When.
    pub now_ms: u64,
    /// The work, of which a policy reads only what has arrived.
    pub problem: &'a Problem,
    /// Jobs that arrived since the last call.
    pub arrived: &'a [usize],
    /// Jobs that ended since the last call.
    pub ended: &'a [usize],
    /// What runs now.
    pub state: &'a State,
}

/// Who decides.
pub trait Policy {
    /// Says what starts now. Called whenever something happened.
    fn decide(&mut self, moment: Moment<'_>) -> Vec<Start>;

    /// When it wants to be called though nothing happens.
    fn wake_ms(&self, now_ms: u64) -> Option<u64> {
        let _ = now_ms;
        None
    }

    /// Whether it keeps what is free of a node for a large that waits.
    fn keeps(&self, node: usize) -> bool {
        let _ = node;
        false
    }

    /// Jobs that it will never start, since they can never fit its rule.
    fn rejected(&self) -> &[usize] {
        &[]
    }
}

/// What a policy made of a problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Who ran where from when to when, in order of start; inherited runs come first.
    pub runs: Vec<Run>,
    /// Jobs that the policy refused.
    pub rejected: Vec<usize>,
    /// How often the policy was asked.
    pub decisions: u64,
}

/// A policy started what cannot be started: a fault of the policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The job runs, has run, or has not arrived.
    #[error("at {now_ms} ms job {job} was started, which does not wait")]
    NotWaiting {
        /// When.
        now_ms: u64,
        /// The job.
        job: usize,
    },
    /// The GPUs are not all free ones of one node.
    #[error("at {now_ms} ms job {job} was started on GPUs {gpus:?} of node {node}, not all free")]
    NotFree {
        /// When.
        now_ms: u64,
        /// The job.
        job: usize,
        /// The node.
        node: usize,
        /// The GPUs.
        gpus: GpuSet,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Future,
    Waiting,
    Started,
}

struct Engine<'a> {
    problem: &'a Problem,
    state: State,
    life: Vec<Life>,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    runs: Vec<Run>,
}

/// Plays the problem until its horizon.
pub fn run(problem: &Problem, policy: &mut dyn Policy) -> Result<Outcome, Fault> {
    let mut engine = Engine::new(problem);
    let demand = problem.target();
    let mut next_arrival = 0;
    let mut decisions = 0;
    let mut clock_ms = None;
    loop {
        let arrival = problem.jobs.get(next_arrival).map(|job| job.arrival_ms);
        let end = engine.ends.peek().map(|Reverse((end, _))| *end);
        let wake = clock_ms.and_then(|now| policy.wake_ms(now).map(|at| at.max(now + 1)));
        let change = match clock_ms {
            Some(now) => demand.next_change(now),
            None => demand.steps().first().map(|&(at, _)| at),
        };
        let next = [arrival, end, wake, change].into_iter().flatten().min();
        let Some(now_ms) = next.filter(|&at| at < problem.horizon_ms) else { break };
        clock_ms = Some(now_ms);
        let ended = engine.end_until(now_ms);
        let first = next_arrival;
        while problem.jobs.get(next_arrival).is_some_and(|job| job.arrival_ms <= now_ms) {
            if engine.life[next_arrival] == Life::Future {
                engine.life[next_arrival] = Life::Waiting;
            }
            next_arrival += 1;
        }
        let arrived: Vec<usize> =
            (first..next_arrival).filter(|&job| engine.life[job] == Life::Waiting).collect();
        let state = &engine.state;
        let moment = Moment { now_ms, problem, arrived: &arrived, ended: &ended, state };
        for start in policy.decide(moment) {
            engine.start(start, now_ms)?;
        }
        decisions += 1;
    }
    Ok(Outcome { runs: engine.runs, rejected: policy.rejected().to_vec(), decisions })
}

impl<'a> Engine<'a> {
    fn new(problem: &'a Problem) -> Self {
        let state = State { taken: vec![GpuSet::EMPTY; problem.nodes], running: BTreeMap::new() };
        let mut engine = Self {
            problem,
            state,
            life: vec![Life::Future; problem.jobs.len()],
            ends: BinaryHeap::new(),
            runs: Vec::new(),
        };
        for &run in &problem.inherited {
            engine.life[run.job] = Life::Started;
            let expected_end_ms = run.start_ms + problem.jobs[run.job].estimate_ms;
            engine.hold(run, expected_end_ms);
        }
        engine
    }

    fn hold(&mut self, run: Run, expected_end_ms: u64) {
        let Run { job, node, gpus, start_ms, end_ms } = run;
        self.state.taken[node] = self.state.taken[node].union(gpus);
        self.state.running.insert(job, Running { node, gpus, start_ms, expected_end_ms });
        self.ends.push(Reverse((end_ms, job)));
        self.runs.push(run);
    }

    fn end_until(&mut self, now_ms: u64) -> Vec<usize> {
        let mut ended = Vec::new();
        while let Some(&Reverse((end, job))) = self.ends.peek()
            && end <= now_ms
        {
            self.ends.pop();
            if let Some(running) = self.state.running.remove(&job) {
                let taken = &mut self.state.taken[running.node];
                *taken = taken.minus(running.gpus);
            }
            ended.push(job);
        }
        ended
    }

    fn start(&mut self, start: Start, now_ms: u64) -> Result<(), Fault> {
        let Start { job, node, gpus } = start;
        let Some(facts) = self.problem.jobs.get(job).filter(|_| self.life[job] == Life::Waiting)
        else {
            return Err(Fault::NotWaiting { now_ms, job });
        };
        let all = GpuSet::first(self.problem.gpus);
        let free = self.state.taken.get(node).map(|taken| all.minus(*taken));
        let shape = facts.shape(gpus.count());
        let shape = shape.filter(|_| free.is_some_and(|free| gpus.is_within(free)));
        let Some(shape) = shape else {
            return Err(Fault::NotFree { now_ms, job, node, gpus });
        };
        self.life[job] = Life::Started;
        let run = Run { job, node, gpus, start_ms: now_ms, end_ms: now_ms + shape.run_ms };
        self.hold(run, now_ms + shape.estimate_ms);
        Ok(())
    }
}

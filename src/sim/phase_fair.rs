//! Pure: the live rule as a policy of the engine. Nothing of the rule is repeated here; facts go
//! into [`Pool::step`] and its reservations become starts.

use crate::policy::{
    Config, ConfigError, Decision, Fits, GpuSet, Input, Job, JobId, Millis, NodeId, NodeSpec,
    Outcome, Pool, Shape, TenantId,
};

use super::{Moment, Policy, Problem, Start};

/// The rule over the nodes of a problem.
#[derive(Debug)]
pub struct PhaseFair {
    pool: Pool,
    /// Nodes are told with the first call.
    told: bool,
    /// What became of the last starts, for the next call. Here a reservation is bound and started
    /// at once, which frees nothing, so that the rule has nothing to decide for it alone.
    started: Vec<Input>,
}

/// Why the rule cannot serve a problem.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// A job of no shape.
    #[error("phase-fair serves jobs of 1 to {gpus} GPUs; {job} asks for {width}")]
    Width {
        /// The job.
        job: String,
        /// What it asks for.
        width: u32,
        /// GPUs of a node.
        gpus: u32,
    },
    /// The rule knows no services.
    #[error("phase-fair knows no real-time services; {0} is one")]
    Service(String),
    /// The rule refuses the settings.
    #[error("phase-fair refuses its settings")]
    Config(#[from] ConfigError),
}

impl PhaseFair {
    /// The seed's rule to the letter over the nodes of a problem.
    pub fn new(problem: &Problem) -> Result<Self, Unfit> {
        let gpus = problem.gpus;
        Self::with(problem, Config { gpus_per_node: gpus, wave_size: gpus, ..Config::default() })
    }

    /// The rule with other settings.
    pub fn with(problem: &Problem, config: Config) -> Result<Self, Unfit> {
        if let Some(service) = problem.services.first() {
            return Err(Unfit::Service(service.name.clone()));
        }
        let gpus = problem.gpus;
        let other = problem.jobs.iter().find(|job| !(1..=gpus).contains(&job.width));
        if let Some(job) = other {
            return Err(Unfit::Width { job: job.name.clone(), width: job.width, gpus });
        }
        Ok(Self { pool: Pool::new(config)?, told: false, started: Vec::new() })
    }

    /// The state of the rule.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// How much longer a job that waits may wait, if the rule can say so.
    pub fn figure_ms(&self, job: usize, now_ms: u64) -> Option<u64> {
        let now = Millis(now_ms);
        let bound = self.pool.bound(job_id(job), now)?;
        bound.latest_start.map(|at| at.since(now).0)
    }

    fn tell_nodes(&mut self, moment: &Moment<'_>, inputs: &mut Vec<Input>) {
        let gpus = GpuSet::first(moment.problem.gpus);
        let spec = NodeSpec { gpus, healthy: gpus, schedulable: true };
        for node in 0..moment.problem.nodes {
            inputs.push(Input::NodeChanged { node: node_id(node), spec });
        }
        for (&job, running) in &moment.state.running {
            inputs.push(Input::Foreign {
                job: job_id(job),
                node: node_id(running.node),
                count: running.gpus.count(),
                gpus: Some(running.gpus),
                latest_end: Some(Millis(running.expected_end_ms)),
            });
        }
        self.told = true;
    }
}

impl Policy for PhaseFair {
    fn decide(&mut self, moment: Moment<'_>) -> Vec<Start> {
        let mut inputs = std::mem::take(&mut self.started);
        if !self.told {
            self.tell_nodes(&moment, &mut inputs);
        }
        let outcome = Outcome::Completed;
        let ended = moment.ended.iter().map(|&job| Input::Released { job: job_id(job), outcome });
        inputs.extend(ended);
        let arrived = moment.arrived.iter().map(|&job| queued(moment.problem, job));
        inputs.extend(arrived);
        let mut starts = Vec::new();
        for decision in self.pool.step(inputs, Millis(moment.now_ms)) {
            let Decision::Reserved { job, node, gpus, .. } = decision else { continue };
            self.started.push(Input::Bound { job });
            self.started.push(Input::Started { job, latest_end: None });
            let (Ok(job), Ok(node)) = (usize::try_from(job.0), usize::try_from(node.0)) else {
                continue;
            };
            starts.push(Start { job, node, gpus });
        }
        starts
    }

    fn keeps(&self, node: usize) -> bool {
        self.pool.nodes().get(&node_id(node)).is_some_and(|node| node.gate().is_some())
    }

    fn wake_ms(&self, now_ms: u64) -> Option<u64> {
        // With bindings that take no time only a drain's limit can fall due by itself.
        self.pool.config().drain_limit?;
        self.pool.next_wakeup(Millis(now_ms)).map(|at| at.0)
    }
}

fn queued(problem: &Problem, at: usize) -> Input {
    let facts = &problem.jobs[at];
    let shape = match facts.width {
        width if width == problem.gpus => Shape::Large,
        1 => Shape::Small,
        width => Shape::Wide(width),
    };
    Input::Queued(Box::new(Job {
        id: job_id(at),
        shape,
        priority: i32::try_from(facts.priority).unwrap_or(i32::MAX),
        created: Millis(facts.arrival_ms),
        limit: Some(Millis(facts.estimate_ms)),
        tenant: TenantId::default(),
        fits: Fits::Any,
    }))
}

fn job_id(at: usize) -> JobId {
    JobId(u64::try_from(at).unwrap_or(u64::MAX))
}

fn node_id(at: usize) -> NodeId {
    NodeId(u32::try_from(at).unwrap_or(u32::MAX))
}

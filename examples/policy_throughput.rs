//! How many decisions the rule makes in a second, alone on one core.
//!
//! `cargo run --release --no-default-features --example policy_throughput`
//!
//! Each line plays a pool whose queues never empty: every step ends one job, and another arrives.
//! The last lines say what it costs to tell every waiting job why it waits and until when.

#![expect(clippy::print_stdout, reason = "prints figures")]
#![expect(clippy::disallowed_methods, reason = "measures time")]

use std::time::Instant;

use sluice::policy::{
    Config, Decision, Fits, GpuSet, Input, Job, JobId, Millis, NodeId, NodeSpec, Outcome, Pool,
    Shape, TenantId,
};

struct Load {
    pool: Pool,
    arrived: u64,
    running: std::collections::VecDeque<JobId>,
    now: u64,
}

impl Load {
    fn new(nodes: u32, waiting: u64, quota: Option<u32>) -> Self {
        let limit = Some(Millis::from_secs(3_600));
        let config = Config {
            small_limit: limit,
            large_limit: limit,
            quotas: quota.map(|most| (TenantId(1), most)).into_iter().collect(),
            ..Config::default()
        };
        let mut pool = Pool::new(config).expect("the settings are legal");
        let gpus = GpuSet::first(8);
        let spec = NodeSpec { gpus, healthy: gpus, schedulable: true };
        let appear = |id| Input::NodeChanged { node: NodeId(id), spec };
        pool.step((0..nodes).map(appear).collect(), Millis(0));
        let mut load =
            Self { pool, arrived: 0, running: std::collections::VecDeque::new(), now: 0 };
        let arrivals: Vec<Input> = (0..waiting).map(|_| load.arrival()).collect();
        load.step(arrivals);
        load
    }

    /// Every tenth is a large; every second is of the tenant with the quota.
    fn arrival(&mut self) -> Input {
        self.arrived += 1;
        let large = self.arrived.is_multiple_of(10);
        Input::Queued(Box::new(Job {
            id: JobId(self.arrived),
            shape: if large { Shape::Large } else { Shape::Small },
            priority: 0,
            created: Millis(self.arrived),
            limit: Some(Millis::from_secs(3_000)),
            tenant: TenantId(u32::from(self.arrived.is_multiple_of(2))),
            fits: Fits::Any,
        }))
    }

    fn step(&mut self, inputs: Vec<Input>) {
        self.now += 1;
        let decided = self.pool.step(inputs, Millis(self.now));
        let mut bound = Vec::new();
        for decision in decided {
            if let Decision::Reserved { job, .. } = decision {
                bound.push(Input::Bound { job });
                self.running.push_back(job);
            }
        }
        self.pool.step(bound, Millis(self.now));
    }

    fn one_ends(&mut self) {
        let arrival = self.arrival();
        let ended = self.running.pop_front();
        let released = ended.map(|job| Input::Released { job, outcome: Outcome::Completed });
        self.step(released.into_iter().chain([arrival]).collect());
    }
}

fn main() {
    println!("{:>6} {:>8} {:>7} {:>12}", "nodes", "waiting", "quota", "jobs/s");
    for (nodes, waiting, quota) in [
        (1, 100, None),
        (1, 100_000, None),
        (1, 100_000, Some(4)),
        (100, 100_000, None),
        (100, 100_000, Some(400)),
    ] {
        let mut load = Load::new(nodes, waiting, quota);
        let jobs = if nodes == 1 { 20_000 } else { 2_000 };
        let start = Instant::now();
        for _ in 0..jobs {
            load.one_ends();
        }
        let rate = f64::from(jobs) / start.elapsed().as_secs_f64();
        let quota = quota.map_or("-".to_owned(), |most| most.to_string());
        println!("{nodes:>6} {waiting:>8} {quota:>7} {rate:>12.0}");
    }
    for (nodes, waiting) in [(1, 10_000), (100, 10_000)] {
        let load = Load::new(nodes, waiting, None);
        let now = Millis(load.now);
        let start = Instant::now();
        let queues = [Shape::Small, Shape::Large].into_iter().flat_map(|s| load.pool.queue(s));
        let mut told = 0_u32;
        for waiting in queues {
            let job = waiting.job.id;
            told += u32::from(load.pool.why(job, now).is_some());
            told += u32::from(load.pool.bound(job, now).is_some());
        }
        let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(told);
        println!("{nodes} nodes, {waiting} waiting: {each:.1} us for each reason or figure");
    }
}

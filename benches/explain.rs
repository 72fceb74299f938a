//! What it costs to say what must happen before a pod starts, in pools in which every GPU is held:
//! `cargo bench --no-default-features --bench explain`.

#![expect(clippy::print_stdout, reason = "it says what it measured")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant;

use sluice::policy::{
    Config, Fits, GpuSet, Input, Job, JobId, Millis, NodeId, NodeSpec, Pool, Shape, TenantId,
};

const NOW: Millis = Millis(1_000);

/// Every GPU is held by a small, and so many smalls and larges wait.
fn pool(nodes: u32, smalls: u64, larges: u64) -> Pool {
    let (small_limit, large_limit) =
        (Some(Millis::from_secs(3_600)), Some(Millis::from_secs(7_200)));
    let config = Config { backfill: true, small_limit, large_limit, ..Config::default() };
    let mut pool = Pool::new(config).expect("these settings are good");
    let gpus = GpuSet::first(8);
    let spec = NodeSpec { gpus, healthy: gpus, schedulable: true };
    let appear = |n| Input::NodeChanged { node: NodeId(n), spec };
    pool.step((0..nodes).map(appear).collect(), Millis(0));
    let queued = |id: u64, shape, created| {
        let limit = Some(Millis::from_secs(1_800 + id * 7 % 1_800));
        let (id, tenant) = (JobId(id), TenantId(0));
        Input::Queued(Box::new(Job {
            id,
            shape,
            priority: 0,
            created,
            limit,
            tenant,
            fits: Fits::Any,
        }))
    };
    let held = u64::from(nodes) * 8;
    pool.step((1..=held).map(|id| queued(id, Shape::Small, Millis(0))).collect(), Millis(0));
    let smalls = (held + 1..=held + smalls).map(|id| queued(id, Shape::Small, NOW));
    let larges = (1..=larges).map(|id| queued(1_000_000 + id, Shape::Large, NOW));
    pool.step(smalls.chain(larges).collect(), NOW);
    pool
}

fn main() {
    for (nodes, smalls, larges) in
        [(1, 20, 4), (10, 100, 0), (10, 100, 10), (100, 1_000, 100), (1_000, 10_000, 100)]
    {
        let pool = pool(nodes, smalls, larges);
        println!("{nodes} nodes, {smalls} smalls and {larges} larges wait");
        for shape in [Shape::Small, Shape::Large] {
            let queue: Vec<JobId> = pool.queue(shape).map(|waiting| waiting.job.id).collect();
            let places = [1, 10, queue.len() / 2, queue.len()];
            let mut places: Vec<usize> =
                places.into_iter().filter(|&place| place > 0 && place <= queue.len()).collect();
            places.sort_unstable();
            places.dedup();
            for place in places {
                let job = queue[place - 1];
                let before = Instant::now();
                let glance = pool.glance(job, NOW).expect("it waits");
                let (glanced, before) = (before.elapsed(), Instant::now());
                let told = pool.explain(job, NOW).expect("it waits");
                let took = before.elapsed();
                let needs = told.waits().map_or(0, |waits| waits.needs.len());
                assert_eq!(glance.job, told.job);
                println!(
                    "  {shape:?} at place {place}: {:.1} ms, {needs} needs; a glance {:.2} ms",
                    took.as_secs_f64() * 1e3,
                    glanced.as_secs_f64() * 1e3
                );
            }
        }
    }
}

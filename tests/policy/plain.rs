//! On one node, the rule against the plain one written down word for word, and with the one
//! sentence that is added to it: a large that fails within a minute of its admission ends no turn,
//! so that the next follows without a wave, if all that followed one another did, and three times
//! at most.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use proptest::sample::Index;
use sluice::policy::{
    Config, Decision, Fits, GpuSet, Input, Job, JobId, Millis, NodeId, NodeSpec, Outcome, Pool,
    Shape, TenantId,
};

use super::timeline::examine;

/// The plain rule on one node, as it is written down in the text that it comes from, and the
/// sentence about failures.
#[derive(Default)]
struct Plain {
    small_queue: VecDeque<u64>,
    large_queue: VecDeque<u64>,
    /// Whether it is a large, its GPUs, and since when.
    running: BTreeMap<u64, (bool, GpuSet, u64)>,
    large_ended: bool,
    /// Larges that followed one another and failed at once; `None` once another was among them.
    in_vain: Option<u32>,
}

impl Plain {
    fn end(&mut self, job: u64, failed: bool, now: u64) {
        if let Some((large, _, since)) = self.running.remove(&job)
            && large
        {
            let counts = self.in_vain.filter(|&n| n < 3 && failed && now - since < 60_000);
            self.in_vain = counts.map(|n| n + 1);
            self.large_ended = true;
        }
        self.small_queue.retain(|&other| other != job);
        self.large_queue.retain(|&other| other != job);
    }

    fn reserve(&mut self, job: u64, large: bool, gpus: u32, now: u64) -> (u64, GpuSet) {
        let held = self.running.values().fold(GpuSet::EMPTY, |set, (_, gpus, _)| set.union(*gpus));
        let free = GpuSet::first(gpus).minus(held);
        let mine = free.lowest(if large { gpus } else { 1 }).unwrap();
        self.running.insert(job, (large, mine, now));
        (job, mine)
    }

    fn decide(&mut self, gpus: u32, wave_size: usize, now: u64) -> Vec<(u64, GpuSet)> {
        let credit = std::mem::take(&mut self.large_ended);
        if !self.large_queue.is_empty() {
            if credit && self.in_vain.is_none() && !self.small_queue.is_empty() {
                self.in_vain = Some(0);
                let wave = wave_size.min(self.small_queue.len());
                let wave: Vec<u64> = self.small_queue.drain(..wave).collect();
                let start = |small| self.reserve(small, false, gpus, now);
                return wave.into_iter().map(start).collect();
            }
            if !self.running.is_empty() {
                return Vec::new();
            }
            let large = self.large_queue.pop_front().unwrap();
            return vec![self.reserve(large, true, gpus, now)];
        }
        if credit {
            self.in_vain = Some(0);
        }
        let mut started = Vec::new();
        while !self.small_queue.is_empty()
            && self.running.len() < gpus as usize
            && !self.running.values().any(|(large, _, _)| *large)
        {
            let small = self.small_queue.pop_front().unwrap();
            self.in_vain = Some(0);
            started.push(self.reserve(small, false, gpus, now));
        }
        started
    }
}

proptest! {
    #[test]
    fn on_one_node_the_rule_is_the_plain_one_to_the_letter(
        gpus in 1..=4_u32,
        wave_size in 1..=4_u32,
        steps in proptest::collection::vec(
            (
                proptest::sample::select(vec![15_000_u64, 100_000]),
                proptest::collection::vec((0..5_u8, any::<Index>()), 0..4),
            ),
            1..60,
        ),
    ) {
        let wave_size = wave_size.min(gpus);
        let config = Config { gpus_per_node: gpus, wave_size, ..Config::default() };
        let mut pool = Pool::new(config).unwrap();
        let all = GpuSet::first(gpus);
        let spec = NodeSpec { gpus: all, healthy: all, schedulable: true };
        pool.step(vec![Input::NodeChanged { node: NodeId(0), spec }], Millis(0));
        let mut plain = Plain { in_vain: Some(0), ..Plain::default() };
        let (mut next, mut now) = (1, 0);
        for (gap, step) in steps {
            now += gap;
            let mut inputs = Vec::new();
            let mut arrivals = Vec::new();
            for (what, index) in step {
                let running: Vec<u64> = plain.running.keys().copied().collect();
                let queued = plain.small_queue.iter().chain(&plain.large_queue);
                let queued: Vec<u64> = queued.copied().collect();
                match what {
                    0 | 1 => {
                        let large = what == 1;
                        arrivals.push((next, large));
                        next += 1;
                    }
                    2 | 3 if !running.is_empty() => {
                        let id = *index.get(&running);
                        plain.end(id, what == 3, now);
                        let outcome = if what == 2 { Outcome::Completed } else { Outcome::Failed };
                        inputs.push(Input::Released { job: JobId(id), outcome });
                    }
                    4 if !queued.is_empty() => {
                        let id = *index.get(&queued);
                        plain.end(id, false, now);
                        inputs.push(Input::Withdrawn { job: JobId(id) });
                    }
                    _ => {}
                }
            }
            for (id, large) in arrivals {
                let queue = if large { &mut plain.large_queue } else { &mut plain.small_queue };
                queue.push_back(id);
                inputs.push(Input::Queued(Box::new(Job {
                    id: JobId(id),
                    shape: if large { Shape::Large } else { Shape::Small },
                    priority: 0,
                    created: Millis(now),
                    limit: None,
                    tenant: TenantId(0),
                    fits: Fits::Any,
                })));
            }
            let decided = pool.step(inputs, Millis(now));
            examine(&pool, &decided);
            let mut bound = Vec::new();
            let mut started = Vec::new();
            for decision in decided {
                if let Decision::Reserved { job, gpus, .. } = decision {
                    started.push((job.0, gpus));
                    bound.push(Input::Bound { job });
                }
            }
            prop_assert_eq!(started, plain.decide(gpus, wave_size as usize, now));
            prop_assert_eq!(pool.step(bound, Millis(now)), []);
        }
    }
}

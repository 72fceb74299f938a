//! Pure side: made-up days of seven kinds, as many of each as there are seeds.
//!
//! Everything here is invented: kinds of work, widths, run times, priorities, deadlines, demand.
//! One day proves little about an order of service, and a day that was picked proves nothing;
//! what counts is the distribution over many that nobody looked at before.

use std::collections::BTreeSet;

use super::search::Random;
use crate::trace::{Actual, Column, DAY_MS, Format, HOUR_MS, Job, MINUTE_MS, Service, Workload};

/// A kind of day.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    demand: Demand,
    jobs: usize,
    /// Jobs arrive until then.
    arrive_hours: u64,
    mix: &'static [Work],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Demand {
    None,
    /// Rises to the peak around the afternoon and falls again; the last is the half width.
    Hill(u32, u32, u64),
    /// A floor with four spikes of an hour.
    Spikes(u32, u32),
}

/// A kind of work: name, share, widths, steps of 15 minutes, priorities; both ends count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Work(&'static str, u64, (u64, u64), (u64, u64), (u64, u64));

const FULL: Work = Work("training-full-ft", 3, (3, 4), (16, 28), (6, 9));
const RLHF: Work = Work("training-rlhf", 2, (4, 4), (24, 34), (7, 9));
const DPO: Work = Work("training-dpo", 4, (2, 3), (12, 22), (6, 9));
const LORA: Work = Work("training-lora", 3, (1, 2), (6, 20), (5, 8));
const EVAL: Work = Work("evaluation", 3, (1, 2), (2, 8), (4, 7));
const QUANT: Work = Work("quantization", 3, (1, 2), (2, 10), (4, 7));
const BATCH: Work = Work("batch-inference", 4, (1, 4), (8, 24), (1, 5));
const NARROW: Work = Work("batch-inference", 1, (1, 1), (3, 24), (1, 8));
const SHORT: Work = Work("evaluation", 5, (1, 1), (1, 8), (2, 6));
const MIDDLE: Work = Work("training-dpo", 3, (3, 3), (8, 16), (5, 8));
const BIG: Work = Work("training-full-ft", 2, (5, 6), (8, 16), (6, 9));

/// The seven kinds.
pub const FAMILIES: [Family; 7] = [
    Family {
        name: "training-heavy",
        demand: Demand::Hill(0, 4, 5),
        jobs: 18,
        arrive_hours: 16,
        mix: &[FULL, RLHF, DPO, LORA],
    },
    Family {
        name: "inference-heavy",
        demand: Demand::Hill(2, 6, 7),
        jobs: 16,
        arrive_hours: 16,
        mix: &[BATCH, LORA, EVAL, QUANT],
    },
    Family {
        name: "mixed",
        demand: Demand::Hill(1, 4, 6),
        jobs: 30,
        arrive_hours: 18,
        mix: &[FULL, RLHF, DPO, LORA, EVAL, QUANT, BATCH],
    },
    Family {
        name: "bursty-realtime",
        demand: Demand::Spikes(1, 5),
        jobs: 24,
        arrive_hours: 18,
        mix: &[DPO, LORA, EVAL, BATCH],
    },
    Family {
        name: "small-jobs",
        demand: Demand::Hill(1, 3, 6),
        jobs: 60,
        arrive_hours: 20,
        mix: &[LORA, QUANT, EVAL],
    },
    Family {
        name: "fragmentation",
        demand: Demand::Hill(0, 2, 6),
        jobs: 44,
        arrive_hours: 18,
        mix: &[SHORT, MIDDLE, BIG],
    },
    Family {
        name: "saturated-batch",
        demand: Demand::None,
        jobs: 90,
        arrive_hours: 18,
        mix: &[NARROW],
    },
];

const STEP_MS: u64 = 15 * MINUTE_MS;

impl Family {
    /// One day of this kind.
    pub fn day(&self, seed: u64) -> Workload {
        let mut random = Random::new(seed);
        let mut jobs: Vec<Job> = (0..self.jobs).map(|at| self.job(at, &mut random)).collect();
        jobs.sort_by_key(|job| (job.arrival_ms, job.line));
        let services = self.service(&mut random).into_iter().collect();
        Workload {
            format: Format::Jobs,
            jobs,
            services,
            columns: BTreeSet::from([Column::Priority, Column::Deadline, Column::ExpectedDuration]),
            ..Workload::default()
        }
    }

    fn job(&self, at: usize, random: &mut Random) -> Job {
        let total: u64 = self.mix.iter().map(|work| work.1).sum();
        let mut ticket = between(random, (0, total - 1));
        let mut mix = self.mix.iter();
        let work = loop {
            let Some(work) = mix.next() else { break self.mix[0] };
            match ticket.checked_sub(work.1) {
                Some(rest) => ticket = rest,
                None => break *work,
            }
        };
        let Work(kind, _, widths, lengths, priorities) = work;
        let gpus = narrow(between(random, widths));
        let steps = between(random, lengths);
        // A quarter of the work lies there in the morning; the rest comes over the day.
        let early = between(random, (1, 4)) == 1;
        let latest = self.arrive_hours * HOUR_MS / STEP_MS;
        let arrival = if early { 0 } else { between(random, (0, latest)) };
        let pressing = between(random, (1, 10)) <= 3;
        let slack = steps + between(random, (steps / 4, 2 * steps));
        let end = if pressing { (arrival + slack).min(96) } else { 96 };
        Job {
            id: format!("{}-{at:02}", kind.rsplit('-').next().unwrap_or(kind)),
            kind: kind.to_owned(),
            user: None,
            priority: narrow(between(random, priorities)),
            arrival_ms: arrival * STEP_MS,
            deadline_ms: Some(end * STEP_MS),
            min_gpus: gpus,
            max_gpus: gpus,
            expected_ms: steps * STEP_MS,
            actual: Actual::default(),
            line: u64::try_from(at).unwrap_or_default(),
        }
    }

    fn service(&self, random: &mut Random) -> Option<Service> {
        let (floor, peak, demand) = match self.demand {
            Demand::None => return None,
            Demand::Hill(floor, peak, half) => {
                let middle = between(random, (13, 16)) * HOUR_MS;
                let at = |step: u64| {
                    let away = (step * STEP_MS).abs_diff(middle);
                    let height = (half * HOUR_MS).saturating_sub(away);
                    let rise = u64::from(peak - floor) * height * 5 / 4 / (half * HOUR_MS);
                    (step * STEP_MS, (floor + narrow(rise)).min(peak))
                };
                (floor, peak, (0..96).map(at).collect())
            }
            Demand::Spikes(floor, peak) => {
                let spikes: Vec<u64> =
                    (0..4).map(|quarter| quarter * 24 + between(random, (4, 18))).collect();
                let at = |step: u64| {
                    let high = spikes.iter().any(|from| (*from..from + 4).contains(&step));
                    (step * STEP_MS, if high { peak } else { floor })
                };
                (floor, peak, (0..96).map(at).collect())
            }
        };
        Some(Service {
            id: "rt-serve".to_owned(),
            kind: "real-time-inference".to_owned(),
            priority: 10,
            arrival_ms: 0,
            deadline_ms: Some(DAY_MS),
            min_gpus: floor,
            max_gpus: peak,
            demand,
            reserved: None,
            line: 0,
        })
    }
}

fn between(random: &mut Random, (low, high): (u64, u64)) -> u64 {
    let span = usize::try_from(high - low + 1).unwrap_or(1);
    low + u64::try_from(random.below(span)).unwrap_or_default()
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

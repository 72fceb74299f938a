//! Pure side: what one placement is worth, in the terms of the article that this part follows.
//!
//! ```text
//!   useful work, weighted by priority       useful_work
//! - real-time shortfall                     realtime_shortfall
//! - churn of real-time services             churn
//! - fragmentation that blocks larger        fragmentation
//!   pending jobs
//! - deadline and staleness risk             deadline_risk, staleness_risk
//! ```
//!
//! Integers throughout, in thousandths of a priority-GPU-step: one GPU for one step at priority 1
//! is 1000.

use std::fmt;

use serde::Serialize;

use crate::policy::GpuSet;
use crate::sim::profile::block_starts;

/// One priority-GPU-step.
pub const UNIT: i64 = 1_000;

/// What each term weighs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Weights {
    /// Of a GPU-step of unmet demand, in multiples of the highest priority there is.
    pub shortfall: i64,
    /// Of a GPU that a service has to leave.
    pub churn: i64,
    /// Of a GPU-step of one priority that waits: small, so that it only breaks ties of worth.
    pub staleness_permille: i64,
    /// Of a GPU-step of work that does not end in time, in thousandths of one that does. Zero
    /// plans no such work.
    pub late_permille: i64,
    /// The spread of run times around their estimates, in thousandths: 300 means that a run may
    /// well take 30 % longer. Zero trusts the estimates.
    pub estimate_error_permille: i64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            shortfall: 10,
            churn: UNIT,
            staleness_permille: 250,
            late_permille: 500,
            estimate_error_permille: 0,
        }
    }
}

/// The terms of one placement, or their sum over several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Score {
    /// Priority x GPU-steps of work that ends in time; of late work, what runs before the horizon,
    /// for less.
    pub useful_work: i64,
    /// Demand of services that would not be met.
    pub realtime_shortfall: i64,
    /// GPUs that services would have to leave.
    pub churn: i64,
    /// Fragmentation that blocks larger pending jobs: free GPUs that those who still wait can use
    /// no more. Below zero where the start makes the free ones fit better.
    pub fragmentation: i64,
    /// The chance that the run outlasts its slack, times what would be lost.
    pub deadline_risk: i64,
    /// What the wait until the start has cost.
    pub staleness_risk: i64,
}

impl Score {
    /// What it comes to.
    pub fn total(&self) -> i64 {
        let costs = self.realtime_shortfall + self.churn + self.fragmentation;
        self.useful_work - costs - self.deadline_risk - self.staleness_risk
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |value: i64| {
            let sign = if value < 0 { "-" } else { "" };
            let tenths = value.unsigned_abs() / (UNIT.unsigned_abs() / 10);
            format!("{sign}{}.{}", tenths / 10, tenths % 10)
        };
        write!(
            f,
            "useful work {} - real-time shortfall {} - churn {} - fragmentation {} \
             - deadline risk {} - staleness risk {} = {}",
            part(self.useful_work),
            part(self.realtime_shortfall),
            part(self.churn),
            part(self.fragmentation),
            part(self.deadline_risk),
            part(self.staleness_risk),
            part(self.total()),
        )
    }
}

/// The chance, in thousandths, that a run outlasts its slack: falls evenly from one half without
/// slack to nothing at twice the error. A stand-in for the tail that needs no floating point.
pub fn overrun_permille(slack: u64, length: u64, error_permille: i64) -> i64 {
    let whole = i64::try_from(length).unwrap_or(i64::MAX).saturating_mul(2 * error_permille);
    if whole == 0 {
        return 0;
    }
    let slack = i64::try_from(slack).unwrap_or(i64::MAX).saturating_mul(1_000);
    (500 - slack.saturating_mul(500) / whole).max(0)
}

/// What one step of waiting costs: so little that a whole horizon of it stays below the weight's
/// share of the job's own worth per step.
pub fn staleness(priority: u32, width: u32, horizon_steps: u64, weights: &Weights) -> i64 {
    let worth = UNIT * i64::from(priority) * i64::from(width);
    let horizon = i64::try_from(horizon_steps).unwrap_or(i64::MAX).max(1);
    worth * weights.staleness_permille / 1_000 / horizon
}

/// How much of a node's free GPUs the jobs that wait cannot use, for every set of taken GPUs.
///
/// For one width: of each run of free neighbours, what is too short for the width, or is left
/// over beside whole multiples of it. Widths count by the priority that waits for them.
#[derive(Clone, Debug)]
pub struct Fragmentation {
    gpus: u32,
    /// By mask, where the node is small enough for a table.
    table: Vec<u32>,
}

/// The widest node with a table: 256 entries.
const TABLE_GPUS: u32 = 8;

impl Fragmentation {
    /// For the widths that wait, each with its priority.
    pub fn new(gpus: u32, waiting: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut weights = [0_u64; 65];
        for (width, priority) in waiting {
            weights[usize::try_from(width.min(64)).unwrap_or(64)] += u64::from(priority);
        }
        let total: u64 = weights.iter().sum::<u64>().max(1);
        let table = if gpus <= TABLE_GPUS {
            (0..1_u64 << gpus).map(|taken| weighted(gpus, taken, &weights, total)).collect()
        } else {
            Vec::new()
        };
        Self { gpus, table }
    }

    /// Unusable GPUs in thousandths, when these are taken; zero on nodes too wide for a table.
    pub fn of(&self, taken: u64) -> u32 {
        let at = usize::try_from(taken).unwrap_or(usize::MAX);
        self.table.get(at).copied().unwrap_or_default()
    }

    /// Of the blocks of a width within `free`, the one that leaves most to others; the lowest of
    /// equals. `taken` is what is taken at the moment of the start.
    pub fn best_block(&self, free: u64, taken: u64, width: u32) -> u64 {
        let mut starts = block_starts(free, self.gpus, width);
        let block = GpuSet::first(width).0;
        let mut best = (u32::MAX, 0);
        while starts != 0 {
            let at = starts.trailing_zeros();
            starts &= starts - 1;
            let candidate = block << at;
            let left = self.of(taken | candidate);
            if left < best.0 {
                best = (left, candidate);
            }
            if self.table.is_empty() {
                break;
            }
        }
        best.1
    }
}

fn weighted(gpus: u32, taken: u64, weights: &[u64; 65], total: u64) -> u32 {
    let mut sum = 0;
    let mut run = 0;
    for gpu in 0..=gpus {
        if gpu < gpus && taken >> gpu & 1 == 0 {
            run += 1;
            continue;
        }
        for (width, weight) in (1_u64..).zip(&weights[1..]).filter(|(_, weight)| **weight > 0) {
            sum += weight * if run < width { run } else { run % width };
        }
        run = 0;
    }
    u32::try_from(sum * 1_000 / total).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_what_the_waiting_cannot_use() {
        let fours = Fragmentation::new(8, [(4, 5)]);
        assert_eq!(fours.of(0), 0);
        assert_eq!(fours.of(0b0000_1111), 0);
        assert_eq!(fours.of(0b0001_0000), 3_000, "4 below fit one, 3 above are too few");
        assert_eq!(fours.of(0b0000_0100), 3_000, "2 below and 1 of 5 above");
        let both = Fragmentation::new(8, [(4, 1), (1, 3)]);
        assert_eq!(both.of(0b0000_0100), 750);
        // A single goes to the end where it breaks no four.
        assert_eq!(fours.best_block(0b1111_1110, 0b0000_0001, 1), 0b0000_0010);
        assert_eq!(fours.best_block(0b1111_1000, 0b0000_0111, 1), 0b0000_1000);
        assert_eq!(fours.best_block(0b0111_1001, 0b1000_0110, 1), 0b0000_0001);
    }

    #[test]
    fn a_score_reads_as_its_terms() {
        let score = Score {
            useful_work: 12_340,
            realtime_shortfall: 20_000,
            churn: 1_000,
            fragmentation: -1_250,
            deadline_risk: 500,
            staleness_risk: 90,
        };
        assert_eq!(score.total(), -8_000);
        assert_eq!(
            score.to_string(),
            "useful work 12.3 - real-time shortfall 20.0 - churn 1.0 - fragmentation -1.2 \
             - deadline risk 0.5 - staleness risk 0.0 = -8.0"
        );
    }

    #[test]
    fn risk_falls_with_slack() {
        assert_eq!(overrun_permille(0, 10, 300), 500);
        assert_eq!(overrun_permille(3, 10, 300), 250);
        assert_eq!(overrun_permille(6, 10, 300), 0);
        assert_eq!(overrun_permille(0, 10, 0), 0);
    }
}

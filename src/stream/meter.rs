//! Pure: stands between the engine and a contender and measures what cannot be seen in the runs
//! afterwards: what was kept idle, and what each job was promised when it arrived.

use super::limits::{Longest, shape};
use crate::policy::{GpuSet, Shape};
use crate::sim::phase_fair::PhaseFair;
use crate::sim::rivals::Rival;
use crate::sim::variants::Variant;
use crate::sim::{Moment, Policy, Problem, Start};

/// A contender at work.
#[derive(Debug)]
pub(super) enum Player {
    /// The live rule.
    PhaseFair(Box<PhaseFair>),
    /// Another.
    Rival(Rival),
    /// What was tried beside the live rule.
    Variant(Variant),
}

impl Player {
    /// Whether it promises a longest wait itself.
    pub(super) fn promises(&self) -> bool {
        matches!(self, Self::PhaseFair(_))
    }

    fn policy(&self) -> &dyn Policy {
        match self {
            Self::PhaseFair(policy) => policy.as_ref(),
            Self::Rival(policy) => policy,
            Self::Variant(policy) => policy,
        }
    }

    fn policy_mut(&mut self) -> &mut dyn Policy {
        match self {
            Self::PhaseFair(policy) => policy.as_mut(),
            Self::Rival(policy) => policy,
            Self::Variant(policy) => policy,
        }
    }
}

/// No promise was made.
pub(super) const NO_FIGURE: u64 = u64::MAX;

/// Sums of GPU-time until the last arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "units stand last")]
pub(super) struct Sums {
    /// In use.
    pub(super) busy_ms: u128,
    /// Free, and kept for a large that waits.
    pub(super) kept_ms: u128,
    /// Free, while as many smalls waited.
    pub(super) wanted_ms: u128,
}

/// A node begins or ends to be kept for a large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate {
    /// When.
    pub at_ms: u64,
    /// The node.
    pub node: usize,
    /// Whether it is kept from then on.
    pub kept: bool,
}

/// See the module.
pub(super) struct Meter {
    player: Player,
    longest: Longest,
    /// Whether the stream has wide smalls.
    wide: bool,
    until_ms: u64,
    last_ms: u64,
    taken: Vec<GpuSet>,
    kept: Vec<bool>,
    waiting: Waiting,
    larges_run: usize,
    /// What is summed up per millisecond since the last event.
    rates: (u64, u64, u64),
    pub(super) sums: Sums,
    /// For each job the longest that it was to wait.
    pub(super) figures_ms: Vec<u64>,
    pub(super) gates: Vec<Gate>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    smalls: u64,
    larges: u64,
}

impl Waiting {
    fn of(&mut self, shape: Shape) -> &mut u64 {
        if shape == Shape::Large { &mut self.larges } else { &mut self.smalls }
    }
}

impl Meter {
    pub(super) fn new(player: Player, problem: &Problem, longest: Longest) -> Self {
        Self {
            player,
            longest,
            wide: problem.jobs.iter().any(|job| matches!(shape(problem, job), Shape::Wide(_))),
            until_ms: problem.jobs.last().map_or(0, |job| job.arrival_ms),
            last_ms: 0,
            taken: vec![GpuSet::EMPTY; problem.nodes],
            kept: vec![false; problem.nodes],
            waiting: Waiting::default(),
            larges_run: 0,
            rates: (0, 0, 0),
            sums: Sums::default(),
            figures_ms: vec![NO_FIGURE; problem.jobs.len()],
            gates: Vec::new(),
        }
    }

    fn sum_up(&mut self, now_ms: u64) {
        let lasted = now_ms.min(self.until_ms).saturating_sub(self.last_ms);
        self.last_ms = now_ms.min(self.until_ms);
        let (busy, kept, wanted) = self.rates;
        let add = |sum: &mut u128, gpus: u64| *sum += u128::from(lasted) * u128::from(gpus);
        add(&mut self.sums.busy_ms, busy);
        add(&mut self.sums.kept_ms, kept);
        add(&mut self.sums.wanted_ms, wanted);
    }

    fn look(&mut self, moment: &Moment<'_>, starts: &[Start]) {
        self.taken.clone_from(&moment.state.taken);
        for start in starts {
            self.taken[start.node] = self.taken[start.node].union(start.gpus);
        }
        let gpus = u64::from(moment.problem.gpus);
        let (mut busy, mut kept, mut free) = (0, 0, 0);
        let policy = self.player.policy();
        for (node, taken) in self.taken.iter().enumerate() {
            let used = u64::from(taken.count());
            busy += used;
            free += gpus - used;
            let keeps = policy.keeps(node);
            if keeps {
                kept += gpus - used;
            }
            if keeps != self.kept[node] {
                self.kept[node] = keeps;
                self.gates.push(Gate { at_ms: moment.now_ms, node, kept: keeps });
            }
        }
        self.rates = (busy, kept, free.min(self.waiting.smalls));
    }

    /// What those who arrived and still wait are promised.
    fn promise(&mut self, moment: &Moment<'_>, starts: &[Start]) {
        let problem = moment.problem;
        let mut started: Vec<usize> = starts.iter().map(|start| start.job).collect();
        started.sort_unstable();
        // Of those who wait, these arrived in the same instant and stand behind.
        let mut behind = Waiting::default();
        for &job in moment.arrived.iter().rev() {
            if started.binary_search(&job).is_ok() {
                continue;
            }
            let shape = shape(problem, &problem.jobs[job]);
            let place = *self.waiting.of(shape) - *behind.of(shape);
            *behind.of(shape) += 1;
            self.figures_ms[job] = match &self.player {
                Player::PhaseFair(rule) => rule.figure_ms(job, moment.now_ms).unwrap_or(NO_FIGURE),
                Player::Rival(_) | Player::Variant(_) => {
                    self.figure_ms(shape, place, u64::from(problem.gpus))
                }
            };
        }
    }

    /// What the plain rule would promise at this place.
    fn figure_ms(&self, shape: Shape, place: u64, wave: u64) -> u64 {
        let Longest { small_ms: s, large_ms: l } = self.longest;
        match shape {
            Shape::Large if self.larges_run > 0 => place.saturating_mul(l + s),
            Shape::Large => s + (place - 1).saturating_mul(l + s),
            // With wide ones before it a small's figure counts their GPUs, and they have none.
            Shape::Small if self.wide => NO_FIGURE,
            Shape::Small => place.div_ceil(wave).saturating_mul(l + 2 * s),
            Shape::Wide(_) => NO_FIGURE,
        }
    }
}

impl Policy for Meter {
    fn decide(&mut self, moment: Moment<'_>) -> Vec<Start> {
        self.sum_up(moment.now_ms);
        let large = |job: usize| moment.problem.jobs[job].width == moment.problem.gpus;
        self.larges_run -= moment.ended.iter().filter(|&&job| large(job)).count();
        for &job in moment.arrived {
            *self.waiting.of(shape(moment.problem, &moment.problem.jobs[job])) += 1;
        }
        let starts = self.player.policy_mut().decide(moment);
        for start in &starts {
            *self.waiting.of(shape(moment.problem, &moment.problem.jobs[start.job])) -= 1;
            self.larges_run += usize::from(large(start.job));
        }
        self.promise(&moment, &starts);
        self.look(&moment, &starts);
        starts
    }

    fn wake_ms(&self, now_ms: u64) -> Option<u64> {
        self.player.policy().wake_ms(now_ms)
    }

    fn rejected(&self) -> &[usize] {
        self.player.policy().rejected()
    }
}

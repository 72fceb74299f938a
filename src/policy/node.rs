//! Pure: one node, its phase and who holds its GPUs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{GpuSet, JobId, Millis, Shape};

/// What is known of a node from outside.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Every GPU.
    pub gpus: GpuSet,
    /// Of these, the healthy ones.
    pub healthy: GpuSet,
    /// Whether new work may be placed here at all (not cordoned, ready). What runs stays.
    pub schedulable: bool,
}

/// How a job came by its GPUs.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Admitted on an open node, or a large on an empty one.
    Direct,
    /// Admitted as part of a wave.
    Wave,
    /// Admitted behind a closed gate, to end before the drain does.
    Backfill,
    /// Did not go through the rule.
    Foreign,
}

/// How far a job with GPUs has come.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The GPUs are promised; nothing has started.
    Reserved,
    /// It is bound to the node.
    Bound,
    /// It runs.
    Running,
    /// Its object is gone; its containers may still live.
    Releasing,
}

/// GPUs of one node in the hands of one job.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Holding {
    /// The job's shape; `None` for a foreign one.
    pub shape: Option<Shape>,
    /// How it came by them.
    pub kind: Kind,
    /// How far it has come.
    pub stage: Stage,
    /// The GPUs.
    pub gpus: GpuSet,
    /// Since when.
    pub since: Millis,
    /// When a reservation that is not bound is given up.
    pub expires: Option<Millis>,
    /// When the GPUs are free again at the latest, if something enforces it.
    pub latest_end: Option<Millis>,
    /// Whether eviction was asked for.
    pub evicting: bool,
}

/// A closed gate.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// The large that the node is emptied for.
    pub job: JobId,
    /// When it closed.
    pub since: Millis,
    /// Whether the drain was found overdue.
    pub overdue: bool,
}

/// Larges that may fail at once in one turn without ending it.
pub(super) const EARLY_FAILURES_MAX: u32 = 3;

/// Larges that follow one another without a wave between them.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// When the first was admitted; later by the time that failures at once took.
    pub since: Millis,
    /// Larges that failed at once, which do not end the turn.
    pub early_failures: u32,
    /// Whether the last large to end was one of those.
    pub failed_early: bool,
}

impl Turn {
    /// A large of the turn ended. Where it failed at once, or was never bound, the time it took is
    /// not counted, but only so often: smalls wait meanwhile.
    pub(super) fn end(&mut self, in_vain: bool, lasted: Millis) {
        self.failed_early = in_vain && self.early_failures < EARLY_FAILURES_MAX;
        if in_vain {
            self.early_failures += 1;
        }
        if self.failed_early {
            self.since = self.since + lasted;
        }
    }
}

/// What a node is doing.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub enum Phase {
    /// Smalls are admitted as GPUs come free.
    Open,
    /// The gate is closed: what runs finishes, and nothing is admitted.
    Draining(Gate),
    /// A large holds every GPU.
    Exclusive(JobId),
    /// One bounded wave runs after a large; the gate is closed behind it.
    Wave {
        /// Smalls admitted.
        admitted: u32,
        /// The gate behind the wave.
        gate: Gate,
    },
}

/// Jobs of one queue admitted, and how they ended.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct ShapeCounters {
    /// GPUs were reserved.
    pub admitted: u64,
    /// Ended with success.
    pub completed: u64,
    /// Ended with failure.
    pub failed: u64,
    /// Were deleted.
    pub cancelled: u64,
}

/// Counters of both queues.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Smalls, wide ones included.
    pub small: ShapeCounters,
    /// Larges.
    pub large: ShapeCounters,
}

impl Counters {
    /// Those of the queue in which a shape waits.
    pub fn of(&mut self, shape: Shape) -> &mut ShapeCounters {
        match shape {
            Shape::Small | Shape::Wide(_) => &mut self.small,
            Shape::Large => &mut self.large,
        }
    }

    /// Adds another's figures.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.small, &other.small), (&mut self.large, &other.large)] {
            sum.admitted += more.admitted;
            sum.completed += more.completed;
            sum.failed += more.failed;
            sum.cancelled += more.cancelled;
        }
    }
}

/// One node: everything that its ledger records of the rule.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// What is known from outside.
    pub spec: NodeSpec,
    /// What it is doing.
    pub phase: Phase,
    /// Since when.
    pub phase_since: Millis,
    /// The larges' turn, while one lasts.
    pub turn: Option<Turn>,
    /// When a gate here last opened without its large while smalls ran that had been admitted
    /// behind it. Smalls that waited then are passed by no further one (`dispatch.rs`).
    #[serde(default)]
    pub given_up: Option<Millis>,
    /// Who holds GPUs.
    pub holdings: BTreeMap<JobId, Holding>,
    /// Jobs admitted here, and how they ended.
    pub counters: Counters,
}

impl Node {
    /// An open, empty node.
    pub fn new(spec: NodeSpec, now: Millis) -> Self {
        Self {
            spec,
            phase: Phase::Open,
            phase_since: now,
            turn: None,
            given_up: None,
            holdings: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// GPUs in somebody's hands, foreign ones included.
    pub fn held(&self) -> GpuSet {
        self.holdings.values().fold(GpuSet::EMPTY, |set, holding| set.union(holding.gpus))
    }

    /// Healthy GPUs in nobody's hands.
    pub fn free(&self) -> GpuSet {
        self.spec.gpus.intersection(self.spec.healthy).minus(self.held())
    }

    /// Healthy GPUs that are free or come free again: all but those in the hands of foreign jobs
    /// that nothing ends.
    pub fn ever_free(&self) -> GpuSet {
        let for_ever = |h: &&Holding| h.kind == Kind::Foreign && h.latest_end.is_none();
        let kept = self.holdings.values().filter(for_ever);
        let healthy = self.spec.gpus.intersection(self.spec.healthy);
        kept.fold(healthy, |set, holding| set.minus(holding.gpus))
    }

    /// The GPUs that a pod which went round the rule most likely has, where the node does not say
    /// which: free ones, then those that are only promised, since kubelet gives nobody a GPU of
    /// another pod on its node. Of each the highest: the rule hands out the lowest.
    pub(super) fn likely_taken(&self, count: u32) -> GpuSet {
        let promised = self.holdings.values().filter(|h| h.stage == Stage::Reserved);
        let promised = promised.fold(GpuSet::EMPTY, |set, holding| set.union(holding.gpus));
        let mut taken = GpuSet::EMPTY;
        for gpus in [self.free(), promised, self.spec.gpus] {
            let gpus = gpus.minus(taken);
            let most = gpus.count().min(count - taken.count());
            taken = taken.union(gpus.highest(most).unwrap_or_default());
        }
        taken
    }

    /// The closed gate, during a drain or behind a wave.
    pub fn gate(&self) -> Option<&Gate> {
        match &self.phase {
            Phase::Draining(gate) | Phase::Wave { gate, .. } => Some(gate),
            Phase::Open | Phase::Exclusive(_) => None,
        }
    }

    /// Whether the phase is [`Phase::Open`].
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether a large of `gpus` GPUs could run here once it is empty.
    pub fn takes_larges(&self, gpus: u32) -> bool {
        self.spec.schedulable
            && self.spec.gpus.count() == gpus
            && self.spec.gpus.is_within(self.spec.healthy)
    }

    /// Whether a small of so many GPUs could run here once others have ended. One GPU less than
    /// healthy is no reason to say that of a small of one: it may come back at any time.
    pub fn takes_smalls(&self, gpus: u32) -> bool {
        let healthy = self.spec.gpus.intersection(self.spec.healthy).count();
        self.spec.schedulable && (gpus <= 1 || healthy >= gpus)
    }

    /// When so many healthy GPUs are free at the latest, if nothing else is admitted: `None` if
    /// that rests on a holder without a limit, or on one that has outlasted its own.
    pub(super) fn free_by(&self, gpus: u32, now: Millis) -> Option<Millis> {
        let healthy = self.spec.gpus.intersection(self.spec.healthy);
        let mut ends: Vec<(Millis, u32)> = self
            .holdings
            .values()
            .filter_map(|h| Some((h.latest_end?, h.gpus.intersection(healthy).count())))
            .filter(|&(end, _)| end >= now)
            .collect();
        ends.sort_unstable();
        let mut free = self.free().count();
        if free >= gpus {
            return Some(now);
        }
        ends.into_iter().find_map(|(end, more)| {
            free += more;
            (free >= gpus).then_some(end)
        })
    }

    /// When the last holder ends at the latest; `None` if one has no enforced limit. An empty
    /// node ends now, and a holder past its limit is taken to end now: it cannot end earlier.
    pub fn latest_end(&self, now: Millis) -> Option<Millis> {
        self.holdings
            .values()
            .try_fold(now, |latest, holding| holding.latest_end.map(|end| latest.max(end)))
    }

    /// Enters a phase; the time it has lasted starts again only if it is another.
    pub(super) fn enter(&mut self, phase: Phase, now: Millis) {
        if std::mem::discriminant(&self.phase) != std::mem::discriminant(&phase) {
            self.phase_since = now;
        }
        self.phase = phase;
    }
}

//! What one run of the checker explores: how many nodes and jobs, which settings, and how often
//! each kind of trouble may come. Everything that may come comes at every possible moment.

use sluice::policy::{Config, Millis, Shape};

/// The unit of time, long enough that a large which ends within it counts as failed at once.
pub(crate) const TICK: Millis = Millis::from_secs(60);

/// Jobs of one kind that may arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals {
    pub(crate) shape: Shape,
    /// The longest time for which one holds GPUs, in ticks; `None` where nothing enforces any.
    pub(crate) limit: Option<u64>,
    pub(crate) count: u8,
}

/// How often each kind of trouble may still come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Troubles {
    /// A job ends with failure.
    pub(crate) failures: u8,
    /// A pod is deleted, while it waits or holds GPUs.
    pub(crate) cancels: u8,
    /// The API server refuses a binding.
    pub(crate) refusals: u8,
    /// A reservation is not bound in time.
    pub(crate) expiries: u8,
    /// kubelet gives a pod another GPU than the one that was promised.
    pub(crate) moves: u8,
    /// A GPU turns unhealthy. It may come back at any time.
    pub(crate) breaks: u8,
    /// A node goes, with whatever runs there. It may come back at any time.
    pub(crate) losses: u8,
    /// A node is cordoned. That may end at any time.
    pub(crate) cordons: u8,
    /// A pod goes round the rule and takes a GPU.
    pub(crate) foreign: u8,
    /// The controller crashes, and another rebuilds its state.
    pub(crate) crashes: u8,
    /// Somebody pauses the pool. That may end at any time.
    pub(crate) pauses: u8,
}

impl Troubles {
    /// All that may still come, which never grows.
    pub(crate) fn sum(&self) -> u32 {
        let Self { failures, cancels, refusals, expiries, moves, breaks, .. } = *self;
        let Self { losses, cordons, foreign, crashes, pauses, .. } = *self;
        [failures, cancels, refusals, expiries, moves, breaks]
            .into_iter()
            .chain([losses, cordons, foreign, crashes, pauses])
            .map(u32::from)
            .sum()
    }
}

/// One run of the checker.
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a run")]
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) nodes: u32,
    pub(crate) arrivals: Vec<Arrivals>,
    pub(crate) config: Config,
    pub(crate) troubles: Troubles,
    /// Whether binding and starting are steps of their own; else both follow at once.
    pub(crate) slow: bool,
    /// Whether the bounds of waits are followed, which multiplies the states.
    pub(crate) bounds: bool,
    /// Whether what a single step did is part of the state, for the states that must be reachable.
    pub(crate) marks: bool,
    /// Whether a wait must be reached that a simpler formula for smalls does not allow.
    pub(crate) surpasses: bool,
}

impl Setup {
    /// Nodes of so many GPUs and so many jobs of each shape, without limits or trouble.
    pub(crate) fn new(nodes: u32, gpus: u32, smalls: u8, larges: u8) -> Self {
        let of = |shape, count| Arrivals { shape, limit: None, count };
        Self {
            nodes,
            arrivals: vec![of(Shape::Small, smalls), of(Shape::Large, larges)],
            config: Config {
                gpus_per_node: gpus,
                wave_size: gpus,
                reservation_timeout: TICK,
                ..Config::default()
            },
            troubles: Troubles::default(),
            slow: false,
            bounds: false,
            marks: false,
            surpasses: false,
        }
    }

    /// The same with enforced limits in ticks, and the bounds of waits that rest on them.
    pub(crate) fn timed(nodes: u32, gpus: u32, smalls: (u8, u64), larges: (u8, u64)) -> Self {
        let mut setup = Self::new(nodes, gpus, smalls.0, larges.0);
        setup.arrivals[0].limit = Some(smalls.1);
        setup.arrivals[1].limit = Some(larges.1);
        setup.config.small_limit = Some(ticks(smalls.1));
        setup.config.large_limit = Some(ticks(larges.1));
        setup.bounds = true;
        setup
    }

    /// The same with wide smalls among the others.
    pub(crate) fn and_wide(mut self, gpus: u32, count: u8) -> Self {
        let limit = self.arrivals[0].limit;
        self.arrivals.push(Arrivals { shape: Shape::Wide(gpus), limit, count });
        self
    }

    pub(crate) fn with(mut self, troubles: Troubles) -> Self {
        self.troubles = troubles;
        self
    }

    pub(crate) fn slow(mut self) -> Self {
        self.slow = true;
        self
    }

    /// The same without the bounds: with limits, but with troubles that no bound covers.
    pub(crate) fn unbounded(mut self) -> Self {
        self.bounds = false;
        self
    }

    pub(crate) fn marked(mut self) -> Self {
        self.marks = true;
        self
    }

    pub(crate) fn surpassing(mut self) -> Self {
        self.surpasses = true;
        self
    }

    pub(crate) fn configured(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// The greatest limit of the jobs in a queue, in ticks.
    pub(crate) fn limit(&self, shape: Shape) -> Option<u64> {
        let of_shape = self.arrivals.iter().filter(|of| of.shape.is_small() == shape.is_small());
        of_shape.map(|of| of.limit).try_fold(0, |most, limit| limit.map(|limit| most.max(limit)))
    }
}

/// So many ticks.
pub(crate) fn ticks(count: u64) -> Millis {
    Millis(TICK.0 * count)
}

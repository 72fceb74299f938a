//! Pure: the settings of one pool, and which of them are refused because they destroy a bound.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{GpuSet, Millis, TenantId};

/// Settings of one pool. The default is the plain rule on eight-GPU nodes: one wave after each
/// large, nothing admitted behind a closed gate.
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
// A record of before a setting existed has its default; one with a setting that this code does not
// know is not read as if it had none.
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// GPUs of a node, which is also what a large asks for.
    pub gpus_per_node: u32,
    /// The most smalls that one wave admits.
    pub wave_size: u32,
    /// How many gates may be closed at once, of drains and behind waves.
    pub max_drains: u32,
    /// After how long a drain is overdue; by default when the last limit of its holders has passed.
    pub drain_limit: Option<Millis>,
    /// Whether the jobs that hold up an overdue drain are evicted.
    pub evict_overdue: bool,
    /// The most GPUs that jobs of a tenant may hold at a time.
    pub quotas: BTreeMap<TenantId, u32>,
    /// Admit nothing.
    pub paused: bool,
    /// Admit a small behind a closed gate if its limit ends no later than the drain does.
    pub backfill: bool,
    /// How long larges may follow one another without a wave between them; `None`: one large.
    pub turn: Option<Millis>,
    /// One wave in the pool at a time: while one node is in a wave or drains, larges follow one
    /// another on the others, whose smalls it counts for.
    pub one_wave: bool,
    /// How many nodes stay open for smalls: a large neither takes nor drains the last of them.
    pub keep_open: u32,
    /// The greatest limit of a small that the pool accepts, if it enforces one.
    pub small_limit: Option<Millis>,
    /// The greatest limit of a large that the pool accepts, if it enforces one.
    pub large_limit: Option<Millis>,
    /// How long a reservation may wait for its binding.
    pub reservation_timeout: Millis,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gpus_per_node: 8,
            wave_size: 8,
            max_drains: 1,
            drain_limit: None,
            evict_overdue: false,
            quotas: BTreeMap::new(),
            paused: false,
            backfill: false,
            turn: None,
            one_wave: false,
            keep_open: 0,
            small_limit: None,
            large_limit: None,
            reservation_timeout: Millis::from_secs(30),
        }
    }
}

/// A setting that is refused, with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A node without GPUs, or with more than a [`GpuSet`] holds.
    #[error("gpusPerNode is {0}: write 1 to {max}", max = GpuSet::MAX)]
    GpusPerNode(u32),
    /// A wave of none would let smalls starve; one wider than the node would be a second wave and
    /// break the larges' bound.
    #[error(
        "waveSize is {size}: a wave of none would let smalls starve, and one wider than the node \
         would break the larges' bound; write 1 to gpusPerNode, which is {gpus}"
    )]
    WaveSize {
        /// What was asked for.
        size: u32,
        /// GPUs of a node.
        gpus: u32,
    },
    /// No drain at a time would let larges starve.
    #[error("maxDrains is 0: with no drain at all a large may wait for ever; write 1 or more")]
    MaxDrains,
    /// Eviction without a time limit has no moment.
    #[error("onTimeLimit Evict has no moment without a limit: write timeLimitSeconds, or Wait")]
    EvictWithoutLimit,
}

impl Config {
    /// Refuses what would destroy a bound.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(1..=GpuSet::MAX).contains(&self.gpus_per_node) {
            return Err(ConfigError::GpusPerNode(self.gpus_per_node));
        }
        if !(1..=self.gpus_per_node).contains(&self.wave_size) {
            return Err(ConfigError::WaveSize { size: self.wave_size, gpus: self.gpus_per_node });
        }
        if self.max_drains == 0 {
            return Err(ConfigError::MaxDrains);
        }
        if self.evict_overdue && self.drain_limit.is_none() {
            return Err(ConfigError::EvictWithoutLimit);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_destroy_a_bound_are_refused() {
        assert_eq!(Config::default().check(), Ok(()));
        let refused = [
            Config { gpus_per_node: 0, ..Config::default() },
            Config { gpus_per_node: 65, ..Config::default() },
            Config { wave_size: 0, ..Config::default() },
            Config { wave_size: 9, ..Config::default() },
            Config { max_drains: 0, ..Config::default() },
            Config { evict_overdue: true, ..Config::default() },
        ];
        for config in refused {
            assert!(config.check().is_err(), "{config:?}");
        }
    }
}

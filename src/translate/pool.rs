//! Pure: a `GpuPool`'s spec as the policy's settings, or why it is not followed.
//!
//! What the API server refuses by the rules of `src/api/options.rs` is refused here too: a pool may
//! be older than a rule.

use std::collections::BTreeMap;

use super::limits;
use crate::api::{Backfill, GpuPoolSpec, OnTimeLimit, Preset, ShapeLimit};
use crate::policy::{Config, ConfigError, Millis, TenantId};

/// The larges' turn of [`Preset::Balanced`], in the longest times that a large may hold a node.
const BALANCED_TURN: u64 = 4;

/// A spec that is not followed, with the reason and with what to write instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// The policy refuses the settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nothing could ever be filled in, or not safely.
    #[error(
        "backfill needs an enforced limit of smalls, without which none can be shown to end \
         before the drain does: write limits.small.maxSeconds, or backfill: Never"
    )]
    BackfillWithoutLimit,
    /// No large could ever follow.
    #[error(
        "turnSeconds needs an enforced limit of larges, since one follows only if that ends \
         within the turn: write limits.wholeNodeLarge.maxSeconds, or leave turnSeconds out"
    )]
    TurnWithoutLimit,
    /// The preset's turn has no length.
    #[error(
        "preset Balanced gives the larges a turn of four times their limit: write \
         limits.wholeNodeLarge.maxSeconds, or turnSeconds"
    )]
    BalancedWithoutLimit,
}

/// The policy's settings. `tenant` gives a namespace its number.
pub fn config(
    spec: &GpuPoolSpec,
    mut tenant: impl FnMut(&str) -> TenantId,
) -> Result<Config, SpecError> {
    let whole = |number: i32| u32::try_from(number).unwrap_or_default();
    let gpus_per_node = whole(spec.gpus_per_node);
    let quotas: BTreeMap<TenantId, u32> =
        spec.quotas.iter().map(|quota| (tenant(&quota.namespace), whole(quota.max_gpus))).collect();
    let default = Config::default();
    let limit = |of: &ShapeLimit| of.max_seconds.map(|most| limits::pool_limit(most, &default));
    let config = Config {
        gpus_per_node,
        wave_size: spec.wave_size.map_or(gpus_per_node, whole),
        max_drains: whole(spec.drain.max_concurrent),
        drain_limit: spec.drain.time_limit_seconds.map(super::time::span),
        evict_overdue: spec.drain.on_time_limit == OnTimeLimit::Evict,
        quotas,
        paused: spec.paused,
        backfill: backfill(spec)?,
        turn: turn(spec, limit(&spec.limits.whole_node_large))?,
        one_wave: spec.one_wave_at_a_time.unwrap_or_default(),
        keep_open: spec.keep_open.map_or(0, whole),
        small_limit: limit(&spec.limits.small),
        large_limit: limit(&spec.limits.whole_node_large),
        ..default
    };
    config.check()?;
    Ok(config)
}

fn limited(limit: &ShapeLimit) -> bool {
    limit.max_seconds.is_some() || limit.default_seconds.is_some()
}

fn backfill(spec: &GpuPoolSpec) -> Result<bool, SpecError> {
    let preset = match spec.preset {
        Preset::Plain => Backfill::Never,
        Preset::Balanced => Backfill::WithinDrain,
    };
    match spec.backfill.unwrap_or(preset) {
        Backfill::Never => Ok(false),
        Backfill::WithinDrain if limited(&spec.limits.small) => Ok(true),
        Backfill::WithinDrain => Err(SpecError::BackfillWithoutLimit),
    }
}

fn turn(spec: &GpuPoolSpec, longest: Option<Millis>) -> Result<Option<Millis>, SpecError> {
    match (spec.turn_seconds, spec.preset) {
        (None, Preset::Plain) | (Some(..=0), _) => Ok(None),
        (Some(seconds), _) if limited(&spec.limits.whole_node_large) => {
            Ok(Some(super::time::span(seconds)))
        }
        (Some(_), _) => Err(SpecError::TurnWithoutLimit),
        (None, Preset::Balanced) => {
            let longest = longest.ok_or(SpecError::BalancedWithoutLimit)?;
            Ok(Some(Millis(longest.0.saturating_mul(BALANCED_TURN))))
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_pool_that_says_nothing_gets_the_plain_rule() {
        let spec: GpuPoolSpec = from_value(json!({})).unwrap();
        assert_eq!(config(&spec, |_| TenantId(0)), Ok(Config::default()));
    }

    #[test]
    fn settings_are_carried_over() {
        let spec: GpuPoolSpec = from_value(json!({
            "gpusPerNode": 4, "waveSize": 3, "paused": true,
            "drain": {"maxConcurrent": 2, "timeLimitSeconds": 60, "onTimeLimit": "Evict"},
            "limits": {"small": {"maxSeconds": 100}},
            "quotas": [{"namespace": "red", "maxGpus": 6}],
        }))
        .unwrap();
        let got = config(&spec, |_| TenantId(5)).unwrap();
        assert_eq!((got.gpus_per_node, got.wave_size, got.max_drains), (4, 3, 2));
        assert_eq!(got.drain_limit, Some(Millis::from_secs(60)));
        assert!(got.evict_overdue && got.paused);
        assert_eq!(got.quotas, [(TenantId(5), 6)].into());
        assert_eq!(got.small_limit, Some(Millis::from_secs(100 + 30 + 30 + 15)));
        assert_eq!(got.large_limit, None);
    }

    /// What the options of a spec come to: backfill, the turn in seconds, one wave, kept open.
    fn options(spec: Value) -> Result<(bool, Option<u64>, bool, u32), SpecError> {
        let spec: GpuPoolSpec = from_value(spec).unwrap();
        let got = config(&spec, |_| TenantId(0))?;
        Ok((got.backfill, got.turn.map(|turn| turn.0 / 1_000), got.one_wave, got.keep_open))
    }

    #[test]
    fn a_preset_sets_the_options_and_those_that_are_written_count() {
        let limits = json!({"small": {"maxSeconds": 60}, "wholeNodeLarge": {"maxSeconds": 300}});
        // 300 seconds, 30 of grace, and 45 of the control plane, four times.
        let turn = Some(4 * 375);
        for (more, wanted) in [
            (json!({}), (false, None, false, 0)),
            (json!({"preset": "Plain"}), (false, None, false, 0)),
            (json!({"preset": "Balanced"}), (true, turn, false, 0)),
            (json!({"preset": "Balanced", "backfill": "Never"}), (false, turn, false, 0)),
            (json!({"preset": "Balanced", "turnSeconds": 0}), (true, None, false, 0)),
            (json!({"preset": "Balanced", "turnSeconds": 900}), (true, Some(900), false, 0)),
            (json!({"preset": "Balanced", "oneWaveAtATime": true}), (true, turn, true, 0)),
            (json!({"preset": "Balanced", "keepOpen": 2}), (true, turn, false, 2)),
            (json!({"backfill": "WithinDrain"}), (true, None, false, 0)),
            (json!({"turnSeconds": 900}), (false, Some(900), false, 0)),
            (json!({"oneWaveAtATime": false, "keepOpen": 0}), (false, None, false, 0)),
        ] {
            let mut spec = more;
            spec["limits"] = limits.clone();
            assert_eq!(options(spec.clone()), Ok(wanted), "{spec}");
        }
    }

    #[test]
    fn settings_that_destroy_a_bound_are_refused_with_what_to_write_instead() {
        let small = json!({"small": {"maxSeconds": 60}});
        let by_default = json!({"small": {"defaultSeconds": 60}});
        let large = json!({"wholeNodeLarge": {"defaultSeconds": 60}});
        for (spec, instead) in [
            (json!({"gpusPerNode": 4, "waveSize": 5}), "write 1 to gpusPerNode"),
            (json!({"waveSize": 0}), "write 1 to gpusPerNode"),
            (json!({"gpusPerNode": 65}), "write 1 to 64"),
            (json!({"drain": {"maxConcurrent": 0}}), "write 1 or more"),
            (json!({"drain": {"onTimeLimit": "Evict"}}), "write timeLimitSeconds"),
            (json!({"backfill": "WithinDrain"}), "write limits.small.maxSeconds"),
            (json!({"backfill": "WithinDrain", "limits": large}), "write limits.small.maxSeconds"),
            (json!({"turnSeconds": 9}), "write limits.wholeNodeLarge.maxSeconds"),
            (json!({"turnSeconds": 9, "limits": small}), "write limits.wholeNodeLarge.maxSeconds"),
            (json!({"preset": "Balanced"}), "write limits.small.maxSeconds"),
            (json!({"preset": "Balanced", "limits": small}), "or turnSeconds"),
        ] {
            let error = options(spec.clone()).expect_err(&spec.to_string()).to_string();
            assert!(error.contains(instead), "{spec}: {error}");
        }
        assert!(options(json!({"backfill": "WithinDrain", "limits": by_default})).is_ok());
        assert!(options(json!({"turnSeconds": 9, "limits": large})).is_ok());
        assert!(options(json!({"turnSeconds": 0})).is_ok());
        assert!(
            options(json!({"preset": "Balanced", "backfill": "Never", "turnSeconds": 0})).is_ok()
        );
    }
}

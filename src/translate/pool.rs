//! Pure: a `GpuPool`'s spec as the policy's settings.

use std::collections::BTreeMap;

use super::limits;
use crate::api::{GpuPoolSpec, OnTimeLimit, ShapeLimit};
use crate::policy::{Config, ConfigError, TenantId};

/// The policy's settings. `tenant` gives a namespace its number.
pub fn config(
    spec: &GpuPoolSpec,
    mut tenant: impl FnMut(&str) -> TenantId,
) -> Result<Config, ConfigError> {
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
        small_limit: limit(&spec.limits.small),
        large_limit: limit(&spec.limits.whole_node_large),
        ..default
    };
    config.check()?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::{from_value, json};

    use super::*;
    use crate::policy::Millis;

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

    #[test]
    fn settings_that_destroy_a_bound_are_refused() {
        let spec: GpuPoolSpec = from_value(json!({"gpusPerNode": 4, "waveSize": 5})).unwrap();
        assert_eq!(config(&spec, |_| TenantId(0)), Err(ConfigError::WaveSize { size: 5, gpus: 4 }));
    }
}

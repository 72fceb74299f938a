//! Cluster side: the options of a `GpuPool` that change the order of service and keep a bound.
//!
//! `docs/options.md` has each with its bound, its price and how to choose.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Values for the options that the pool's spec does not set.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// Every option off: one large at a time, then one wave, and nobody starts behind a closed
    /// gate.
    #[default]
    Plain,
    /// `backfill: WithinDrain`, and as `turnSeconds` four times the longest that a large may hold a
    /// node. Waits are shorter and fewer GPUs idle under load; the smalls' bound grows with the
    /// turn.
    Balanced,
}

/// Whether smalls start behind a closed gate.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backfill {
    /// None does.
    #[default]
    Never,
    /// Those do whose enforced limit ends no later than the drain or the wave does anyway.
    WithinDrain,
}

/// The words of [`Backfill`] as a schema. It lists them by a rule and not as an enumeration, since
/// only a rule can say why another word is refused.
pub(super) fn backfill_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "maxLength": 32,
        "x-kubernetes-validations": [{
            "rule": "self in ['Never', 'WithinDrain']",
            "message": "a drain or a wave that is filled up without regard to its end never ends, \
                        and the larges starve: write WithinDrain or Never",
        }],
    })
}

/// Rules across the fields of a pool's spec, each with the reason and with what to write instead.
pub(super) fn rules() -> Value {
    let backfill = "(has(self.backfill) ? self.backfill \
                    : self.preset == 'Balanced' ? 'WithinDrain' : 'Never')";
    let limited = |shape: &str| {
        format!("has(self.limits.{shape}.maxSeconds) || has(self.limits.{shape}.defaultSeconds)")
    };
    json!([
        {
            "rule": "!has(self.waveSize) || self.waveSize <= self.gpusPerNode",
            "message": "waveSize must not exceed gpusPerNode: a larger wave would break the \
                        larges' bound; write gpusPerNode or less",
            "fieldPath": ".waveSize",
        },
        {
            "rule": format!("{backfill} != 'WithinDrain' || {}", limited("small")),
            "message": "without an enforced limit no small can be shown to end before the drain \
                        does: write limits.small.maxSeconds, or backfill: Never",
            "fieldPath": ".backfill",
        },
        {
            "rule": format!(
                "!has(self.turnSeconds) || self.turnSeconds == 0 || {}",
                limited("wholeNodeLarge")
            ),
            "message": "a large follows in a turn only if its enforced limit ends within it: \
                        write limits.wholeNodeLarge.maxSeconds, or leave turnSeconds out",
            "fieldPath": ".turnSeconds",
        },
        {
            "rule": "self.preset != 'Balanced' || has(self.turnSeconds) \
                     || has(self.limits.wholeNodeLarge.maxSeconds)",
            "message": "preset Balanced gives the larges a turn of four times their limit: write \
                        limits.wholeNodeLarge.maxSeconds, or turnSeconds",
            "fieldPath": ".preset",
        },
    ])
}

//! Pure side: the controller's log in JSON (`--log-format json`) as a history: each decision is one
//! line, whose `cause` is the decision itself.
//!
//! A pod's GPUs are taken from `Reserved` on and until the fact that they are free again. Lines
//! that are no decisions are passed over; a pod that was never admitted is in none of them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::Outcome;
use super::records::{History, Pod};
use super::time::iso;
use crate::policy::{Decision, GpuSet, Input, Outcome as Ended};

/// What a line rests on.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Cause {
    Decision(Decision),
    Fact(Input),
}

/// How often each name was given GPUs: pods that bear one name are told apart by it.
#[derive(Default)]
pub(super) struct Told {
    times: BTreeMap<String, u32>,
}

impl Told {
    /// Takes in one line of the log. An error says what is wrong with it.
    pub(super) fn line(&mut self, line: &Value, history: &mut History) -> Result<(), String> {
        let Some(cause) = line.get("cause").and_then(Value::as_str).filter(|c| !c.is_empty())
        else {
            return Ok(());
        };
        let text = |field: &str| line.get(field).and_then(Value::as_str).unwrap_or_default();
        let cause: Cause = serde_json::from_str(cause)
            .map_err(|error| format!("a cause that is no decision ({error})"))?;
        let stamp = text("timestamp");
        let now_ms = iso(stamp).ok_or_else(|| format!("the timestamp {stamp:?}"))?;
        history.seen(now_ms);
        let (pod, node) = (text("pod"), text("node"));
        let number = |field: &str| line.get(field).and_then(Value::as_u64);
        match cause {
            Cause::Decision(Decision::Reserved { gpus, .. }) => {
                let waited_ms = number("waited_ms").unwrap_or_default();
                let entry = self.begin(history, pod, node, now_ms);
                entry.created_ms = Some(now_ms.saturating_sub(waited_ms));
                entry.priority = line.get("priority").and_then(Value::as_i64);
                entry.limit_ms = number("limit_ms");
                entry.kind = Some(match text("shape") {
                    "Large" => "whole-node-large",
                    "Small" => "small",
                    "" => "unknown",
                    _ => "wide-small",
                });
                entry.numbers = gpus.iter().collect();
            }
            Cause::Decision(Decision::Unreserved { .. }) => {
                // It waits again; when it is admitted, its wait is counted from its creation.
                history.pods.remove(&self.identity(pod));
            }
            Cause::Fact(Input::Foreign { count, gpus, .. }) => {
                let entry = self.begin(history, pod, node, now_ms);
                entry.kind = Some("foreign");
                entry.numbers = gpus.unwrap_or(GpuSet::EMPTY).iter().collect();
                entry.count = Some(count);
            }
            Cause::Fact(Input::Released { outcome, .. }) => {
                if let Some(entry) = history.pods.get_mut(&self.identity(pod)) {
                    entry.end_ms = Some(now_ms);
                    entry.outcome = Some(match outcome {
                        Ended::Completed => Outcome::Completed,
                        Ended::Failed => Outcome::Failed,
                        Ended::Cancelled => Outcome::Cancelled,
                    });
                }
            }
            Cause::Decision(_) | Cause::Fact(_) => {}
        }
        Ok(())
    }

    fn identity(&self, pod: &str) -> String {
        format!("{pod}#{}", self.times.get(pod).copied().unwrap_or_default())
    }

    /// A pod takes GPUs: the same one again if it is not known to have ended (a log may tell of
    /// one decision twice when the leader changes), else another that bears its name.
    fn begin<'a>(
        &mut self,
        history: &'a mut History,
        pod: &str,
        node: &str,
        now_ms: u64,
    ) -> &'a mut Pod {
        let known = history.pods.get(&self.identity(pod));
        if known.is_none_or(|known| known.end_ms.is_some()) {
            *self.times.entry(pod.to_owned()).or_default() += 1;
        }
        history.node(node);
        let entry = history.pods.entry(self.identity(pod)).or_default();
        pod.clone_into(&mut entry.name);
        node.clone_into(&mut entry.node);
        entry.start_ms.get_or_insert(now_ms);
        entry
    }
}

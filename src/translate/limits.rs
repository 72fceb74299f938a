//! Pure: how long a pod can hold its GPUs at most, which is what every stated wait rests on.
//!
//! `activeDeadlineSeconds` counts from the moment kubelet takes the pod up. Before that lie the
//! reservation and the binding; after it the termination grace and kubelet's own work.

use super::PodFacts;
use crate::explain::KUBELET_MARGIN;
use crate::policy::{Config, Millis};

/// Grace period that a pool's own figure reckons with: the API server's default.
const USUAL_GRACE: Millis = Millis::from_secs(30);
/// Grace period that is reckoned with for a pod of which nothing is left but its ledger entry.
pub const UNKNOWN_GRACE: Millis = Millis::from_secs(30);
/// How long a pod that vanished without a terminal phase is held beyond its grace period on a node
/// without an agent. After a forced deletion containers were seen to live 2.5 seconds longer.
pub const VANISHED_MARGIN: Millis = Millis::from_secs(10);

/// The longest time from the reservation until the GPUs are free, if the pod has a deadline.
pub fn from_reservation(pod: &PodFacts, config: &Config) -> Option<Millis> {
    let deadline = pod.deadline?;
    Some(config.reservation_timeout + deadline + pod.grace + KUBELET_MARGIN)
}

/// When the GPUs of a pod that kubelet has taken up are free at the latest.
pub fn from_start(pod: &PodFacts) -> Option<Millis> {
    Some(pod.started? + pod.deadline? + pod.grace + KUBELET_MARGIN)
}

/// The longest occupancy of a pod with the greatest deadline that a pool accepts.
pub fn pool_limit(max_seconds: i64, config: &Config) -> Millis {
    config.reservation_timeout + super::time::span(max_seconds) + USUAL_GRACE + KUBELET_MARGIN
}

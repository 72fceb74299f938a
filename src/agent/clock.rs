//! Cluster side: the agent's clock, on top of the process's. Everything that decides takes the time as a value from here.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::Instant;

use crate::clock;
use crate::policy::Millis;

/// Time since the agent started; does not jump when the node's clock is set.
#[derive(Clone, Copy, Debug)]
pub struct Uptime(Instant);

impl Uptime {
    /// Starts at zero now.
    pub fn start() -> Self {
        Self(clock::instant())
    }

    /// The span since the start.
    pub fn now(self) -> Duration {
        self.0.elapsed()
    }
}

/// The time of day, to the second, as Kubernetes writes it.
pub(super) fn time_of_day() -> Time {
    let second = Millis(clock::now().0 / 1000 * 1000);
    Time(clock::to_timestamp(second))
}

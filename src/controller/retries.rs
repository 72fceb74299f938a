//! Cluster side, without calls: how long an object is left alone after a write to it failed.

use std::collections::BTreeMap;

use crate::policy::Millis;
use crate::translate::plan::Target;

/// Pause before a failed write is tried again; it doubles with each failure.
const PAUSE: Millis = Millis(100);
/// The longest such pause.
const PAUSE_MAX: Millis = Millis::from_secs(10);
/// How long after its pause an object is remembered to which nothing is written any more. Longer
/// than a write and the read after it may take, so that failures in a row are counted as such.
const FORGET: Millis = Millis::from_secs(30);

/// Objects to which the last write failed.
#[derive(Default)]
pub(super) struct Retries {
    failures: BTreeMap<Target, Failure>,
}

struct Failure {
    count: u32,
    until: Millis,
}

impl Retries {
    /// A write failed. Says how many in a row.
    pub(super) fn failed(&mut self, target: &Target, now: Millis) -> u32 {
        let count = self.failures.get(target).map_or(0, |before| before.count);
        let pause = Millis(PAUSE.0 << count.min(16)).min(PAUSE_MAX);
        let failure = Failure { count: count.saturating_add(1), until: now + pause };
        self.failures.insert(target.clone(), failure);
        count.saturating_add(1)
    }

    /// A write came through.
    pub(super) fn succeeded(&mut self, target: &Target) {
        self.failures.remove(target);
    }

    /// Whether an object is to be left alone now.
    pub(super) fn must_wait(&self, target: &Target, now: Millis) -> bool {
        self.failures.get(target).is_some_and(|failure| now < failure.until)
    }

    /// Objects that are to be left alone now.
    pub(super) fn resting(&self, now: Millis) -> impl Iterator<Item = &Target> {
        self.failures.iter().filter(move |(_, failure)| now < failure.until).map(|(of, _)| of)
    }

    /// When the next pause ends.
    pub(super) fn next(&self, now: Millis) -> Option<Millis> {
        self.failures.values().map(|failure| failure.until).filter(|&until| now < until).min()
    }

    /// Forgets objects that nobody writes to any more.
    pub(super) fn tidy(&mut self, now: Millis) {
        self.failures.retain(|_, failure| now < failure.until + FORGET);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Target {
        Target::Pod(name.to_owned())
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_end_with_a_success() {
        let mut retries = Retries::default();
        let mut now = Millis(1_000_000);
        let mut pauses = Vec::new();
        for attempt in 1..=9 {
            assert_eq!(retries.failed(&pod("a"), now), attempt);
            let until = retries.next(now).unwrap();
            assert!(retries.must_wait(&pod("a"), Millis(until.0 - 1)));
            assert!(!retries.must_wait(&pod("a"), until) && !retries.must_wait(&pod("b"), now));
            pauses.push(until.since(now).0);
            now = until;
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        retries.succeeded(&pod("a"));
        assert_eq!(retries.failed(&pod("a"), now), 1);
    }

    #[test]
    fn an_object_that_is_no_longer_written_to_is_forgotten() {
        let mut retries = Retries::default();
        retries.failed(&pod("gone"), Millis(0));
        retries.tidy(Millis(100));
        assert_eq!(retries.failed(&pod("gone"), Millis(100)), 2);
        retries.tidy(Millis(300) + FORGET);
        assert!(retries.failures.is_empty());
    }
}

//! Cluster side, pure: growing waits between attempts.

use std::time::Duration;

/// Waits that double from a first one to a longest one.
///
/// The waits of one node are a little shorter than those of another, by its name, so that the
/// agents of a large cluster do not all come back at the same instant.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Waits between `first` and `longest`, each shortened by up to a quarter for this node.
    pub(super) fn new(first: Duration, longest: Duration, node: &str) -> Self {
        let sum = node.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
        let shorten = |wait: Duration| wait.saturating_sub(wait / 4 * (sum % 256) / 256);
        let (first, longest) = (shorten(first), shorten(longest));
        Self { first, longest, next: first }
    }

    /// The next wait.
    pub(super) fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.longest);
        wait
    }

    /// Starts over: an attempt succeeded.
    pub(super) fn start_over(&mut self) {
        self.next = self.first;
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.wait())
    }
}

impl kube::runtime::utils::Backoff for Backoff {
    fn reset(&mut self) {
        self.start_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_over() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(500), "");
        let waits: Vec<Duration> = backoff.by_ref().take(5).collect();
        assert_eq!(waits, [ms(100), ms(200), ms(400), ms(500), ms(500)]);
        backoff.start_over();
        assert_eq!(backoff.wait(), ms(100));
    }

    #[test]
    fn nodes_differ_and_none_waits_longer_or_much_shorter() {
        let secs = Duration::from_secs;
        let mut seen = std::collections::BTreeSet::new();
        for node in 0..100 {
            let wait = Backoff::new(secs(1), secs(10), &format!("gpu-node-{node}")).wait();
            assert!(wait <= secs(1) && wait >= Duration::from_millis(750), "{wait:?}");
            seen.insert(wait);
        }
        assert!(seen.len() > 50, "{} different waits of 100", seen.len());
    }
}

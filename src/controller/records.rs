//! Cluster side, without calls: decisions on their way to being published.
//!
//! A decision counts once the ledger shows it, since a ledger that somebody else wrote takes it
//! back. While a ledger cannot be written, decisions about its node gather here, up to a limit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tracing::{info, warn};

use crate::translate::record::Record;

/// Decisions of one pool that may wait. A ledger is normally written within milliseconds; this many
/// are the work of minutes on a large pool none of whose ledgers can be written.
const MOST: usize = 4_096;

/// Decisions that wait for their ledgers.
#[derive(Default)]
pub(super) struct Records {
    /// By node; the empty name where there is none.
    waiting: BTreeMap<String, VecDeque<Record>>,
    writing: BTreeMap<String, VecDeque<Record>>,
    count: usize,
    /// Given up since there was last room for all.
    dropped: u64,
}

impl Records {
    /// Adds a decision. Where there are too many, the oldest of the node with the most is given up:
    /// returns how many were.
    pub(super) fn add(&mut self, record: Record) -> u64 {
        let node = record.node.clone().unwrap_or_default();
        self.waiting.entry(node).or_default().push_back(record);
        self.count += 1;
        if self.count <= MOST {
            return 0;
        }
        let longest = self.writing.values_mut().chain(self.waiting.values_mut());
        let Some(oldest) = longest.max_by_key(|queue| queue.len()).and_then(VecDeque::pop_front)
        else {
            return 0;
        };
        self.count -= 1;
        if self.dropped == 0 {
            warn!(
                pool = oldest.pool,
                node = oldest.node,
                most = MOST,
                "ledgers cannot be written for long: the oldest decisions will not be published"
            );
        }
        self.dropped += 1;
        1
    }

    /// A write of the node's ledger starts, which includes all that waits.
    pub(super) fn write_starts(&mut self, node: &str) {
        let waiting = self.waiting.remove(node).unwrap_or_default();
        self.writing.entry(node.to_owned()).or_default().extend(waiting);
    }

    /// The write came through.
    pub(super) fn written(&mut self, node: &str) -> Vec<Record> {
        let written: Vec<Record> = self.writing.remove(node).unwrap_or_default().into();
        self.left(&written);
        written
    }

    /// Decisions about nodes whose ledger shows everything.
    pub(super) fn settled(
        &mut self,
        writing: &BTreeSet<String>,
        dirty: &BTreeSet<String>,
    ) -> Vec<Record> {
        let mut settled = Vec::new();
        for queue in [&mut self.writing, &mut self.waiting] {
            queue.retain(|node, records| {
                let keep = writing.contains(node) || dirty.contains(node);
                if !keep {
                    settled.extend(records.drain(..));
                }
                keep
            });
        }
        self.left(&settled);
        settled
    }

    fn left(&mut self, records: &[Record]) {
        self.count -= records.len();
        if let Some(record) = records.first()
            && self.dropped > 0
        {
            let dropped = std::mem::take(&mut self.dropped);
            info!(pool = record.pool, dropped, "ledgers are written again; decisions went untold");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Credit, Decision, NodeId};
    use crate::translate::record::{Cause, Tone};

    fn record(node: &str, number: u64) -> Record {
        Record {
            pool: "default".to_owned(),
            node: Some(node.to_owned()),
            pod: None,
            shape: None,
            reason: "LargeEnded",
            message: String::new(),
            tone: Tone::Quiet,
            waited_ms: Some(number),
            drained_ms: None,
            limit_ms: None,
            priority: None,
            cause: Cause::Decision(Decision::CreditSettled {
                node: NodeId(0),
                credit: Credit::Wave,
            }),
        }
    }

    fn numbers(records: &[Record]) -> Vec<u64> {
        records.iter().filter_map(|record| record.waited_ms).collect()
    }

    #[test]
    fn a_ledger_that_cannot_be_written_costs_the_oldest_and_no_other_node() {
        let mut records = Records::default();
        assert_eq!(records.add(record("b", 0)), 0);
        records.write_starts("a");
        let many = u64::try_from(MOST).unwrap() + 10;
        let mut dropped = 0;
        for number in 1..=many {
            dropped += records.add(record("a", number));
            if number % 7 == 0 {
                records.write_starts("a");
            }
        }
        assert_eq!((dropped, records.count), (11, MOST));
        records.write_starts("b");
        assert_eq!(numbers(&records.written("b")), [0]);
        records.write_starts("a");
        let told = numbers(&records.written("a"));
        assert_eq!(told.len(), MOST - 1);
        assert!(told.is_sorted() && told.last() == Some(&many), "the newest are kept, in order");
        assert_eq!((records.count, records.dropped), (0, 0));
        let none = BTreeSet::new();
        records.add(record("c", 1));
        assert_eq!(numbers(&records.settled(&none, &none)), [1]);
        assert_eq!(records.count, 0);
    }
}

//! Cluster side, pure: when a GPU counts as unhealthy, and when it counts as healthy again.
//!
//! A fault takes a GPU out at once. The way back is slow on purpose: every probe has to be good
//! for a hold time, and the hold doubles with each fault that follows soon after a recovery, so
//! that a GPU that flaps stays out instead of failing one pod after the other. Time is a value
//! here: the span since the agent started.

use std::collections::BTreeMap;
use std::time::Duration;

use super::gpu::{Gpu, GpuInfo, GpuList};

/// How bad a fault is, which decides how long the way back takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good probes show that it is over.
    Transient,
    /// The GPU needs a reset. Good probes alone prove little, so the hold is at least
    /// [`Damping::fatal_hold`] unless a probe proves the reset.
    Fatal,
}

/// What a look at a GPU showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It answers.
    Good,
    /// It answers, and either the driver says that no recovery is due or the GPU was gone and came
    /// back: a reset that a fatal fault asked for has been made.
    Recovered,
    /// It does not answer, or says that it must not be used.
    Bad(String),
}

/// How the way back is damped.
#[derive(Clone, Copy, Debug)]
pub struct Damping {
    /// How long every probe has to be good after a first fault.
    pub hold: Duration,
    /// The longest hold after many faults.
    pub hold_max: Duration,
    /// The least hold after a fatal fault without a proof of recovery.
    pub fatal_hold: Duration,
    /// A GPU healthy for so long has its earlier faults forgiven.
    pub forgive_after: Duration,
}

impl Damping {
    /// The usual damping around a first hold.
    ///
    /// Five minutes are the longest hold that still brings a GPU back within the time in which a
    /// person would look at it; ten minutes without a proof of reset are the price of a driver
    /// that does not say whether a reset is due.
    pub fn with_hold(hold: Duration) -> Self {
        Self {
            hold,
            hold_max: Duration::from_secs(300).max(hold),
            fatal_hold: Duration::from_secs(600).max(hold),
            forgive_after: Duration::from_secs(600).max(hold * 2),
        }
    }

    fn hold_after(&self, faults: u32, severity: Severity, proven: bool) -> Duration {
        let doublings = faults.saturating_sub(1).min(16);
        let hold = self.hold.saturating_mul(1 << doublings).min(self.hold_max);
        match severity {
            Severity::Fatal if !proven => hold.max(self.fatal_hold),
            Severity::Fatal | Severity::Transient => hold,
        }
    }
}

#[derive(Clone, Debug)]
struct Fault {
    reason: String,
    severity: Severity,
    /// Since when every probe has been good; `None` after a bad one.
    good_since: Option<Duration>,
    proven: bool,
}

#[derive(Clone, Debug)]
struct Record {
    info: GpuInfo,
    fault: Option<Fault>,
    /// Faults that followed one another without a healthy span of `forgive_after` between them.
    faults: u32,
    healthy_since: Duration,
    /// Whether the last list of the backend lacked it.
    missing: bool,
}

/// The health of every GPU that was ever seen on the node.
#[derive(Clone, Debug)]
pub struct Health {
    damping: Damping,
    gpus: BTreeMap<String, Record>,
}

/// Reason of a GPU that the backend no longer lists.
const MISSING: &str = "not found on the node any more";

impl Health {
    /// Knows no GPU yet.
    pub fn new(damping: Damping) -> Self {
        Self { damping, gpus: BTreeMap::new() }
    }

    /// Takes in a new list of GPUs. One that is no longer listed stays known as faulty: kubelet
    /// and the ledger may still have pods on it.
    pub fn discovered(&mut self, found: &[GpuInfo], now: Duration) {
        for info in found {
            let info = GpuInfo { index: self.index_of(info), ..info.clone() };
            let record = self.gpus.entry(info.id.clone()).or_insert_with(|| Record {
                info: info.clone(),
                fault: None,
                faults: 0,
                healthy_since: now,
                missing: false,
            });
            record.info = info;
            if std::mem::take(&mut record.missing) {
                let id = record.info.id.clone();
                self.probed(&id, &Probe::Recovered, now);
            }
        }
        let listed = |id: &str| found.iter().any(|info| info.id == id);
        let missing: Vec<String> = self.gpus.keys().filter(|id| !listed(id)).cloned().collect();
        for id in missing {
            if let Some(record) = self.gpus.get_mut(&id) {
                record.missing = true;
            }
            self.probed(&id, &Probe::Bad(MISSING.to_owned()), now);
        }
    }

    /// The index that a GPU keeps while this process lives. NVML counts anew when one is lost, and
    /// then gives another GPU the index of the lost one, which is still listed.
    fn index_of(&self, info: &GpuInfo) -> u32 {
        if let Some(known) = self.gpus.get(&info.id) {
            return known.info.index;
        }
        let is_taken = |index: u32| self.gpus.values().any(|of| of.info.index == index);
        let free = std::iter::once(info.index).chain(0..=u32::MAX).find(|&index| !is_taken(index));
        free.unwrap_or(info.index)
    }

    /// Whether no GPU has been seen yet.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Whether the last list of the backend lacked a GPU that was known before.
    pub fn misses_any(&self) -> bool {
        self.gpus.values().any(|record| record.missing)
    }

    /// Takes in a fault that the GPU's driver reported.
    pub fn faulted(&mut self, id: &str, reason: &str, severity: Severity, now: Duration) {
        let forgive_after = self.damping.forgive_after;
        let Some(record) = self.gpus.get_mut(id) else { return };
        if let Some(fault) = &mut record.fault {
            if severity >= fault.severity {
                reason.clone_into(&mut fault.reason);
                fault.severity = severity;
                fault.proven = false;
            }
            fault.good_since = None;
        } else {
            let healthy_for = now.saturating_sub(record.healthy_since);
            let forgiven = record.faults == 0 || healthy_for >= forgive_after;
            record.faults = if forgiven { 1 } else { record.faults.saturating_add(1) };
            record.fault = Some(Fault {
                reason: reason.to_owned(),
                severity,
                good_since: None,
                proven: false,
            });
        }
    }

    /// Takes in what a probe showed.
    pub fn probed(&mut self, id: &str, probe: &Probe, now: Duration) {
        let proven = match probe {
            Probe::Bad(reason) => return self.faulted(id, reason, Severity::Transient, now),
            Probe::Good => false,
            Probe::Recovered => true,
        };
        let damping = self.damping;
        let Some(record) = self.gpus.get_mut(id) else { return };
        let Some(fault) = &mut record.fault else { return };
        fault.proven |= proven;
        let good_for = now.saturating_sub(*fault.good_since.get_or_insert(now));
        if good_for >= damping.hold_after(record.faults, fault.severity, fault.proven) {
            record.fault = None;
            record.healthy_since = now;
        }
    }

    /// Every GPU ever seen, with its health now.
    pub fn list(&self) -> GpuList {
        let gpus = self.gpus.values().map(|record| Gpu {
            info: record.info.clone(),
            fault: record.fault.as_ref().map(|fault| fault.reason.clone()),
        });
        GpuList::new(gpus.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "GPU-5";

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn health(hold_secs: u64) -> Health {
        let mut health = Health::new(Damping::with_hold(secs(hold_secs)));
        let info =
            GpuInfo { index: 5, id: ID.to_owned(), numa_node: Some(1), device_files: vec![] };
        health.discovered(&[info], secs(0));
        health
    }

    fn bad() -> Probe {
        Probe::Bad("test".to_owned())
    }

    fn is_healthy(health: &Health) -> bool {
        health.list().get(ID).expect("known").healthy()
    }

    #[test]
    fn a_fault_counts_at_once_and_the_way_back_takes_the_hold() {
        let mut health = health(10);
        assert!(is_healthy(&health));
        health.faulted(ID, "xid 62", Severity::Transient, secs(1));
        assert_eq!(health.list().get(ID).expect("known").fault.as_deref(), Some("xid 62"));
        for at in 2..12 {
            health.probed(ID, &Probe::Good, secs(at));
            assert!(!is_healthy(&health), "still held at {at}");
        }
        health.probed(ID, &Probe::Good, secs(12));
        assert!(is_healthy(&health));
    }

    #[test]
    fn a_bad_probe_starts_the_hold_again() {
        let mut health = health(10);
        health.probed(ID, &bad(), secs(0));
        health.probed(ID, &Probe::Good, secs(1));
        health.probed(ID, &bad(), secs(10));
        health.probed(ID, &Probe::Good, secs(11));
        health.probed(ID, &Probe::Good, secs(20));
        assert!(!is_healthy(&health));
        health.probed(ID, &Probe::Good, secs(21));
        assert!(is_healthy(&health));
    }

    #[test]
    fn ten_flips_in_a_minute_show_as_one_and_the_gpu_comes_back() {
        let mut health = health(10);
        let mut flips = 0;
        let mut was = true;
        for at in 0..200 {
            let flipping_bad = at < 60 && at % 6 < 3;
            health.probed(ID, &if flipping_bad { bad() } else { Probe::Good }, secs(at));
            flips += u32::from(was != is_healthy(&health));
            was = is_healthy(&health);
        }
        assert!(was, "back to healthy in the end");
        assert_eq!(flips, 2, "out once, back once");
    }

    #[test]
    fn each_relapse_doubles_the_hold_up_to_the_limit_and_a_long_healthy_span_forgives() {
        let mut health = health(10);
        let mut at = 0;
        let mut holds = vec![];
        for _ in 0..7 {
            health.probed(ID, &bad(), secs(at));
            at += 1;
            let from = at;
            while !is_healthy(&health) {
                health.probed(ID, &Probe::Good, secs(at));
                at += 1;
            }
            holds.push(at - 1 - from);
            at += 1;
        }
        assert_eq!(holds, [10, 20, 40, 80, 160, 300, 300]);
        at += 600;
        health.probed(ID, &bad(), secs(at));
        health.probed(ID, &Probe::Good, secs(at + 1));
        health.probed(ID, &Probe::Good, secs(at + 11));
        assert!(is_healthy(&health), "forgiven: the first hold again");
    }

    #[test]
    fn a_fatal_fault_needs_a_proof_or_a_long_hold() {
        let mut health = health(10);
        health.faulted(ID, "xid 79", Severity::Fatal, secs(0));
        for at in 1..=600 {
            health.probed(ID, &Probe::Good, secs(at));
            assert!(!is_healthy(&health), "no proof at {at}");
        }
        health.probed(ID, &Probe::Good, secs(601));
        assert!(is_healthy(&health));

        health.faulted(ID, "xid 79", Severity::Fatal, secs(2000));
        health.probed(ID, &Probe::Recovered, secs(2001));
        health.probed(ID, &Probe::Good, secs(2011));
        assert!(is_healthy(&health), "the proof counts though later probes do not repeat it");
    }

    #[test]
    fn a_lesser_fault_does_not_hide_a_fatal_one() {
        let mut health = health(10);
        health.faulted(ID, "xid 79", Severity::Fatal, secs(0));
        health.probed(ID, &bad(), secs(1));
        assert_eq!(health.list().get(ID).expect("known").fault.as_deref(), Some("xid 79"));
    }

    #[test]
    fn a_gpu_that_vanishes_stays_listed_as_faulty_and_may_come_back() {
        let mut health = health(10);
        health.discovered(&[], secs(5));
        assert_eq!(health.list().len(), 1);
        assert_eq!(health.list().get(ID).expect("known").fault.as_deref(), Some(MISSING));
        assert!(health.misses_any());
        health.faulted(ID, "xid 79", Severity::Fatal, secs(5));
        let info = health.list().get(ID).expect("known").info.clone();
        health.discovered(&[info], secs(6));
        assert!(!health.misses_any());
        health.probed(ID, &Probe::Good, secs(16));
        assert!(is_healthy(&health), "gone and back is the proof of a reset");
    }

    #[test]
    fn no_two_gpus_have_one_index_when_the_driver_counts_anew() {
        let gpu = |index: u32, id: &str| GpuInfo {
            index,
            id: id.to_owned(),
            numa_node: None,
            device_files: vec![],
        };
        let mut health = Health::new(Damping::with_hold(secs(1)));
        health.discovered(&[gpu(0, "a"), gpu(1, "b"), gpu(2, "c")], secs(0));
        // The first is lost, the others move up, and one is put in its place.
        health.discovered(&[gpu(0, "b"), gpu(1, "c"), gpu(2, "d")], secs(1));
        let index = |id: &str| health.list().get(id).expect("known").info.index;
        assert_eq!(["a", "b", "c", "d"].map(index), [0, 1, 2, 3]);
    }

    #[test]
    fn what_is_not_known_changes_nothing() {
        let mut health = health(10);
        health.faulted("GPU-other", "xid 79", Severity::Fatal, secs(0));
        health.probed("GPU-other", &bad(), secs(0));
        assert_eq!(health.list().len(), 1);
        assert!(is_healthy(&health));
    }
}

//! Cluster side, pure: which XID says what about a GPU.
//!
//! An XID is the number under which NVIDIA's driver reports an error. Most are faults of the GPU
//! or of what connects it; some are the doing of the program that ran on it.

use super::super::health::Severity;

/// What an XID says about the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XidClass {
    /// The program's own doing: the GPU is as good as before.
    Application,
    /// News about another error, which a probe tells more about.
    Notice,
    /// The GPU is at fault.
    Fault(Severity),
}

/// XIDs that a program brings about by itself.
///
/// 13 graphics engine exception, 31 memory page fault, 43 GPU stopped processing, 45 preemptive
/// cleanup after an earlier error, 68 video processor exception, 109 context switch timeout.
/// The list is the one that NVIDIA's own device plugin ignores (`internal/rm/health.go` of
/// NVIDIA/k8s-device-plugin, which refers to the chapter on application errors of NVIDIA's XID
/// document); the XID catalog, docs.nvidia.com/deploy/xid-errors, says to restart the application
/// for them.
const APPLICATION: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// XIDs that announce something which the driver then answers when asked: 63 a row is marked for
/// remapping, 154 the recovery action has changed. A probe reads both.
const NOTICE: [u64; 2] = [63, 154];

/// XIDs after which the GPU is of no use until it has been reset: 48 double-bit memory error, 64
/// row remapping failed, 74 `NVLink` error, 79 the GPU has fallen off the bus, 95 uncontained
/// memory error, 119 and 120 the GPU's own system processor does not answer or failed, 140
/// unrecovered memory error, 143 the GPU could not be initialised. From the same catalog.
const FATAL: [u64; 9] = [48, 64, 74, 79, 95, 119, 120, 140, 143];

/// Says what an XID means for the GPU. One that is in no list counts as a fault that may pass:
/// taking a good GPU out for some seconds costs less than placing work on a bad one.
pub(super) fn classify(xid: u64) -> XidClass {
    if APPLICATION.contains(&xid) {
        XidClass::Application
    } else if NOTICE.contains(&xid) {
        XidClass::Notice
    } else if FATAL.contains(&xid) {
        XidClass::Fault(Severity::Fatal)
    } else {
        XidClass::Fault(Severity::Transient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_own_errors_are_no_fault_of_the_gpu() {
        for xid in [13, 31, 43, 45, 68, 109] {
            assert_eq!(classify(xid), XidClass::Application, "xid {xid}");
        }
    }

    #[test]
    fn the_lists_do_not_overlap() {
        let mut all: Vec<u64> = APPLICATION.iter().chain(&NOTICE).chain(&FATAL).copied().collect();
        let total = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), total);
    }

    #[test]
    fn an_unknown_xid_is_a_fault() {
        assert_eq!(classify(79), XidClass::Fault(Severity::Fatal));
        assert_eq!(classify(62), XidClass::Fault(Severity::Transient));
        assert_eq!(classify(4_000_000), XidClass::Fault(Severity::Transient));
        assert_eq!(classify(154), XidClass::Notice);
    }
}

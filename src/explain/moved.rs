//! Pure: a later start that a waiting pod was told, in words, with what moved it.

use super::Words;
use crate::policy::{BoundMoved, Cause};

/// The reason for programs.
pub const REASON: &str = "LatestStartMoved";

/// What the pod is told now, what it was told before, and why.
pub fn moved(moved: &BoundMoved, words: &Words<'_>) -> String {
    let before = words.at(moved.from);
    let now = match moved.to {
        Some(to) => format!("The pod starts by {} at the latest, not by {before}", words.at(to)),
        None => format!("The pod was told to start by {before}, which no longer holds"),
    };
    format!("{now}: {}.", because(moved, words))
}

fn because(moved: &BoundMoved, words: &Words<'_>) -> String {
    match moved.cause {
        Cause::ServedFirst(job) => format!("{} came later and is served first", words.pod(job)),
        Cause::CameBack(job, reason) if job == moved.job => {
            format!("its reservation was taken back ({reason:?})")
        }
        Cause::CameBack(job, reason) => {
            let pod = words.pod(job);
            format!("the reservation of {pod}, which is served first, was taken back ({reason:?})")
        }
        Cause::NodeGone(node) => format!("node {} is gone", words.node(node)),
        Cause::NodeUnfit(node) => {
            format!("node {} lost a GPU or takes no new work", words.node(node))
        }
        Cause::ServableAgain(job) => format!(
            "{}, which is served first and fits some nodes only, can be served now",
            words.pod(job)
        ),
        Cause::NodeBack(node) => format!("node {} takes new work now", words.node(node)),
        Cause::Foreign(job) => {
            format!("{} holds GPUs and did not go through Sluice", words.pod(job))
        }
        Cause::Overran(job) => format!("{} holds GPUs beyond its limit", words.pod(job)),
        Cause::Unlimited(job) => format!("{} has no activeDeadlineSeconds", words.pod(job)),
        Cause::Longer(job) => {
            format!("{} may hold GPUs for longer than the pool allows", words.pod(job))
        }
        Cause::Quota(tenant) => match words.names.tenant(tenant) {
            Some(namespace) => format!("the quota of namespace {namespace} may hold it back"),
            None => "the quota of its namespace may hold it back".to_owned(),
        },
        Cause::Changed => "what is known of the pod itself changed".to_owned(),
        Cause::Restarted => {
            "the leader began anew from the ledgers, and counts from now".to_owned()
        }
        Cause::Settings => "the pool's settings changed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::NameTable;
    use crate::explain::names::utc;
    use crate::policy::{JobId, Millis, NodeId, TenantId, UnreserveReason};

    #[test]
    fn a_later_start_is_told_with_what_moved_it() {
        let (a, b, node) = (JobId(1), JobId(2), NodeId(0));
        let names = NameTable {
            pods: [(a, "team/a".to_owned()), (b, "team/b".to_owned())].into(),
            nodes: [(node, "n".to_owned())].into(),
            namespaces: [(TenantId(0), "team".to_owned())].into(),
        };
        let words = Words { names: &names, time: utc };
        let said = |cause: Cause, to: Option<Millis>| {
            moved(&BoundMoved { job: b, from: Millis::from_secs(60), to, cause }, &words)
        };
        assert_eq!(
            said(Cause::ServedFirst(a), Some(Millis::from_secs(120))),
            "The pod starts by 1970-01-01 00:02:00 UTC at the latest, not by 1970-01-01 00:01:00 \
             UTC: team/a came later and is served first."
        );
        for (cause, because) in [
            (Cause::CameBack(b, UnreserveReason::Expired), "its reservation was taken back"),
            (Cause::CameBack(a, UnreserveReason::Expired), "the reservation of team/a, which is"),
            (Cause::NodeGone(node), "node n is gone."),
            (Cause::NodeUnfit(node), "node n lost a GPU or takes no new work."),
            (
                Cause::ServableAgain(a),
                "team/a, which is served first and fits some nodes only, can be served now.",
            ),
            (Cause::NodeBack(node), "node n takes new work now."),
            (Cause::Foreign(a), "team/a holds GPUs and did not go through Sluice."),
            (Cause::Overran(a), "team/a holds GPUs beyond its limit."),
            (Cause::Unlimited(a), "team/a has no activeDeadlineSeconds."),
            (Cause::Unlimited(JobId(999)), "a pod that is gone has no activeDeadlineSeconds."),
            (Cause::Longer(a), "team/a may hold GPUs for longer than the pool allows."),
            (Cause::Quota(TenantId(0)), "the quota of namespace team may hold it back."),
            (Cause::Quota(TenantId(9)), "the quota of its namespace may hold it back."),
            (Cause::Changed, "what is known of the pod itself changed."),
            (Cause::Restarted, "the leader began anew from the ledgers, and counts from now."),
            (Cause::Settings, "the pool's settings changed."),
        ] {
            let message = said(cause, None);
            assert!(message.contains(because), "{cause:?}: {message}");
            assert!(message.contains("which no longer holds"), "{message}");
        }
    }
}

//! Pure: who the policy's numbers stand for, and how times and lists are said.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::policy::{GpuSet, JobId, Millis, NodeId, TenantId};

/// Jobs that are named one by one in a sentence; of more the rest is counted.
const NAMED_MAX: usize = 4;
/// The last second of the year 9999: later than that is for ever.
const LAST_MS: u64 = 253_402_300_799_000;

/// Whoever knows the names.
pub trait Names {
    /// A pod by its job, as `namespace/name`.
    fn job(&self, job: JobId) -> Option<String>;
    /// A node.
    fn node(&self, node: NodeId) -> Option<String>;
    /// A namespace by its tenant.
    fn tenant(&self, tenant: TenantId) -> Option<String>;
}

/// Names written down.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(default, deny_unknown_fields)]
pub struct NameTable {
    /// Pods, as `namespace/name`, by job.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pods: BTreeMap<JobId, String>,
    /// Nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<NodeId, String>,
    /// Namespaces, by tenant.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub namespaces: BTreeMap<TenantId, String>,
}

impl NameTable {
    /// Whether it names nobody.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.nodes.is_empty() && self.namespaces.is_empty()
    }

    /// Takes in what another knows; where both know, the other is right.
    pub fn learn(&mut self, other: &Self) {
        self.pods.extend(other.pods.iter().map(|(&job, name)| (job, name.clone())));
        self.nodes.extend(other.nodes.iter().map(|(&node, name)| (node, name.clone())));
        self.namespaces.extend(other.namespaces.iter().map(|(&id, name)| (id, name.clone())));
    }

    /// The pods with this name. A namespace may hold one name more than once in the course of time.
    pub fn jobs_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = JobId> + 'a {
        self.pods.iter().filter(move |(_, known)| *known == name).map(|(&job, _)| job)
    }
}

impl Names for NameTable {
    fn job(&self, job: JobId) -> Option<String> {
        self.pods.get(&job).cloned()
    }

    fn node(&self, node: NodeId) -> Option<String> {
        self.nodes.get(&node).cloned()
    }

    fn tenant(&self, tenant: TenantId) -> Option<String> {
        self.namespaces.get(&tenant).cloned()
    }
}

/// Names and times as they are said.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// The names.
    pub names: &'a dyn Names,
    /// A point in time in words.
    pub time: fn(Millis) -> String,
}

impl Words<'_> {
    /// A pod.
    pub fn pod(&self, job: JobId) -> String {
        self.names.job(job).unwrap_or_else(|| "a pod that is gone".to_owned())
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> String {
        self.names.node(node).unwrap_or_else(|| "a node that is gone".to_owned())
    }

    /// A namespace.
    pub fn namespace(&self, tenant: TenantId) -> String {
        self.names.tenant(tenant).unwrap_or_else(|| "of the pod".to_owned())
    }

    /// A point in time.
    pub fn at(&self, time: Millis) -> String {
        (self.time)(time)
    }

    /// Pods one after the other: all of few, of many the first ones and how many others.
    pub fn pods(&self, jobs: impl IntoIterator<Item = JobId>) -> String {
        let jobs: Vec<JobId> = jobs.into_iter().collect();
        let named: Vec<String> = jobs.iter().take(NAMED_MAX).map(|&job| self.pod(job)).collect();
        list(&named, jobs.len())
    }

    /// Pods as the subject of a verb, in the form that one of them or many take.
    pub fn subject(&self, jobs: &[JobId], one: &str, many: &str) -> String {
        let verb = if jobs.len() == 1 { one } else { many };
        format!("{} {verb}", self.pods(jobs.iter().copied()))
    }
}

/// `a`, `a and b`, `a, b and c`, or the first few of `all` and how many others.
pub fn list(named: &[String], all: usize) -> String {
    let shown = &named[..named.len().min(NAMED_MAX)];
    let rest = all.saturating_sub(shown.len());
    if rest > 0 {
        let others = if rest == 1 { "1 other".to_owned() } else { format!("{rest} others") };
        return format!("{} and {others}", shown.join(", "));
    }
    match shown.split_last() {
        None => "no pod".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
    }
}

/// `GPU 3`, `GPUs 0, 1`.
pub fn gpus(gpus: GpuSet) -> String {
    let indexes: Vec<String> = gpus.iter().map(|index| index.to_string()).collect();
    let noun = if gpus.count() == 1 { "GPU" } else { "GPUs" };
    format!("{noun} {}", indexes.join(", "))
}

/// A count with its noun: `no pods`, `1 pod`, `2 pods`.
pub fn counted(count: u32, one: &str, many: &str) -> String {
    match count {
        0 => format!("no {many}"),
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    }
}

/// A point in time in UTC, rounded up to the second, as an end is.
pub fn utc(at: Millis) -> String {
    crate::timeline::utc(at.0.div_ceil(1_000).saturating_mul(1_000).min(LAST_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_counted() {
        let table = NameTable {
            pods: (1..=6).map(|n| (JobId(n), format!("team/{n}"))).collect(),
            ..NameTable::default()
        };
        let words = Words { names: &table, time: utc };
        let say = |count: u64| words.pods((1..=count).map(JobId));
        assert_eq!(say(0), "no pod");
        assert_eq!(say(1), "team/1");
        assert_eq!(say(2), "team/1 and team/2");
        assert_eq!(say(4), "team/1, team/2, team/3 and team/4");
        assert_eq!(say(5), "team/1, team/2, team/3, team/4 and 1 other");
        assert_eq!(say(6), "team/1, team/2, team/3, team/4 and 2 others");
        assert_eq!(words.pod(JobId(9)), "a pod that is gone");
        assert_eq!(words.subject(&[JobId(1)], "holds", "hold"), "team/1 holds");
    }

    #[test]
    fn an_end_is_rounded_up_and_never_has_a_year_of_six_digits() {
        assert_eq!(utc(Millis(1_700_000_000_001)), "2023-11-14 22:13:21 UTC");
        assert_eq!(utc(Millis(u64::MAX)), "9999-12-31 23:59:59 UTC");
    }

    #[test]
    fn the_later_name_counts() {
        let named = |name: &str| NameTable {
            pods: [(JobId(1), name.to_owned())].into(),
            ..NameTable::default()
        };
        let mut table = named("a/x");
        table.learn(&named("a/y"));
        assert_eq!(table, named("a/y"));
        assert_eq!(table.jobs_named("a/y").collect::<Vec<_>>(), [JobId(1)]);
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(text, r#"{"pods":{"1":"a/y"}}"#);
        assert_eq!(serde_json::from_str::<NameTable>(&text).unwrap(), table);
    }
}

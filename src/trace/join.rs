//! Pure side: a job list with the history that the live scheduler left of it. The list tells what
//! was wanted (priorities, deadlines, estimates, services), the records what happened.

use std::collections::BTreeMap;

use super::{DAY_MS, Fault, Faults, Outcome, Workload};

/// Gives the jobs of a list what the records of their pods tell. A pod is found by its whole name,
/// or by its name without the namespace where only one pod bears it.
///
/// Without dates the list's midnight is that of the records' first day (UTC).
pub(super) fn join(list: &mut Workload, records: Workload, file: &str, faults: &mut Faults) {
    let shift = |ms: u64| match (list.origin_ms, records.origin_ms) {
        (Some(list), Some(records)) => (ms + records).checked_sub(list),
        _ => Some(ms),
    };
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, pod) in records.jobs.iter().enumerate() {
        by_name.entry(&pod.id).or_default().push(at);
        if let Some((_, bare)) = pod.id.split_once('/') {
            by_name.entry(bare).or_default().push(at);
        }
    }
    let mut used = vec![false; records.jobs.len()];
    let mut remarks: Vec<Fault> = Vec::new();
    let remark = |found: String, allowed: &str| Fault {
        file: file.to_owned(),
        line: 0,
        column: "pod".to_owned(),
        found,
        allowed: allowed.to_owned(),
    };
    for job in &mut list.jobs {
        let Some(found) = by_name.get(job.id.as_str()) else {
            remarks.push(remark(format!("no pod {}", job.id), "one: it is taken not to have run"));
            job.actual.outcome = Some(Outcome::Cancelled);
            continue;
        };
        let &[at] = &found[..] else {
            faults.add(file, 0, "pod", format!("{} pods {}", found.len(), job.id), "one");
            continue;
        };
        used[at] = true;
        let pod = &records.jobs[at];
        let times = (shift(pod.arrival_ms), pod.actual.start_ms.map(shift));
        let (Some(arrival_ms), None | Some(Some(_))) = times else {
            let found = format!("{}, which is before the list's first day", pod.id);
            faults.add(file, 0, "time_ms", found, "the days of the list");
            continue;
        };
        job.arrival_ms = arrival_ms;
        job.actual = pod.actual.clone();
        job.actual.start_ms = pod.actual.start_ms.and_then(shift);
        job.actual.end_ms = pod.actual.end_ms.and_then(shift);
    }
    for (pod, _) in records.jobs.iter().zip(&used).filter(|(_, used)| !**used) {
        let Some(arrival_ms) = shift(pod.arrival_ms) else { continue };
        let allowed = "a job of the list: it is taken as one of priority 1";
        remarks.push(remark(pod.id.clone(), allowed));
        let mut job = pod.clone();
        job.arrival_ms = arrival_ms;
        job.priority = 1;
        job.actual.start_ms = pod.actual.start_ms.and_then(shift);
        job.actual.end_ms = pod.actual.end_ms.and_then(shift);
        list.jobs.push(job);
    }
    list.end_ms = records.end_ms.and_then(shift);
    list.nodes = records.nodes;
    list.columns.extend(records.columns);
    list.remarks.extend(remarks);
    list.origin_ms = list.origin_ms.or(records.origin_ms.map(|ms| ms / DAY_MS * DAY_MS));
}

//! Pure side: the Standard Workload Format of the Parallel Workloads Archive.
//!
//! 18 fields separated by blanks, `;` before a comment, -1 for what is unknown. Used are: 1 job,
//! 2 submit time, 3 wait time, 4 run time, 5 allocated processors, 8 requested processors,
//! 9 requested time, 11 status, 12 user, 15 queue. A processor is taken for a GPU.

use std::collections::{BTreeMap, BTreeSet};

use super::{Actual, Column, Faults, Format, Job, Outcome, Source, Workload};

const FIELDS: usize = 18;

/// Whether a line is one job of this format.
pub(super) fn looks_like(line: &str) -> bool {
    let numbers = line.split_ascii_whitespace().map(str::parse::<f64>);
    let (good, all) =
        numbers.fold((0, 0), |(good, all), n| (good + usize::from(n.is_ok()), all + 1));
    good == FIELDS && all == FIELDS
}

/// Reads such a list.
pub(super) fn read(source: Source<'_>, faults: &mut Faults) -> Workload {
    let mut columns = BTreeSet::from([Column::ExpectedDuration]);
    let (mut jobs, mut left_out) = (Vec::new(), Faults::default());
    let mut seen = BTreeMap::new();
    for (line, text) in (1..).zip(source.content.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with(';') {
            continue;
        }
        if let Some(job) = job(source.name, line, text, faults, &mut left_out) {
            if let Some(first) = seen.insert(job.id.clone(), line) {
                let found = format!("{} again (before in line {first})", job.id);
                faults.add(source.name, line, "1 (job)", found, "each job once");
            }
            columns.extend(job.actual.start_ms.map(|_| Column::ActualStart));
            columns.extend(job.actual.end_ms.map(|_| Column::ActualEnd));
            columns.extend(job.actual.outcome.map(|_| Column::Outcome));
            columns.extend(job.user.as_ref().map(|_| Column::User));
            jobs.push(job);
        }
    }
    Workload { format: Format::Swf, jobs, columns, remarks: left_out.0, ..Workload::default() }
}

/// One job. What was submitted and never ran, and what nobody knows the size of, is as archives
/// have it and cannot be scheduled: it is left out, and told.
fn job(
    file: &str,
    line: u64,
    text: &str,
    faults: &mut Faults,
    left_out: &mut Faults,
) -> Option<Job> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    if fields.len() != FIELDS {
        let found = format!("{} fields", fields.len());
        faults.add(file, line, "", found, "18 fields separated by blanks");
        return None;
    }
    let mut number = |at: usize, name: &str| {
        // Seconds up to the longest span, which is more than there are processors.
        let value = fields[at - 1].parse::<f64>().ok().filter(|v| (-1.0..=8.64e8).contains(v));
        if value.is_none() {
            let found = format!("{:?}", fields[at - 1]);
            faults.add(file, line, name, found, "a number, or -1 for unknown");
        }
        value
    };
    let submit = number(2, "2 (submit time)");
    let wait = number(3, "3 (wait time)");
    let run = number(4, "4 (run time)");
    let allocated = number(5, "5 (allocated processors)");
    let asked = number(8, "8 (requested processors)");
    let asked_time = number(9, "9 (requested time)");
    let status = number(11, "11 (status)");
    let (submit, run, wait) = (known_ms(submit?), known_ms(run?), known_ms(wait?));
    let (allocated, asked, asked_time) = (allocated?, asked?, known_ms(asked_time?));
    let Some(arrival_ms) = submit else {
        faults.add(file, line, "2 (submit time)", "unknown", "a number of seconds");
        return None;
    };
    let gpus = whole(if asked > 0.0 { asked } else { allocated });
    let Some(gpus) = gpus.filter(|&gpus| gpus > 0) else {
        let column = "5 and 8 (processors)";
        left_out.add(
            file,
            line,
            column,
            "no number of processors, so the row is left out",
            "1 or more in one of them",
        );
        return None;
    };
    let Some(expected_ms) = asked_time.or(run).filter(|&ms| ms > 0) else {
        let column = "4 and 9 (run time, requested time)";
        left_out.add(
            file,
            line,
            column,
            "neither, so the row is left out",
            "a number of seconds above 0 in one of them",
        );
        return None;
    };
    let start_ms = wait.map(|wait| arrival_ms + wait);
    let outcome = match status?.round() {
        1.0 => Some(Outcome::Completed),
        0.0 => Some(Outcome::Failed),
        5.0 => Some(Outcome::Cancelled),
        _ => None,
    };
    let named = |at: usize| Some(fields[at - 1].to_owned()).filter(|text| text != "-1");
    Some(Job {
        id: fields[0].to_owned(),
        kind: named(15).map_or_else(|| "batch".to_owned(), |queue| format!("queue-{queue}")),
        user: named(12),
        priority: 1,
        arrival_ms,
        deadline_ms: None,
        min_gpus: gpus,
        max_gpus: gpus,
        expected_ms,
        actual: Actual {
            start_ms,
            end_ms: start_ms.zip(run).map(|(start, run)| start + run),
            node: 0,
            gpus: Vec::new(),
            outcome,
        },
        line,
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "range is checked")]
fn known_ms(seconds: f64) -> Option<u64> {
    (seconds >= 0.0).then(|| (seconds * 1000.0).round() as u64)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "range is checked")]
fn whole(value: f64) -> Option<u32> {
    (0.0..=f64::from(super::GPUS_MAX)).contains(&value).then(|| value.round() as u32)
}

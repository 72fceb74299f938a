//! Pure side: `sluice plan` prints a schedule itself, as CSV or JSON, with the reason of each start.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::ladder::{Ladder, refuse_breaches};
use super::work::{pretty, print, write};
use crate::plan::compare::{Entry, Name};
use crate::plan::metrics::in_time;
use crate::plan::report::Report;
use crate::policy::GpuSet;
use crate::trace::{clock_time, parse_clock};

/// Arguments of `sluice plan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    ladder: Ladder,
    /// Policies whose schedules to print.
    #[arg(long, value_delimiter = ',', value_name = "NAME", default_value = "plan-offline")]
    policy: Vec<Name>,
    /// Plan from this time on. Jobs with an earlier `actual_start` that have not ended are inherited
    /// on their `gpu_ids`; those that have ended are left out.
    #[arg(long, value_name = "TIME", value_parser = clock)]
    now: Option<u64>,
    /// Write to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Prints the schedules.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let now_ms = args.now.unwrap_or_default();
    let report = args.ladder.play(&args.policy, now_ms)?;
    let text = if args.ladder.json { pretty(&report.json()?)? } else { csv(&report) };
    match &args.out {
        Some(path) => write(Some(path), || text)?,
        None => print(&text)?,
    }
    refuse_breaches(&report)
}

/// One line per job, in order of start; jobs without a start come last, with the reason.
fn csv(report: &Report) -> String {
    let mut out = "policy,job_id,priority,gpus,start,end,in_time,reason,useful_work,\
                   realtime_shortfall,churn,fragmentation,deadline_risk,staleness_risk,score\n"
        .to_owned();
    for entry in &report.entries {
        started(&mut out, report, entry);
        waiting(&mut out, report, entry);
    }
    out
}

fn started(out: &mut String, report: &Report, entry: &Entry) {
    let problem = &report.problem;
    for run in &entry.schedule.runs {
        let job = &problem.jobs[run.job];
        let why = entry.explanations.iter().find(|why| why.job == run.job);
        let reason = if problem.inherited.contains(run) {
            "inherited".to_owned()
        } else {
            why.map_or_else(|| entry.name.to_string(), |why| why.reason.to_string())
        };
        let score = why.map_or_else(
            || ",,,,,,".to_owned(),
            |why| {
                let s = why.score;
                format!(
                    "{},{},{},{},{},{},{}",
                    s.useful_work,
                    s.realtime_shortfall,
                    s.churn,
                    s.fragmentation,
                    s.deadline_risk,
                    s.staleness_risk,
                    s.total()
                )
            },
        );
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{},{reason},{score}",
            entry.name,
            quoted(&job.name),
            job.priority,
            span(run.gpus),
            clock_time(run.start_ms + report.begin_ms),
            clock_time(run.end_ms + report.begin_ms),
            if in_time(problem, run) { "yes" } else { "no" },
        );
    }
}

fn waiting(out: &mut String, report: &Report, entry: &Entry) {
    let jobs = &report.problem.jobs;
    let mut started = vec![false; jobs.len()];
    for run in &entry.schedule.runs {
        started[run.job] = true;
    }
    for (at, job) in jobs.iter().enumerate().filter(|(at, _)| !started[*at]) {
        let rejected = entry.schedule.rejected.contains(&at);
        let reason = if rejected { "can-never-fit" } else { "no-room" };
        let _ = writeln!(
            out,
            "{},{},{},,,,no,{reason},,,,,,,",
            entry.name,
            quoted(&job.name),
            job.priority
        );
    }
}

/// `0-3` for neighbours, `0;2` otherwise.
fn span(gpus: GpuSet) -> String {
    let ids: Vec<u32> = gpus.iter().collect();
    match (ids.first(), ids.last()) {
        (Some(first), Some(last)) if ids.len() > 1 && gpus.count() == last - first + 1 => {
            format!("{first}-{last}")
        }
        _ => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(";"),
    }
}

/// A name that may hold a comma or a quote.
fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}

fn clock(text: &str) -> Result<u64, String> {
    parse_clock(text).ok_or_else(|| "expected a time such as 09:00 or D+1 08:00".to_owned())
}

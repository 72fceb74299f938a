//! Pure side: the five questions about a day that is over, answered from what was recorded.
//!
//! An answer names its figures and the jobs. Where the record lacks what an answer rests on, it
//! says which column is needed instead of guessing.

mod estimates;
mod fragments;
mod history;
mod inversions;
mod offpeak;
mod peaks;

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::compare::{Effort, Entry};
use crate::sim::Problem;
use crate::trace::{Actual, Column, Workload};
use history::History;

/// One question with its answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Answer {
    /// The question.
    pub question: &'static str,
    /// What the record lacks; empty where the question is answered.
    pub needs: Vec<String>,
    /// The answer in a sentence.
    pub summary: String,
    /// What it rests on, most important first.
    pub details: Vec<String>,
    /// The same for programs.
    pub figures: Value,
}

impl Answer {
    fn cannot(question: &'static str, needs: Vec<String>) -> Self {
        let summary = format!("cannot be answered: needs {}", needs.join(", "));
        Self { question, needs, summary, details: Vec::new(), figures: Value::Null }
    }
}

/// Lines of detail shown to people for one answer; programs get all.
const DETAILS_SHOWN: usize = 10;

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n  {}", self.question, self.summary)?;
        for line in self.details.iter().take(DETAILS_SHOWN) {
            writeln!(f, "    {line}")?;
        }
        match self.details.len().saturating_sub(DETAILS_SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "    … and {more} more (--json has all)"),
        }
    }
}

/// Answers all five, on a node of so many GPUs.
pub fn review(workload: &Workload, gpus: u32, effort: &Effort) -> Vec<Answer> {
    let history = History::new(workload, gpus);
    vec![
        peaks::answer(&history),
        fragments::answer(&history),
        inversions::answer(&history),
        offpeak::answer(&history),
        estimates::answer(workload, gpus, effort),
    ]
}

/// Takes what a policy would have done for what happened.
pub fn as_history(workload: &Workload, entry: &Entry, problem: &Problem) -> Workload {
    let mut workload = workload.clone();
    for job in &mut workload.jobs {
        let run = entry.schedule.runs.iter().find(|run| problem.jobs[run.job].name == job.id);
        job.actual = run.map_or_else(Actual::default, |run| Actual {
            start_ms: Some(run.start_ms),
            end_ms: Some(run.end_ms),
            gpus: run.gpus.iter().collect(),
            outcome: None,
        });
    }
    if entry.name.reserves_peak() {
        // Peaks are kept at the upper end of the line.
        let mut top = problem.gpus;
        for service in &mut workload.services {
            let known = problem.services.iter().find(|known| known.name == service.id);
            let low = top.saturating_sub(known.map_or(0, |known| known.peak));
            service.reserved = (low..top).collect();
            top = low;
        }
    }
    workload.columns.extend([Column::ActualStart, Column::ActualEnd, Column::GpuIds]);
    workload
}

/// Columns that are missing, as an answer names them.
fn missing(workload: &Workload, columns: &[Column]) -> Vec<String> {
    let missing = columns.iter().filter(|column| !workload.columns.contains(column));
    missing.map(|column| format!("column {}", column.name())).collect()
}

fn hours(ms: u64) -> String {
    format!("{:.1} h", super::metrics::hours(ms))
}

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

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::compare::{Effort, Entry};
use crate::sim::{Problem, Run};
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

/// The answers, and what makes them doubtful.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Review {
    /// All five.
    pub answers: Vec<Answer>,
    /// What the record says and cannot have been.
    pub contradictions: Vec<String>,
}

/// Answers all five, on nodes of so many GPUs.
pub fn review(workload: &Workload, gpus: u32, nodes: usize, effort: &Effort) -> Review {
    let history = History::new(workload, gpus, nodes);
    let answers = vec![
        peaks::answer(&history),
        fragments::answer(&history),
        inversions::answer(&history),
        offpeak::answer(&history),
        estimates::answer(&history, effort),
    ];
    Review { answers, contradictions: history.contradictions() }
}

impl fmt::Display for Review {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let many @ 1.. = self.contradictions.len() {
            let times = if many == 1 { "once".to_owned() } else { format!("{many} times") };
            writeln!(f, "the record contradicts itself {times}; take the answers with care:")?;
            for line in self.contradictions.iter().take(DETAILS_SHOWN) {
                writeln!(f, "  {line}")?;
            }
            writeln!(f)?;
        }
        let texts: Vec<String> = self.answers.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("\n"))
    }
}

/// Takes what a policy would have done, from a moment on, for what happened.
pub fn as_history(
    workload: &Workload,
    entry: &Entry,
    problem: &Problem,
    begin_ms: u64,
) -> Workload {
    let mut workload = workload.clone();
    let runs: BTreeMap<&str, &Run> =
        entry.schedule.runs.iter().map(|run| (problem.jobs[run.job].name.as_str(), run)).collect();
    for job in &mut workload.jobs {
        let run = runs.get(job.id.as_str());
        job.actual = run.map_or_else(Actual::default, |run| Actual {
            start_ms: Some(run.start_ms + begin_ms),
            end_ms: Some(run.end_ms + begin_ms),
            node: run.node,
            gpus: run.gpus.iter().collect(),
            outcome: None,
        });
    }
    // Peaks are kept at the upper end of the line; without them nothing is.
    let mut top = problem.gpus;
    for service in &mut workload.services {
        let known = problem.services.iter().find(|known| known.name == service.id);
        let peak = known.filter(|_| entry.name.reserves_peak()).map_or(0, |known| known.peak);
        let low = top.saturating_sub(peak);
        service.reserved = Some((low..top).collect());
        top = low;
    }
    workload.end_ms = Some(problem.horizon_ms + begin_ms);
    workload.columns.extend([Column::ActualStart, Column::ActualEnd, Column::GpuIds]);
    workload
}

/// What is lacking, as an answer names it: columns that nobody fills, and GPUs that are not told of
/// each job that ran.
fn lacking(history: &History<'_>, columns: &[Column]) -> Vec<String> {
    let known = &history.workload.columns;
    let absent = columns.iter().filter(|column| !known.contains(column));
    let mut needs: Vec<String> = absent.map(|column| format!("column {}", column.name())).collect();
    if columns.contains(&Column::GpuIds) && known.contains(&Column::GpuIds) {
        let without: Vec<&str> = history
            .runs
            .iter()
            .filter(|run| run.gpus.is_empty() && run.start_ms < run.end_ms)
            .map(|run| run.job.id.as_str())
            .collect();
        if let Some(first) = without.first() {
            needs.push(format!(
                "column gpu_ids of each job that ran ({} are without, such as {first})",
                without.len()
            ));
        }
    }
    needs
}

fn hours(ms: u64) -> String {
    format!("{:.1} h", super::metrics::hours(ms))
}

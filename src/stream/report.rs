//! Pure side: figures of all contenders, for programs and for people.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::measure::{Figures, Measured, Waits};
use super::short;
use crate::plan::metrics::to_f64;
use crate::sim::Problem;

/// What all contenders made of one stream.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The stream, as it is written.
    pub stream: String,
    /// The seed, where it was drawn.
    pub seed: Option<u64>,
    /// Limits that contenders know unless they say otherwise.
    pub limits: String,
    /// The jobs.
    pub problem: Problem,
    /// Jobs of the list that are of neither shape, or services.
    pub left_out: usize,
    /// What came of it.
    pub entries: Vec<Measured>,
}

/// The stream in numbers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Totals {
    jobs: usize,
    smalls: usize,
    wide_smalls: usize,
    whole_node_larges: usize,
    left_out: usize,
    /// Until the last arrival.
    span_ms: u64,
    /// GPU-time that the jobs need by what the nodes have until then.
    load: f64,
    /// Share of the GPU-time that larges need.
    large_work: f64,
}

impl Report {
    fn totals(&self) -> Totals {
        let problem = &self.problem;
        let gpu_ms = |large: bool| -> f64 {
            let jobs = problem.jobs.iter().filter(|job| (job.width == problem.gpus) == large);
            // A sum of nothing begins with the negative zero.
            jobs.fold(0.0, |sum, job| sum + to_f64(job.run_ms) * f64::from(job.width))
        };
        let (small, large) = (gpu_ms(false), gpu_ms(true));
        let span_ms = problem.jobs.last().map_or(0, |job| job.arrival_ms);
        let nodes = to_f64(u64::try_from(problem.nodes).unwrap_or(u64::MAX));
        let all = f64::from(problem.gpus) * nodes * to_f64(span_ms.max(1));
        let count = |width: u32| problem.jobs.iter().filter(|job| job.width == width).count();
        let (smalls, larges) = (count(1), count(problem.gpus));
        Totals {
            jobs: problem.jobs.len(),
            smalls,
            wide_smalls: problem.jobs.len() - smalls - larges,
            whole_node_larges: larges,
            left_out: self.left_out,
            span_ms,
            load: (small + large) / all,
            large_work: large / (small + large).max(1.0),
        }
    }

    /// One line about the stream.
    pub fn headline(&self) -> String {
        let totals = self.totals();
        let problem = &self.problem;
        let plural = if problem.nodes == 1 { "" } else { "s" };
        let wide = match totals.wide_smalls {
            0 => String::new(),
            wide => format!(", {wide} wide-small"),
        };
        format!(
            "{} small{wide} and {} whole-node-large jobs over {} on {} node{plural} of {} GPUs: \
             load {:.2}, {:.0} % of it larges",
            totals.smalls,
            totals.whole_node_larges,
            short(totals.span_ms),
            problem.nodes,
            problem.gpus,
            totals.load,
            totals.large_work * 100.0,
        )
    }

    /// For programs; the fields are those of docs/simulator.md.
    pub fn json(&self) -> Result<Value, serde_json::Error> {
        let figures: Vec<&Figures> = self.entries.iter().map(|entry| &entry.figures).collect();
        Ok(json!({
            "version": 1,
            "stream": self.stream,
            "seed": self.seed,
            "limits": self.limits,
            "gpus": self.problem.gpus,
            "nodes": self.problem.nodes,
            "work": self.totals(),
            "contenders": serde_json::to_value(figures)?,
        }))
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let seed = self.seed.map_or_else(String::new, |seed| format!("; seed {seed}"));
        let _ = writeln!(out, "{}", self.headline());
        let _ = writeln!(out, "{}; limits {}{seed}", self.stream, self.limits);
        if self.left_out > 0 {
            let _ = writeln!(out, "{} jobs of other widths are left out", self.left_out);
        }
        let (unit_ms, unit) = self.unit();
        let names = self.entries.iter().map(|entry| entry.figures.name.chars().count());
        let width = names.max().unwrap_or(0).max(9);
        let _ = writeln!(
            out,
            "\n{:width$}  {:5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>7} {:>6} {:>6}",
            "scheduler",
            "shape",
            format!("mean {unit}"),
            "median",
            "95 %",
            "99 %",
            "longest",
            "starved",
            "of bound",
            "over it",
            "used",
            "held",
        );
        for entry in &self.entries {
            let figures = &entry.figures;
            let shares = format!(
                "{:>5.1}% {:>5.1}%",
                figures.utilisation * 100.0,
                figures.held_idle * 100.0
            );
            let small = (figures.name.as_str(), "small", Some(&figures.small), shares.as_str());
            let wide = ("", "wide", figures.wide_small.as_ref(), "");
            let large = ("", "large", Some(&figures.whole_node_large), "");
            for (name, shape, waits, shares) in [small, wide, large] {
                let Some(waits) = waits else { continue };
                let row = row(waits, unit_ms);
                let line = format!("{name:width$}  {shape:5} {row} {shares}");
                let _ = writeln!(out, "{}", line.trim_end());
            }
        }
        self.notes(&mut out);
        out
    }

    fn notes(&self, out: &mut String) {
        let after = self.entries.first().map_or(0, |entry| entry.figures.starved_after_ms);
        let _ = writeln!(
            out,
            "\nstarved: waited longer than {}. of bound: the longest wait as a share of what the job \
             was promised as it\narrived; schedulers that promise nothing are held to the plain \
             rule's figure at the same place.\nused: GPU-time in which a job ran; held: in which a \
             GPU was free and kept for a large; until the last arrival.",
            short(after)
        );
    }

    /// A unit in which usual waits have few digits.
    fn unit(&self) -> (f64, &'static str) {
        let runs = self.problem.jobs.iter().filter(|job| job.width == 1);
        let (count, sum) =
            runs.fold((0.0, 0.0), |(n, sum), job| (n + 1.0, sum + to_f64(job.run_ms)));
        match sum / f64::max(count, 1.0) {
            mean if mean < 60_000.0 => (1_000.0, "s"),
            mean if mean < 1_800_000.0 => (60_000.0, "min"),
            _ => (3_600_000.0, "h"),
        }
    }
}

fn row(waits: &Waits, unit_ms: f64) -> String {
    if waits.jobs == 0 {
        // As wide as the columns of waits, so that the shares stand in theirs.
        return format!("{:>9}{:66}", "none", "");
    }
    let number = |value: f64| {
        if value >= 1_000.0 { format!("{value:>9.0}") } else { format!("{value:>9.2}") }
    };
    let wait =
        |ms: Option<f64>| ms.map_or_else(|| format!("{:>9}", "never"), |ms| number(ms / unit_ms));
    let nearest = |ms: Option<u64>| wait(ms.map(to_f64));
    let share =
        waits.largest_of_bound.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}"));
    format!(
        "{} {} {} {} {} {:>8} {share:>8} {:>7}",
        wait(waits.mean_ms),
        nearest(waits.median_ms),
        nearest(waits.p95_ms),
        nearest(waits.p99_ms),
        nearest(waits.max_ms),
        waits.starved,
        waits.over_bound,
    )
}

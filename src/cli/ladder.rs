//! Pure side: the arguments and the run that `sluice simulate` and `sluice plan` share: one problem
//! played to several policies.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;

use super::progress::{Stage, Watch};
use super::work::{Work, duration, write};
use crate::plan::bound::bound;
use crate::plan::build;
use crate::plan::compare::{Effort, Name, plannable, play};
use crate::plan::noise::{self, Noise};
use crate::plan::report::{Report, Skipped};
use crate::plan::score::Weights;
use crate::plan::search::Control;
use crate::plan::{html, picture};
use crate::sim::Problem;

/// What `simulate` and `plan` have in common.
#[derive(Clone, Debug, clap::Args)]
pub struct Ladder {
    /// The work.
    #[command(flatten)]
    pub work: Work,
    /// How hard planners try.
    #[command(flatten)]
    pub search: Search,
    /// How the world differs from what is expected of it.
    #[command(flatten)]
    pub world: World,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Draw the schedules above one another into this file.
    #[arg(long, value_name = "OUT")]
    pub svg: Option<PathBuf>,
    /// Write a report that needs nothing else into this file.
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Check each schedule by code that made none of them; fail if one is not legal.
    #[arg(long)]
    pub check: bool,
}

/// How hard planners try.
#[derive(Clone, Debug, clap::Args)]
pub struct Search {
    /// Seed of the search: the same seed gives the same schedule.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Schedules that plan-online may try each time that it plans [default: by the number of jobs].
    #[arg(long, value_name = "SCHEDULES")]
    pub online_budget: Option<u32>,
    /// Schedules that plan-offline may try [default: by the number of jobs].
    #[arg(long, value_name = "SCHEDULES")]
    pub offline_budget: Option<u32>,
    /// By how much run times may well exceed their estimates: planners keep away from deadlines
    /// by as much.
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    pub estimate_error: u32,
}

/// How the world differs from what is expected of it.
#[derive(Clone, Debug, clap::Args)]
pub struct World {
    /// Make run times differ from their estimates: sigma of a lognormal factor.
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    run_error: u32,
    /// Make demand come earlier or later than forecast.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    forecast_shift: Option<u64>,
    /// Make demand differ from its forecast by up to so many GPUs.
    #[arg(long, value_name = "GPUS", default_value_t = 0)]
    forecast_error: u32,
    /// Keep so many GPUs above the forecast for each service.
    #[arg(long, value_name = "GPUS", default_value_t = 0)]
    forecast_margin: u32,
}

impl Search {
    /// The effort, watched through `control`.
    pub(super) fn effort(&self, control: &Arc<Control>) -> Effort {
        let error = i64::from(self.estimate_error.min(1_000)) * 10;
        Effort {
            seed: self.seed,
            weights: Weights { estimate_error_permille: error, ..Weights::default() },
            control: Some(Arc::clone(control)),
            online: self.online_budget,
            offline: self.offline_budget,
        }
    }
}

impl World {
    fn apply(&self, problem: &mut Problem, seed: u64) {
        let noise = Noise {
            run_sigma: f64::from(self.run_error) / 100.0,
            shift_ms: self.forecast_shift.unwrap_or_default(),
            gpus: self.forecast_error,
            margin: self.forecast_margin,
            seed,
        };
        if noise.is_some() {
            noise::apply(problem, noise);
        }
    }
}

impl Ladder {
    /// Plays the work to each policy from a moment on, and writes the files that were asked for.
    pub(super) fn play(&self, names: &[Name], now_ms: u64) -> anyhow::Result<Report> {
        let workload = self.work.workload()?;
        let frame = self.work.frame(&workload, now_ms);
        let mut problem = build::problem(&workload, frame)?;
        self.world.apply(&mut problem, self.search.seed);
        let begin_ms = build::begin_ms(&workload, frame);
        let mut report = compare(problem, names, &self.search, self.check)?;
        (report.begin_ms, report.remarks) = (begin_ms, workload.remarks);
        let title = self.work.title();
        write(self.svg.as_deref(), || picture::render(&report, &title))?;
        write(self.html.as_deref(), || html::render(&report, &title))?;
        Ok(report)
    }
}

/// Plays the problem to each policy, and looks for a bound.
fn compare(
    problem: Problem,
    names: &[Name],
    search: &Search,
    check: bool,
) -> anyhow::Result<Report> {
    let watch = Watch::start(names.len() + 1)?;
    let effort = search.effort(watch.control());
    let (mut entries, mut skipped) = (Vec::new(), Vec::new());
    for &name in names {
        // Whoever interrupts wants what there is, and that is the first at least.
        if watch.interrupted() && !(entries.is_empty() && skipped.is_empty()) {
            let reason = "interrupted before it began".to_owned();
            skipped.push(Skipped { name, reason });
            continue;
        }
        let jobs = problem.jobs.len();
        let budget = if name == Name::PlanOffline { effort.budget(name, jobs) } else { 0 };
        watch.says(name.as_str(), Stage { length_ms: problem.horizon_ms, budget });
        match play(&problem, name, &effort) {
            Ok(entry) => entries.push(entry),
            Err(error) => skipped.push(Skipped { name, reason: error.to_string() }),
        }
    }
    if entries.is_empty() {
        let reasons: Vec<String> = skipped.iter().map(|s| s.reason.clone()).collect();
        bail!("no policy can serve this: {}", reasons.join("; "));
    }
    watch.says("upper bound", Stage::default());
    let known = entries.iter().map(|entry| entry.metrics.value_done).fold(0.0, f64::max);
    let bound = plannable(&problem).is_ok().then(|| bound(&problem, known));
    let violations =
        check.then(|| entries.iter().map(|entry| entry.violations(&problem)).collect::<Vec<_>>());
    let interrupted = watch.end();
    Ok(Report {
        problem,
        seed: search.seed,
        entries,
        bound,
        skipped,
        violations,
        interrupted,
        begin_ms: 0,
        remarks: Vec::new(),
    })
}

/// Fails where the checker found something.
pub(super) fn refuse_breaches(report: &Report) -> anyhow::Result<()> {
    match report.breaches() {
        0 => Ok(()),
        1 => bail!("one breach of the rules of a legal schedule"),
        breaches => bail!("{breaches} breaches of the rules of a legal schedule"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::build::Frame;
    use crate::trace::{Source, Workload};

    /// What `--check` ends with: nothing where all is legal, an error where one run was moved.
    #[test]
    fn a_schedule_that_is_not_legal_is_refused() {
        let content = "job_id,workload_type,priority,arrival_time,deadline,min_gpus,max_gpus,\
                       expected_duration\na,eval,5,01:00,,2,2,1h\nb,eval,5,01:00,,2,2,1h\n";
        let workload = Workload::read(Source { name: "jobs.csv", content }, None).unwrap();
        let problem = build::problem(&workload, Frame::default()).unwrap();
        let entry = play(&problem, Name::Greedy, &Effort::default()).unwrap();
        let report = |entry: crate::plan::compare::Entry| Report {
            violations: Some(vec![entry.violations(&problem)]),
            problem: problem.clone(),
            seed: 1,
            entries: vec![entry],
            bound: None,
            skipped: Vec::new(),
            interrupted: false,
            begin_ms: 0,
            remarks: Vec::new(),
        };
        let legal = report(entry.clone());
        assert!(refuse_breaches(&legal).is_ok());
        assert!(legal.text().contains("check: every schedule is legal"));
        let mut moved = entry;
        moved.schedule.runs[1].gpus = moved.schedule.runs[0].gpus;
        let broken = report(moved);
        let error = refuse_breaches(&broken).unwrap_err().to_string();
        assert_eq!(error, "2 breaches of the rules of a legal schedule", "one for each GPU");
        assert!(broken.text().contains("BROKEN OneHolder at 01:00"), "{}", broken.text());
    }
}

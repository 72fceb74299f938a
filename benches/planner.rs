//! How fast the planner is: schedules per second, time to plan, and the value that more time buys.
//!
//! Times are processor time of the one thread that plans, so that they say the same on a machine
//! that does other things too.
//!
//! `cargo bench --no-default-features --bench planner [-- PART...]`, where a part is `kernel`,
//! `trace` or `days`; all of them without one.

#![expect(clippy::print_stdout, reason = "it says what it measured")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sluice::plan::build::{self, Frame};
use sluice::plan::compare::{Effort, Name, play};
use sluice::plan::kernel::{Kernel, Slot, Task};
use sluice::plan::planner::{Planner, Settings};
use sluice::plan::score::Weights;
use sluice::plan::search::{Budget, Random, search};
use sluice::sim::{self, Job, Moment, Policy, Start};
use sluice::trace::{Source, Workload};

/// Jobs of a day on a line of eight GPUs with a service.
fn kernel(jobs: usize, steps: u32) -> Kernel {
    let mut random = Random::new(11);
    let mut below =
        |bound: u32| u32::try_from(random.below(usize::try_from(bound).unwrap_or(1))).unwrap_or(0);
    let kept: Vec<u32> = (0..steps).map(|at| at * 4 / steps).collect();
    let tasks = (0..jobs)
        .map(|job| {
            let release = below(steps / 2);
            let length = steps / 24 + below(steps / 5);
            let pressing = below(3) == 0;
            let end_by = if pressing { (release + length * 2).min(steps) } else { steps };
            let (width, priority) = (1 + below(4), 1 + below(9));
            let (job, work) = (u16::try_from(job).unwrap_or(0), width * length);
            Task { job, release, end_by, width, length, work, priority, waited: 0 }
        })
        .collect();
    Kernel::new(8, &kept, tasks, Weights::default())
}

/// Copies of the public trace, one after another, through the event-driven schedulers.
fn trace() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/traces/itp-cluster05.csv");
    let content = std::fs::read_to_string(path).expect("data is there");
    let workload = Workload::read(Source { name: path, content: &content }, None);
    let workload = workload.expect("the trace can be read");
    let mut problem = build::problem(&workload, Frame::default()).expect("it fits a node");
    problem.jobs.retain(|job| job.width == 1 || job.width == 8);
    let one = problem.jobs.clone();
    let span_ms = problem.horizon_ms;
    for copy in 1..20 {
        let later = |job: &Job| Job { arrival_ms: job.arrival_ms + copy * span_ms, ..job.clone() };
        problem.jobs.extend(one.iter().map(later));
    }
    problem.horizon_ms *= 20;
    for name in [Name::FifoStrictPeak, Name::FifoSkipPeak, Name::EasyPeak, Name::PhaseFair] {
        let (seconds, entry) =
            timed(|| play(&problem, name, &Effort::default()).expect("it can serve this"));
        println!(
            "{} jobs of the trace, {name}: {seconds:.2} s, {} started, {:.1} % used",
            problem.jobs.len(),
            entry.metrics.jobs_started,
            entry.metrics.utilisation * 100.0,
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    println!("memory at its peak: {}", peak.unwrap_or("not told by this system"));
}

/// Time that this thread has had a core for.
fn spent() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(spent).expect("it is not negative")
}

/// What a call takes, in seconds, and what it gives.
fn timed<T>(call: impl FnOnce() -> T) -> (f64, T) {
    let begin = spent();
    let made = call();
    (spent().saturating_sub(begin).as_secs_f64(), made)
}

/// A policy whose slowest decision is looked for.
struct Slowest {
    planner: Planner,
    seconds: f64,
}

impl Policy for Slowest {
    fn decide(&mut self, moment: Moment<'_>) -> Vec<Start> {
        let (seconds, starts) = timed(|| self.planner.decide(moment));
        self.seconds = self.seconds.max(seconds);
        starts
    }

    fn wake_ms(&self, now_ms: u64) -> Option<u64> {
        self.planner.wake_ms(now_ms)
    }
}

/// The seven days, on a grid of 5 minutes: how long a plan takes and how good it is.
fn days() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/scenarios");
    let mut lists: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("data is there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| !path.to_string_lossy().ends_with(".demand.csv"))
        .collect();
    lists.sort();
    for list in lists {
        let read = |path: &Path| std::fs::read_to_string(path).expect("data is there");
        let (jobs, demand) = (read(&list), read(&list.with_extension("demand.csv")));
        let source = |content| Source { name: "scenario", content };
        let workload = Workload::read(source(&jobs), Some(source(&demand))).expect("it is read");
        let frame = Frame { step_ms: Some(300_000), ..Frame::default() };
        let problem = build::problem(&workload, frame).expect("it fits");
        let planner = Planner::new(Settings::online(1));
        let mut slowest = Slowest { planner, seconds: 0.0 };
        sim::run(&problem, &mut slowest).expect("it is legal");
        let offline = |times: u32| {
            let usual = Settings::offline(1).budget(problem.jobs.len());
            let effort = Effort { offline: Some(usual * times), ..Effort::default() };
            timed(|| play(&problem, Name::PlanOffline, &effort).expect("it plans").metrics)
        };
        let (seconds, usual) = offline(1);
        let (_, long) = offline(5);
        let best = long.value_done.max(usual.value_done);
        println!(
            "{:<20} online: slowest decision {:>5.1} ms; offline: {seconds:.2} s, value done \
             {:.0}, best known {best:.0}: {:.2} % of it",
            list.file_stem().unwrap_or_default().to_string_lossy(),
            slowest.seconds * 1_000.0,
            usual.value_done,
            usual.value_done / best * 100.0,
        );
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let parts = ["kernel", "trace", "days"];
    let any = args.iter().any(|arg| parts.contains(&arg.as_str()));
    let asked = |part: &str| !any || args.iter().any(|arg| arg == part);
    if asked("kernel") {
        kernels();
    }
    if asked("trace") {
        trace();
    }
    if asked("days") {
        days();
    }
}

/// Schedules of made-up jobs: how fast, and what more of them find.
fn kernels() {
    for (jobs, steps) in [(24, 96), (60, 288), (200, 288)] {
        let mut kernel = kernel(jobs, steps);
        let first: Vec<u16> = (0..u16::try_from(jobs).unwrap_or(0)).collect();
        let mut slots = vec![Slot::NONE; jobs];
        kernel.schedule(&first, &mut slots);
        let mut worths = Vec::new();
        let (online, offline) =
            (Settings::online(3).budget(jobs), Settings::offline(3).budget(jobs));
        for schedules in [1_000, online, offline, offline * 4] {
            let budget = Budget { schedules, seed: 3, control: None };
            let (seconds, found) = timed(|| search(&mut kernel, &first, budget));
            let rate = f64::from(found.tried) / seconds;
            worths.push((schedules, seconds, rate, found.worth));
        }
        let best = worths.iter().map(|w| w.3).max().unwrap_or(1);
        for (schedules, seconds, rate, worth) in worths {
            let share = worth * 10_000 / best;
            println!(
                "{jobs:>4} jobs x {steps:>3} steps: {schedules:>7} schedules in {:>8.1} ms, \
                 {rate:>9.0} per second, {}.{:02} % of the best found",
                seconds * 1_000.0,
                share / 100,
                share % 100,
            );
        }
    }
}

//! What the planner gains over the baselines, on days that nobody picked: for each family of
//! made-up days the distribution over many seeds, and the seven days of `data/scenarios`.
//!
//! `cargo bench --no-default-features --bench families [-- PART... [SEEDS [FIRST]]]`, where a part
//! is `days`, `fresh`, `wrong` or `wide`; all of them without one.

#![expect(clippy::print_stdout, reason = "it says what it measured")]

use std::ops::Range;
use std::path::Path;

use sluice::plan::bound::bound;
use sluice::plan::build::{self, Frame};
use sluice::plan::compare::{Effort, Name, play};
use sluice::plan::family::{FAMILIES, Family};
use sluice::plan::metrics::Metrics;
use sluice::plan::noise::{self, Noise};
use sluice::sim::Problem;
use sluice::trace::{Source, Workload};

const POLICIES: [Name; 9] = [
    Name::FifoStrictPeak,
    Name::EasyPeak,
    Name::FifoStrictElastic,
    Name::FifoSkipElastic,
    Name::EasyElastic,
    Name::Greedy,
    Name::StrictLarge,
    Name::PlanOnline,
    Name::PlanOffline,
];
const FIFO: usize = 0;
const EASY: usize = 4;
const ONLINE: usize = 7;
const OFFLINE: usize = 8;

/// In the order of `names`, which begin as [`POLICIES`] do.
fn measure(problem: &Problem, names: &[Name], seed: u64) -> Vec<Metrics> {
    let effort = Effort { seed, ..Effort::default() };
    let play = |name| {
        let entry = play(problem, name, &effort).expect("it can be planned");
        assert_eq!(entry.violations(problem), [], "{name}");
        entry.metrics
    };
    names.iter().copied().map(play).collect()
}

/// `median [least..most]`.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[0], values[values.len() - 1]);
    format!("{:>5.1} [{low:>5.1}..{high:>5.1}]", values[values.len() / 2])
}

fn gain(of: f64, over: f64) -> f64 {
    (of / over - 1.0) * 100.0
}

/// The best of the other policies that see no future.
fn strongest(all: &[Metrics], value: impl Fn(&Metrics) -> f64) -> f64 {
    all[..ONLINE].iter().map(value).fold(0.0, f64::max)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let count = numbers.first().copied().unwrap_or(24);
    let seeds = numbers.get(1).copied().unwrap_or(1_000);
    let seeds = seeds..seeds + count;
    let parts = ["days", "fresh", "wrong", "wide"];
    let any = args.iter().any(|arg| parts.contains(&arg.as_str()));
    let asked = |part: &str| !any || args.iter().any(|arg| arg == part);
    if asked("days") {
        days();
    }
    for family in FAMILIES {
        if asked("fresh") {
            fresh(&family, seeds.clone());
        }
        if asked("wrong") {
            wrong(&family, seeds.clone());
        }
        if asked("wide") {
            wide(&family, seeds.clone());
        }
    }
}

fn days() {
    println!("the seven days: utilisation %, value, value done; upper bound of value done");
    for (scenario, problem) in scenarios() {
        let all = measure(&problem, &POLICIES, 1);
        let cell = |m: &Metrics| {
            format!(
                "{:>5.1} {:>5.0} {:>5.0}",
                m.utilisation * 100.0,
                m.value_gpu_hours,
                m.value_done
            )
        };
        let known = all.iter().map(|m| m.value_done).fold(0.0, f64::max);
        let bound = bound(&problem, known).value_done;
        println!(
            "{scenario:<20} fifo {} | easy-el {} | greedy {} | online {} (+{:.1} %, +{:.1} %) | \
             offline {} | bound {bound:.0}, {:.1} % and {:.1} % of it reached",
            cell(&all[FIFO]),
            cell(&all[EASY]),
            cell(&all[5]),
            cell(&all[ONLINE]),
            gain(all[ONLINE].value_gpu_hours, all[FIFO].value_gpu_hours),
            gain(all[ONLINE].value_done, all[FIFO].value_done),
            cell(&all[OFFLINE]),
            all[ONLINE].value_done / bound * 100.0,
            all[OFFLINE].value_done / bound * 100.0,
        );
    }
}

/// Every policy on fresh days of one kind.
fn fresh(family: &Family, seeds: Range<u64>) {
    let count = seeds.end - seeds.start;
    let mut reached = Vec::new();
    let days: Vec<Vec<Metrics>> = seeds
        .map(|seed| {
            let problem = day(family, seed, Frame::default());
            let all = measure(&problem, &POLICIES, seed);
            let known = all.iter().map(|m| m.value_done).fold(0.0, f64::max);
            let bound = bound(&problem, known).value_done;
            reached.push([ONLINE, OFFLINE].map(|at| all[at].value_done / bound * 100.0));
            all
        })
        .collect();
    let over = |value: fn(&[Metrics]) -> f64| spread(days.iter().map(|day| value(day)).collect());
    println!("{}: {count} fresh days, median [least..most]", family.name);
    println!(
        "  utilisation: fifo {} easy-elastic {} online {} offline {}",
        over(|d| d[FIFO].utilisation * 100.0),
        over(|d| d[EASY].utilisation * 100.0),
        over(|d| d[ONLINE].utilisation * 100.0),
        over(|d| d[OFFLINE].utilisation * 100.0)
    );
    let names: [(&str, Value, Value); 3] = [
        ("fifo", |d| d[FIFO].value_gpu_hours, |d| d[FIFO].value_done),
        ("easy-elastic", |d| d[EASY].value_gpu_hours, |d| d[EASY].value_done),
        ("strongest", |d| strongest(d, |m| m.value_gpu_hours), |d| strongest(d, |m| m.value_done)),
    ];
    for (name, value, done) in names {
        let values = days.iter().map(|d| gain(d[ONLINE].value_gpu_hours, value(d)));
        let dones = days.iter().map(|d| gain(d[ONLINE].value_done, done(d)));
        println!(
            "  online over {name:<12}: value {} % done {} %",
            spread(values.collect()),
            spread(dones.collect())
        );
    }
    println!(
        "  online by offline:        value {} % done {} %",
        over(|d| d[ONLINE].value_gpu_hours / d[OFFLINE].value_gpu_hours * 100.0),
        over(|d| d[ONLINE].value_done / d[OFFLINE].value_done * 100.0)
    );
    let part = |at: usize| spread(reached.iter().map(|both| both[at]).collect());
    println!("  done, of the upper bound: online {} % offline {} %", part(0), part(1));
    let none = |value: fn(&Metrics) -> f64| {
        days.iter().filter(|d| value(&d[ONLINE]) <= strongest(d, value)).count()
    };
    println!(
        "  no gain over the strongest: value {} done {} of {count}",
        none(|m| m.value_gpu_hours),
        none(|m| m.value_done)
    );
}

type Value = fn(&[Metrics]) -> f64;

fn day(family: &Family, seed: u64, frame: Frame) -> Problem {
    build::problem(&family.day(seed), frame).expect("a made-up day fits")
}

/// The same with estimates and forecasts that are wrong.
fn wrong(family: &Family, seeds: Range<u64>) {
    let right = Noise::default();
    let demand = Noise { shift_ms: 1_800_000, gpus: 1, ..right };
    let cases = [
        ("as expected", right),
        ("run times sigma 0.3", Noise { run_sigma: 0.3, ..right }),
        ("run times sigma 0.7", Noise { run_sigma: 0.7, ..right }),
        ("demand 30 min off, +-1 GPU", demand),
        ("the same, 1 GPU kept above", Noise { margin: 1, ..demand }),
        ("sigma 0.7 and demand off", Noise { run_sigma: 0.7, ..demand }),
    ];
    let demanding = !family.day(seeds.start).services.is_empty();
    for (what, noise) in cases {
        if !demanding && (noise.gpus > 0 || noise.margin > 0) {
            continue;
        }
        let days = seeds.clone().map(|seed| {
            let mut problem = day(family, seed, Frame::default());
            noise::apply(&mut problem, Noise { seed, ..noise });
            // Hindsight of arrivals says nothing here.
            measure(&problem, &POLICIES[..OFFLINE], seed)
        });
        let days: Vec<Vec<Metrics>> = days.collect();
        let over = |f: fn(&[Metrics]) -> f64| spread(days.iter().map(|d| f(d)).collect());
        println!(
            "{:<15} {what:<27} done over fifo {} %, easy-el {} %, strongest {} %; short {} h",
            family.name,
            over(|d| gain(d[ONLINE].value_done, d[FIFO].value_done)),
            over(|d| gain(d[ONLINE].value_done, d[EASY].value_done)),
            over(|d| gain(d[ONLINE].value_done, strongest(d, |m| m.value_done))),
            over(|d| d[ONLINE].rt_shortfall_gpu_hours),
        );
    }
}

/// The same jobs, but each may run on up to twice its GPUs, with some of its work serial.
fn wide(family: &Family, seeds: Range<u64>) {
    for serial in [0, 100, 300] {
        let gains = seeds.clone().map(|seed| {
            let mut workload = family.day(seed);
            for job in &mut workload.jobs {
                job.max_gpus = (2 * job.min_gpus).min(8);
            }
            let effort = Effort { seed, ..Effort::default() };
            let play = |serial_permille| {
                let frame = Frame { serial_permille, ..Frame::default() };
                let problem = build::problem(&workload, frame).expect("a made-up day fits");
                let entry = play(&problem, Name::PlanOnline, &effort).expect("it can be planned");
                assert_eq!(entry.violations(&problem), []);
                entry.metrics
            };
            let (rigid, wide) = (play(None), play(Some(serial)));
            [
                gain(wide.value_gpu_hours, rigid.value_gpu_hours),
                gain(wide.value_done, rigid.value_done),
            ]
        });
        let gains: Vec<[f64; 2]> = gains.collect();
        let part = |at: usize| spread(gains.iter().map(|gain| gain[at]).collect());
        println!(
            "{:<15} up to twice as wide, {:>2} % serial: online over online rigid: value {} % \
             done {} %",
            family.name,
            serial / 10,
            part(0),
            part(1),
        );
    }
}

fn scenarios() -> Vec<(String, Problem)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/scenarios");
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect("data is there");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("data is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".demand.csv").map(str::to_owned))
        .collect();
    names.sort();
    let read = |name: String| {
        let (jobs, demand) = (text(&format!("{name}.csv")), text(&format!("{name}.demand.csv")));
        let source = |content| Source { name: "scenario", content };
        let workload = Workload::read(source(&jobs), Some(source(&demand))).expect("it is read");
        let problem = build::problem(&workload, Frame::default()).expect("it fits");
        (name, problem)
    };
    names.into_iter().map(read).collect()
}

//! What the planner gains over the baselines, on days that nobody picked: for each family of
//! made-up days the distribution over many seeds, and the seven days of `data/scenarios`.
//!
//! `cargo bench --no-default-features --bench families [-- SEEDS [FIRST]]`

#![expect(clippy::print_stdout, reason = "it says what it measured")]

use std::path::Path;

use sluice::plan::build::{self, Frame};
use sluice::plan::compare::{Effort, Name, play};
use sluice::plan::family::FAMILIES;
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
const ONLINE: usize = 7;
const OFFLINE: usize = 8;

fn measure(problem: &Problem, seed: u64) -> Vec<Metrics> {
    let effort = Effort { seed, ..Effort::default() };
    let play = |name| {
        let entry = play(problem, name, &effort).expect("it can be planned");
        assert_eq!(entry.violations(problem), [], "{name}");
        entry.metrics
    };
    POLICIES.into_iter().map(play).collect()
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
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let count = numbers.first().copied().unwrap_or(24);
    let first = numbers.get(1).copied().unwrap_or(1_000);
    println!("the seven days: utilisation %, value, value done");
    for (scenario, all) in scenarios() {
        let cell = |m: &Metrics| {
            format!(
                "{:>5.1} {:>5.0} {:>5.0}",
                m.utilisation * 100.0,
                m.value_gpu_hours,
                m.value_done
            )
        };
        println!(
            "{scenario:<20} fifo {} | easy-el {} | online {} (+{:.1} %, +{:.1} %) | offline {}",
            cell(&all[FIFO]),
            cell(&all[4]),
            cell(&all[ONLINE]),
            gain(all[ONLINE].value_gpu_hours, all[FIFO].value_gpu_hours),
            gain(all[ONLINE].value_done, all[FIFO].value_done),
            cell(&all[OFFLINE]),
        );
    }
    println!("\n{count} fresh days of each family: median [least..most]");
    for family in FAMILIES {
        let days: Vec<Vec<Metrics>> = (first..first + count)
            .map(|seed| {
                let problem = build::problem(&family.day(seed), Frame::default());
                measure(&problem.expect("a made-up day fits"), seed)
            })
            .collect();
        let over =
            |value: fn(&[Metrics]) -> f64| spread(days.iter().map(|day| value(day)).collect());
        println!("{}", family.name);
        println!(
            "  utilisation: fifo {} easy-elastic {} online {} offline {}",
            over(|d| d[FIFO].utilisation * 100.0),
            over(|d| d[4].utilisation * 100.0),
            over(|d| d[ONLINE].utilisation * 100.0),
            over(|d| d[OFFLINE].utilisation * 100.0)
        );
        println!(
            "  online over fifo:      value {} % done {} %",
            over(|d| gain(d[ONLINE].value_gpu_hours, d[FIFO].value_gpu_hours)),
            over(|d| gain(d[ONLINE].value_done, d[FIFO].value_done))
        );
        println!(
            "  online over easy-el:   value {} % done {} %",
            over(|d| gain(d[ONLINE].value_gpu_hours, d[4].value_gpu_hours)),
            over(|d| gain(d[ONLINE].value_done, d[4].value_done))
        );
        println!(
            "  online over strongest: value {} % done {} %",
            over(|d| gain(d[ONLINE].value_gpu_hours, strongest(d, |m| m.value_gpu_hours))),
            over(|d| gain(d[ONLINE].value_done, strongest(d, |m| m.value_done)))
        );
        println!(
            "  online by offline:     value {} % done {} %",
            over(|d| d[ONLINE].value_gpu_hours / d[OFFLINE].value_gpu_hours * 100.0),
            over(|d| d[ONLINE].value_done / d[OFFLINE].value_done * 100.0)
        );
        let none = |value: fn(&Metrics) -> f64| {
            days.iter().filter(|d| value(&d[ONLINE]) <= strongest(d, value)).count()
        };
        println!(
            "  no gain over the strongest: value {} done {} of {count}",
            none(|m| m.value_gpu_hours),
            none(|m| m.value_done)
        );
    }
    wrong(first, count);
}

/// The same with estimates and forecasts that are wrong.
fn wrong(first: u64, count: u64) {
    let right = Noise::default();
    let cases = [
        ("as expected", right),
        ("run times sigma 0.3", Noise { run_sigma: 0.3, ..right }),
        ("run times sigma 0.7", Noise { run_sigma: 0.7, ..right }),
        ("demand 30 min off, +-1 GPU", Noise { shift_ms: 1_800_000, gpus: 1, ..right }),
        ("the same, 1 GPU kept above", Noise { shift_ms: 1_800_000, gpus: 1, margin: 1, ..right }),
        (
            "sigma 0.7 and demand off",
            Noise { run_sigma: 0.7, shift_ms: 1_800_000, gpus: 1, ..right },
        ),
    ];
    println!("\nwrong estimates: {count} days of each of two families, online over fifo");
    for family in FAMILIES.iter().filter(|f| ["training-heavy", "mixed"].contains(&f.name)) {
        for (what, noise) in cases {
            let days = (first..first + count).map(|seed| {
                let problem = build::problem(&family.day(seed), Frame::default());
                let mut problem = problem.expect("a made-up day fits");
                noise::apply(&mut problem, Noise { seed, ..noise });
                measure(&problem, seed)
            });
            let days: Vec<Vec<Metrics>> = days.collect();
            let over = |f: fn(&[Metrics]) -> f64| spread(days.iter().map(|d| f(d)).collect());
            println!(
                "{:<15} {what:<27} value {} % done {} %; over easy-el done {} %; short {} h",
                family.name,
                over(|d| gain(d[ONLINE].value_gpu_hours, d[FIFO].value_gpu_hours)),
                over(|d| gain(d[ONLINE].value_done, d[FIFO].value_done)),
                over(|d| gain(d[ONLINE].value_done, d[4].value_done)),
                over(|d| d[ONLINE].rt_shortfall_gpu_hours),
            );
        }
    }
}

fn scenarios() -> Vec<(String, Vec<Metrics>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/scenarios");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("data is there");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("data is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".demand.csv").map(str::to_owned))
        .collect();
    names.sort();
    let play = |name: String| {
        let (jobs, demand) = (read(&format!("{name}.csv")), read(&format!("{name}.demand.csv")));
        let source = |content| Source { name: "scenario", content };
        let workload = Workload::read(source(&jobs), Some(source(&demand))).expect("it is read");
        let problem = build::problem(&workload, Frame::default()).expect("it fits");
        let all = measure(&problem, 1);
        (name, all)
    };
    names.into_iter().map(play).collect()
}

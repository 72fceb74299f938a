//! What the rule costs and buys beside its rivals, and each option of a pool beside the plain rule.
//!
//! `cargo bench --no-default-features --bench price [-- one|many] [SEEDS]` prints the tables of
//! docs/simulator.md; `rate` instead prints how many jobs each scheduler plays in a second.
//!
//! Times are in mean runs of a small, which is one hour here. Every job counts, work is run to its
//! end, shares of GPU-time are taken until the last arrival.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it says what it measured")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use sluice::sim::Problem;
use sluice::stream::{Contender, Figures, Limits, Spec, play, recorded};
use sluice::trace::{Source, Workload};

const HOUR_MS: f64 = 3_600_000.0;
/// Run times of smalls, mean one hour before the cut.
const SMALLS: [(&str, &str); 4] = [
    ("uniform", "uniform:12m:108m"),
    ("exponential", "exp:1h:max=8h"),
    ("lognormal", "lognormal:1h:sigma=1:max=12h"),
    ("Pareto", "pareto:1h:alpha=1.5:max=30h"),
];
/// Mean runs of larges, drawn evenly from half to one and a half of it.
const LARGES_H: [u32; 3] = [1, 4, 16];
const SHARES: [f64; 4] = [0.1, 0.3, 0.5, 0.8];
/// Hours of arrivals on one node.
const HOURS: f64 = 4_000.0;

const ONE_NODE: [&str; 18] = [
    "greedy",
    "fifo-skip",
    "fifo-strict",
    "strict-large",
    "reserve-after=1L",
    "easy+limits=exact",
    "easy",
    "easy+limits=x3",
    "phase-fair",
    "phase-fair+backfill",
    "phase-fair+backfill+turn=2L",
    "balanced",
    "phase-fair+backfill+turn=8L",
    "phase-fair+turn=4L",
    "phase-fair+turn=4L+limits=class",
    "balanced+limits=exact",
    "balanced+limits=x3",
    "balanced+limits=class",
];

const MANY_NODES: [&str; 19] = [
    "greedy",
    "fifo-skip",
    "fifo-strict",
    "easy+limits=exact",
    "easy+place=latest-end",
    "strict-large",
    "strict-large+drains=1",
    "reserve-after=1L",
    "phase-fair+limits=class",
    "phase-fair",
    "phase-fair+drains=2",
    "phase-fair+drains=8",
    "phase-fair+backfill",
    "phase-fair+turn=4L",
    "phase-fair+keep-open=1",
    "balanced",
    "balanced+drains=2",
    "balanced+keep-open=1",
    "balanced+limits=class",
];

/// Nodes, load, share of larges in the work, law of smalls, mean hours of larges, hours.
const POOLS: [(&str, usize, f64, f64, usize, u32, f64); 7] = [
    ("8 nodes, load 0.81, 51 % L", 8, 0.81, 0.51, 1, 4, 2_000.0),
    ("8, 0.96, 51 % L", 8, 0.96, 0.51, 1, 4, 2_000.0),
    ("8, 0.88, 80 % L", 8, 0.88, 0.80, 1, 4, 2_000.0),
    ("8, 0.88, 48 % L, Pareto", 8, 0.88, 0.48, 3, 4, 2_000.0),
    ("8, 0.90, 50 % L, L=1", 8, 0.90, 0.50, 1, 1, 2_000.0),
    ("2, 0.80, 50 % L", 2, 0.80, 0.50, 1, 4, 2_000.0),
    ("1, 0.80, 50 % L", 1, 0.80, 0.50, 1, 4, 2_000.0),
];

fn stream(small: usize, large_h: u32, share: f64, load: f64, gpu_hours: f64) -> Spec {
    let (least, most) = (large_h * 30, large_h * 90);
    let jobs = gpu_hours * load * ((1.0 - share) + share / (8.0 * f64::from(large_h)));
    let law = SMALLS[small].1;
    let text = format!(
        "jobs={jobs:.0},load={load},large-work={share},small-run={law},large-run=uniform:{least}m:{most}m"
    );
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn generate(spec: &Spec, nodes: usize, seed: u64) -> Problem {
    let Spec::Drawn(drawn) = spec else { panic!("{spec} is not drawn") };
    drawn.generate(8, nodes, seed)
}

fn contender(name: &str) -> Contender {
    name.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn figures(problem: &Problem, name: &str) -> Figures {
    let played = play(problem, &contender(name), Limits::Times(1500), None);
    played.unwrap_or_else(|error| panic!("{error}")).figures
}

/// Plays every stream to every scheduler on all cores; a row per stream.
fn all(
    streams: usize,
    names: &[&str],
    make: impl Fn(usize) -> Problem + Sync,
) -> Vec<Vec<Figures>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut rows = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= streams {
                return rows;
            }
            let problem = make(at);
            rows.push((at, names.iter().map(|name| figures(&problem, name)).collect()));
            if at % 16 == 15 {
                eprintln!("{} of {streams} streams", at + 1);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut rows: Vec<(usize, Vec<Figures>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|one| one.join().expect("it does not panic")).collect()
    });
    rows.sort_by_key(|&(at, _)| at);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn hours(ms: Option<u64>) -> f64 {
    ms.map_or(f64::INFINITY, |ms| f64::from(u32::try_from(ms / 1000).unwrap_or(u32::MAX)) / 3600.0)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[half - 1], values[half])
    } else {
        values[half]
    }
}

/// Medians over four laws, three ratios and four shares.
fn one_node(seeds: u64) {
    for load in [0.7, 0.9] {
        let configs: Vec<(usize, u32, f64, u64)> = (0..SMALLS.len())
            .flat_map(|small| LARGES_H.map(|large| (small, large)))
            .flat_map(|(small, large)| SHARES.map(|share| (small, large, share)))
            .flat_map(|(small, large, share)| (1..=seeds).map(move |s| (small, large, share, s)))
            .collect();
        let rows = all(configs.len(), &ONE_NODE, |at| {
            let (small, large, share, seed) = configs[at];
            generate(&stream(small, large, share, load, HOURS * 8.0), 1, seed)
        });
        println!("\nOne node, load {load}: medians over {} streams\n", rows.len());
        println!(
            "| scheduler | stable | S mean | S 99 % | S max | L mean | L 99 % | L max | held idle % \
             | over its figure S / L | longest of figure S / L |\n|---|---|---|---|---|---|---|---|---|---|---|"
        );
        for (place, name) in ONE_NODE.iter().enumerate() {
            let column = || rows.iter().map(|row| &row[place]);
            let stable = rows.iter().filter(|row| {
                let best = row.iter().map(|f| f.utilisation).fold(0.0, f64::max);
                row[place].utilisation >= best * 0.985
            });
            let over = |large: bool| -> usize {
                let waits = column().map(|f| if large { &f.whole_node_large } else { &f.small });
                waits.map(|waits| waits.over_bound).sum()
            };
            let most = |large: bool| {
                let waits = column().map(|f| if large { &f.whole_node_large } else { &f.small });
                waits.filter_map(|waits| waits.largest_of_bound).fold(0.0, f64::max)
            };
            println!(
                "| {name} | {}/{} | {:.2} | {:.1} | {:.1} | {:.2} | {:.1} | {:.1} | {:.1} | {} / {} | {:.2} / {:.2} |",
                stable.count(),
                rows.len(),
                median(column().map(|f| f.small.mean_ms / HOUR_MS)),
                median(column().map(|f| hours(f.small.p99_ms))),
                median(column().map(|f| hours(f.small.max_ms))),
                median(column().map(|f| f.whole_node_large.mean_ms / HOUR_MS)),
                median(column().map(|f| hours(f.whole_node_large.p99_ms))),
                median(column().map(|f| hours(f.whole_node_large.max_ms))),
                median(column().map(|f| f.held_idle * 100.0)),
                over(false),
                over(true),
                most(false),
                most(true),
            );
        }
    }
}

fn trace(faster: f64, nodes: usize) -> Problem {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/traces/itp-cluster05.csv");
    let content = std::fs::read_to_string(path).expect("data is there");
    let list = Workload::read(Source { name: path, content: &content }, None);
    recorded(&list.expect("the trace can be read"), faster, 8, nodes).0
}

/// Means of one shape's waits over seeds, of pools and of the trace.
fn many_nodes(seeds: u64) {
    let traces = [("trace, 1 node", 1.0, 1), ("trace 6x, 8 nodes", 6.0, 8)];
    let per = usize::try_from(seeds).expect("a few");
    let drawn = POOLS.len() * per;
    let rows = all(drawn + traces.len(), &MANY_NODES, |at| {
        if let Some(trace_at) = at.checked_sub(drawn) {
            let (_, faster, nodes) = traces[trace_at];
            return trace(faster, nodes);
        }
        let (_, nodes, load, share, small, large, span) = POOLS[at / per];
        let whole = f64::from(u32::try_from(nodes).expect("a few"));
        let spec = stream(small, large, share, load, span * 8.0 * whole);
        generate(&spec, nodes, u64::try_from(at % per).expect("a few") + 1)
    });
    let heads = POOLS.iter().map(|pool| pool.0).chain(traces.iter().map(|trace| trace.0));
    let heads: Vec<&str> = heads.collect();
    println!("\nMean wait of smalls / of larges (GPU-time held idle, %); {seeds} seeds each\n");
    println!("| scheduler | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for (place, name) in MANY_NODES.iter().enumerate() {
        let groups = rows[..drawn].chunks(per).chain(rows[drawn..].chunks(1));
        let cells: Vec<String> = groups
            .map(|group| {
                let count = f64::from(u32::try_from(group.len()).expect("a few"));
                let mean = |of: &dyn Fn(&Figures) -> f64| {
                    group.iter().map(|row| of(&row[place])).sum::<f64>() / count
                };
                let never = group.iter().any(|row| row[place].whole_node_large.never > 0);
                let large = mean(&|f| f.whole_node_large.mean_ms / HOUR_MS);
                let large = if never { "never".into() } else { format!("{large:.2}") };
                format!(
                    "{:.2} / {large} ({:.1})",
                    mean(&|f| f.small.mean_ms / HOUR_MS),
                    mean(&|f| f.held_idle * 100.0),
                )
            })
            .collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    println!("\nWaits over the figure, small + large, and the longest as a share of it\n");
    for (place, name) in MANY_NODES.iter().enumerate() {
        let waits =
            || rows.iter().flat_map(|row| [&row[place].small, &row[place].whole_node_large]);
        let over: usize = waits().map(|waits| waits.over_bound).sum();
        let most = waits().filter_map(|waits| waits.largest_of_bound).fold(0.0, f64::max);
        println!("{name}: {over}, {most:.2}");
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// A million jobs, one scheduler after another.
fn rate() {
    println!("| jobs | nodes | load | scheduler | seconds | jobs/s | decisions/s |");
    println!("|---|---|---|---|---|---|---|");
    for (nodes, load) in [(1, 0.8), (8, 0.8), (1, 1.1)] {
        let spec = format!("jobs=1000000,load={load}").parse().expect("it is a stream");
        let begin = now();
        let problem = generate(&spec, nodes, 1);
        let drawn = begin.elapsed().as_secs_f64();
        println!(
            "| 1000000 | {nodes} | {load} | (drawing the stream) | {drawn:.2} | {:.0} | |",
            1e6 / drawn
        );
        for name in
            ["greedy", "fifo-strict", "fifo-skip", "strict-large", "easy", "phase-fair", "balanced"]
        {
            let begin = now();
            let figures = figures(&problem, name);
            let seconds = begin.elapsed().as_secs_f64();
            let decisions = f64::from(u32::try_from(figures.decisions).unwrap_or(u32::MAX));
            println!(
                "| 1000000 | {nodes} | {load} | {name} | {seconds:.2} | {:.0} | {:.0} |",
                1e6 / seconds,
                decisions / seconds
            );
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let seeds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(1);
    let asks = |what: &str| args.iter().any(|arg| arg == what);
    let tables = !asks("rate");
    if tables && !asks("many") {
        one_node(seeds);
    }
    if tables && !asks("one") {
        many_nodes(seeds);
    }
    if !tables {
        rate();
    }
}

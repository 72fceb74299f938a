//! Many nodes, two and three, and the public trace.

use crate::played::{Played, all, mean_hours, median, number, spread};
use crate::streams::{PARETO, Pool, trace};

const POOLS: [Pool; 8] = [
    Pool::new("8 nodes, load 0.81, 51 % L", 8, 0.81, 0.51),
    Pool::new("8, 0.96, 51 % L", 8, 0.96, 0.51),
    Pool::new("8, 0.88, 80 % L", 8, 0.88, 0.80),
    Pool::new("8, 0.88, 48 % L, Pareto", 8, 0.88, 0.48).of(PARETO, 4),
    Pool::new("8, 0.90, 50 % L, L=1", 8, 0.90, 0.50).of(1, 1),
    Pool::new("3, 0.80, 50 % L", 3, 0.80, 0.50),
    Pool::new("2, 0.80, 50 % L", 2, 0.80, 0.50),
    Pool::new("1, 0.80, 50 % L", 1, 0.80, 0.50),
];
/// Times as fast, nodes.
const TRACES: [(&str, f64, usize); 2] = [("trace, 1 node", 1.0, 1), ("trace 6x, 8 nodes", 6.0, 8)];

/// A scheduler, and what the study has for it: the five pools of eight nodes, and the one of two.
type Row = (&'static str, [&'static str; 6]);

const NONE: [&str; 6] = [""; 6];

#[rustfmt::skip]
const ROWS: [Row; 40] = [
    ("greedy", ["0.01 / 1.43 (0.0)", "0.02 / 54.3 (0.0)", "0.02 / 5.23 (0.0)", "0.02 / 10.9 (0.0)", "0.00 / 17.2 (0.0)", "0.13 / 16.9 (0.0)"]),
    ("greedy+place=emptiest", ["L 112", "", "", "", "", ""]),
    ("fifo-skip", ["0.05 / 0.94 (0.0)", "1.40 / 6.53 (0.0)", "0.47 / 2.79 (0.0)", "0.28 / 3.73 (0.0)", "0.11 / 1.79 (0.0)", "0.54 / 7.94 (0.0)"]),
    ("fifo-strict", ["", "both 63", "", "", "", ""]),
    ("easy+limits=exact", ["0.10 / 0.71 (0.0)", "1.54 / 3.52 (0.0)", "0.60 / 2.05 (0.0)", "0.51 / 2.09 (0.0)", "0.11 / 1.55 (0.0)", "1.29 / 3.68 (0.0)"]),
    ("easy+place=latest-end", ["0.12 / 0.65 (0.0)", "1.36 / 3.46 (0.0)", "0.61 / 1.98 (0.0)", "0.52 / 1.81 (0.0)", "0.14 / 1.25 (0.0)", "1.24 / 4.06 (0.0)"]),
    ("strict-large+limits=class", ["0.78 / 0.61 (3.4)", "39.7 / 1.36 (8.0)", "8.80 / 1.22 (4.9)", "20.6 / 2.21 (12.6)", "63.3 / 0.93 (16.2)", "5.75 / 2.19 (7.8)"]),
    ("strict-large", NONE),
    ("strict-large+drains=1", NONE),
    ("reserve-after=1L", NONE),
    ("partition=N", NONE),
    ("variant+node-credit+drains=8+place=fullest+limits=class", ["11.3 / 2.33 (13.5)", "189 / 3.85 (21.1)", "103 / 91.7 (24.8)", "255 / 7.10 (32.7)", "334 / 324 (46.0)", "17.2 / 5.25 (15.4)"]),
    ("variant+place=fullest+limits=class", ["0.47 / 0.68 (2.4)", "24.1 / 2.12 (5.2)", "6.06 / 3.44 (5.8)", "5.36 / 4.25 (6.3)", "2.24 / 1.37 (5.9)", "13.8 / 7.07 (15.0)"]),
    ("variant+drains=8+place=fullest+limits=class", ["1.90 / 1.06 (5.7)", "88.3 / 2.61 (13.6)", "105 / 92.4 (24.8)", "109 / 5.30 (22.1)", "331 / 320 (45.8)", "17.2 / 5.25 (15.4)"]),
    ("variant+waves-free", NONE),
    ("phase-fair+limits=class", NONE),
    ("phase-fair+keep-open=1+limits=class", NONE),
    ("phase-fair+keep-open=1+drains=8+limits=class", ["0.65 / 0.61", "", "", "", "", ""]),
    ("phase-fair", NONE),
    ("phase-fair+drains=2", NONE),
    ("phase-fair+drains=8", NONE),
    ("phase-fair+wave=4", NONE),
    ("phase-fair+wave=2", NONE),
    ("phase-fair+turn=4L", NONE),
    ("phase-fair+keep-open=1", NONE),
    ("phase-fair+one-wave", NONE),
    ("phase-fair+backfill", ["0.22 / 0.48 (0.9)", "2.87 / 1.60 (0.8)", "0.11 / 2.85 (2.7)", "0.92 / 1.29 (0.9)", "0.48 / 0.75 (1.9)", "0.54 / 9.57 (8.6)"]),
    ("variant+backfill+waves-free", NONE),
    ("variant+backfill+pass-given-up", NONE),
    ("variant+backfill+place=emptiest", ["L 1.10 (3.0)", "", "", "", "", ""]),
    ("phase-fair+backfill+one-wave", ["0.23 / 0.49 (0.9)", "2.89 / 1.62 (0.9)", "1.71 / 1.43 (1.2)", "0.88 / 1.29 (0.8)", "0.44 / 0.74 (1.9)", "1.21 / 3.66 (3.8)"]),
    ("phase-fair+backfill+wave=4", NONE),
    ("balanced", NONE),
    ("variant+backfill+turn=4L+pass-given-up", NONE),
    ("balanced+drains=2", NONE),
    ("balanced+keep-open=1", NONE),
    ("balanced+one-wave", NONE),
    ("balanced+wave=4", NONE),
    ("balanced+limits=class", NONE),
    ("balanced+limits=exact", NONE),
];

fn small(played: &Played) -> f64 {
    mean_hours(&played.figures.small)
}

fn large(played: &Played) -> f64 {
    mean_hours(&played.figures.whole_node_large)
}

fn held(played: &Played) -> f64 {
    played.figures.held_idle * 100.0
}

pub(crate) fn print(seeds: u64) {
    let per = usize::try_from(seeds).expect("a few");
    let drawn = POOLS.len() * per;
    let names: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
    let rows = all("many nodes", drawn + TRACES.len(), &names, |at| {
        if let Some(trace_at) = at.checked_sub(drawn) {
            let (_, faster, nodes) = TRACES[trace_at];
            return trace(faster, nodes, false);
        }
        POOLS[at / per].draw(u64::try_from(at % per).expect("a few") + 1)
    });
    let groups: Vec<&[Vec<Option<Played>>]> =
        rows[..drawn].chunks(per).chain(rows[drawn..].chunks(1)).collect();
    let heads = POOLS.iter().map(|pool| pool.head).chain(TRACES.iter().map(|trace| trace.0));
    let heads: Vec<&str> = heads.collect();
    println!(
        "\n## Many nodes, few, and the trace\n\nMean wait of smalls / of larges (GPU-time held idle, %): medians over \
         {seeds} seeds, below them the least and the most. Smalls\nexponential and larges of 4 h where nothing else is \
         said; 1,000 h. `partition=N`: so many nodes for larges only as their share of\nthe work is. The study's traces \
         c02, c03, c04, c06 and c07 are not here; ours is the public one of cluster05, whose 87 jobs of\n2 and 4 GPUs are \
         left out, on one node, which it overloads (1.22), and six times as fast on eight (0.91).\n"
    );
    println!("| scheduler | | {} |\n|---|---{}|", heads.join(" | "), "|---".repeat(heads.len()));
    for (place, (name, study)) in ROWS.iter().enumerate() {
        let values = |group: &[Vec<Option<Played>>], of: fn(&Played) -> f64| -> Vec<f64> {
            group.iter().filter_map(|row| row[place].as_ref()).map(of).collect()
        };
        let middle = |group: &&[Vec<Option<Played>>]| {
            let all = [small, large, held].map(|of| values(group, of));
            if all[0].is_empty() {
                return "-".to_owned();
            }
            let [small, large, held] = all.map(median);
            format!("{} / {} ({held:.1})", number(small), number(large))
        };
        let cells: Vec<String> = groups.iter().map(middle).collect();
        println!("| {name} | median | {} |", cells.join(" | "));
        if per > 1 {
            let ranges = groups.iter().map(|group| {
                let [small, large] = [small, large].map(|of| values(group, of));
                if small.len() < 2 {
                    String::new()
                } else {
                    format!("{} / {}", spread(&small), spread(&large))
                }
            });
            println!("| | range | {} |", ranges.collect::<Vec<_>>().join(" | "));
        }
        if study.iter().any(|cell| !cell.is_empty()) {
            // It has no three nodes, no one node and not this trace here.
            let (eights, two) = study.split_at(5);
            println!("| | study | {} | | {} | | | |", eights.join(" | "), two.join(" | "));
        }
    }
    promises(&rows);
}

fn promises(rows: &[Vec<Option<Played>>]) {
    println!(
        "\nWaits over the figure in all these runs, small + large, and the longest as a share of it (the live rule: \
         what it told; the others:\nthe plain rule's):\n\n| scheduler | over | longest |\n|---|---|---|"
    );
    for (place, (name, _)) in ROWS.iter().enumerate() {
        let waits = || {
            let played = rows.iter().filter_map(|row| row[place].as_ref());
            played.flat_map(|p| [&p.figures.small, &p.figures.whole_node_large])
        };
        let over: usize = waits().map(|waits| waits.over_bound).sum();
        let most = waits().filter_map(|waits| waits.largest_of_bound).fold(0.0, f64::max);
        println!("| {name} | {over} | {most:.2} |");
    }
}

//! Which node drains: the study's table.

use crate::played::{Played, all, mean_hours, median, number, spread};
use crate::streams::Pool;

const POOLS: [Pool; 2] =
    [Pool::new("load 0.81, 51 % L", 8, 0.81, 0.51), Pool::new("load 0.96, 51 % L", 8, 0.96, 0.51)];

/// A scheduler, what it chooses, and what the study has for it.
type Row = (&'static str, &'static str, [&'static str; 2]);

#[rustfmt::skip]
const ROWS: [Row; 14] = [
    ("variant+drains=8+place=fullest+limits=class", "least latest end, one limit for all", ["1.90 / 1.06 (5.7)", "88.3 / 2.61 (13.6)"]),
    ("variant+drains=8+place=fullest+limits=class+drain=fewest", "fewest smalls", ["1.71 / 1.03 (5.6)", "79.2 / 2.32 (12.6)"]),
    ("variant+drains=8+place=fullest", "least latest end, x1.5", ["1.27 / 0.76 (4.0)", "67.0 / 2.25 (11.2)"]),
    ("variant+drains=8+place=fullest+limits=exact", "least latest end, exact", ["1.32 / 0.77 (4.0)", "60.9 / 2.14 (10.9)"]),
    ("variant+drains=8+place=fullest+limits=class+drain=oracle", "least true end", ["1.32 / 0.77 (4.0)", "60.9 / 2.14 (10.9)"]),
    ("variant+drains=8+place=fullest+drain=last", "greatest latest end, x1.5", ["2.97 / 1.50 (8.2)", "129 / 3.26 (17.1)"]),
    ("variant+drains=8+place=fullest+drain=moving", "least, the gate moves, x1.5", ["1.33 / 0.77 (3.9)", "61.0 / 2.12 (10.5)"]),
    ("variant+drains=8+place=fullest+limits=class+drain=moving", "the same, one limit for all", ["1.82 / 0.99 (5.3)", "89.7 / 2.63 (13.7)"]),
    ("phase-fair+drains=8", "the live rule, x1.5", ["1.28 / 0.72 (3.8)", "62.1 / 2.16 (10.8)"]),
    ("phase-fair+drains=8+limits=exact", "the live rule, exact", ["1.28 / 0.72 (3.8)", "59.8 / 2.15 (10.4)"]),
    ("phase-fair+drains=8+limits=x3", "the live rule, x3", ["1.33 / 0.73 (3.8)", "64.2 / 2.19 (11.2)"]),
    ("phase-fair", "the live rule, one gate (default)", ["", ""]),
    ("variant+drain=moving", "the same, the gate moves", ["", ""]),
    ("variant+drain=oracle", "the same, least true end", ["", ""]),
];

pub(crate) fn print(seeds: u64) {
    let per = usize::try_from(seeds).expect("a few");
    let names: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
    let rows = all("drains", POOLS.len() * per, &names, |at| {
        POOLS[at / per].draw(u64::try_from(at % per).expect("a few") + 1)
    });
    println!(
        "\n## Which node drains\n\nEight nodes, exponential smalls, larges of 4 h, a gate for each large that waits \
         where nothing else is said; 1,000 h. Mean wait of smalls /\nof larges (GPU-time held idle, %): median over {seeds} \
         seeds, the least and the most, and the study's.\n"
    );
    let heads = POOLS.map(|pool| format!("{} | range | study", pool.head));
    println!("| scheduler | chooses | {} |\n|---|---{}|", heads.join(" | "), "|---".repeat(6));
    for (place, (name, what, study)) in ROWS.iter().enumerate() {
        let cells: Vec<String> = rows
            .chunks(per)
            .zip(study)
            .map(|(group, study)| {
                let values = |of: fn(&Played) -> f64| -> Vec<f64> {
                    group.iter().filter_map(|row| row[place].as_ref()).map(of).collect()
                };
                let small = values(|p| mean_hours(&p.figures.small));
                let large = values(|p| mean_hours(&p.figures.whole_node_large));
                let held = values(|p| p.figures.held_idle * 100.0);
                let ranges = format!("{} / {}", spread(&small), spread(&large));
                let [small, large, held] = [small, large, held].map(median);
                format!("{} / {} ({held:.1}) | {ranges} | {study}", number(small), number(large))
            })
            .collect();
        println!("| {name} | {what} | {} |", cells.join(" | "));
    }
}

//! One node: medians over 48 kinds of work.

use crate::played::{HOUR_MS, Played, all, mean_hours, median, ms, number, range, spread};
use crate::streams::{Pool, SMALLS};

/// Mean hours of larges.
const LARGES_H: [u32; 3] = [1, 4, 16];
const SHARES: [f64; 4] = [0.1, 0.3, 0.5, 0.8];
const STREAMS: usize = SMALLS.len() * LARGES_H.len() * SHARES.len();
const COLUMNS: [&str; 8] =
    ["stable of 48", "S mean", "S 99 %", "S max", "L mean", "L 99 %", "L max", "held idle %"];

/// A scheduler, and what the study has for it at load 0.7 and at 0.9.
type Row = (&'static str, [&'static str; 2]);

const NONE: [&str; 2] = ["", ""];

#[rustfmt::skip]
const ROWS: [Row; 26] = [
    ("greedy", ["21 | 0.61 | 4.8 | 5.9 | 236.62 | 502.4 | 546.1 | 0.0", "0 | 0.55 | 4.9 | 6.0 | 1438.18 | 2261.8 | 2272.7 | 0.0"]),
    ("fifo-skip", ["48 | 2.60 | 21.0 | 33.9 | 25.30 | 76.9 | 90.2 | 0.0", "43 | 17.27 | 74.9 | 90.2 | 93.44 | 237.1 | 244.9 | 0.0"]),
    ("fifo-strict", ["36 | 13.78 | 78.6 | 90.4 | 17.92 | 68.4 | 78.0 | 0.0", "17 | 242.93 | 409.7 | 420.0 | 232.49 | 408.0 | 418.0 | 0.0"]),
    ("strict-large", ["46 | 9.66 | 53.5 | 69.3 | 3.51 | 14.3 | 18.1 | 5.5", "28 | 94.87 | 233.8 | 244.2 | 4.97 | 18.9 | 27.2 | 7.2"]),
    ("reserve-after=1L", NONE),
    ("easy+limits=exact", ["48 | 2.31 | 15.9 | 29.0 | 7.52 | 24.9 | 31.9 | 0.0", "48 | 8.88 | 37.8 | 49.4 | 19.56 | 50.8 | 58.6 | 0.0"]),
    ("easy", NONE),
    ("easy+limits=x3", ["48 | 2.29 | 17.3 | 34.9 | 9.27 | 28.6 | 34.8 | 0.0", "47 | 11.03 | 44.0 | 59.7 | 26.78 | 62.2 | 68.0 | 0.0"]),
    ("phase-fair", ["37 | 10.80 | 56.2 | 73.3 | 9.98 | 43.1 | 47.6 | 9.7", "18 | 152.20 | 301.7 | 311.6 | 14.31 | 48.7 | 55.0 | 11.6"]),
    ("phase-fair+wave=4", NONE),
    ("phase-fair+backfill", ["37 | 1.35 | 7.3 | 18.6 | 15.82 | 73.4 | 77.7 | 7.8", "26 | 3.68 | 17.0 | 33.4 | 45.33 | 127.4 | 146.1 | 5.8"]),
    ("phase-fair+backfill+turn=0.667L", ["37 | 1.36 | 7.4 | 18.6 | 15.80 | 72.5 | 77.7 | 7.6", "26 | 3.79 | 18.4 | 33.6 | 45.02 | 127.4 | 146.1 | 5.7"]),
    ("phase-fair+backfill+turn=1.333L", ["43 | 1.75 | 12.4 | 24.8 | 8.39 | 36.9 | 46.2 | 4.0", "34 | 5.96 | 29.1 | 44.2 | 15.03 | 58.8 | 62.5 | 2.6"]),
    ("phase-fair+backfill+turn=2L", NONE),
    ("phase-fair+backfill+turn=2.667L", ["48 | 1.90 | 20.2 | 36.5 | 5.20 | 21.6 | 26.4 | 4.0", "44 | 8.57 | 41.4 | 57.7 | 9.34 | 32.4 | 38.3 | 2.5"]),
    ("balanced", NONE),
    ("phase-fair+backfill+turn=8L", NONE),
    ("phase-fair+turn=4L", NONE),
    ("phase-fair+turn=4L+limits=class", NONE),
    ("balanced+limits=exact", NONE),
    ("balanced+limits=x3", NONE),
    ("balanced+limits=class", NONE),
    ("variant+batch=4", ["45 | 11.21 | 66.5 | 76.8 | 4.63 | 20.6 | 27.0 | 6.4", "25 | 100.70 | 303.3 | 311.9 | 7.04 | 29.4 | 31.9 | 8.7"]),
    ("variant+batch=4+backfill", ["47 | 1.89 | 18.8 | 33.8 | 5.36 | 23.3 | 28.8 | 4.0", "42 | 7.63 | 33.0 | 49.0 | 9.48 | 40.1 | 44.7 | 2.5"]),
    ("variant+oldest=0.889L+backfill", ["41 | 1.59 | 10.9 | 19.1 | 10.82 | 47.5 | 61.0 | 4.6", "32 | 4.28 | 19.2 | 31.5 | 34.91 | 114.2 | 132.3 | 4.6"]),
    ("variant+join+limits=exact", ["36 | 10.80 | 63.6 | 76.8 | 9.98 | 43.1 | 47.6 | 9.8", "18 | 152.20 | 301.7 | 311.6 | 14.31 | 48.7 | 55.0 | 11.6"]),
];

fn value(played: &Played, column: usize) -> f64 {
    let (small, large) = (&played.figures.small, &played.figures.whole_node_large);
    let hours = |wait: Option<u64>| wait.map_or(f64::INFINITY, |wait| ms(wait) / HOUR_MS);
    match column {
        1 => mean_hours(small),
        2 => hours(small.p99_ms),
        3 => hours(small.max_ms),
        4 => mean_hours(large),
        5 => hours(large.p99_ms),
        6 => hours(large.max_ms),
        _ => played.figures.held_idle * 100.0,
    }
}

/// Streams in which it delivers at least 98.5 % of what the best one does.
fn stable(rows: &[Vec<Option<Played>>], place: usize) -> f64 {
    let used = |played: &Option<Played>| played.as_ref().map_or(0.0, |p| p.figures.utilisation);
    let keeps_up = |row: &&Vec<Option<Played>>| {
        used(&row[place]) >= row.iter().map(used).fold(0.0, f64::max) * 0.985
    };
    rows.iter().filter(keeps_up).fold(0.0, |count, _| count + 1.0)
}

pub(crate) fn print(seeds: u64) {
    println!(
        "\n## One node\n\n48 kinds of work: smalls uniform, exponential, lognormal or Pareto (cut at 1.8, 8, 12 and 30 \
         h); larges 1, 4 or 16 h long, evenly from\nhalf to one and a half of that; 10, 30, 50 or 80 % of the work; 4,000 h \
         each; limits 1.5 times the run unless the name says otherwise.\nA value is the median over the 48 kinds: the \
         first line has the median over {seeds} seeds, the second the least and the most.\nStable: at least 98.5 % of the \
         best scheduler's utilisation. \"Over\": waits over the figure, of smalls and of larges, in all runs;\n\"longest\": \
         the longest wait as a share of it. The live rule is held to what it told, the others to the plain rule's \
         figure.\nL in a name is the longest limit of a large. The study's turns count in its longest run, and its Q in \
         its mean run: what it calls 4L is\n2.667L here, and its Q=2L is 0.889L."
    );
    for (at, load) in [0.7, 0.9].into_iter().enumerate() {
        load_table(seeds, load, at);
    }
}

fn load_table(seeds: u64, load: f64, at: usize) {
    let kinds: Vec<Pool> = (0..SMALLS.len())
        .flat_map(|small| LARGES_H.map(|large| (small, large)))
        .flat_map(|(small, large)| SHARES.map(|share| (small, large, share)))
        .map(|(small, large, share)| Pool {
            hours: 4_000.0,
            ..Pool::new("", 1, load, share).of(small, large)
        })
        .collect();
    let names: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
    let count = STREAMS * usize::try_from(seeds).expect("a few");
    let rows = all(&format!("one node, load {load}"), count, &names, |at| {
        kinds[at % STREAMS].draw(u64::try_from(at / STREAMS).expect("a few") + 1)
    });
    println!(
        "\n### Load {load}\n\n| scheduler | | {} | over S / L | longest S / L |",
        COLUMNS.join(" | ")
    );
    println!("|---|---{}|", "|---".repeat(COLUMNS.len() + 2));
    for (place, (name, study)) in ROWS.iter().enumerate() {
        let values: Vec<Vec<f64>> = (0..COLUMNS.len())
            .map(|column| {
                let seeds = rows.chunks(STREAMS);
                let of_seed = |rows: &[Vec<Option<Played>>]| match column {
                    0 => stable(rows, place),
                    _ => median(rows.iter().flat_map(|row| &row[place]).map(|p| value(p, column))),
                };
                seeds.map(of_seed).collect()
            })
            .collect();
        let cells = |cell: fn(&[f64]) -> String, counts: String| -> String {
            let others = values.iter().skip(1).map(|values| cell(values));
            std::iter::once(counts).chain(others).collect::<Vec<_>>().join(" | ")
        };
        let (least, most) = range(values[0].iter().copied());
        let middle = median(values[0].iter().copied());
        println!(
            "| {name} | median | {} | {} |",
            cells(|values| number(median(values.iter().copied())), format!("{middle:.0}")),
            kept(&rows, place)
        );
        println!("| | range | {} | | |", cells(spread, format!("{least:.0}..{most:.0}")));
        if !study[at].is_empty() {
            println!("| | study | {} | | |", study[at]);
        }
    }
}

fn kept(rows: &[Vec<Option<Played>>], place: usize) -> String {
    let of = |large: bool| {
        let played = rows.iter().filter_map(move |row| row[place].as_ref());
        let waits =
            played.map(move |p| if large { &p.figures.whole_node_large } else { &p.figures.small });
        waits.fold((0, 0.0), |(over, most), waits| {
            (over + waits.over_bound, f64::max(most, waits.largest_of_bound.unwrap_or(0.0)))
        })
    };
    let ((small, small_most), (large, large_most)) = (of(false), of(true));
    format!("{small} / {large} | {small_most:.2} / {large_most:.2}")
}

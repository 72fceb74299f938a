//! What one node delivers while both queues are never empty.

use crate::played::{all, median, spread};
use crate::streams::{EXPONENTIAL, Pool};

/// A scheduler, mean hours of larges, larges of a turn where that is known, and what the study
/// predicted / measured of use, and of the larges' share of it.
type Row = (&'static str, u32, Option<f64>, &'static str, &'static str);

#[rustfmt::skip]
const ROWS: [Row; 8] = [
    ("phase-fair", 1, Some(1.0), "53.8 / 52.1", ""),
    ("phase-fair", 4, Some(1.0), "74.4 / 73.4", "78"),
    ("phase-fair", 16, Some(1.0), "90.8 / 89.6", ""),
    ("variant+batch=2", 4, Some(2.0), "83.9 / 83.7", ""),
    ("variant+batch=4", 4, Some(4.0), "90.8 / 90.0", ""),
    ("phase-fair+backfill", 4, None, "", "38"),
    ("variant+batch=4+backfill", 4, None, "", "70"),
    ("balanced", 4, None, "", ""),
];

/// Expected longest of eight exponential runs of one hour: 1 + 1/2 + … + 1/8.
const LONGEST_OF_EIGHT: f64 = 761.0 / 280.0;

pub(crate) fn print(seeds: u64) {
    println!(
        "\n## Capacity\n\nOne node, both queues never empty (each shape brings twice what the node could do), \
         exponential smalls. Predicted, for m larges of\nmean run L in a turn: (1 + mL) / (2.72 + mL), since a wave of \
         eight lasts as long as its longest, 2.72 h. Medians over {seeds} seeds.\n\n| scheduler | L | predicted % | used % | \
         range | study: predicted / used | larges' share of the use % | range | study |\n|---|---|---|---|---|---|---|---|---|"
    );
    let count = usize::try_from(seeds).expect("a few");
    for (name, large_h, turn, study, study_share) in ROWS {
        let pool = Pool::new("", 1, 4.0, 0.5).of(EXPONENTIAL, large_h);
        let rows = all(&format!("capacity, {name}"), count, &[name], |at| {
            pool.draw(u64::try_from(at).expect("a few") + 1)
        });
        let played = || rows.iter().flatten().flatten();
        let used: Vec<f64> = played().map(|p| p.figures.utilisation * 100.0).collect();
        let share: Vec<f64> = played().map(|p| p.large_share * 100.0).collect();
        let predicted = turn.map_or_else(String::new, |larges| {
            let larges = larges * f64::from(large_h);
            format!("{:.1}", (1.0 + larges) / (LONGEST_OF_EIGHT + larges) * 100.0)
        });
        println!(
            "| {name} | {large_h} | {predicted} | {:.1} | {} | {study} | {:.0} | {} | {study_share} |",
            median(used.iter().copied()),
            spread(&used),
            median(share.iter().copied()),
            spread(&share),
        );
    }
}

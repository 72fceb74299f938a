//! How many jobs each scheduler plays in a second.

use std::time::Instant;

use sluice::stream::Spec;

use crate::played::play_one;

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// A million jobs, one scheduler after another.
pub(crate) fn print() {
    println!("| jobs | nodes | load | scheduler | seconds | jobs/s | decisions/s |");
    println!("|---|---|---|---|---|---|---|");
    for (nodes, load) in [(1, 0.8), (8, 0.8), (1, 1.1)] {
        let Ok(Spec::Drawn(spec)) = format!("jobs=1000000,load={load}").parse() else {
            panic!("it is a stream")
        };
        let begin = now();
        let problem = spec.generate(8, nodes, 1);
        let drawn = begin.elapsed().as_secs_f64();
        println!(
            "| 1000000 | {nodes} | {load} | (drawing the stream) | {drawn:.2} | {:.0} | |",
            1e6 / drawn
        );
        for name in
            ["greedy", "fifo-strict", "fifo-skip", "strict-large", "easy", "phase-fair", "balanced"]
        {
            let begin = now();
            let figures = play_one(&problem, name).figures;
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

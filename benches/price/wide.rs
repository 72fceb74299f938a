//! Jobs of several GPUs and not all: what they wait, and what others wait because of them.

use sluice::sim::{Job, Problem};

use crate::played::{Played, all, median, ms, number};
use crate::streams::{Pool, trace};

const POOLS: [Pool; 2] = [
    Pool::new("1 node, load 0.80, 50 % L", 1, 0.80, 0.50),
    Pool::new("8 nodes, load 0.81, 51 % L", 8, 0.81, 0.51),
];
const NAMES: [&str; 6] =
    ["fifo-skip", "easy", "greedy", "phase-fair", "phase-fair+backfill", "balanced"];

/// Of each ten smalls one asks for two GPUs and one for four; they arrive so much slower that the
/// load is what it was.
fn widen(problem: &mut Problem) {
    let work = |problem: &Problem| -> f64 {
        problem.jobs.iter().map(|job| ms(job.run_ms) * f64::from(job.width)).sum()
    };
    let before = work(problem);
    for (at, job) in problem.jobs.iter_mut().filter(|job| job.width == 1).enumerate() {
        match at % 10 {
            3 => job.width = 2,
            7 => job.width = 4,
            _ => {}
        }
    }
    let slower = (work(problem) / before * 1e6).round();
    for job in &mut problem.jobs {
        let moved_ms = ms(job.arrival_ms) * slower / 1e6;
        let moved = std::time::Duration::from_secs_f64(moved_ms / 1e3).as_millis();
        job.arrival_ms = u64::try_from(moved).expect("a few years");
    }
}

/// The same work in jobs of one GPU.
fn split(problem: &Problem) -> Problem {
    let gpus = problem.gpus;
    let parts = |job: &Job| {
        let count = if job.width == gpus { 1 } else { job.width };
        let width = if job.width == gpus { gpus } else { 1 };
        std::iter::repeat_n(Job { width, ..job.clone() }, usize::try_from(count).expect("a few"))
    };
    Problem { jobs: problem.jobs.iter().flat_map(parts).collect(), ..problem.clone() }
}

pub(crate) fn print(seeds: u64) {
    println!(
        "\n## Jobs of two and of four GPUs\n\nMean / longest wait by width, in hours; medians over {seeds} seeds, the \
         trace once. In the drawn streams one small of ten asks for two\nGPUs and one for four. \"In ones\": the same work, \
         each such job in as many of one GPU. Held idle here is what is kept for larges,\nunder EASY also for a wide job \
         at the head.\n"
    );
    let per = usize::try_from(seeds).expect("a few");
    for pool in POOLS {
        table(pool.head, per, &|seed| {
            let mut problem = pool.draw(seed);
            widen(&mut problem);
            problem
        });
    }
    table("The trace, 1 node", 1, &|_| trace(1.0, 1, true));
    table("The trace 6x, 8 nodes", 1, &|_| trace(6.0, 8, true));
}

fn table(title: &str, per: usize, make: &(dyn Fn(u64) -> Problem + Sync)) {
    let rows = all(title, 2 * per, &NAMES, |at| {
        let problem = make(u64::try_from(at / 2).expect("a few") + 1);
        if at % 2 == 0 { problem } else { split(&problem) }
    });
    println!(
        "### {title}\n\n| scheduler | 1 GPU | 2 GPUs | 4 GPUs | 8 GPUs | held idle % | in ones: 1 GPU | 8 GPUs |\n|---|---|---|---|---|---|---|---|"
    );
    for (place, name) in NAMES.iter().enumerate() {
        let played = |split: usize| -> Vec<&Played> {
            rows.iter().skip(split).step_by(2).filter_map(|row| row[place].as_ref()).collect()
        };
        let cell = |split: usize, width: u32| {
            let over = |of: &dyn Fn(&Played) -> f64| median(played(split).into_iter().map(of));
            format!(
                "{} / {}",
                number(over(&|p| p.mean_h(width))),
                number(over(&|p| p.most_h(width)))
            )
        };
        let held = median(played(0).into_iter().map(|p| p.figures.held_idle * 100.0));
        let cells: Vec<String> = [1, 2, 4, 8].map(|width| cell(0, width)).into();
        println!(
            "| {name} | {} | {held:.1} | {} | {} |",
            cells.join(" | "),
            cell(1, 1),
            cell(1, 8)
        );
    }
    println!();
}

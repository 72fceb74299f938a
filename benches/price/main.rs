//! What the rule costs and buys beside its rivals, and each option of a pool beside the plain rule.
//!
//! `cargo bench --no-default-features --bench price -- [PART…] [SEEDS]` prints docs/price.md, or
//! parts of it: `one`, `many`, `drains`, `capacity`, `wide`; over five seeds unless it is told
//! another number. `rate` instead prints how many jobs each scheduler plays in a second.
//!
//! Times are in mean runs of a small, which is one hour here. Every job counts, work is run to its
//! end, shares of GPU-time are taken until the last arrival.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it says what it measured")]

mod capacity;
mod drains;
mod many;
mod one;
mod played;
mod rate;
mod streams;
mod wide;

const HEAD: &str = "\
# What the rule costs and buys: the tables

Written by `cargo bench --no-default-features --bench price -- SEEDS > docs/price.md`; the same seeds give the same
tables. What they say is in [simulator.md](simulator.md), which also explains the schedulers' names, and in
[options.md](options.md). \"Study\" is the simulation that the rule was chosen by: another program, one seed for each cell.
Times are mean waits in hours; a small runs for one hour on average.
";

/// A part of the page: its name, and what prints it.
type Part = (&'static str, fn(u64));

const PARTS: [Part; 5] = [
    ("one", one::print),
    ("many", many::print),
    ("drains", drains::print),
    ("capacity", capacity::print),
    ("wide", wide::print),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let seeds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let asks = |what: &str| args.iter().any(|arg| arg == what);
    if asks("rate") {
        return rate::print();
    }
    let any = PARTS.iter().any(|(name, _)| asks(name));
    if !any {
        print!("{HEAD}");
    }
    for (name, print) in PARTS {
        if !any || asks(name) {
            print(seeds);
        }
    }
}

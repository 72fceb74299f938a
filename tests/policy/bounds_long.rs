//! Millions of random worlds: nobody waits longer than told, and how near to it the longest wait
//! comes. Minutes, so on request:
//!
//! `cargo test --release --no-default-features --test policy -- --ignored --nocapture bounds`
//!
//! `SLUICE_WORLDS` sets how many, `SLUICE_FIRST` the first seed; what was found is in
//! `docs/bounds.md`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sluice::policy::Shape;

use super::promises::{setup, shuffled};
use super::worlds::{Setup, play, unexplained};

const WORLDS: u64 = 2_000_000;

/// What was seen under one kind of settings. Shares are in thousandths, by number of nodes.
#[derive(Clone, Copy, Default)]
struct Seen {
    worlds: u64,
    faults: u64,
    waits: u64,
    /// The longest wait of a small against the proof, where no large fails at once.
    small: [u64; 3],
    /// The same against what it was told at arrival, with larges that fail at once.
    small_told: [u64; 3],
    /// The longest wait of a large against what it was told at arrival.
    large: [u64; 3],
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.faults += other.faults;
        self.waits += other.waits;
        for nodes in 0..3 {
            for (most, one) in [
                (&mut self.small, &other.small),
                (&mut self.small_told, &other.small_told),
                (&mut self.large, &other.large),
            ] {
                most[nodes] = most[nodes].max(one[nodes]);
            }
        }
    }
}

/// The settings, and in a second table what happens: each world counts in one row of each.
fn kinds(setup: &Setup) -> [(u8, String); 2] {
    let config = &setup.config;
    let name = |of: &[(bool, &str)], none: &str| {
        let on: Vec<&str> = of.iter().filter(|(on, _)| *on).map(|&(_, name)| name).collect();
        if on.is_empty() { none.to_owned() } else { on.join(", ") }
    };
    let settings = [
        (config.backfill, "backfill"),
        (config.turn.is_some(), "turn"),
        (config.one_wave, "oneWaveAtATime"),
        (config.keep_open > 0, "keepOpen"),
        (config.wave_size < config.gpus_per_node, "waveSize"),
        (config.max_drains > 1, "maxConcurrent"),
    ];
    let events = [
        (setup.cancels, "cancellations"),
        (setup.pinned, "work for some nodes only"),
        (setup.bad > 0, "bad GPUs"),
        (setup.is_shuffled(), "quotas, priorities and other selectors"),
    ];
    [(0, name(&settings, "none")), (1, name(&events, "none"))]
}

#[test]
#[ignore = "minutes: see above"]
#[expect(clippy::disallowed_methods, reason = "how long it took is told, never judged")]
fn bounds_hold_in_millions_of_random_worlds() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |number| number.parse().unwrap())
    };
    let (worlds, first) = (number("SLUICE_WORLDS", WORLDS), number("SLUICE_FIRST", 0));
    let (begun, next) = (Instant::now(), AtomicU64::new(first));
    let seen: Mutex<BTreeMap<(u8, String), Seen>> = Mutex::default();
    let threads = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own: BTreeMap<(u8, String), Seen> = BTreeMap::new();
                loop {
                    let world = next.fetch_add(1, Ordering::Relaxed);
                    if world >= first + worlds {
                        break;
                    }
                    one(world, &mut own);
                }
                let mut all = seen.lock().unwrap();
                for (kind, part) in own {
                    all.entry(kind).or_default().add(&part);
                }
            });
        }
    });
    println!("{worlds} worlds from {first} in {} s", begun.elapsed().as_secs());
    let seen = seen.into_inner().unwrap();
    report("settings", seen.iter().filter(|((table, _), _)| *table == 0));
    report("what happens", seen.iter().filter(|((table, _), _)| *table == 1));
}

#[expect(clippy::print_stdout, reason = "a report to whoever runs the long search")]
fn report<'a>(title: &str, rows: impl Iterator<Item = (&'a (u8, String), &'a Seen)>) {
    println!("\n| {title} | worlds | of these with faults | waits | small | small, told | large |");
    println!("|---|---:|---:|---:|---|---|---|");
    let mut all = Seen::default();
    let row = |name: &str, seen: &Seen| {
        let share = |of: [u64; 3]| {
            let one = |n: u64| match n {
                0 => "–".to_owned(),
                n => format!("{}.{:02}", n / 1_000, n % 1_000 / 10),
            };
            of.map(one).join(" ")
        };
        let Seen { worlds, faults, waits, .. } = seen;
        let (small, told, large) = (share(seen.small), share(seen.small_told), share(seen.large));
        println!("| {name} | {worlds} | {faults} | {waits} | {small} | {told} | {large} |");
    };
    for ((_, name), seen) in rows {
        row(name, seen);
        all.add(seen);
    }
    row("all", &all);
}

fn one(world: u64, own: &mut BTreeMap<(u8, String), Seen>) {
    let setup = match world % 16 {
        15 => shuffled(world, true),
        part => setup(world, part % 4 == 3),
    };
    let (waited, moved) = play(&setup, world);
    let unexplained = unexplained(&setup, &moved);
    assert!(unexplained.is_empty(), "world {world}: {unexplained:?}");
    let mut seen = Seen {
        worlds: 1,
        faults: u64::from(setup.faults),
        waits: waited.len() as u64,
        ..Seen::default()
    };
    let nodes = setup.nodes as usize - 1;
    // What was told at arrival says nothing of a world in which it had to be taken back.
    for wait in waited.iter().filter(|wait| !setup.faults && wait.told > 0) {
        let of = |most: u64| wait.span * 1_000 / most;
        match (wait.shape, wait.proved) {
            (Shape::Large, _) => seen.large[nodes] = seen.large[nodes].max(of(wait.told)),
            (_, None) => seen.small_told[nodes] = seen.small_told[nodes].max(of(wait.told)),
            (_, Some(most)) => seen.small[nodes] = seen.small[nodes].max(of(most)),
        }
    }
    for kind in kinds(&setup) {
        own.entry(kind).or_default().add(&seen);
    }
}

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

use sluice::policy::Shape;

use super::promises::setup;
use super::worlds::{Setup, play, unexplained};

const WORLDS: u64 = 2_000_000;

/// What was seen under one kind of settings.
#[derive(Default)]
struct Seen {
    worlds: u64,
    waits: u64,
    /// The longest wait against what was told at arrival, in thousandths; by shape.
    largest: [u64; 2],
}

fn kind(setup: &Setup) -> String {
    let config = &setup.config;
    let on = |yes: bool, name: &str| if yes { format!(" {name}") } else { String::new() };
    format!(
        "{} node(s){}{}{}{}{}{}{}{}",
        setup.nodes,
        on(config.backfill, "backfill"),
        on(config.turn.is_some(), "turn"),
        on(config.one_wave, "oneWave"),
        on(config.keep_open > 0, "keepOpen"),
        on(setup.cancels, "cancels"),
        on(setup.pinned, "pinned"),
        on(setup.bad > 0, "badGpus"),
        on(setup.faults, "FAULTS"),
    )
}

#[test]
#[ignore = "minutes: see above"]
fn bounds_hold_in_millions_of_random_worlds() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |number| number.parse().unwrap())
    };
    let (worlds, first) = (number("SLUICE_WORLDS", WORLDS), number("SLUICE_FIRST", 0));
    let next = AtomicU64::new(first);
    let seen: Mutex<BTreeMap<String, Seen>> = Mutex::default();
    let threads = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own: BTreeMap<String, Seen> = BTreeMap::new();
                loop {
                    let world = next.fetch_add(1, Ordering::Relaxed);
                    if world >= first + worlds {
                        break;
                    }
                    one(world, &mut own);
                }
                let mut all = seen.lock().unwrap();
                for (kind, part) in own {
                    let sum = all.entry(kind).or_default();
                    sum.worlds += part.worlds;
                    sum.waits += part.waits;
                    for shape in [0, 1] {
                        sum.largest[shape] = sum.largest[shape].max(part.largest[shape]);
                    }
                }
            });
        }
    });
    println!("| settings | worlds | waits | small | large |\n|---|---|---|---|---|");
    for (kind, seen) in seen.into_inner().unwrap() {
        let [small, large] = seen.largest.map(|n| format!("{}.{:03}", n / 1_000, n % 1_000));
        println!("| {kind} | {} | {} | {small} | {large} |", seen.worlds, seen.waits);
    }
}

fn one(world: u64, own: &mut BTreeMap<String, Seen>) {
    let setup = setup(world, world % 4 == 3);
    let (waited, moved) = play(&setup, world);
    let unexplained = unexplained(&setup, &moved);
    assert!(unexplained.is_empty(), "world {world}: {unexplained:?}");
    let seen = own.entry(kind(&setup)).or_default();
    seen.worlds += 1;
    seen.waits += waited.len() as u64;
    // What was told at arrival says nothing of a world in which it had to be taken back.
    for wait in waited.iter().filter(|wait| !setup.faults && wait.told > 0) {
        let shape = usize::from(wait.shape == Shape::Large);
        let thousandths = (wait.span * 1_000).div_ceil(wait.told);
        seen.largest[shape] = seen.largest[shape].max(thousandths);
    }
}

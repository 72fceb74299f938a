//! The exact worst waits of `docs/bounds.md` against every timeline of small pools
//! ([`super::exact`]): the formula for smalls and the one for larges are reached and not exceeded.
//!
//! Short cases in every build; the long list takes minutes in a release build:
//! `cargo test --release --no-default-features --test policy -- --ignored --nocapture worst`

use std::time::Instant;

use sluice::policy::{Config, Millis, Shape};

use super::exact::{Found, Instance, search};

/// The longest wait of the small at place `p`, on one node of `gpus`, with waves of `w`, without
/// cancellations: the formula as the document has it. `b` is the turn of the larges.
fn exact(p: u64, gpus: u64, w: u64, s: u64, b: u64) -> u64 {
    let turns = 1..=p.div_ceil(w);
    let wait = |m: u64| m * (b + s) + extra(p - 1 - w * (m - 1), m, gpus, w) * s;
    turns.map(wait).max().unwrap_or_default()
}

/// How many more spans of S those before it buy, beyond one for each turn: one of them the first,
/// in each later gap between turns as many as an open node admits more than a wave, and one more;
/// then a node's worth for each further one.
fn extra(before: u64, m: u64, gpus: u64, w: u64) -> u64 {
    let first = before.min(1);
    let gaps = (m - 1).min((before - first) / (gpus - w + 1));
    first + gaps + (before - first - gaps * (gpus - w + 1)) / gpus
}

/// The figure that is promised, in its short form; with backfill S more.
fn promised(p: u64, of: &Instance, b: u64) -> u64 {
    let once = if of.config.backfill { of.limits.small } else { 0 };
    p.div_ceil(of.config.wave_size.into()) * (b + 2 * of.limits.small) + once
}

/// What was tried, for the report.
fn name(of: &Instance) -> String {
    let Config { gpus_per_node, wave_size, turn, max_drains, one_wave, backfill, .. } = of.config;
    let on = |yes: bool, what: &str| if yes { format!(", {what}") } else { String::new() };
    let turn = turn.map(|turn| turn.0 / of.tick.0);
    format!(
        "{:?} {}x{gpus_per_node} S={} L={}{}{}{}{}{}{}{}",
        of.shape,
        of.nodes,
        of.limits.small,
        of.limits.large,
        on(wave_size < gpus_per_node, &format!("waves of {wave_size}")),
        turn.map_or(String::new(), |turn| format!(", a turn of {turn}")),
        on(max_drains > 1, &format!("{max_drains} drains")),
        on(one_wave, "one wave at a time"),
        on(backfill, &format!("backfill, {} behind", of.behind)),
        on(of.failures, "failures at once"),
        on(of.cancels, "cancellations"),
    )
}

/// How the worst waits stand to the formula.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    /// Equal at every place.
    Exact,
    /// Never above the promised figure.
    Within,
}

/// Tries everything and compares; returns how many places were tried.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "how long it took is told, never judged")]
fn check(of: &Instance, is: Is) -> usize {
    let begun = Instant::now();
    let found = search(of);
    let spans: Vec<u64> = found.worst.values().copied().collect();
    let ms = begun.elapsed().as_millis();
    say(&format!("{}: {spans:?}, {} states, {ms} ms", name(of), found.states));
    match of.shape {
        Shape::Large => check_larges(of, is, &found),
        _ => check_smalls(of, is, &found),
    }
}

fn check_smalls(of: &Instance, is: Is, found: &Found) -> usize {
    let large = of.limits.large;
    let turn = of.config.turn.map_or(large, |turn| large.max(turn.0 / of.tick.0));
    // A failure at once is one within a minute: one tick of it, three times.
    let turn = turn + if of.failures { 3 } else { 0 };
    let (gpus, wave) = (of.config.gpus_per_node.into(), of.config.wave_size.into());
    for place in 1..=of.places {
        let worst = [false, true].map(|runs| found.worst.get(&(place, runs)).copied());
        let worst = worst.into_iter().flatten().max().unwrap();
        let exact = exact(place.into(), gpus, wave, of.limits.small, turn);
        match is {
            Is::Exact => assert_eq!(worst, exact, "place {place}: {of:?}"),
            Is::Within => {
                assert!(worst <= promised(place.into(), of, turn), "place {place}: {of:?}");
            }
        }
    }
    of.places as usize
}

fn check_larges(of: &Instance, is: Is, found: &Found) -> usize {
    let (s, l) = (of.limits.small, of.limits.large);
    for (&(k, runs), &worst) in &found.worst {
        let k = u64::from(k);
        let most = if runs { k * (l + s) } else { s + (k - 1) * (l + s) };
        match is {
            Is::Exact => assert_eq!(worst, most, "place {k}, large runs {runs}: {of:?}"),
            Is::Within => assert!(worst <= most, "place {k}, large runs {runs}: {of:?}"),
        }
    }
    found.worst.len()
}

#[expect(clippy::print_stderr, reason = "a report to whoever runs the long list")]
fn say(text: &str) {
    eprintln!("{text}");
}

fn smalls(gpus: u32, s: u64, l: u64, places: u32) -> Instance {
    Instance::new(Shape::Small, gpus, s, l, places)
}

fn larges(gpus: u32, s: u64, l: u64, places: u32) -> Instance {
    Instance::new(Shape::Large, gpus, s, l, places)
}

fn configured(mut of: Instance, change: impl FnOnce(&mut Config)) -> Instance {
    change(&mut of.config);
    of
}

fn waves_of(w: u32, of: Instance) -> Instance {
    configured(of, |config| config.wave_size = w)
}

fn turn_of(ticks: u64, of: Instance) -> Instance {
    let turn = Some(Millis(of.tick.0 * ticks));
    configured(of, |config| config.turn = turn)
}

/// Larges may fail at once, which is within a minute: here after one tick, three times in a turn.
fn failing(of: Instance) -> Instance {
    let tick = Millis::from_secs(59);
    let scaled = |limit: Option<Millis>| limit.map(|limit| Millis(limit.0 / of.tick.0 * tick.0));
    let config = Config {
        small_limit: scaled(of.config.small_limit),
        large_limit: scaled(of.config.large_limit),
        turn: scaled(of.config.turn),
        ..of.config
    };
    Instance { config, tick, failures: true, ..of }
}

fn cancelling(of: Instance) -> Instance {
    Instance { cancels: true, ..of }
}

/// Backfill, with so many more smalls behind the one that is asked for.
fn filled(behind: u32, of: Instance) -> Instance {
    Instance { behind, ..configured(of, |config| config.backfill = true) }
}

fn on_nodes(nodes: u32, of: Instance) -> Instance {
    Instance { nodes, ..of }
}

#[test]
fn the_worst_wait_of_a_small_is_the_exact_one() {
    for of in [smalls(2, 1, 1, 6), smalls(2, 2, 1, 5), smalls(3, 1, 2, 7)] {
        check(&of, Is::Exact);
    }
}

#[test]
fn the_eleventh_small_on_eight_gpus_waits_as_long_as_the_exact_figure_says() {
    let found = search(&smalls(8, 1, 1, 11));
    let worst = found.worst[&(11, false)];
    let tempting = 1 + 2 * (1 + 1);
    assert_eq!(worst, exact(11, 8, 8, 1, 1));
    assert!(worst > tempting);
}

#[test]
fn the_worst_wait_of_a_large_is_reached() {
    for of in [larges(2, 1, 1, 4), larges(2, 2, 3, 4)] {
        check(&of, Is::Exact);
    }
}

#[test]
fn smaller_waves_and_a_turn_are_in_the_exact_figure() {
    check(&waves_of(1, smalls(2, 1, 2, 4)), Is::Exact);
    check(&turn_of(3, smalls(2, 1, 2, 4)), Is::Exact);
}

#[test]
fn larges_that_fail_at_once_lengthen_each_turn_by_three_of_them() {
    check(&failing(smalls(2, 1, 2, 4)), Is::Exact);
}

#[test]
fn cancellations_and_one_wave_at_a_time_keep_the_promised_figure_and_not_the_exact_one() {
    let cancelled = cancelling(smalls(2, 2, 1, 3));
    let one_wave = on_nodes(2, configured(smalls(2, 2, 1, 3), |config| config.one_wave = true));
    for of in [cancelled, one_wave] {
        check(&of, Is::Within);
        let worst = search(&of).worst;
        let worst = [false, true].map(|runs| worst[&(3, runs)]);
        assert_eq!(worst.into_iter().max(), Some(exact(3, 2, 2, 2, 1) + 1));
    }
}

#[test]
fn backfill_keeps_its_figure() {
    check(&filled(2, smalls(2, 2, 1, 3)), Is::Within);
}

/// One node, no cancellations: the exact figure.
fn exact_list() -> Vec<Instance> {
    let mut list = Vec::new();
    for (gpus, most_s, most_l, places) in [(2, 3, 6, 12), (3, 3, 6, 12), (4, 2, 4, 16)] {
        for s in 1..=most_s {
            list.extend((1..=most_l).map(|l| smalls(gpus, s, l, places)));
        }
    }
    list.extend([(1, 1), (1, 4), (2, 1), (2, 3)].map(|(s, l)| smalls(8, s, l, 24)));
    for (gpus, w) in [(2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3), (8, 4)] {
        for (s, l) in [(1, 1), (2, 1), (1, 3), (2, 3)] {
            list.push(waves_of(w, smalls(gpus, s, l, 3 * gpus)));
        }
    }
    for (l, turn) in [(1, 2), (1, 4), (2, 3), (2, 4), (2, 8), (3, 4), (3, 2)] {
        for (gpus, s) in [(2, 1), (2, 2), (3, 1), (3, 2), (4, 1)] {
            list.push(turn_of(turn, smalls(gpus, s, l, 3 * gpus)));
            list.push(turn_of(turn, waves_of(gpus - 1, smalls(gpus, s, l, 2 * gpus))));
        }
    }
    list.push(turn_of(4, smalls(8, 1, 1, 24)));
    for (gpus, s, l) in [(2, 1, 2), (2, 2, 2), (2, 2, 3), (3, 1, 2), (3, 2, 3), (4, 1, 2)] {
        list.push(failing(smalls(gpus, s, l, 3 * gpus)));
        list.push(failing(turn_of(2 * l, smalls(gpus, s, l, 2 * gpus))));
    }
    for (gpus, s, l) in
        [(2, 1, 1), (2, 2, 3), (2, 3, 2), (3, 1, 1), (3, 2, 3), (4, 1, 2), (8, 1, 1)]
    {
        list.push(larges(gpus, s, l, 4));
        list.push(waves_of(gpus - 1, larges(gpus, s, l, 4)));
    }
    list
}

/// Cancellations, several nodes: the promised figure.
fn promised_list() -> Vec<Instance> {
    let mut list = Vec::new();
    for (gpus, s, l) in
        [(2, 1, 1), (2, 1, 3), (2, 2, 1), (2, 3, 2), (3, 1, 1), (3, 2, 3), (4, 1, 2)]
    {
        list.push(cancelling(smalls(gpus, s, l, 3 * gpus)));
        list.push(cancelling(waves_of(gpus - 1, smalls(gpus, s, l, 2 * gpus))));
        list.push(cancelling(turn_of(3 * l, smalls(gpus, s, l, 2 * gpus))));
        list.push(cancelling(larges(gpus, s, l, 4)));
        list.push(failing(cancelling(smalls(gpus, s, l + 1, 2 * gpus))));
    }
    list.push(cancelling(smalls(8, 1, 1, 24)));
    for (s, l) in [(1, 1), (1, 3), (2, 1)] {
        let two = || on_nodes(2, smalls(2, s, l, 6));
        list.push(two());
        list.push(cancelling(on_nodes(2, smalls(2, s, l, 4))));
        list.push(configured(two(), |config| config.max_drains = 2));
        list.push(configured(two(), |config| config.one_wave = true));
        list.push(turn_of(2 * l, on_nodes(2, smalls(2, s, l, 4))));
        list.push(on_nodes(2, larges(2, s, l, 3)));
    }
    list.push(on_nodes(3, smalls(2, 1, 1, 4)));
    for (s, l) in [(2, 1), (2, 2)] {
        list.push(filled(2, smalls(2, s, l, 5)));
        list.push(filled(2, cancelling(smalls(2, s, l, 4))));
        list.push(turn_of(2 * l, filled(1, smalls(2, s, l, 5))));
    }
    list.push(filled(2, smalls(2, 3, 1, 4)));
    list.push(filled(2, smalls(3, 2, 1, 4)));
    list.push(filled(1, on_nodes(2, smalls(2, 2, 1, 3))));
    list
}

#[test]
#[ignore = "minutes; see docs/bounds.md"]
fn the_long_list_of_worst_waits_that_are_exact() {
    let list = exact_list();
    let places: usize = list.iter().map(|of| check(of, Is::Exact)).sum();
    say(&format!("{} pools, {places} places", list.len()));
}

#[test]
#[ignore = "minutes; see docs/bounds.md"]
fn the_long_list_of_worst_waits_that_are_within_what_is_promised() {
    let list = promised_list();
    let places: usize = list.iter().map(|of| check(of, Is::Within)).sum();
    say(&format!("{} pools, {places} places", list.len()));
}

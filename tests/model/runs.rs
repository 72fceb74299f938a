//! The runs: what is explored, how many states there are, and which wrong rules are caught.

use sluice::policy::{Config, Shape};

use super::checker;
use super::mutants::Mutant;
use super::properties as of;
use super::setup::{Arrivals, Setup, Troubles, ticks};
use super::steps::Rule;

type Run = checker::Run<Rule>;

fn run(name: &'static str, states: usize, setup: Setup) -> Run {
    Run { name, model: Rule::new(setup), states }
}

fn explore(runs: Vec<Run>) {
    checker::explore(runs, |_, _, _, _| {});
}

/// All kinds of trouble, each once.
const EACH_ONCE: Troubles = Troubles {
    failures: 1,
    cancels: 1,
    refusals: 1,
    expiries: 1,
    moves: 1,
    breaks: 1,
    losses: 1,
    cordons: 1,
    foreign: 1,
    crashes: 1,
    pauses: 1,
};
const NONE: Troubles = Troubles {
    failures: 0,
    cancels: 0,
    refusals: 0,
    expiries: 0,
    moves: 0,
    breaks: 0,
    losses: 0,
    cordons: 0,
    foreign: 0,
    crashes: 0,
    pauses: 0,
};

/// Smalls of two limits, so that one may fit behind a gate that the other does not.
fn two_limits(gpus: u32, short: u8, long: u8, larges: u8) -> Setup {
    let mut setup = Setup::timed(1, gpus, (long, 2), (larges, 1));
    setup.arrivals.push(Arrivals { shape: Shape::Small, limit: Some(1), count: short });
    setup.configured(|config| config.backfill = true)
}

/// The same on two nodes of two.
fn two_nodes(short: u8, long: u8, larges: u8) -> Setup {
    let mut setup = Setup::timed(2, 2, (long, 2), (larges, 1));
    setup.arrivals.push(Arrivals { shape: Shape::Small, limit: Some(1), count: short });
    setup
}

/// What the balanced preset sets, with a turn of so many larges of a tick; there they are four.
fn balanced(larges: u64) -> impl FnOnce(&mut Config) {
    move |config| {
        config.backfill = true;
        config.turn = Some(ticks(larges));
    }
}

fn one_wave(config: &mut Config) {
    config.one_wave = true;
}

fn keep(config: &mut Config) {
    config.keep_open = 1;
}

fn waves_of(size: u32) -> impl FnOnce(&mut Config) {
    move |config| config.wave_size = size
}

/// Bounds hold through all of these, also with each step of a pod's way apart.
const ENDINGS: Troubles = Troubles { crashes: 1, cancels: 1, failures: 1, ..NONE };

/// What nobody's figure covers; so nothing is said of bounds then.
const AILING: Troubles = Troubles { breaks: 1, losses: 1, foreign: 1, crashes: 1, ..NONE };

fn two_drains(config: &mut Config) {
    config.max_drains = 2;
}

fn overdue(config: &mut Config) {
    config.drain_limit = Some(ticks(1));
    config.evict_overdue = true;
}

#[test]
fn short_runs_without_trouble() {
    explore(vec![
        run("1 node of 2, 3 smalls, 2 larges", 292, Setup::new(1, 2, 3, 2).marked()),
        run("1 node of 2, bound steps apart", 1_098, Setup::new(1, 2, 3, 2).slow()),
        run("1 node of 3, a wide small", 617, Setup::new(1, 3, 2, 2).and_wide(2, 1)),
        run("2 nodes of 2, 3 smalls, 3 larges", 2_460, Setup::new(2, 2, 3, 3)),
        run("1 node of 2, limits 1 and 2", 2_344, Setup::timed(1, 2, (3, 1), (2, 2))),
        run("1 node of 2, backfill", 993, two_limits(2, 1, 2, 1).marked()),
    ]);
}

#[test]
fn short_runs_with_each_option() {
    let timed = Setup::timed;
    explore(vec![
        run("a turn", 2_133, timed(1, 2, (2, 1), (3, 1)).configured(|c| c.turn = Some(ticks(2)))),
        run("backfill and a turn", 4_419, two_limits(2, 1, 1, 3).configured(balanced(2)).marked()),
        run("waves of 1", 1_469, timed(1, 2, (3, 1), (2, 1)).configured(waves_of(1))),
        run("one wave at a time", 749, timed(2, 2, (2, 1), (2, 1)).configured(one_wave).marked()),
        run("one kept open", 2_417, timed(2, 2, (3, 1), (2, 1)).configured(keep)),
        run("two drains", 611, timed(2, 2, (2, 1), (2, 1)).configured(two_drains)),
        run("bounds in trouble", 1_622, timed(1, 2, (2, 1), (1, 1)).with(ENDINGS).slow()),
    ]);
}

/// Bounds are followed where pods are deleted and the controller crashes, and not where a GPU
/// turns bad or a node goes.
#[test]
fn short_runs_with_each_option_in_trouble() {
    let timed = Setup::timed;
    let ending = Troubles { cancels: 1, crashes: 1, ..NONE };
    let ailing = Troubles { breaks: 1, losses: 1, ..NONE };
    let turn = |config: &mut Config| config.turn = Some(ticks(2));
    let loss = Troubles { losses: 1, ..NONE };
    let losing = |smalls| Setup::new(2, 2, smalls, 2).with(loss);
    let ends = |nodes, smalls| timed(nodes, 2, (smalls, 1), (2, 1)).with(ending);
    let ails = |nodes, smalls| timed(nodes, 2, (smalls, 1), (2, 1)).with(ailing).unbounded();
    let filled = || two_limits(2, 1, 1, 1).configured(balanced(2));
    explore(vec![
        run("a turn, ends", 625, ends(1, 1).configured(turn)),
        run("backfill and a turn, ends", 1_605, filled().with(ENDINGS)),
        run("waves of 1, ends", 3_394, ends(1, 2).configured(waves_of(1))),
        run("one wave at a time, ends", 4_447, ends(2, 2).configured(one_wave)),
        run(
            "one kept open, ends",
            3_228,
            timed(2, 2, (3, 1), (1, 1)).configured(keep).with(ending),
        ),
        run("a turn, ailing", 552, ails(1, 1).configured(turn)),
        run("backfill and a turn, ailing", 1_429, filled().with(ailing).unbounded()),
        run("waves of 1, ailing", 2_169, ails(1, 2).configured(waves_of(1))),
        run("one wave at a time, a loss", 789, losing(2).configured(one_wave)),
        run("one kept open, ailing", 1_891, ails(2, 1).configured(keep)),
        run("two drains, a loss", 2_446, losing(3).configured(two_drains)),
    ]);
}

#[test]
fn short_runs_with_each_trouble() {
    let small = || Setup::new(1, 2, 2, 2).slow();
    let with = |troubles| small().with(troubles);
    explore(vec![
        run("a failure", 704, with(Troubles { failures: 1, ..NONE })),
        run("a deletion", 1_377, with(Troubles { cancels: 1, ..NONE }).marked()),
        run("a refused binding", 1_783, with(Troubles { refusals: 1, ..NONE })),
        run("a reservation runs out", 1_764, with(Troubles { expiries: 1, ..NONE })),
        run("another GPU than promised", 622, with(Troubles { moves: 1, ..NONE })),
        run("a bad GPU", 1_756, with(Troubles { breaks: 1, ..NONE })),
        run("a lost node", 964, with(Troubles { losses: 1, ..NONE })),
        run("a cordoned node", 1_298, with(Troubles { cordons: 1, ..NONE })),
        run("a foreign pod", 2_231, with(Troubles { foreign: 1, ..NONE })),
        run("a crash", 786, with(Troubles { crashes: 1, ..NONE })),
        run("a pause", 1_447, with(Troubles { pauses: 1, ..NONE })),
        run("an overdue drain", 48, Setup::new(1, 2, 2, 1).configured(overdue).marked()),
    ]);
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn long_runs_on_one_node() {
    explore(one_node());
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn long_runs_with_wide_smalls() {
    explore(wide_smalls());
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn long_runs_on_many_nodes() {
    explore(many_nodes());
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn long_runs_in_trouble() {
    explore(in_trouble());
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn long_runs_with_each_option_in_trouble() {
    explore(options_in_endings());
    explore(options_ailing());
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn long_runs_with_many_jobs() {
    explore(many_jobs());
}

/// One node, where each bound has its exact form.
fn one_node() -> Vec<Run> {
    let timed = Setup::timed;
    let ending = Troubles { cancels: 1, failures: 1, ..NONE };
    let cancel = Troubles { cancels: 1, ..NONE };
    let turn = |config: &mut Config| config.turn = Some(ticks(4));
    let balanced_and_deleted = two_limits(2, 2, 1, 3).configured(balanced(2)).with(cancel);
    vec![
        run("1x2: 6 smalls of 1, 3 larges of 1", 265_291, timed(1, 2, (6, 1), (3, 1))),
        run("1x2: 5 smalls of 1, 3 larges of 2", 189_399, timed(1, 2, (5, 1), (3, 2))),
        run("1x2: 4 smalls of 2, 3 larges of 1", 66_102, timed(1, 2, (4, 2), (3, 1))),
        run("1x2: 4 smalls of 2, 3 larges of 3", 194_365, timed(1, 2, (4, 2), (3, 3))),
        run("1x2: a failure and a deletion", 321_297, timed(1, 2, (4, 1), (3, 1)).with(ending)),
        run("1x2: a turn of two larges", 113_154, timed(1, 2, (4, 1), (3, 2)).configured(turn)),
        run("1x2: backfill and a deletion", 212_088, two_limits(2, 2, 2, 2).with(cancel)),
        run("1x2: balanced", 81_846, two_limits(2, 1, 1, 5).configured(balanced(4))),
        run("1x2: balanced, a deletion", 127_870, balanced_and_deleted),
        run("1x2: waves of 1", 102_937, timed(1, 2, (5, 1), (3, 1)).configured(waves_of(1))),
        run("1x3: waves of 2", 84_343, timed(1, 3, (5, 1), (3, 1)).configured(waves_of(2))),
        run("1x3: 9 smalls, 2 larges", 673_600, timed(1, 3, (9, 1), (2, 1)).surpassing()),
        run("1x3: backfill", 1_404_973, two_limits(3, 3, 3, 2)),
        run("1x4: 8 smalls, 3 larges", 1_683_045, timed(1, 4, (8, 1), (3, 1))),
    ]
}

fn wide_smalls() -> Vec<Run> {
    let timed = Setup::timed;
    vec![
        run("1x3: a wide small", 155_663, timed(1, 3, (5, 1), (2, 1)).and_wide(2, 1)),
        run("1x4: two wide smalls", 274_336, timed(1, 4, (4, 1), (2, 1)).and_wide(2, 2)),
    ]
}

fn many_nodes() -> Vec<Run> {
    let timed = Setup::timed;
    let cancel = Troubles { cancels: 1, ..NONE };
    let backfill = |config: &mut Config| config.backfill = true;
    let filled = two_nodes(2, 2, 2).configured(backfill).with(cancel);
    vec![
        run("2x2: 5 smalls, 3 larges", 255_211, timed(2, 2, (5, 1), (3, 1))),
        run("2x2: larges of 2", 85_322, timed(2, 2, (4, 1), (3, 2))),
        run("2x2: two drains", 56_248, timed(2, 2, (4, 1), (3, 1)).configured(two_drains)),
        run("2x2: one kept open", 52_564, timed(2, 2, (4, 1), (3, 1)).configured(keep)),
        run(
            "2x2: one wave at a time",
            54_616,
            timed(2, 2, (4, 1), (3, 1)).configured(one_wave).marked(),
        ),
        run("2x2: waves of 1", 56_063, timed(2, 2, (4, 1), (3, 1)).configured(waves_of(1))),
        run("2x2: balanced", 39_753, two_nodes(2, 1, 3).configured(balanced(2))),
        run("3x2: 3 smalls, 3 larges, bounds", 23_659, timed(3, 2, (3, 1), (3, 1))),
        run("2x2: backfill and a deletion", 327_824, filled),
        run("3x2: 5 smalls, 3 larges", 93_986, Setup::new(3, 2, 5, 3).marked()),
    ]
}

/// Troubles that may meet, with each step of a pod's way apart.
fn in_trouble() -> Vec<Run> {
    let slow = |nodes, gpus, smalls, larges| Setup::new(nodes, gpus, smalls, larges).slow();
    let binding = Troubles { refusals: 1, expiries: 1, cancels: 1, crashes: 1, ..NONE };
    let handling = Troubles { cordons: 1, pauses: 1, moves: 1, crashes: 1, ..NONE };
    vec![
        run(
            "1x2: ends and a crash, bounds",
            72_637,
            Setup::timed(1, 2, (3, 1), (2, 1)).with(ENDINGS).slow(),
        ),
        run(
            "2x2: ends and a crash, bounds",
            314_170,
            Setup::timed(2, 2, (3, 1), (3, 1)).with(ENDINGS),
        ),
        run("1x2: ends and a crash", 286_308, slow(1, 2, 5, 3).with(ENDINGS)),
        run("1x2: binding", 411_331, slow(1, 2, 4, 2).with(binding)),
        run("1x2: ailing", 165_358, slow(1, 2, 3, 2).with(AILING)),
        run("1x2: handling", 125_476, slow(1, 2, 4, 2).with(handling)),
        run("1x2: each trouble once", 402_570, slow(1, 2, 1, 1).with(EACH_ONCE)),
        run("1x3: ailing", 431_674, slow(1, 3, 3, 2).with(AILING)),
        run("2x2: binding", 210_641, slow(2, 2, 2, 2).with(binding)),
        run("2x2: ailing", 114_804, slow(2, 2, 2, 1).with(AILING)),
    ]
}

/// Each option where pods are deleted, fail, and the controller crashes; with bounds.
fn options_in_endings() -> Vec<Run> {
    let ends =
        |nodes, smalls, larges| Setup::timed(nodes, 2, (smalls, 1), (larges, 1)).with(ENDINGS);
    let filled = two_limits(2, 1, 1, 2).configured(balanced(2)).with(ENDINGS);
    let turn = |config: &mut Config| config.turn = Some(ticks(2));
    let overdue = |config: &mut Config| config.drain_limit = Some(ticks(1));
    vec![
        run("1x2: a turn, ends and a crash", 97_261, ends(1, 2, 3).configured(turn).slow()),
        run("1x2: balanced, ends and a crash", 12_292, filled),
        run(
            "1x2: waves of 1, ends and a crash",
            70_130,
            ends(1, 3, 2).configured(waves_of(1)).slow(),
        ),
        run("2x2: waves of 1, ends and a crash", 53_854, ends(2, 2, 3).configured(waves_of(1))),
        run(
            "2x2: one wave at a time, ends and a crash",
            50_623,
            ends(2, 2, 3).configured(one_wave),
        ),
        run("2x2: one kept open, ends and a crash", 44_178, ends(2, 3, 2).configured(keep)),
        run("2x2: two drains, ends and a crash", 54_684, ends(2, 2, 3).configured(two_drains)),
        run(
            "2x2: balanced, ends and a crash",
            19_382,
            two_nodes(1, 1, 2).configured(balanced(2)).with(ENDINGS),
        ),
        run(
            "1x2: drains told of, ends and a crash",
            72_825,
            ends(1, 3, 2).configured(overdue).slow(),
        ),
    ]
}

/// Each option where GPUs turn bad, nodes are lost, foreign pods come, and the controller crashes.
fn options_ailing() -> Vec<Run> {
    let ails = |nodes, smalls, larges| Setup::new(nodes, 2, smalls, larges).slow().with(AILING);
    let timed = Setup::timed(1, 2, (2, 1), (2, 1)).with(AILING).unbounded();
    let filled = two_limits(2, 1, 1, 2).with(AILING).unbounded();
    let turn = |config: &mut Config| config.turn = Some(ticks(2));
    vec![
        run("1x2: a turn, ailing", 19_916, timed.configured(turn)),
        run("1x2: balanced, ailing", 49_878, filled.configured(balanced(2))),
        run("1x2: waves of 1, ailing", 40_626, ails(1, 2, 2).configured(waves_of(1))),
        run("1x2: overdue, ailing", 16_762, ails(1, 2, 1).configured(overdue)),
        run("2x2: one wave at a time, ailing", 91_080, ails(2, 1, 2).configured(one_wave)),
        run("2x2: one kept open, ailing", 66_560, ails(2, 1, 2).configured(keep)),
        run("2x2: two drains, ailing", 87_244, ails(2, 1, 2).configured(two_drains)),
    ]
}

/// As many jobs as ten minutes allow.
fn many_jobs() -> Vec<Run> {
    let timed = Setup::timed;
    let filled = two_nodes(3, 2, 3).configured(balanced(2));
    vec![
        run("1x2: 7 smalls, 4 larges", 4_391_279, timed(1, 2, (7, 1), (4, 1))),
        run(
            "1x2: balanced, 4 smalls, 4 larges",
            1_435_544,
            two_limits(2, 2, 2, 4).configured(balanced(4)),
        ),
        run("2x2: 6 smalls, 4 larges", 6_880_942, timed(2, 2, (6, 1), (4, 1))),
        run("2x2: balanced, 5 smalls, 3 larges", 2_701_693, filled),
        run("2x2: each trouble once", 195_522, Setup::new(2, 2, 1, 1).with(EACH_ONCE)),
        run(
            "2x2: ends and a crash, 4 smalls",
            1_590_503,
            timed(2, 2, (4, 1), (3, 1)).with(ENDINGS),
        ),
    ]
}

/// A spoilt rule is caught by this property, with the shortest history that shows it.
#[track_caller]
fn caught(mutant: Mutant, property: &'static str, setup: Setup) {
    let mut rule = Rule::new(setup);
    rule.mutant = Some(mutant);
    checker::caught(rule, mutant, property);
}

#[test]
fn each_property_can_fail() {
    let plain = || Setup::new(1, 2, 4, 2);
    let timed = |smalls, larges| Setup::timed(1, 2, (smalls, 1), (larges, 1));
    let deleting = || plain().with(Troubles { cancels: 1, ..NONE });
    let crashing = || plain().with(Troubles { crashes: 1, ..NONE });
    caught(Mutant::SkipsGate, of::GATE, plain());
    caught(Mutant::RenewsWave, of::WAVE, plain());
    caught(Mutant::PromisesTwice, of::ONCE, plain());
    caught(Mutant::GivesTwo, of::SMALL_ONE, plain());
    caught(Mutant::StartsEarly, of::LARGE_ALL, plain());
    caught(Mutant::StartsEarly, of::ALONE, plain());
    caught(Mutant::FreesEarly, of::DISJOINT, deleting());
    caught(Mutant::FreesEarly, of::ONCE, deleting());
    caught(Mutant::KeepsDeleted, of::WINNER, deleting());
    caught(Mutant::KeepsDeleted, of::TRUE, deleting());
    caught(Mutant::CountsTwice, of::RELEASED, plain());
    caught(Mutant::MissesRelease, of::RELEASED, plain());
    caught(Mutant::MissesRelease, of::SERVED, plain());
    caught(Mutant::ForgetsGates, of::REBUILT, plain());
    caught(Mutant::ForgetsHolders, of::KEPT, crashing());
    caught(Mutant::Hesitates, of::DECIDED, plain());
    caught(Mutant::LargesFirst, of::SMALL_BOUND, timed(1, 4));
    caught(Mutant::LargesFirst, of::LARGES_PASSED, timed(1, 3));
    caught(Mutant::SmallsFirst, of::LARGE_BOUND, timed(4, 1));
    let kept_open = Setup::timed(2, 2, (5, 1), (1, 1)).configured(keep);
    caught(Mutant::SmallsFirst, of::LARGE_BOUND, kept_open);
    caught(Mutant::RenewsWave, of::WAVES_PASSED, timed(4, 2));
    caught(Mutant::MissesRelease, of::OVER, plain());
    caught(Mutant::Misreports, of::SOUND, plain().slow());
    caught(Mutant::Boasts, of::TOLD, timed(4, 1));
    caught(Mutant::Forgets, of::MOVED, timed(4, 1));
    caught(Mutant::CrashesOn, of::ENDS, crashing());
}

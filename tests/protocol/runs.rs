//! The runs: what is explored, how many states there are, and which wrong protocols are caught.

use super::Protocol;
use super::checker::{self, say};
use super::mutants::Mutant;
use super::properties::{self as of, Wanted};
use super::state::Troubles;
use super::walk::walk;

type Run = checker::Run<Protocol>;

fn run(name: &'static str, states: usize, protocol: Protocol) -> Run {
    Run { name, model: protocol, states }
}

/// Every history has an end besides, and both ways of counting states agree.
fn explore(runs: Vec<Run>) {
    checker::explore(runs, |name, protocol, found, start| {
        let walked = walk(protocol);
        let took = start.elapsed();
        say(&format!("{name}: {} circling, {took:?} with the walk", walked.circling));
        assert!(
            walked.endless.is_empty(),
            "{name}: histories without an end: {:?}",
            walked.endless
        );
        assert_eq!(walked.states, found, "{name}: both ways of counting agree");
    });
}

const NONE: Troubles = Troubles {
    losses: 0,
    crashes: 0,
    pauses: 0,
    usurpers: 0,
    rivals: 0,
    deletions: 0,
    forced: 0,
    refusals: 0,
    sleepers: 0,
    ticks: 0,
};
const LOSS: Troubles = Troubles { losses: 1, ..NONE };
const CRASH: Troubles = Troubles { crashes: 1, ..NONE };
const PAUSE: Troubles = Troubles { pauses: 1, ..NONE };
const USURPER: Troubles = Troubles { usurpers: 1, ..NONE };
const DELETION: Troubles = Troubles { deletions: 1, ..NONE };
const FORCED: Troubles = Troubles { forced: 1, ..NONE };
const REFUSAL: Troubles = Troubles { refusals: 1, ..NONE };
const TICK: Troubles = Troubles { ticks: 1, ..NONE };

fn with(nodes: usize, pods: &str, troubles: Troubles) -> Protocol {
    Protocol::new(nodes, pods, troubles)
}

/// A small, where states count as different by what happened before.
fn small(troubles: Troubles, wanted: &[Wanted]) -> Protocol {
    with(1, "s", troubles).reaching(wanted)
}

#[test]
fn short_runs() {
    let sleeping = Troubles { sleepers: 1, ticks: 1, ..NONE };
    let lost = [of::LOST_DONE, of::LOST_UNDONE, of::LATE_BINDING, of::RENEWED];
    let crashed = [of::TAKEOVER, of::OLD_REFUSED, of::CONFLICT, of::STARTED_OVER];
    let refused = [of::GIVEN_BACK, of::NOT_GIVEN_BACK, of::TAKEN_BACK, of::STALE_BIND];
    let again = [of::GIVEN_BACK, of::NAMESAKE];
    explore(vec![
        run("1x2: a small and a large", 303, with(1, "sL", NONE)),
        run("1x2: a small, a lost answer", 271, small(LOSS, &lost)),
        run("1x2: a small, a crash", 750, small(CRASH, &crashed)),
        run("1x2: a small, a refusal", 235, small(REFUSAL, &refused)),
        run("1x2: a small, deleted by force", 54, small(FORCED, &[of::VANISHED])),
        run("1x2: a small, a claim after its time", 1_047, small(sleeping, &[of::LATE_CLAIM])),
        run("1x2: a name again", 901, with(1, "sr", DELETION).reaching(&again)),
        run("2x2: a small, a lost answer", 191, with(2, "s", LOSS)),
    ]);
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn long_runs_with_leaders() {
    let small = |troubles| with(1, "s", troubles);
    let awake = [of::AWAKENED, of::TWO_LEAD, of::OLD_REFUSED];
    let dropped = Troubles { losses: 1, crashes: 1, ..NONE };
    explore(vec![
        run("1x2: two smalls", 1_070, with(1, "ss", NONE)),
        run("1x2: two smalls and a large", 9_204, with(1, "ssL", NONE)),
        run("1x2: a small and two larges", 1_203, with(1, "sLL", NONE)),
        run("2x2: a small and a large", 1_689, with(2, "sL", NONE)),
        run("1x2: a small and a large, all writes", 428, with(1, "sL", NONE).with_all_writes()),
        run("1x2: a small and a large, a lost answer", 2_600, with(1, "sL", LOSS)),
        run("2x2: a small and a large, a lost answer", 21_154, with(2, "sL", LOSS)),
        run("1x2: two smalls, a lost answer", 12_768, with(1, "ss", LOSS)),
        run("1x2: a small and a large, a crash", 7_366, with(1, "sL", CRASH)),
        run("2x2: a small and a large, a crash", 204_676, with(2, "sL", CRASH)),
        run(
            "1x2: a small and a large, a crash, no numbers",
            28_393,
            with(1, "sL", CRASH).unnumbered(),
        ),
        run("1x2: a small, a lost answer and a crash", 1_937, small(dropped)),
        run("1x2: a small and a large, a loss and a crash", 68_882, with(1, "sL", dropped)),
        run("2x2: a large, a crash", 340, with(2, "L", CRASH)),
        run("1x2: a leader that wakes", 2_733, small(PAUSE).reaching(&awake)),
        run("2x2: a leader that wakes", 2_107, with(2, "s", PAUSE)),
        run("1x2: a leader that wakes, a large", 2_733, with(1, "L", PAUSE).reaching(&awake)),
        run("2x2: a leader that wakes, a large", 2_107, with(2, "L", PAUSE)),
        run("1x2: a small and a large, a leader that wakes", 548_752, with(1, "sL", PAUSE)),
        run("1x2: two that lead", 31_392, small(USURPER)),
        run("2x2: two that lead", 35_811, with(2, "s", USURPER)),
        run("1x2: two that lead, a large", 31_392, with(1, "L", USURPER)),
        run("2x2: two that lead, a large", 35_811, with(2, "L", USURPER)),
    ]);
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn long_runs_with_bindings() {
    let small = |troubles| with(1, "s", troubles);
    let rivals = Troubles { rivals: 1, refusals: 1, crashes: 1, ..NONE };
    let refused_late = Troubles { losses: 2, refusals: 1, ..NONE };
    let late = Troubles { losses: 2, ticks: 1, ..NONE };
    let both = Troubles { rivals: 1, refusals: 1, ..NONE };
    let slow = Troubles { refusals: 1, ticks: 1, ..NONE };
    let again = Troubles { losses: 1, deletions: 1, ..NONE };
    let gone = Troubles { deletions: 1, forced: 1, ..NONE };
    let time = with(1, "sL", TICK);
    explore(vec![
        run("1x2: a small, a rival, a refusal and a crash", 15_680, small(rivals)),
        run("1x2: a small, two lost answers and a refusal", 7_372, small(refused_late)),
        run("1x2: a small, two lost answers and time", 18_820, small(late)),
        run("1x2: a small and a large, time", 10_286, time.reaching(&[of::LATE_GATE])),
        run("1x2: a small and a large, a rival and a refusal", 10_542, with(1, "sL", both)),
        run("1x2: a small and a large, a refusal and time", 45_243, with(1, "sL", slow)),
        run("1x2: a name again, a lost answer", 4_425, with(1, "sr", again)),
        run("1x2: a small and a large, deleted", 5_254, with(1, "sL", gone)),
    ]);
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn a_leader_looks_at_nothing_once_its_time_is_over() {
    caught(Mutant::LooksAgain, of::ONCE, with(1, "sL", PAUSE));
}

/// A spoilt protocol is caught by this property, with the shortest history that shows it.
#[track_caller]
fn caught(mutant: Mutant, property: &'static str, protocol: Protocol) {
    checker::caught(protocol.spoilt(mutant), mutant, property);
}

#[test]
fn each_property_can_fail() {
    let small = |troubles| with(1, "s", troubles);
    let again = || with(1, "sr", DELETION);
    let forced = || with(1, "sL", FORCED);
    caught(Mutant::MissesEnds, of::SERVED, small(NONE));
    caught(Mutant::PromisesTwice, of::ONCE, with(1, "ss", NONE));
    caught(Mutant::GivesUp, of::REBUILT, small(NONE));
    caught(Mutant::UngatesFirst, of::GATE, with(1, "sL", NONE));
    caught(Mutant::UngatesDrain, of::GATE, with(1, "sL", NONE));
    caught(Mutant::IgnoresUid, of::CANCELLED, again());
    caught(Mutant::ClaimsUnseen, of::CLAIMED, small(NONE));
    caught(Mutant::IgnoresClaims, of::NOT_TAKEN, small(TICK));
    caught(Mutant::IgnoresClaims, of::KEPT, small(TICK));
    caught(Mutant::FreesEarly, of::ROOM, forced());
    caught(Mutant::FreesEarly, of::ALONE, forced());
    caught(Mutant::ForgetsReservations, of::REBUILT, small(NONE));
    caught(Mutant::ForgetsGates, of::REBUILT, with(1, "sL", NONE));
    caught(Mutant::GivesBackOthers, of::KEPT, small(REFUSAL));
    let endless = walk(&again().spoilt(Mutant::TriesAgain)).endless;
    assert!(!endless.is_empty(), "what is tried again for ever has no end");
}

#[test]
#[ignore = "minutes; see docs/model-checking.md"]
fn each_rule_of_claims_is_needed() {
    let small = |troubles| with(1, "s", troubles);
    let lost = Troubles { losses: 2, ..NONE };
    caught(Mutant::WritesAnyway, of::CLAIMED, with(1, "ss", NONE));
    caught(Mutant::GivesBackUnclear, of::CLAIMED, small(lost));
    caught(Mutant::GivesBackFound, of::CLAIMED, small(Troubles { refusals: 1, ..lost }));
    caught(Mutant::RenewsNothing, of::CLAIMED, small(Troubles { ticks: 2, ..lost }));
    caught(Mutant::PostsLate, of::CLAIMED, small(Troubles { sleepers: 1, ticks: 2, ..NONE }));
}

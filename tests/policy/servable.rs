//! A large that fits some nodes only and could not be served for a while: what those behind it are
//! told when it can be. The gate that was closed for one of them may then be opened for its sake,
//! and what had been emptied is used by smalls again.

use sluice::policy::Cause;

use super::promises::Told;
use super::timeline::{Timeline, limits};

/// S = 100 and L = 10 on two nodes; B waits behind A, which only n1 fits. Nobody runs but smalls, so
/// that B is told S + (L + S).
fn told(start: &str) -> Told {
    let mut told = Told::new(&limits(100, 10), 2);
    assert_eq!(told.play(start), []);
    assert_eq!(told.told("B"), Some(210));
    told
}

/// What happens at 99, when A can be served, and then: smalls use n0 and n1 for as long as they may.
/// B starts after what it was told first, and before what it is told at 99.
fn is_told_then(mut told: Told, at_99: &str) {
    told.play("90 | small f limit=100 on=n1 | f to n1");
    let a = told.timeline.id("A");
    let moved = told.play(&format!("99 | {at_99} | n1 drains for A until 190; n0 opens NotNeeded"));
    assert_eq!(moved, [(210, Some(99 + 210), Cause::ServableAgain(a))]);
    let rest = told.play(
        "99.2  | done q |
         99.5  | small g limit=100 on=n0 | g to n0
         100   | done a |
         189.5 | small h limit=100 on=n0 | h to n0
         190   | done f | A to n1; n0 drains for B until 289
         199.5 | done g |
         199.9 | small i limit=100 on=n1 |
         200   | done A | n1 owes Wave; i waves to n1; n1 waves 1 before B; n1 opens NotNeeded
         289.5 | done h | B to n0",
    );
    assert_eq!(rest, []);
}

#[test]
fn when_its_quota_has_room_again() {
    let told = told(
        "0 | set quota=7:9 |
         0 | small q,r limit=100 tenant=7 on=n1; small a limit=100 on=n0 | q..r to n1; a to n0
         0 | large A limit=10 tenant=7 on=n1 |
         0 | large B limit=10 | n0 drains for B until 100",
    );
    is_told_then(told, "done r");
}

#[test]
fn when_its_quota_is_raised() {
    let told = told(
        "0 | set quota=7:8 |
         0 | small q limit=100 tenant=7 on=n1; small a limit=100 on=n0 | q to n1; a to n0
         0 | large A limit=10 tenant=7 on=n1 |
         0 | large B limit=10 | n0 drains for B until 100",
    );
    is_told_then(told, "set quota=7:16");
}

#[test]
fn when_a_node_fits_it_that_did_not() {
    let told = told(
        "0 | small q limit=100 on=n1; small a limit=100 on=n0 | q to n1; a to n0
         0 | large A limit=10 on=n7 |
         0 | large B limit=10 | n0 drains for B until 100",
    );
    is_told_then(told, "large A limit=10 on=n1 created=0");
}

#[test]
fn when_its_node_takes_work_again() {
    let mut told = told(
        "0 | small q limit=100 on=n1; small a limit=100 on=n0 | q to n1; a to n0
         0 | node n1 cordoned |
         0 | large A limit=10 on=n1; large B limit=10 | n0 drains for B until 100",
    );
    let a = told.timeline.id("A");
    let moved = told.play("99 | node n1 | n1 drains for A until 100; n0 opens NotNeeded");
    assert_eq!(moved, [(210, Some(99 + 210), Cause::ServableAgain(a))]);
}

#[test]
fn when_it_need_not_stand_back_any_more() {
    let mut told = Told { timeline: Timeline::slow(&limits(6, 1), 2) };
    let a = told.timeline.id("A");
    told.play(
        "0   | large A limit=1 on=n1 | A to n1
         0.9 | small a limit=6 on=n0 | a to n0
         0.9 | bind a |
         1   | refuse A | A off n1 BindFailed until 6; n1 owes NoLargeWaits
         1.1 | large B limit=1 on=n0 | n0 drains for B until 6
         5.9 | small f limit=6 on=n1 | f to n1
         5.9 | bind f |",
    );
    let first = told.told("B").unwrap();
    let moved = told.play("6 | tick | n1 drains for A until 11; n0 opens NotNeeded");
    assert_eq!(moved.len(), 1);
    assert_eq!((moved[0].0, moved[0].2), (first, Cause::ServableAgain(a)));
}

#[test]
fn one_that_comes_moves_those_behind_it_by_more_than_a_place() {
    let mut told = Told::new(&limits(100, 10), 3);
    let a = told.timeline.id("A");
    told.play(
        "0  | small a limit=100 on=n0; small b,c limit=100 on=n1 | a to n0; b..c to n1
         0  | small d limit=100 on=n2 | d to n2
         1  | large C limit=10 on=n0; large B limit=10 on=n0 | n0 drains for C until 100",
    );
    assert_eq!(told.told("B"), Some(1 + 210));
    // What n0 was emptied for is lost. That would not be so if A could have n0.
    let moved = told
        .play("99 | large A limit=10 on=n2 prio=1 | n2 drains for A until 100; n0 opens NotNeeded");
    assert_eq!(
        moved,
        [
            (100, Some(99 + 210), Cause::ServedFirst(a)),
            (1 + 210, Some(99 + 320), Cause::ServedFirst(a)),
        ]
    );
}

#[test]
fn a_node_that_no_one_in_front_fits_moves_nothing() {
    let mut told = Told::new(&limits(100, 500), 2);
    told.play(
        "0   | large R limit=500 on=n0; large Q limit=500 on=n1 | R to n0; Q to n1
         1   | small s1..s3 limit=100 on=n0; large A limit=500 on=n0; large B limit=500 on=n0 |",
    );
    let moved = told.play(
        "400 | node n2 gpus=4 |
         450 | node n2 gpus=4 bad=1 |",
    );
    assert!(moved.iter().all(|(.., cause)| matches!(cause, Cause::NodeUnfit(_))), "{moved:?}");
    let moved = told.play("480 | node n2 gpus=4 |");
    assert_eq!(moved, []);
}

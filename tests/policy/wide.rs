//! Pods that ask for several GPUs of one node and not for all: wide smalls.

use sluice::policy::invariants::{Violation, check_commit};
use sluice::policy::{
    Basis, Config, GpuSet, Holding, JobId, Kind, Millis, NoFit, Node, NodeId, NodeSpec, Shape,
    Stage, TenantId, Wait,
};

use super::timeline::{limits, play};

// Packing.

#[test]
fn a_wide_small_gets_its_gpus_on_one_node() {
    let mut timeline = play(
        &Config::default(),
        2,
        "0 | small s1..s6                  | s1..s6 to n0
         1 | wide W gpus=4; wide V gpus=2  | W to n1; V to n0",
    );
    assert_eq!((timeline.gpus("W"), timeline.gpus("V")), (vec![0, 1, 2, 3], vec![6, 7]));
}

#[test]
fn wide_smalls_and_narrow_ones_share_a_node() {
    play(
        &Config::default(),
        1,
        "0 | wide W gpus=4; wide V gpus=2; small s1..s3 | W to n0; V to n0; s1..s2 to n0
         1 | done W                                     | s3 to n0",
    );
}

// Starvation.

#[test]
fn narrower_ones_behind_it_do_not_starve_a_wide_small() {
    // Each GPU that comes free stays idle until there are four.
    play(
        &Config::default(),
        1,
        "0 | small s1..s8              | s1..s8 to n0
         1 | wide W gpus=4; small t1..t9 |
         2 | done s1                   |
         3 | done s5; wide V gpus=2    |
         4 | done s6                   |
         5 | done s7                   | W to n0
         6 | done s2                   | t1 to n0",
    );
}

#[test]
fn those_before_it_go_before_it() {
    play(
        &Config::default(),
        1,
        "0 | small s1..s8                | s1..s8 to n0
         1 | small t1; wide W gpus=2; small u1 |
         2 | done s1                     | t1 to n0
         3 | done s2                     |
         4 | done s3                     | W to n0
         5 | done s4                     | u1 to n0",
    );
}

#[test]
fn only_one_node_is_kept_and_the_others_go_on() {
    // n0 has four GPUs by second 20, n1 by second 30.
    play(
        &limits(90, 90),
        2,
        "0 | small a1..a8 on=n0 limit=20; small b1..b8 on=n1 limit=30 | a1..a8 to n0; b1..b8 to n1
         1 | wide W gpus=4; wide V gpus=4; small t1..t9              |
         2 | done a1                                                 |
         3 | done b1                                                 | t1 to n1
         4 | done a2..a4                                             | W to n0",
    );
}

#[test]
fn a_wide_small_takes_the_first_node_that_has_room_whichever_was_kept() {
    play(
        &limits(90, 90),
        2,
        "0 | small a1..a8 on=n0 limit=20; small b1..b8 on=n1 limit=30 | a1..a8 to n0; b1..b8 to n1
         1 | wide W gpus=2; small t1                                 |
         2 | done a1                                                 |
         3 | done b1,b2                                              | W to n1; t1 to n0",
    );
}

#[test]
fn a_node_whose_pod_outlasts_its_limit_is_kept_no_longer() {
    play(
        &limits(90, 90),
        2,
        "0 | small a1..a7 on=n0 limit=90; small a8 on=n0 limit=5  | a1..a8 to n0
         1 | small b1..b7 on=n1 limit=90; small b8 on=n1 limit=9  | b1..b8 to n1
         2 | wide W gpus=2; small t1..t2 limit=8                  |
         3 | done a1,b1                                           | t1 to n1
         5.001 | tick                                             | t2 to n0
         7 | done b8                                              |
         8 | done t1                                              | W to n1",
    );
}

#[test]
fn nothing_is_kept_where_foreign_pods_never_leave_enough() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | foreign f n0 count=5 gpus=3,4,5,6,7 |
         1 | small s1                            | s1 to n0
         2 | wide W gpus=4; small t1             | t1 to n0",
    );
    assert_eq!(timeline.why("W"), Some(Wait::Busy { ahead: 0 }));
}

// Waves and credit.

#[test]
fn a_wide_small_is_first_in_the_wave_and_narrower_ones_fill_it() {
    // A wave counts pods; what does not fit any more is the first of the next.
    play(
        &Config::default(),
        1,
        "0  | large A                     | A to n0
         1  | large B; small s1; wide W gpus=6; wide V gpus=4; small s2,s3 |
         9  | done A | n0 owes Wave; s1 waves to n0; W waves to n0; s2 waves to n0; n0 waves 3 before B
         19 | done s1; done W; done s2    | B to n0
         29 | done B                      | n0 owes NoLargeWaits; V to n0; s3 to n0",
    );
}

#[test]
fn a_wave_of_fewer_pods_than_gpus_admits_a_wide_small_too() {
    play(
        &Config { wave_size: 2, ..Config::default() },
        1,
        "0  | large A | A to n0
         1  | large B; wide W gpus=6; small s1..s3 |
         9  | done A  | n0 owes Wave; W waves to n0; s1 waves to n0; n0 waves 2 before B",
    );
}

#[test]
fn a_larges_end_owes_the_wide_small_a_wave_where_the_other_open_node_is_too_narrow() {
    play(
        &Config::default(),
        1,
        "0  | large A; node n1 gpus=2     | A to n0
         1  | large B; wide W gpus=4      |
         9  | done A                      | n0 owes Wave; W waves to n0; n0 waves 1 before B",
    );
}

#[test]
fn a_wide_small_keeps_no_node_from_a_large() {
    play(
        &Config::default(),
        1,
        "0 | small s1..s8    | s1..s8 to n0
         1 | wide W gpus=4   |
         2 | done s1         |
         3 | large A         | n0 drains for A until ever
         4 | done s2..s8     | A to n0
         9 | done A          | n0 owes NoLargeWaits; W to n0",
    );
}

#[test]
fn a_wide_small_is_backfilled_if_it_ends_with_the_drain() {
    play(
        &Config { backfill: true, ..limits(20, 90) },
        1,
        "0 | small s1..s4 limit=20           | s1..s4 to n0
         1 | large A limit=90                | n0 drains for A until 20
         2 | wide W gpus=4 limit=19; wide V gpus=3 limit=18; small t1 limit=5 | V fills n0; t1 fills n0",
    );
}

// Quotas.

#[test]
fn a_quota_counts_gpus_and_a_tenants_narrow_smalls_do_not_starve_its_wide_one() {
    let quota = Config { quotas: [(TenantId(7), 4)].into(), ..Config::default() };
    play(
        &quota,
        1,
        "0 | small a1..a2 tenant=7           | a1..a2 to n0
         1 | wide W gpus=3 tenant=7          |
         2 | small a3 tenant=7; small b1     | b1 to n0
         3 | done a1                         | W to n0
         4 | done a2                         | a3 to n0",
    );
}

// Reasons and figures.

#[test]
fn both_are_told_what_the_free_gpus_are_kept_for() {
    let mut timeline = play(
        &limits(90, 90),
        1,
        "0 | small s1..s7 limit=20; small s8 limit=30 | s1..s8 to n0
         1 | wide W gpus=2; small t1; wide V gpus=3   |
         2 | done s1                                  |",
    );
    let (node, job) = (NodeId(0), timeline.id("W"));
    let latest_end = Some(Millis::from_secs(20));
    let gathers = Wait::Gathering { node, free: 1, asked: 2, latest_end };
    assert_eq!(timeline.why("W"), Some(gathers));
    assert_eq!(timeline.why("t1"), Some(Wait::Kept { node, job, free: 1 }));
    assert_eq!(timeline.why("V"), Some(Wait::Busy { ahead: 2 }));
}

#[test]
fn a_wide_small_that_no_node_can_take_is_told_so() {
    let why = |table| play(&Config::default(), 0, table).why("W");
    assert_eq!(
        why("0 | node n0 gpus=3; wide W gpus=4 |"),
        Some(Wait::NoNodeFits(NoFit::WrongSize))
    );
    assert_eq!(
        why("0 | node n0 bad=1,2,3,4,5; wide W gpus=4 |"),
        Some(Wait::NoNodeFits(NoFit::Unhealthy))
    );
}

#[test]
fn a_small_counts_those_before_it_by_their_gpus_and_a_wide_one_is_promised_nothing() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | large R limit=50                                             | R to n0
         1 | wide W gpus=4 limit=10; small s1,s2 limit=10; wide V gpus=6 limit=10; small s3 limit=10 |",
    );
    let window = 50 + 3 * 50 + 2 * 10;
    // Five of eight GPUs are used whenever a pod of four does not fit, three when one of six does.
    assert_eq!(timeline.latest_start("s1"), Some(1 + window));
    assert_eq!(timeline.latest_start("s2"), Some(1 + 2 * window));
    assert_eq!(timeline.latest_start("s3"), Some(1 + 5 * window));
    let wide = timeline.id("W");
    let bound = timeline.pool.bound(wide, timeline.now).unwrap();
    assert_eq!((bound.latest_start, bound.basis), (None, Basis::Wide));
}

// Invariants.

#[test]
fn a_wide_small_that_would_not_get_what_it_asks_for_is_refused() {
    let gpus = GpuSet::first(8);
    let node = Node::new(NodeSpec { gpus, healthy: gpus, schedulable: true }, Millis(0));
    let commit = |count| {
        let holding = Holding {
            shape: Some(Shape::Wide(4)),
            kind: Kind::Direct,
            stage: Stage::Reserved,
            gpus: GpuSet::first(count),
            since: Millis(0),
            expires: None,
            latest_end: None,
            evicting: false,
        };
        check_commit(&Config::default(), &node, JobId(1), &holding, Millis(0))
    };
    assert_eq!(commit(4), Ok(()));
    for count in [3, 5] {
        assert_eq!(commit(count), Err(Violation::WideNotItsCount(JobId(1))));
    }
}

#[test]
fn a_restart_keeps_wide_smalls_and_the_node_that_is_kept() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s4; wide W gpus=4    | s1..s4 to n0; W to n0
         1 | wide V gpus=3; small t1        |
         2 | done s1                        |",
    );
    timeline.restart().play("3 | done s2,s3 | V to n0");
    timeline.restart().play("4 | done W | t1 to n0");
}

#[test]
fn a_node_that_a_wide_small_does_not_fit_is_not_kept_for_it() {
    // n0 would have four GPUs sooner, but W does not fit it, and then it takes no new work.
    let start =
        "0 | small a1..a8 on=n0 limit=20; small b1..b8 on=n1 limit=30 | a1..a8 to n0; b1..b8 to n1
                 1 | wide W gpus=4 on=n1; small t1..t9                       |
                 2 | done a1                                                 | t1 to n0
                 3 | done b1                                                 |";
    play(&limits(90, 90), 2, start);
    play(
        &limits(90, 90),
        2,
        "0 | small a1..a8 on=n0 limit=20; small b1..b8 on=n1 limit=30 | a1..a8 to n0; b1..b8 to n1
         1 | node n0 cordoned                                        |
         2 | wide W gpus=4; small t1..t9                             |
         3 | done b1                                                 |
         4 | node n0; done a1                                        | t1 to n1",
    );
}

#[test]
fn the_pool_wakes_when_a_pod_outlasts_its_limit_on_the_node_that_is_kept() {
    let timeline = play(
        &limits(90, 90),
        1,
        "0 | small a1..a7 limit=90; small a8 limit=5 | a1..a8 to n0
         1 | wide W gpus=2                           |",
    );
    assert_eq!(timeline.pool.next_wakeup(timeline.now), Some(Millis(5_001)));
    assert_eq!(timeline.pool.next_wakeup(Millis(5_001)), Some(Millis(90_001)));
}

#[test]
fn nobody_fills_a_gap_on_an_open_node_that_is_kept() {
    // t would end in time; but the node drains for nobody, and its GPUs are kept for W.
    play(
        &Config { backfill: true, ..limits(90, 90) },
        1,
        "0 | small s1..s5 limit=90               | s1..s5 to n0
         1 | wide W gpus=4 limit=90; small t limit=10 |",
    );
}

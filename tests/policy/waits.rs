//! Why a job waits and until when at the latest.

use sluice::policy::{
    Basis, Bound, Config, Gap, Millis, NoFit, NodeId, Shape, TenantId, UnreserveReason, Wait,
};

use super::timeline::{Timeline, limits, play};

fn bound(timeline: &mut Timeline, name: &str) -> Bound {
    let job = timeline.id(name);
    timeline.pool.bound(job, timeline.now).unwrap()
}

fn no_fit(nodes: u32, table: &str) -> NoFit {
    match play(&Config::default(), nodes, table).why("a") {
        Some(Wait::NoNodeFits(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_does_not_wait_has_no_reason_and_no_bound() {
    let mut timeline = play(&limits(10, 50), 1, "0 | small s1 | s1 to n0");
    assert_eq!(timeline.why("s1"), None);
    assert_eq!(timeline.latest_start("s1"), None);
    assert_eq!(timeline.why("never seen"), None);
}

#[test]
fn paused() {
    let mut timeline = play(&limits(10, 50), 1, "0 | set paused=on; small s1 |");
    assert_eq!(timeline.why("s1"), Some(Wait::Paused));
    assert_eq!(bound(&mut timeline, "s1").basis, Basis::HeldBack);
}

#[test]
fn backing_off() {
    let mut timeline = Timeline::slow(&limits(10, 50), 1);
    timeline.play(
        "0 | small s1  | s1 to n0
         1 | refuse s1 | s1 off n0 BindFailed until 6",
    );
    let until = Millis::from_secs(6);
    let last = Some((NodeId(0), UnreserveReason::BindFailed));
    assert_eq!(timeline.why("s1"), Some(Wait::BackingOff { until, attempts: 1, last }));
}

#[test]
fn quota() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | set quota=7:2                      |
         1 | small s1..s3 tenant=7; small s4    | s1..s2 to n0; s4 to n0",
    );
    let wait = Wait::Quota { tenant: TenantId(7), held: 2, most: 2 };
    assert_eq!(timeline.why("s3"), Some(wait));
    assert_eq!(bound(&mut timeline, "s3").basis, Basis::Quota(TenantId(7)));
    timeline.play("2 | done s1 | s3 to n0");
}

#[test]
fn no_node_fits_and_why() {
    assert_eq!(no_fit(0, "0 | small a |"), NoFit::NoNodes);
    assert_eq!(no_fit(1, "0 | small a on=n5 |"), NoFit::NoneMatches);
    assert_eq!(no_fit(1, "0 | node n0 cordoned; small a |"), NoFit::Unschedulable);
    assert_eq!(no_fit(0, "0 | node n0 gpus=4; large a |"), NoFit::WrongSize);
    assert_eq!(no_fit(1, "0 | node n0 bad=3; large a |"), NoFit::Unhealthy);
}

#[test]
fn of_several_reasons_the_one_that_is_nearest_to_a_fit_is_given() {
    let mixed = "0 | node n0 gpus=4; node n1 cordoned; large a |";
    assert_eq!(no_fit(0, mixed), NoFit::Unschedulable);
    let mixed = "0 | node n0 gpus=4; node n1 cordoned; node n2 bad=1; large a |";
    assert_eq!(no_fit(0, mixed), NoFit::Unhealthy);
}

#[test]
fn behind_others_of_its_shape() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | small s1 limit=10     | s1 to n0
         1 | large A,B limit=50    | n0 drains for A until 10",
    );
    let first = timeline.id("A");
    assert_eq!(timeline.why("B"), Some(Wait::Behind { ahead: 1, first }));
}

#[test]
fn draining_with_the_time_when_it_ends() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | small s1..s3 limit=10 | s1..s3 to n0
         1 | large A limit=50      | n0 drains for A until 10",
    );
    let latest_end = Some(Millis::from_secs(10));
    let wait = Wait::Draining { node: NodeId(0), holders: 3, latest_end };
    assert_eq!(timeline.why("A"), Some(wait));
    assert_eq!(bound(&mut timeline, "A"), Bound { latest_start: latest_end, basis: Basis::Drain });
}

#[test]
fn a_wave_with_the_time_when_it_ends() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0  | large A,B limit=50; small s1 limit=10 | A to n0
         40 | done A | n0 owes Wave; s1 waves to n0; n0 waves 1 before B",
    );
    let latest_end = Some(Millis::from_secs(50));
    assert_eq!(timeline.why("B"), Some(Wait::Wave { node: NodeId(0), latest_end }));
    assert_eq!(bound(&mut timeline, "B"), Bound { latest_start: latest_end, basis: Basis::Drain });
}

#[test]
fn nodes_held_by_larges() {
    let mut timeline = play(&limits(10, 50), 1, "0 | large A,B limit=50 | A to n0");
    assert_eq!(timeline.why("B"), Some(Wait::NodesHeld { exclusive: 1 }));
}

#[test]
fn a_closed_gate() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | small s1..s8 limit=10 | s1..s8 to n0
         1 | large A limit=50      | n0 drains for A until 10
         2 | done s1,s2; small t1  |",
    );
    let job = timeline.id("A");
    let gap = Gap::NotFilled(Some(Millis::from_secs(8)));
    let wait = Wait::GateClosed { node: NodeId(0), job, free: 2, gap };
    assert_eq!(timeline.why("t1"), Some(wait));
}

#[test]
fn a_large_that_holds_the_node() {
    let mut timeline = play(&limits(10, 50), 1, "0 | large A; small s1 | A to n0");
    let job = timeline.id("A");
    assert_eq!(timeline.why("s1"), Some(Wait::Exclusive { node: NodeId(0), job }));
}

#[test]
fn every_gpu_is_busy() {
    let mut timeline = play(&limits(10, 50), 1, "0 | small s1..s10 | s1..s8 to n0");
    assert_eq!(timeline.why("s10"), Some(Wait::Busy { ahead: 1 }));
}

// Bounds. S = 10 and L = 50 everywhere.

#[test]
fn the_kth_large_waits_at_most_k_times_both_if_one_runs() {
    let mut timeline = play(&limits(10, 50), 1, "0 | large R,A,B,C limit=50 | R to n0");
    let starts = ["A", "B", "C"].map(|name| timeline.latest_start(name));
    assert_eq!(starts, [60, 120, 180].map(Some));
}

#[test]
fn the_first_large_waits_at_most_for_the_smalls_if_none_runs() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | small s1 limit=10        | s1 to n0
         4 | large A,B,C limit=50     | n0 drains for A until 10",
    );
    let starts = ["A", "B", "C"].map(|name| timeline.latest_start(name));
    assert_eq!(starts, [10, 4 + 10 + 60, 4 + 10 + 120].map(Some));
}

#[test]
fn the_small_at_place_p_waits_at_most_for_so_many_waves() {
    let mut timeline =
        play(&limits(10, 50), 1, "0 | large R limit=50; small s1..s17 limit=10 | R to n0");
    // Three larges that fail at once may come before the one that counts.
    let window = 50 + 3 * 50 + 2 * 10;
    let starts = ["s1", "s8", "s9", "s17"].map(|name| timeline.latest_start(name));
    assert_eq!(starts, [window, window, 2 * window, 3 * window].map(Some));
    assert_eq!(bound(&mut timeline, "s17").basis, Basis::Place(17));
}

#[test]
fn the_larges_turn_is_in_the_smalls_figure() {
    let config = Config { turn: Some(Millis::from_secs(200)), ..limits(10, 50) };
    let mut timeline = play(&config, 1, "0 | large R limit=50; small s1 limit=10 | R to n0");
    assert_eq!(timeline.latest_start("s1"), Some(200 + 3 * 50 + 2 * 10));
}

#[test]
fn without_a_limit_on_a_shape_there_is_no_figure() {
    let small_only = Config { large_limit: None, ..limits(10, 50) };
    let mut timeline = play(&small_only, 1, "0 | large R limit=50; small s1 limit=10 | R to n0");
    assert_eq!(bound(&mut timeline, "s1").basis, Basis::NoLimit(Shape::Large));
    let large_only = Config { small_limit: None, ..limits(10, 50) };
    let mut timeline = play(&large_only, 1, "0 | large R limit=50; small s1 limit=10 | R to n0");
    assert_eq!(bound(&mut timeline, "s1").basis, Basis::NoLimit(Shape::Small));
}

#[test]
fn a_running_job_without_a_limit_takes_the_figure_away() {
    let mut timeline =
        play(&limits(10, 50), 1, "0 | small s1; small s2 limit=10; large A limit=50 | A to n0");
    timeline.play("5 | done A; small s3 limit=10 | n0 owes NoLargeWaits; s1..s2 to n0; s3 to n0");
    timeline.play("6 | large B limit=50 | n0 drains for B until ever");
    let s1 = timeline.id("s1");
    assert_eq!(
        bound(&mut timeline, "B"),
        Bound { latest_start: None, basis: Basis::Unlimited(s1) }
    );
    assert_eq!(timeline.pool.unlimited(), Some(s1));
}

#[test]
fn a_waiting_job_without_a_limit_takes_the_figure_away_too() {
    let mut timeline =
        play(&limits(10, 50), 1, "0 | large A limit=50; small free; small s2 limit=10 | A to n0");
    let free = timeline.id("free");
    assert_eq!(
        bound(&mut timeline, "s2"),
        Bound { latest_start: None, basis: Basis::Unlimited(free) }
    );
}

#[test]
fn a_job_that_runs_longer_than_its_shape_may_is_counted_with_its_own_end() {
    // A foreign pod with an end at 100, though S is 10.
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | foreign f n0 end=100     |
         1 | large A,B limit=50       | n0 drains for A until 100",
    );
    assert_eq!(timeline.latest_start("A"), Some(100));
    assert_eq!(timeline.latest_start("B"), Some(1 + 99 + 50 + 99));
}

#[test]
fn a_quota_that_may_bind_before_its_turn_takes_the_figure_away() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | set quota=7:4; large R limit=50           | R to n0
         1 | small s1..s5 limit=10 tenant=7            |
         2 | small t1 limit=10                         |",
    );
    // Another of them with a higher priority may take what is left to the first.
    for name in ["s1", "s5"] {
        assert_eq!(bound(&mut timeline, name).basis, Basis::Quota(TenantId(7)));
    }
    assert_eq!(bound(&mut timeline, "t1").basis, Basis::Place(6));
}

#[test]
fn larges_have_no_figure_where_every_node_is_kept_open() {
    let config = Config { keep_open: 1, ..limits(10, 50) };
    let mut timeline = play(&config, 1, "0 | large A limit=50 |");
    assert_eq!(bound(&mut timeline, "A").basis, Basis::HeldBack);
    assert_eq!(timeline.why("A"), Some(Wait::KeptOpen { keep: 1 }));
}

#[test]
fn a_node_that_takes_no_larges_is_none_that_could_close_for_one() {
    let config = Config { keep_open: 1, ..limits(10, 50) };
    let mut timeline = play(&config, 2, "0 | node n0 cordoned; large A limit=50 |");
    assert_eq!(timeline.why("A"), Some(Wait::KeptOpen { keep: 1 }));
    let mut timeline =
        play(&config, 2, "0 | node n0 bad=1; node n1; large A limit=50 on=n0,n1 | A to n1");
    assert_eq!(timeline.why("A"), None);
}

#[test]
fn a_small_of_which_too_many_stand_before_is_not_tried_for_a_gap() {
    let config = Config { backfill: true, ..limits(100, 500) };
    let mut timeline = play(
        &config,
        1,
        "0 | small s1..s7 limit=100    | s1..s7 to n0
         1 | large A limit=500         | n0 drains for A until 100
         2 | small l1..l300 limit=100; small t limit=10 |",
    );
    let job = timeline.id("A");
    let wait = Wait::GateClosed { node: NodeId(0), job, free: 1, gap: Gap::TooDeep };
    assert_eq!(timeline.why("t"), Some(wait));
}

#[test]
fn a_gate_is_a_figure_only_for_the_head() {
    // B's gate is n1, until 20. But A takes whichever comes free first: then B has n0, until 80.
    let config = Config { max_drains: 2, ..limits(90, 90) };
    let mut timeline = play(
        &config,
        2,
        "0  | small s1 on=n0 limit=80; small s2 on=n1 limit=90 | s1 to n0; s2 to n1
         1  | large A limit=90           | n0 drains for A until 80
         2  | small s3 on=n1 limit=18    | s3 to n1
         3  | done s2; large B limit=90  | n1 drains for B until 20",
    );
    assert_eq!(timeline.latest_start("A"), Some(80));
    let told = timeline.latest_start("B").unwrap();
    timeline.play(
        "20 | done s3 | A to n1; n0 drains for B not A
         80 | done s1 | B to n0",
    );
    assert!(told >= 80, "told {told}");
}

#[test]
fn a_large_that_stands_back_may_find_another_running_when_it_is_ready() {
    let mut timeline = Timeline::slow(&limits(10, 50), 1);
    timeline.play(
        "0 | large A limit=50 | A to n0
         1 | refuse A         | A off n0 BindFailed until 6; n0 owes NoLargeWaits",
    );
    assert_eq!(timeline.latest_start("A"), Some(6 + 60));
}

#[test]
fn a_small_that_few_gpus_may_serve_waits_for_rounds_of_so_many() {
    // They fit n0 alone, of which two GPUs are healthy: two in each round, whatever n1 has.
    let mut timeline = play(
        &limits(10, 50),
        2,
        "0 | node n0 bad=2,3,4,5,6,7; small s1,s2 on=n0 limit=10 | s1..s2 to n0
         1 | small a1..a5 on=n0 limit=10                         |",
    );
    let starts = ["a1", "a2", "a3", "a5"].map(|name| timeline.latest_start(name));
    assert_eq!(starts, [1 + 220, 1 + 220, 1 + 440, 1 + 660].map(Some));
}

#[test]
fn where_a_node_is_kept_open_larges_wait_for_two_nodes_each() {
    // One node must open before the one that a large fits may close.
    let config = Config { keep_open: 1, ..limits(10, 50) };
    let mut timeline = play(&config, 2, "0 | large R,A,B limit=50 | R to n0");
    let starts = ["A", "B"].map(|name| timeline.latest_start(name));
    assert_eq!(starts, [120, 240].map(Some));
    let mut timeline = play(
        &config,
        2,
        "0 | small s1 on=n0 limit=10; small s2 on=n1 limit=10 | s1 to n0; s2 to n1
         1 | large A,B limit=50                               | n0 drains for A until 10",
    );
    let starts = ["A", "B"].map(|name| timeline.latest_start(name));
    assert_eq!(starts, [10, 1 + 10 + 60 + 120].map(Some));
    assert_eq!(timeline.pool.no_node_for_larges(), None);
}

#[test]
fn a_pool_without_nodes_does_not_blame_its_setting_for_that() {
    let config = Config { keep_open: 1, ..limits(10, 50) };
    assert_eq!(play(&config, 0, "0 | tick |").pool.no_node_for_larges(), None);
    let blamed = play(&config, 1, "0 | tick |").pool.no_node_for_larges().unwrap();
    assert_eq!((blamed.kept_open, blamed.takers), (1, 1));
}

#[test]
fn a_small_whose_only_node_is_in_foreign_hands_for_ever_has_no_figure() {
    let mut timeline = play(
        &limits(10, 50),
        2,
        "0 | foreign f n0 count=8        |
         1 | small a on=n0 limit=10      |",
    );
    assert_eq!(bound(&mut timeline, "a").basis, Basis::HeldBack);
}

#[test]
fn a_job_without_a_limit_takes_the_figure_only_from_those_before_whom_it_may_run() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | large R limit=50; small a limit=10 | R to n0
         1 | small free                         |
         2 | small b limit=10; large B limit=50 |",
    );
    let free = timeline.id("free");
    assert_eq!(bound(&mut timeline, "a").basis, Basis::Place(1));
    assert_eq!(bound(&mut timeline, "b").basis, Basis::Unlimited(free));
    assert_eq!(bound(&mut timeline, "B").basis, Basis::Unlimited(free));
}

#[test]
fn a_quota_that_holds_all_that_its_tenant_waits_for_takes_no_figure_away() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | set quota=7:4; large R limit=50 | R to n0
         1 | small s1..s4 limit=10 tenant=7  |",
    );
    assert_eq!(bound(&mut timeline, "s4").basis, Basis::Place(4));
}

#[test]
fn a_large_is_behind_one_that_is_served_and_not_behind_one_that_is_held_back() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | set quota=7:4; large R limit=50 | R to n0
         1 | large H limit=50 tenant=7       |
         2 | large A,B limit=50              |",
    );
    let first = timeline.id("A");
    assert_eq!(timeline.why("A"), Some(Wait::NodesHeld { exclusive: 1 }));
    assert_eq!(timeline.why("B"), Some(Wait::Behind { ahead: 2, first }));
}

#[test]
fn a_large_whose_back_off_has_just_ended_is_not_behind_those_after_it() {
    let mut timeline = Timeline::slow(&limits(10, 50), 1);
    timeline.play(
        "0 | large A limit=50    | A to n0
         1 | large B limit=50    |
         2 | refuse A            | A off n0 BindFailed until 7; n0 owes NoSmallWaits; B to n0
         3 | bind B; start B     |
         4 | large C limit=50    |",
    );
    let (a, first) = (timeline.id("A"), timeline.id("A"));
    assert_eq!(timeline.pool.why(a, Millis(7_000)), Some(Wait::NodesHeld { exclusive: 1 }));
    timeline.play("7 | tick |");
    assert_eq!(timeline.why("C"), Some(Wait::Behind { ahead: 1, first }));
}

#[test]
fn a_large_behind_the_one_that_a_wave_is_before_is_behind_that_one() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0  | large A,B,C limit=50; small s1 limit=10 | A to n0
         40 | done A | n0 owes Wave; s1 waves to n0; n0 waves 1 before B",
    );
    let first = timeline.id("B");
    assert_eq!(timeline.why("C"), Some(Wait::Behind { ahead: 1, first }));
}

#[test]
fn a_large_whose_node_is_held_is_not_behind_one_that_drains_another() {
    let mut timeline = play(
        &limits(10, 50),
        2,
        "0 | small s1 on=n0 limit=10; large R on=n1 limit=50 | R to n1; s1 to n0
         1 | large A on=n0 limit=50                          | n0 drains for A until 10
         2 | large B on=n1 limit=50                          |",
    );
    assert_eq!(timeline.why("B"), Some(Wait::NodesHeld { exclusive: 1 }));
}

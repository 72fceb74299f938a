//! The corner cases for which the rule had to be decided, one test each. Those of an option have
//! the option on.

use sluice::policy::{Basis, Config, ConfigError, Millis, Wait};

use super::timeline::{Timeline, limits, play};

#[test]
fn case_1_a_large_is_cancelled_in_mid_drain_and_none_other_waits() {
    play(
        &Config::default(),
        1,
        "0 | small s1..s8       | s1..s8 to n0
         1 | large A; small t1,t2 | n0 drains for A until ever
         2 | done s1            |
         3 | withdraw A         | n0 opens NoLargeWaits; t1 to n0
         4 | done s2            | t2 to n0",
    );
}

#[test]
fn case_1_a_large_is_cancelled_in_mid_drain_and_others_wait() {
    // The gate stays, and its latest end is not moved upwards.
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0 | small s1..s8 limit=10     | s1..s8 to n0
         1 | large A,B limit=50        | n0 drains for A until 10
         2 | small t1 limit=10         |
         3 | withdraw A                | n0 drains for B not A",
    );
    assert_eq!(timeline.latest_start("B"), Some(10));
    timeline.play("10 | done s1..s8 | B to n0");
}

#[test]
fn case_2_a_large_that_fails_at_once_does_not_end_the_turn_three_times() {
    play(
        &Config::default(),
        1,
        "0  | large A,B,C,D,E; small s1 | A to n0
         5  | failed A                | n0 owes TurnContinues; B to n0
         10 | failed B                | n0 owes TurnContinues; C to n0
         15 | failed C                | n0 owes TurnContinues; D to n0
         20 | failed D                | n0 owes Wave; s1 waves to n0; n0 waves 1 before E
         30 | done s1                 | E to n0",
    );
}

#[test]
fn case_2_a_late_failure_ends_the_turn() {
    play(
        &Config::default(),
        1,
        "0  | large A,B; small s1     | A to n0
         60 | failed A                | n0 owes Wave; s1 waves to n0; n0 waves 1 before B",
    );
}

#[test]
fn case_3_fewer_than_eight_wait_at_the_wave_and_latecomers_stay_out() {
    play(
        &Config::default(),
        1,
        "0  | large A                | A to n0
         1  | large B; small s1..s3  |
         9  | done A                 | n0 owes Wave; s1..s3 waves to n0; n0 waves 3 before B
         10 | small late1..late5     |
         12 | done s1..s3            | B to n0",
    );
}

#[test]
fn case_3_latecomers_join_a_wave_as_backfill_if_they_end_with_it() {
    play(
        &Config { backfill: true, ..limits(10, 50) },
        1,
        "0  | large A limit=50                | A to n0
         1  | large B limit=50; small s1..s3 limit=10 |
         9  | done A                          | n0 owes Wave; s1..s3 waves to n0; n0 waves 3 before B
         12 | small long limit=8; small short limit=7 | short fills n0
         19 | done s1..s3; done short         | B to n0",
    );
}

#[test]
fn case_4_no_small_waits_when_a_large_ends() {
    // The next large goes at once, and the small that comes a second later has no stored credit.
    play(
        &Config::default(),
        1,
        "0  | large A,B | A to n0
         9  | done A    | n0 owes NoSmallWaits; B to n0
         10 | small s1  |
         19 | done B    | n0 owes NoLargeWaits; s1 to n0",
    );
}

#[test]
fn case_5_both_queues_are_empty_when_a_large_ends() {
    let timeline = play(
        &Config::default(),
        1,
        "0 | large A | A to n0
         9 | done A  | n0 owes NoLargeWaits",
    );
    assert!(timeline.pool.nodes().values().all(|node| node.is_open() && node.turn.is_none()));
}

#[test]
fn case_6_both_arrive_at_an_idle_node_in_one_batch() {
    play(&Config::default(), 1, "0 | small s1..s3; large A | A to n0");
    play(&Config::default(), 1, "0 | large A; small s1..s3 | A to n0");
}

#[test]
fn case_7_a_large_arrives_during_a_wave() {
    play(
        &Config::default(),
        1,
        "0  | large A            | A to n0
         1  | large B; small s1..s12 |
         9  | done A             | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before B
         10 | large C            |
         19 | done s1..s8        | B to n0
         29 | done B             | n0 owes Wave; s9..s12 waves to n0; n0 waves 4 before C
         39 | done s9..s12       | C to n0",
    );
}

#[test]
fn case_8_a_large_arrives_while_open_service_runs_after_a_large() {
    play(
        &Config::default(),
        1,
        "0  | large A            | A to n0
         1  | small s1..s20      |
         9  | done A             | n0 owes NoLargeWaits; s1..s8 to n0
         10 | large B            | n0 drains for B until ever
         19 | done s1..s8        | B to n0
         29 | done B             | n0 owes NoLargeWaits; s9..s16 to n0",
    );
}

#[test]
fn case_9_a_small_is_reserved_and_not_yet_running_as_the_gate_closes() {
    let mut timeline = Timeline::slow(&limits(10, 50), 1);
    timeline.play(
        "0 | small s1 limit=10   | s1 to n0
         1 | large A limit=50    | n0 drains for A until 10
         2 | bind s1             |
         3 | start s1 end=11     |",
    );
    // Its time counts from the reservation: its start does not move the end of the drain.
    assert_eq!(timeline.latest_start("A"), Some(10));
    timeline.play("10 | done s1 | A to n0");

    // And where it never starts, its reservation expires.
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0  | small s1 | s1 to n0
         1  | large A  | n0 drains for A until ever
         30 | tick     | s1 off n0 Expired until 35; A to n0",
    );
}

#[test]
fn case_10_the_latest_end_passes_and_a_small_still_holds_a_gpu() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0  | small s1..s8 limit=10 | s1..s8 to n0
         1  | large A limit=50      | n0 drains for A until 10
         9  | done s1..s6           |
         10 | done s7               |
         10.001 | tick              | n0 overdue for A by s8
         12 | vanish s8             |
         13 | small t1 limit=10     |",
    );
    // Seven free GPUs start no large, and no figure is promised behind work that outlasts its own.
    let (a, s8) = (timeline.id("A"), timeline.id("s8"));
    let bound = timeline.pool.bound(a, timeline.now).unwrap();
    assert_eq!((bound.latest_start, bound.basis), (None, Basis::Unlimited(s8)));
    timeline.play("99 | done s8 | A to n0");
}

#[test]
fn case_10_an_overdue_drain_may_evict() {
    let drain_limit = Some(Millis::from_secs(20));
    let mut timeline = play(
        &Config { evict_overdue: true, drain_limit, ..Config::default() },
        1,
        "0  | small s1,s2           | s1..s2 to n0
         1  | large A               | n0 drains for A until ever
         21 | tick                  | n0 overdue for A by s1 s2; s1 evicted n0; s2 evicted n0
         22 | vanish s1,s2          |
         23 | cancelled s1          |
         24 | cancelled s2          | A to n0",
    );
    assert!(timeline.why("A").is_none());
}

#[test]
fn case_10_eviction_that_is_allowed_later_takes_place_then() {
    play(
        &Config { drain_limit: Some(Millis::from_secs(20)), ..Config::default() },
        1,
        "0  | small s1           | s1 to n0
         1  | large A            | n0 drains for A until ever
         21 | tick               | n0 overdue for A by s1
         50 | set evict=on       | s1 evicted n0
         51 | cancelled s1       | A to n0",
    );
}

#[test]
fn case_11_a_gpu_turns_unhealthy_in_mid_drain() {
    play(
        &Config::default(),
        2,
        "0 | small s1..s16   | s1..s8 to n0; s9..s16 to n1
         1 | done s1..s3     |
         2 | large A; small t1 | n0 drains for A until ever; 
         3 | node n0 bad=7   | n0 opens NodeUnfit; n1 drains for A until ever; t1 to n0
         4 | done s9..s16    | A to n1",
    );
}

#[test]
fn case_11_where_no_other_node_fits_the_large_keeps_its_place_and_closes_no_gate() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s8    | s1..s8 to n0
         1 | large A,B       | n0 drains for A until ever
         2 | done s1         |
         3 | small t1        |
         4 | node n0 bad=1,2 | n0 opens NodeUnfit; t1 to n0",
    );
    assert!(matches!(timeline.why("A"), Some(Wait::NoNodeFits(_))));
    timeline.play(
        "5 | node n0              | n0 drains for A until ever
         6 | done s2..s8; done t1 | A to n0",
    );
}

#[test]
fn case_12_a_higher_priority_large_arrives_in_mid_drain() {
    play(
        &Config::default(),
        1,
        "0 | small s1          | s1 to n0
         1 | large A           | n0 drains for A until ever
         2 | large H prio=5    | n0 drains for H not A
         3 | done s1           | H to n0
         9 | done H            | n0 owes NoSmallWaits; A to n0",
    );
}

#[test]
fn case_13_several_nodes_drain_and_one_becomes_empty() {
    // The head takes the empty one; of the gates that are left the one with the latest end opens,
    // though it was closed for the large that still needs one.
    play(
        &Config { max_drains: 2, ..limits(90, 90) },
        3,
        "0 | small s1 on=n0 limit=10; small s2 on=n1 limit=50; small s3 on=n2 limit=90 \
             | s1 to n0; s2 to n1; s3 to n2
         1 | large A,B limit=90   | n0 drains for A until 10; n1 drains for B until 50
         2 | done s3              | A to n2; n0 drains for B not A; n1 opens NotNeeded
         9 | done s1              | B to n0",
    );
}

#[test]
fn case_14_all_nodes_hold_larges_or_drain() {
    // Allowed; then smalls depend on the next wave.
    let mut timeline = play(
        &Config::default(),
        2,
        "0  | large A               | A to n0
         1  | small s1..s9          | s1..s8 to n1
         2  | large B               | n1 drains for B until ever",
    );
    assert!(matches!(timeline.why("s9"), Some(Wait::GateClosed { free: 0, .. })));
    timeline.play(
        "5  | done s1..s8           | B to n1
         6  | large C               |
         9  | done A                | n0 owes Wave; s9 waves to n0; n0 waves 1 before C",
    );
}

#[test]
fn case_14_keep_open_leaves_the_last_open_node_to_smalls() {
    let mut timeline = play(
        &Config { keep_open: 1, ..Config::default() },
        2,
        "0 | large A,B         | A to n0
         1 | small s1..s9      | s1..s8 to n1
         2 | done s1..s8       | s9 to n1
         3 | done s9           |",
    );
    assert_eq!(timeline.why("B"), Some(Wait::KeptOpen { keep: 1 }));
    timeline.play(
        "9  | small t1          | t1 to n1
         10 | done A            | n0 owes NoSmallWaits; B to n0",
    );
}

#[test]
fn case_15_the_wave_is_where_the_large_just_ended_and_only_if_no_node_is_open() {
    // With n1 open, the next large goes on at once.
    play(
        &Config::default(),
        2,
        "0  | large A           | A to n0
         1  | small s1..s9      | s1..s8 to n1
         1  | large B           | n1 drains for B until ever
         2  | withdraw B        | n1 opens NoLargeWaits
         9  | done A; large C   | n0 owes OtherNodeOpen; C to n0",
    );
    // With none open, the wave is on the node that came free.
    play(
        &Config::default(),
        2,
        "0  | large A,B           | A to n0; B to n1
         1  | small s1..s9; large C |
         9  | done B              | n1 owes Wave; s1..s8 waves to n1; n1 waves 8 before C",
    );
}

#[test]
fn case_16_backfill_scans_in_order_and_is_no_part_of_the_wave() {
    let mut timeline = play(
        &Config { backfill: true, wave_size: 2, ..limits(20, 50) },
        1,
        "0  | large A limit=50  | A to n0
         1  | large B limit=50; small s1,s2 limit=20; small long limit=20; small x,y limit=5 |
         9  | done A | n0 owes Wave; s1..s2 waves to n0; n0 waves 2 before B; long..y fills n0",
    );
    assert_eq!(timeline.latest_start("B"), Some(29));
    timeline.play(
        "10 | small z1 limit=20; small z2 limit=19 | z2 fills n0
         29 | done s1,s2,long,x,y,z2               | B to n0",
    );
}

#[test]
fn case_16_backfill_behind_a_gate_never_moves_its_end() {
    let mut timeline = play(
        &Config { backfill: true, ..limits(20, 50) },
        1,
        "0  | small s1 limit=10     | s1 to n0
         2  | large A limit=50      | n0 drains for A until 10
         3  | small t1 limit=8; small t2 limit=7; small t3 | t2 fills n0
         5  | small t4..t9 limit=5  | t4..t9 fills n0
         6  | done t4               |
         6  | small t10 limit=4     | t10 fills n0",
    );
    assert_eq!(timeline.latest_start("A"), Some(10));
    timeline.play("10 | done s1,t2,t5..t10 | A to n0");
}

#[test]
fn case_17_only_enforced_limits_count() {
    // `free` has no limit: the bound does not hold, the pool says because of whom, and nothing is
    // filled in behind the gate, whose end nobody knows.
    let mut timeline = play(
        &Config { backfill: true, ..limits(20, 50) },
        1,
        "0  | small free        | free to n0
         1  | large A limit=50  | n0 drains for A until ever
         2  | small s1 limit=1  |",
    );
    let (a, free) = (timeline.id("A"), timeline.id("free"));
    let bound = timeline.pool.bound(a, timeline.now).unwrap();
    assert_eq!((bound.latest_start, bound.basis), (None, Basis::Unlimited(free)));
}

#[test]
fn case_18_a_wave_wider_than_the_node_is_refused() {
    for wave_size in [0, 9, 16] {
        let config = Config { wave_size, ..Config::default() };
        assert_eq!(config.check(), Err(ConfigError::WaveSize { size: wave_size, gpus: 8 }));
    }
}

#[test]
fn case_19_facts_of_one_instant_count_in_one_order_and_are_decided_on_once() {
    // Completions, then cancellations, then arrivals, then timers: in whatever order they are told.
    for instant in [
        "done s1..s8; withdraw A; large B; small t1",
        "small t1; large B; withdraw A; done s1..s8",
        "large B; done s8,s7,s6,s5,s4,s3,s2,s1; small t1; withdraw A",
    ] {
        let mut timeline = play(
            &Config::default(),
            1,
            "0 | small s1..s8; small t1 created=1; large A; large B created=1 on=n9 | A to n0",
        );
        // Numbers are given above, so that each order names the same jobs.
        timeline.play(
            "1 | withdraw t1,B; done A | n0 owes NoLargeWaits; s1..s8 to n0
             2 | large A               | n0 drains for A until ever",
        );
        timeline.play(&format!("3 | {instant} | B to n0"));
    }
}

#[test]
fn a_turn_by_time_lets_larges_follow_while_they_fit_in_it() {
    // Four times L = 50: A, B, C, D fit in 200; E does not, and the smalls have their wave.
    play(
        &Config { turn: Some(Millis::from_secs(200)), ..limits(10, 50) },
        1,
        "0   | large A,B,C,D,E limit=50; small s1..s9 limit=10 | A to n0
         50  | done A  | n0 owes TurnContinues; B to n0
         100 | done B  | n0 owes TurnContinues; C to n0
         150 | done C  | n0 owes TurnContinues; D to n0
         200 | done D  | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before E
         210 | done s1..s8 | E to n0
         215 | large F limit=50 |
         260 | done E  | n0 owes TurnContinues; F to n0",
    );
}

#[test]
fn a_large_without_a_limit_does_not_follow_in_a_turn() {
    play(
        &Config { turn: Some(Millis::from_secs(200)), ..Config::default() },
        1,
        "0   | large A,B; small s1 | A to n0
         50  | done A  | n0 owes Wave; s1 waves to n0; n0 waves 1 before B",
    );
}

#[test]
fn a_failure_at_once_adds_no_more_to_a_turn_than_it_took() {
    // The turn ends at 200; B's ten seconds are not counted, so at 210. C, until 230, is too long.
    play(
        &Config { turn: Some(Millis::from_secs(200)), ..limits(10, 120) },
        1,
        "0   | large A limit=120; large B limit=80; large C limit=100; small s1 limit=10 | A to n0
         120 | done A    | n0 owes TurnContinues; B to n0
         130 | failed B  | n0 owes Wave; s1 waves to n0; n0 waves 1 before C",
    );
}

#[test]
fn smalls_that_are_served_freely_end_the_turn() {
    // B may not take n0, the last open node, and s1 does. The turn in which B runs later is a new
    // one, so that C still fits in it.
    play(
        &Config { turn: Some(Millis::from_secs(200)), keep_open: 1, ..limits(10, 100) },
        2,
        "0   | large A limit=100                 | A to n0
         1   | node n1 cordoned                  |
         100 | done A; large B limit=100         | n0 owes NoSmallWaits
         150 | small s1 limit=10                 | s1 to n0
         160 | done s1                           |
         170 | node n1                           | B to n0
         171 | set keep_open=0; node n1 cordoned |
         172 | large C limit=100; small s2 limit=10 |
         270 | done B                            | n0 owes TurnContinues; C to n0",
    );
}

#[test]
fn a_drain_ends_the_turn() {
    // As before, with a foreign pod where the small was: B's node had to be drained anew.
    play(
        &Config { turn: Some(Millis::from_secs(200)), keep_open: 1, ..limits(10, 100) },
        2,
        "0   | large A limit=100                 | A to n0
         1   | node n1 cordoned                  |
         100 | done A; large B on=n0 limit=100   | n0 owes NoSmallWaits
         150 | foreign f n0 end=180              |
         160 | node n1                           | n0 drains for B until 180
         170 | done f                            | B to n0
         171 | set keep_open=0; node n1 cordoned |
         172 | large C limit=100; small s2 limit=10 |
         270 | done B                            | n0 owes TurnContinues; C to n0",
    );
}

//! What goes wrong: reservations that expire, foreign pods, GPUs and nodes that fail, restarts.

use sluice::policy::{Config, GpuSet, Input, Millis, Stage, Wait};

use super::timeline::{Timeline, play};

// Reservations.

#[test]
fn a_reservation_that_is_not_bound_in_time_is_taken_back_and_others_pass() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0  | small s1..s9    | s1..s8 to n0
         1  | bind s2..s8     |
         30 | tick            | s1 off n0 Expired until 35; s9 to n0
         31 | bind s9         |
         32 | done s2         |
         35 | tick            | s1 to n0",
    );
    assert_eq!(timeline.gpus("s9"), [0]);
    assert_eq!(timeline.pool.counters().small.admitted, 9);
}

#[test]
fn the_back_off_doubles_with_each_failure_up_to_five_minutes() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play("0 | small s1 | s1 to n0");
    let s1 = timeline.id("s1");
    let mut spans = Vec::new();
    for _ in 0..9 {
        timeline.pool.step(vec![Input::BindFailed { job: s1 }], timeline.now);
        let retry_at = timeline.pool.waiting(s1).unwrap().retry_at;
        spans.push(retry_at.since(timeline.now).0 / 1_000);
        assert_eq!(timeline.pool.next_wakeup(timeline.now), Some(retry_at));
        assert_eq!(timeline.pool.step(Vec::new(), Millis(retry_at.0 - 1)), []);
        timeline.now = retry_at;
        assert_eq!(timeline.pool.step(Vec::new(), retry_at).len(), 1);
    }
    assert_eq!(spans, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
}

#[test]
fn a_refused_binding_sets_a_large_back_and_smalls_are_served_meanwhile() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0  | large A           | A to n0
         1  | small s1..s3      |
         2  | refuse A          | A off n0 BindFailed until 7; n0 owes NoLargeWaits; s1..s3 to n0
         3  | bind s1..s3       |
         7  | tick              | n0 drains for A until ever
         9  | done s1..s3       | A to n0",
    );
}

#[test]
fn a_refusal_after_the_binding_changes_nothing() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0  | small s1  | s1 to n0
         1  | bind s1   |
         2  | refuse s1 |
         60 | tick      |",
    );
    let s1 = timeline.id("s1");
    assert_eq!(timeline.pool.holding(s1).unwrap().stage, Stage::Bound);
}

#[test]
fn larges_that_never_bind_do_not_starve_smalls() {
    // Each holds the node for its reservation's time and backs off; there are enough of them for
    // one to be ready always. After the third the smalls have their wave.
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0   | large A,B,C,D,E; small s1 | A to n0
         30  | tick  | A off n0 Expired until 35; n0 owes TurnContinues; B to n0
         60  | tick  | B off n0 Expired until 65; n0 owes TurnContinues; A to n0
         90  | tick  | A off n0 Expired until 100; n0 owes TurnContinues; B to n0
         120 | tick  | B off n0 Expired until 130; n0 owes Wave; s1 waves to n0; \
                       n0 waves 1 before A",
    );
}

#[test]
fn larges_that_are_cancelled_before_they_bind_do_not_starve_smalls() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | large A,B,C,D,E; small s1 | A to n0
         1 | cancelled A  | n0 owes TurnContinues; B to n0
         2 | cancelled B  | n0 owes TurnContinues; C to n0
         3 | cancelled C  | n0 owes TurnContinues; D to n0
         4 | cancelled D  | n0 owes Wave; s1 waves to n0; n0 waves 1 before E",
    );
}

#[test]
fn a_wave_is_not_refilled_when_one_of_it_never_binds() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0  | large A                | A to n0
         1  | bind A; large B; small s1..s10 |
         9  | done A                 | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before B
         10 | bind s2..s8            |
         39 | tick                   | s1 off n0 Expired until 44
         40 | done s2..s8            | B to n0",
    );
}

#[test]
fn a_large_that_cannot_fit_closes_no_gate() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s8           | s1..s8 to n0
         1 | large A on=n7; small t1 |
         2 | done s1                | t1 to n0",
    );
    assert!(matches!(timeline.why("A"), Some(Wait::NoNodeFits(_))));
}

// Foreign pods.

#[test]
fn a_foreign_pod_is_counted_and_holds_up_a_large() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | foreign f n0 count=2 | 
         1 | small s1..s7; large A | n0 drains for A until ever",
    );
    assert_eq!(timeline.gpus("f"), [6, 7]);
    timeline.play("2 | done f | A to n0");
}

#[test]
fn a_foreign_pod_displaces_a_promise_to_another_gpu_or_back_into_the_queue() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | small s1..s7             | s1..s7 to n0
         1 | foreign f n0 gpus=0      | s1 to n0
         2 | foreign g n0 gpus=1      | s2 off n0 Displaced until 2",
    );
    assert_eq!((timeline.gpus("s1"), timeline.gpus("s2")), (vec![7], vec![]));
    assert!(matches!(timeline.why("s2"), Some(Wait::Busy { .. })), "it stands back for nothing");
}

#[test]
fn a_foreign_pod_on_a_full_node_has_the_gpu_of_a_promise_and_not_that_of_a_bound_pod() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | small s1..s8       | s1..s8 to n0
         1 | bind s8            |
         2 | foreign f n0       | s7 off n0 Displaced until 2",
    );
    assert_eq!(timeline.gpus("f"), [6]);
}

#[test]
fn a_foreign_pod_displaces_a_large_that_is_only_promised() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | large A                   | A to n0
         1 | small s1                  |
         2 | foreign f n0 gpus=3       | A off n0 Displaced until 2; n0 owes TurnContinues; \
                                         n0 drains for A until ever
         3 | done f                    | A to n0",
    );
}

#[test]
fn a_foreign_pod_beside_a_running_large_is_reported() {
    let mut timeline = play(&Config::default(), 1, "0 | large A | A to n0");
    timeline.play("1 | foreign f n0 gpus=3 | n0 sees Overlap(JobId(1), JobId(2))");
    timeline.play(
        "2 | small s1   |
         3 | done A     | n0 owes NoLargeWaits; s1 to n0
         4 | large B    | n0 drains for B until ever
         5 | done s1    |
         6 | done f     | B to n0",
    );
}

#[test]
fn a_waiting_job_that_was_placed_by_hand_waits_no_longer() {
    let mut timeline = play(
        &Config::default(),
        2,
        "0 | small s1..s17           | s1..s8 to n0; s9..s16 to n1
         1 | done s1..s8             | s17 to n0
         2 | large A,B               | n0 drains for A until ever
         3 | foreign B n0 gpus=4     |
         4 | done s17                |
         5 | done s9..s16            | A to n1; n0 opens NoLargeWaits",
    );
    timeline.play(
        "6 | small t1..t8      | t1..t7 to n0
         7 | done B            | t8 to n0",
    );
}

#[test]
fn a_promise_to_a_job_that_was_placed_elsewhere_by_hand_is_dropped() {
    let mut timeline = Timeline::slow(&Config::default(), 2);
    timeline.play(
        "0 | small s1               | s1 to n0
         1 | foreign s1 n1 gpus=5   | s1 off n0 Displaced until 1
         2 | large A                | A to n0
         9 | done s1                |
        10 | large B                | B to n1",
    );
}

#[test]
fn an_arrival_that_holds_gpus_already_is_not_admitted_again() {
    let mut timeline = play(&Config::default(), 2, "0 | foreign f n0 gpus=0 |");
    timeline.play(
        "1 | small f  |
         2 | large A  | A to n1
         3 | done f   |
         4 | large B  | B to n0",
    );
}

#[test]
fn a_foreign_pod_without_gpus_holds_up_nobody() {
    play(&Config::default(), 1, "0 | foreign f n0 count=0; large A | A to n0");
}

// What kubelet really gave.

#[test]
fn two_jobs_whose_gpus_the_node_swapped_hold_what_they_were_given() {
    let mut timeline = play(&Config::default(), 1, "0 | small s1..s3 | s1..s3 to n0");
    timeline.play("1 | holds s1 gpus=1; holds s2 gpus=0 |");
    assert_eq!((timeline.gpus("s1"), timeline.gpus("s2")), (vec![1], vec![0]));
    timeline.play(
        "2 | done s1   |
         3 | small t1  | t1 to n0",
    );
    assert_eq!(timeline.gpus("t1"), [1]);
}

#[test]
fn a_promise_moves_away_from_the_gpu_that_another_was_given() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | small s1,s2         | s1..s2 to n0
         1 | bind s1; start s1   |
         2 | holds s1 gpus=1     | s2 to n0",
    );
    assert_eq!((timeline.gpus("s1"), timeline.gpus("s2")), (vec![1], vec![0]));
}

#[test]
fn a_node_that_names_no_gpus_has_taken_none_back() {
    let mut timeline = play(&Config::default(), 1, "0 | small s1 | s1 to n0");
    let job = timeline.id("s1");
    timeline.pool.step(vec![Input::Holds { job, gpus: GpuSet::EMPTY }], timeline.now);
    assert_eq!(timeline.gpus("s1"), [0]);
}

#[test]
fn two_running_jobs_on_one_gpu_are_reported() {
    play(
        &Config::default(),
        1,
        "0 | small s1,s2      | s1..s2 to n0
         1 | holds s1 gpus=1  | n0 sees Overlap(JobId(1), JobId(2))
         2 | done s2          |
         3 | large A          | n0 drains for A until ever
         4 | done s1          | A to n0",
    );
}

// GPUs and nodes.

#[test]
fn an_unhealthy_gpu_is_given_to_nobody() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | node n0 bad=0,5   |
         1 | small s1..s8      | s1..s6 to n0
         2 | node n0 bad=5     | s7 to n0",
    );
    assert_eq!((timeline.gpus("s1"), timeline.gpus("s7")), (vec![1], vec![0]));
}

#[test]
fn a_gpu_that_fails_under_a_small_is_not_used_again_and_the_others_are() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s7    | s1..s7 to n0
         1 | node n0 bad=0   |
         2 | small t1,t2     | t1 to n0
         3 | done s1         |
         4 | done s2         | t2 to n0",
    );
    assert_eq!(timeline.gpus("t2"), [1]);
}

#[test]
fn a_promise_moves_away_from_a_gpu_that_fails() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | small s1        | s1 to n0
         1 | node n0 bad=0   | s1 to n0",
    );
    assert_eq!(timeline.gpus("s1"), [1]);
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | small s1..s8    | s1..s8 to n0
         1 | node n0 bad=0   | s1 off n0 NodeUnfit until 1",
    );
}

#[test]
fn a_large_that_is_only_promised_goes_elsewhere_when_a_gpu_fails() {
    let mut timeline = Timeline::slow(&Config::default(), 2);
    timeline.play(
        "0 | large A        | A to n0
         1 | node n0 bad=6  | A off n0 NodeUnfit until 1; n0 owes NodeUnfit; A to n1
         2 | small s1       | s1 to n0",
    );
}

#[test]
fn a_gpu_that_fails_under_a_large_ends_no_phase_and_no_wave_follows() {
    play(
        &Config::default(),
        1,
        "0 | large A                  | A to n0
         1 | node n0 bad=2            |
         2 | large B; small s1..s9    |
         3 | done A                   | n0 owes NodeUnfit; s1..s7 to n0
         4 | node n0                  | n0 drains for B until ever",
    );
}

#[test]
fn a_promise_on_a_node_that_is_cordoned_goes_elsewhere_at_once() {
    let mut timeline = Timeline::slow(&Config::default(), 2);
    timeline.play(
        "0 | small s1,s2           | s1..s2 to n0
         1 | bind s2               |
         2 | node n0 cordoned      | s1 off n0 NodeUnfit until 2; s1 to n1",
    );
    let mut timeline = Timeline::slow(&Config::default(), 2);
    timeline.play(
        "0 | large A               | A to n0
         2 | node n0 cordoned      | A off n0 NodeUnfit until 2; n0 owes NodeUnfit; A to n1",
    );
}

#[test]
fn a_cordon_in_mid_drain_moves_the_gate() {
    play(
        &Config::default(),
        2,
        "0 | small s1..s16        | s1..s8 to n0; s9..s16 to n1
         1 | large A              | n0 drains for A until ever
         2 | node n0 cordoned     | n0 opens NodeUnfit; n1 drains for A until ever
         3 | done s1..s8          |
         4 | node n0              | A to n0; n1 opens NoLargeWaits",
    );
}

#[test]
fn a_cordon_in_mid_wave_opens_the_gate() {
    play(
        &Config::default(),
        1,
        "0 | large A,B; small s1..s9 | A to n0
         5 | done A                  | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before B
         6 | node n0 cordoned        | n0 opens NodeUnfit
         7 | done s1..s8             |
         8 | node n0                 | B to n0",
    );
}

#[test]
fn a_node_that_is_gone_takes_its_work_with_it_and_promises_wait_again() {
    let mut timeline = Timeline::slow(&Config::default(), 2);
    timeline.play(
        "0 | small s1..s16         | s1..s8 to n0; s9..s16 to n1
         1 | bind s2..s16          |
         2 | gone n0               | s1 off n0 NodeGone until 2
         3 | done s2               |
         4 | done s9               | s1 to n1",
    );
    let counters = timeline.pool.counters().small;
    assert_eq!((counters.admitted, counters.completed, counters.failed), (16, 1, 7));
}

#[test]
fn a_node_that_is_gone_in_each_phase_leaves_nothing_behind() {
    // Draining: another node is drained instead.
    play(
        &Config::default(),
        2,
        "0 | small s1..s16  | s1..s8 to n0; s9..s16 to n1
         1 | large A        | n0 drains for A until ever
         2 | gone n0        | n1 drains for A until ever
         3 | node n0        | A to n0; n1 opens NoLargeWaits",
    );
    // Exclusive: no credit survives.
    play(
        &Config::default(),
        1,
        "0 | large A,B; small s1..s3 | A to n0
         1 | gone n0        |
         2 | node n0        | B to n0",
    );
    // Wave: those of the wave fail with the node, the next large waits on.
    play(
        &Config::default(),
        1,
        "0 | large A,B; small s1..s9 | A to n0
         1 | done A         | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before B
         2 | gone n0        |
         3 | node n0        | B to n0",
    );
}

#[test]
fn a_gpu_belongs_to_a_deleted_pod_until_its_containers_are_gone() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1         | s1 to n0
         1 | large A          | n0 drains for A until ever
         2 | vanish s1        |
         3 | bind s1; start s1 |",
    );
    let s1 = timeline.id("s1");
    assert_eq!(timeline.pool.holding(s1).unwrap().stage, Stage::Releasing);
    timeline.play(
        "60 | tick            |
         61 | cancelled s1    | A to n0",
    );
}

//! Settings that change, and controllers that start anew from the ledger.

use sluice::policy::{Config, Fits, Input, JobId, Millis, Phase, Pool, Shape};

use super::timeline::{Timeline, limits, play, restore};

// Settings.

#[test]
fn a_paused_pool_admits_nothing_and_closes_no_gate() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1               | s1 to n0
         1 | set paused=on          |
         2 | small s2; large A      |
         3 | done s1                |
         4 | set paused=off         | A to n0",
    );
    assert!(timeline.why("A").is_none());
}

#[test]
fn a_pool_paused_in_mid_drain_goes_on_where_it_stopped() {
    play(
        &Config::default(),
        1,
        "0 | small s1       | s1 to n0
         1 | large A        | n0 drains for A until ever
         2 | set paused=on  |
         3 | done s1        |
         4 | small s2       |
         5 | set paused=off | A to n0",
    );
}

#[test]
fn settings_that_would_destroy_a_bound_leave_the_old_ones_in_force() {
    let mut timeline = play(&Config::default(), 1, "0 | tick |");
    let broken = Config { wave_size: 9, ..Config::default() };
    assert_eq!(timeline.pool.step(vec![Input::Configured(Box::new(broken))], Millis(1)), []);
    assert_eq!(timeline.pool.config().wave_size, 8);
    timeline.play("2 | small s1 | s1 to n0");
}

// Restarts. That a restored pool decides the same is examined at every step of every timeline;
// here the first life ends in each phase.

#[test]
fn a_restart_in_each_phase_goes_on_as_before() {
    let mut timeline = play(&Config::default(), 1, "0 | small s1..s9 | s1..s8 to n0");
    timeline.restart().play("1 | large A,B | n0 drains for A until ever");
    timeline.restart().play("2 | done s1..s8 | A to n0");
    timeline.restart().play("5 | done A | n0 owes Wave; s9 waves to n0; n0 waves 1 before B");
    timeline.restart().play("6 | small t1 |");
    timeline.restart().play("7 | done s9 | B to n0");
    timeline.restart().play("8 | done B | n0 owes NoLargeWaits; t1 to n0");
    let counters = timeline.restart().pool.counters();
    assert_eq!((counters.small.admitted, counters.small.completed), (10, 9));
    assert_eq!((counters.large.admitted, counters.large.completed), (2, 2));
}

#[test]
fn a_restart_keeps_a_reservation_and_its_time() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play("0 | small s1 | s1 to n0");
    timeline.restart().play(
        "30 | tick | s1 off n0 Expired until 35
         35 | tick | s1 to n0",
    );
}

#[test]
fn a_restart_keeps_the_turn() {
    let config = Config { turn: Some(Millis::from_secs(200)), ..limits(10, 90) };
    let mut timeline = play(&config, 1, "0 | large A,B,C limit=90; small s1 limit=10 | A to n0");
    timeline.restart().play("90 | done A | n0 owes TurnContinues; B to n0");
    timeline.restart().play("180 | done B | n0 owes Wave; s1 waves to n0; n0 waves 1 before C");
}

#[test]
fn a_promise_whose_pod_was_deleted_while_nobody_watched_is_given_up() {
    // The ledger has the reservation, the pod is not there any more.
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play("0 | large A | A to n0");
    let ledger = timeline.pool.nodes().clone();
    let counters = *timeline.pool.counters_elsewhere();
    timeline.replace(Pool::restore(Config::default(), ledger, [], counters).unwrap());
    timeline.play(
        "1  | small s1       |
         30 | tick           | A off n0 Expired until 30; n0 owes NoLargeWaits; s1 to n0",
    );
    let a = timeline.id("A");
    assert!(timeline.pool.waiting(a).is_none(), "nobody waits");
}

#[test]
fn a_holder_whose_pod_is_told_after_the_restart_is_not_foreign() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play("0 | small s1 | s1 to n0");
    let s1 = timeline.id("s1");
    let job = timeline.pool.job(s1).unwrap().clone();
    let ledger = timeline.pool.nodes().clone();
    timeline.pool =
        Pool::restore(Config::default(), ledger, [], *timeline.pool.counters_elsewhere()).unwrap();
    assert_eq!(timeline.pool.step(vec![Input::Queued(Box::new(job))], Millis(1)), []);
    assert!(timeline.pool.waiting(s1).is_none() && timeline.pool.job(s1).is_some());
    timeline.play("30 | tick | s1 off n0 Expired until 35");
}

#[test]
fn what_is_known_of_a_job_may_change_while_it_waits_and_while_it_runs() {
    let mut timeline = play(
        &Config::default(),
        2,
        "0 | small s1..s16         | s1..s8 to n0; s9..s16 to n1
         1 | small a; small b      |
         2 | small b prio=9        |
         3 | done s1               | b to n0
         4 | small a on=n1         |
         5 | done s2               |
         6 | done s9               | a to n1",
    );
    let a = timeline.id("a");
    let mut changed = timeline.pool.job(a).unwrap().clone();
    assert_eq!(changed.fits, Fits::Only([sluice::policy::NodeId(1)].into()));
    changed.shape = Shape::Large;
    timeline.pool.step(vec![Input::Queued(Box::new(changed))], timeline.now);
    assert_eq!(timeline.pool.job(a).unwrap().shape, Shape::Small, "who runs keeps its shape");
}

#[test]
fn facts_about_unknown_jobs_and_nodes_change_nothing() {
    let mut timeline = play(&Config::default(), 1, "0 | small s1 | s1 to n0");
    let ghost = JobId(99);
    let inputs = vec![
        Input::Withdrawn { job: ghost },
        Input::Bound { job: ghost },
        Input::BindFailed { job: ghost },
        Input::Vanished { job: ghost },
        Input::NodeGone { node: sluice::policy::NodeId(9) },
        Input::Foreign {
            job: ghost,
            node: sluice::policy::NodeId(9),
            count: 1,
            gpus: None,
            latest_end: None,
        },
    ];
    let before = restore(&timeline.pool);
    assert_eq!(timeline.pool.step(inputs, Millis(1)), []);
    assert_eq!(before.nodes(), timeline.pool.nodes());
    assert!(timeline.pool.nodes().values().all(|node| node.phase == Phase::Open));
}

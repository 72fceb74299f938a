//! What the world tells of itself: nodes as they are, pods that went round the rule, and facts that
//! come in any order.

use sluice::policy::invariants::Violation;
use sluice::policy::{
    Config, Decision, GpuSet, Input, Millis, NodeId, NodeSpec, Phase, Pool, Shape, Stage,
};

use super::timeline::{Timeline, limits, play, restore};

const N0: NodeId = NodeId(0);

fn free(timeline: &Timeline, node: u32) -> u32 {
    timeline.pool.nodes()[&NodeId(node)].free().count()
}

// Nodes.

#[test]
fn no_gpu_is_healthy_that_the_node_does_not_have() {
    let mut timeline = play(&Config::default(), 0, "0 | tick |");
    let spec = NodeSpec { gpus: GpuSet::first(4), healthy: GpuSet::first(8), schedulable: true };
    timeline.pool.step(vec![Input::NodeChanged { node: N0, spec }], Millis(0));
    assert_eq!(timeline.pool.nodes()[&N0].spec.healthy, GpuSet::first(4));
}

#[test]
fn a_promise_to_a_large_outlives_news_of_its_node_only_while_it_is_of_the_whole_node() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | large A         | A to n0
         1 | node n0         |
         2 | node n0 gpus=9  | A off n0 NodeUnfit until 2; n0 owes NodeUnfit",
    );
}

// Pods that went round the rule.

#[test]
fn a_pod_is_not_foreign_on_the_node_that_it_was_admitted_to() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | small s1            | s1 to n0
         1 | foreign s1 n0       |",
    );
    let s1 = timeline.id("s1");
    let holding = timeline.pool.holding(s1).unwrap();
    assert_eq!((holding.shape, holding.stage), (Some(Shape::Small), Stage::Reserved));
}

#[test]
fn a_pod_on_a_node_that_the_pool_does_not_know_stays_what_it_was() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | large A; small s1   | A to n0
         1 | foreign s1 n7       |
         2 | foreign f n0 gpus=3 | n0 sees Overlap(JobId(1), JobId(3))
         3 | foreign f n7        |",
    );
    let (s1, f) = (timeline.id("s1"), timeline.id("f"));
    assert!(timeline.pool.waiting(s1).is_some());
    assert_eq!(timeline.pool.node_of(f), Some(N0));
}

#[test]
fn a_foreign_pod_holds_gpus_on_one_node_since_it_was_first_seen_there() {
    let mut timeline = play(
        &Config::default(),
        2,
        "0 | foreign f n0 gpus=0,1 |
         1 | foreign f n0 gpus=0,1 |",
    );
    let f = timeline.id("f");
    assert_eq!(timeline.pool.holding(f).unwrap().since, Millis(0));
    timeline.play("2 | foreign f n1 gpus=0 |");
    assert_eq!((free(&timeline, 0), free(&timeline, 1)), (8, 7));
    assert_eq!(timeline.pool.holding(f).unwrap().since, Millis::from_secs(2));
    timeline.play("3 | foreign f n1 count=0 |");
    assert_eq!((timeline.pool.node_of(f), free(&timeline, 1)), (None, 8));
}

#[test]
fn promises_make_way_for_a_foreign_pod_that_has_other_gpus_than_thought() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | small s1            | s1 to n0
         1 | foreign f n0 gpus=7 |
         2 | foreign f n0 gpus=0 | s1 to n0",
    );
    assert_eq!(timeline.gpus("s1"), [1]);
}

#[test]
fn a_wave_for_which_foreign_pods_leave_no_gpu_is_none() {
    play(
        &Config::default(),
        1,
        "0 | large A              | A to n0
         1 | large B; small s1    |
         2 | foreign f n0 count=8 | n0 sees Overlap(JobId(1), JobId(4))
         9 | done A               | n0 owes Wave; n0 drains for B until ever",
    );
}

#[test]
fn a_pod_that_is_gone_already_is_not_evicted() {
    let config = Config {
        drain_limit: Some(Millis::from_secs(20)),
        evict_overdue: true,
        ..Config::default()
    };
    play(
        &config,
        1,
        "0  | small s1,s2 | s1..s2 to n0
         1  | large A     | n0 drains for A until ever
         2  | vanish s1   |
         21 | tick        | n0 overdue for A by s1 s2; s2 evicted n0",
    );
}

// The order of facts.

#[test]
fn facts_of_one_instant_count_in_their_order_and_not_in_that_of_their_coming() {
    // Bound, then refused: it is bound.
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play(
        "0 | small a           | a to n0
         1 | refuse a; bind a  |
         2 | large A           | n0 drains for A until ever
         3 | done a            | A to n0",
    );
    // Of one kind, in the order of the pods: who came first has the highest GPU.
    for table in ["0 | foreign a n0; foreign b n0 |", "0 | foreign b n0; foreign a n0 |"] {
        let mut timeline = Timeline::new(&Config::default(), 1);
        let ids = (timeline.id("a"), timeline.id("b"));
        assert!(ids.0 < ids.1);
        timeline.play(table);
        assert_eq!((timeline.gpus("a"), timeline.gpus("b")), (vec![7], vec![6]), "{table}");
    }
}

#[test]
fn what_a_pool_sees_of_two_pods_on_one_gpu_names_both_once() {
    let mut timeline = play(&Config::default(), 1, "0 | small s1 | s1 to n0");
    timeline.play("1 | foreign f n0 gpus=0 | n0 sees Overlap(JobId(1), JobId(2))");
    let (s1, f) = (timeline.id("s1"), timeline.id("f"));
    let violation = Violation::Overlap(s1, f);
    assert_eq!(timeline.last.1, [Decision::Observed { node: N0, violation }]);
    assert_eq!(timeline.pool.nodes()[&N0].phase, Phase::Open);
}

// What a ledger keeps.

#[test]
fn ends_that_no_node_counts_outlive_a_restart() {
    let timeline = play(
        &limits(10, 50),
        2,
        "0 | small s1..s16        | s1..s8 to n0; s9..s16 to n1
         1 | small t1             |
         2 | withdraw t1          |
         3 | gone n1              |",
    );
    let counters = timeline.pool.counters();
    assert_eq!((counters.small.cancelled, counters.small.failed), (1, 8));
    assert_eq!(restore(&timeline.pool).counters(), counters);
}

#[test]
fn the_pool_wakes_when_a_promise_runs_out_and_not_for_one_that_was_kept() {
    let mut timeline = Timeline::slow(&Config::default(), 1);
    timeline.play("0 | small s1,s2 | s1..s2 to n0");
    assert_eq!(timeline.pool.next_wakeup(Millis(0)), Some(Millis::from_secs(30)));
    timeline.play("1 | bind s1; start s2 |");
    assert_eq!(timeline.pool.next_wakeup(Millis(1_000)), None);
}

#[test]
fn a_state_that_has_counted_more_than_any_pool_can_is_refused() {
    let counted = |failed: u64| {
        let mut state = play(&Config::default(), 1, "0 | tick |").pool.state();
        state.elsewhere.small.failed = failed;
        Pool::from_state(state).is_ok()
    };
    assert!(counted(1 << 48));
    assert!(!counted((1 << 48) + 1));
}

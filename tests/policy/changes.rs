//! What an explanation says would change a wait, and what it leaves out because it would not.

use sluice::policy::{Change, Config, Millis, Need, NodeId, Standing, Unfit, Waits};

use super::timeline::{Timeline, limits, play};

pub(super) fn waits(timeline: &mut Timeline, name: &str) -> Waits {
    let job = timeline.id(name);
    match timeline.pool.explain(job, timeline.now).unwrap().standing {
        Standing::Waits(waits) => *waits,
        Standing::Holds(holds) => panic!("{name} does not wait: {holds:?}"),
    }
}

fn changes(timeline: &mut Timeline, name: &str) -> Vec<Change> {
    waits(timeline, name).changes
}

#[test]
fn a_drain_that_should_have_ended_leaves_no_time_in_which_a_small_would_fit() {
    for backfill in [false, true] {
        let mut timeline = play(
            &Config { backfill, ..limits(10, 50) },
            1,
            "0      | small s1 limit=10 | s1 to n0
             1      | large A limit=50  | n0 drains for A until 10
             2      | small t limit=10  |
             10.001 | tick              | n0 overdue for A by s1",
        );
        let changes = changes(&mut timeline, "t");
        let none = [Change::Backfill(Millis(0)), Change::ShorterLimit(Millis(0))];
        assert!(!none.iter().any(|none| changes.contains(none)), "{changes:?}");
    }
}

fn goes_on(turn: u64, nodes: u32, table: &str) -> bool {
    let config = Config { turn: Some(Millis::from_secs(turn)), ..limits(10, 50) };
    let changes = changes(&mut play(&config, nodes, table), "s");
    changes.iter().any(|change| matches!(change, Change::TurnGoesOn { .. }))
}

#[test]
fn a_turn_goes_on_by_an_early_end_only_where_the_next_large_would_not_follow_anyhow() {
    let table = "0 | large R,A limit=50; small s limit=10 | R to n0";
    assert!(goes_on(99, 1, table), "R would have to end by 49");
    assert!(!goes_on(100, 1, table), "R ends by 50 in any case");
}

#[test]
fn a_turn_does_not_go_on_for_a_large_that_does_not_fit_the_node() {
    let table = "0 | large R on=n0 limit=50; large Q on=n1 limit=50 | R to n0; Q to n1
                 1 | large A on=n1 limit=50; small s limit=10 on=n0 |";
    assert!(!goes_on(99, 2, table));
}

#[test]
fn a_node_of_just_the_right_size_is_not_of_the_wrong_size() {
    let mut timeline = play(
        &Config::default(),
        0,
        "0 | node n0 gpus=4 cordoned; node n1 gpus=2; node n2 bad=0,1,2,3,4 |
         1 | wide w gpus=4                                                  |",
    );
    let sick = [0, 1, 2, 3, 4].into_iter().collect();
    let nodes = vec![
        (NodeId(0), Unfit::Unschedulable),
        (NodeId(1), Unfit::Size(2)),
        (NodeId(2), Unfit::Unhealthy(sick)),
    ];
    assert_eq!(waits(&mut timeline, "w").needs, [Need::Fit { nodes, more: 0 }]);
}

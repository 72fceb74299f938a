//! Many nodes: which of them drains, where the credit is settled, how smalls are packed.

use sluice::policy::{Config, Wait};

use super::timeline::{Timeline, limits, play};

#[test]
fn an_empty_node_takes_the_head_at_once() {
    play(
        &Config::default(),
        2,
        "0 | small s1       | s1 to n0
         1 | large A        | A to n1",
    );
}

#[test]
fn an_empty_node_takes_the_head_whichever_gate_was_closed_for_it() {
    // n0 drains for A; n1 comes free first: A goes there, and the gate of n0 opens.
    play(
        &Config::default(),
        2,
        "0 | small s1..s9   | s1..s8 to n0; s9 to n1
         1 | large A        | n1 drains for A until ever
         2 | small t1       |
         3 | done s1..s7    | t1 to n0
         4 | done s8,t1     | A to n0; n1 opens NoLargeWaits",
    );
}

#[test]
fn an_empty_node_that_the_head_cannot_use_goes_to_the_next() {
    play(
        &Config::default(),
        2,
        "0 | small s1 on=n0   | s1 to n0
         1 | large A on=n0    | n0 drains for A until ever
         2 | large B          | B to n1
         3 | done s1          | A to n0",
    );
}

#[test]
fn one_node_drains_at_a_time_and_smalls_go_on_elsewhere() {
    play(
        &Config::default(),
        3,
        "0 | small s1..s24    | s1..s8 to n0; s9..s16 to n1; s17..s24 to n2
         1 | large A,B        | n0 drains for A until ever
         2 | small t1,t2      |
         3 | done s1..s4      |
         4 | done s9          | t1 to n1
         5 | done s17         | t2 to n2
         6 | done s5..s8      | A to n0; n1 drains for B until ever",
    );
}

#[test]
fn as_many_nodes_drain_as_the_setting_says() {
    play(
        &Config { max_drains: 2, ..Config::default() },
        3,
        "0 | small s1..s24    | s1..s8 to n0; s9..s16 to n1; s17..s24 to n2
         1 | large A,B,C      | n0 drains for A until ever; n1 drains for B until ever",
    );
}

#[test]
fn no_more_nodes_drain_than_larges_wait() {
    play(
        &Config { max_drains: 3, ..Config::default() },
        3,
        "0 | small s1..s24    | s1..s8 to n0; s9..s16 to n1; s17..s24 to n2
         1 | large A          | n0 drains for A until ever
         2 | withdraw A       | n0 opens NoLargeWaits",
    );
}

#[test]
fn a_gate_that_the_head_cannot_use_does_not_hold_it_up() {
    // n0 drains for A. H goes before A and fits only n1: it closes that, and with it as many drain
    // as the setting says, so that n0 serves smalls until H has started.
    play(
        &Config::default(),
        2,
        "0 | small s1..s16        | s1..s8 to n0; s9..s16 to n1
         1 | large A on=n0        | n0 drains for A until ever
         2 | large H on=n1 prio=1 | n1 drains for H until ever; n0 opens NotNeeded
         3 | done s1; small t1    | t1 to n0
         4 | done s9..s16         | H to n1; n0 drains for A until ever
         5 | done s2..s8,t1       | A to n0",
    );
}

#[test]
fn the_node_that_is_empty_soonest_drains() {
    play(
        &limits(90, 90),
        3,
        "0 | small s1..s3 on=n0 limit=60; small s4 on=n1 limit=70; small s5 on=n2 limit=90 \
             | s1..s3 to n0; s4 to n1; s5 to n2
         1 | large A limit=90 | n0 drains for A until 60",
    );
}

#[test]
fn of_nodes_that_are_empty_at_one_time_the_one_with_fewest_holders_drains() {
    play(
        &limits(90, 90),
        3,
        "0 | small s1..s3 on=n0 limit=60; small s4 on=n1 limit=60; small s5,s6 on=n2 limit=60 \
             | s1..s3 to n0; s4 to n1; s5..s6 to n2
         1 | large A limit=90 | n1 drains for A until 60",
    );
}

#[test]
fn a_node_whose_end_nobody_knows_drains_last() {
    play(
        &limits(90, 90),
        2,
        "0 | foreign f n0; small s1..s8 on=n1 limit=80 | s1..s8 to n1
         1 | large A limit=90 | n1 drains for A until 80",
    );
}

#[test]
fn smalls_are_packed_on_the_fullest_open_node() {
    play(
        &Config::default(),
        3,
        "0 | small s1 on=n1   | s1 to n1
         1 | small s2..s4     | s2..s4 to n1
         2 | small s5 on=n2   | s5 to n2
         3 | small s6..s10    | s6..s9 to n1; s10 to n2",
    );
}

#[test]
fn a_small_goes_where_it_moves_the_latest_end_least() {
    play(
        &limits(90, 90),
        3,
        "0 | small s1 on=n0 limit=80; small s2..s4 on=n1 limit=20 | s1 to n0; s2..s4 to n1
         1 | small s5 limit=70   | s5 to n0
         2 | small s6 limit=10   | s6 to n1
         3 | small s7 limit=90   | s7 to n0",
    );
}

#[test]
fn larges_follow_one_another_while_another_node_is_open() {
    // n2 serves smalls, so B starts on n0 without a wave, and the gate of n1 is for C.
    play(
        &Config::default(),
        3,
        "0  | large A                 | A to n0
         1  | small s1..s20           | s1..s8 to n1; s9..s16 to n2
         2  | large B,C               | n1 drains for B until ever
         9  | done A                  | n0 owes OtherNodeOpen; B to n0; n1 drains for C not B
         10 | done s9                 | s17 to n2",
    );
}

#[test]
fn a_wave_is_owed_where_no_other_node_is_open() {
    // B has the wave's node before it, which is empty sooner than n1 as nobody knows an end.
    play(
        &limits(90, 90),
        2,
        "0  | large A limit=90             | A to n0
         1  | small s1..s8 limit=90        | s1..s8 to n1
         2  | small s9,s10 limit=30; large B limit=90 | n1 drains for B until 91
         9  | done A                       | n0 owes Wave; s9..s10 waves to n0; \
                                             n0 waves 2 before B; n1 opens NotNeeded
         10 | small t1; done s1            | t1 to n1
         12 | done s9,s10                  | B to n0",
    );
}

#[test]
fn a_node_that_fits_no_waiting_small_is_not_open_to_it() {
    // s1 can only go to n0: that n1 is open does not help it.
    play(
        &Config::default(),
        2,
        "0  | large A                      | A to n0
         1  | small r1                     | r1 to n1
         2  | large B,C on=n0; small s1 on=n0 |
         9  | done A                       | n0 owes Wave; s1 waves to n0; n0 waves 1 before B
         12 | done s1                      | B to n0",
    );
}

#[test]
fn an_open_node_that_others_pods_hold_for_ever_serves_nobody() {
    // All of n1 is in foreign hands without an end: smalls would wait for ever behind larges.
    let mut timeline = play(
        &Config::default(),
        2,
        "0 | foreign f n1 count=8; large A; large B on=n0; small s1 | A to n0",
    );
    assert_eq!(timeline.why("s1"), Some(Wait::Busy { ahead: 0 }));
    timeline.play("9 | done A | n0 owes Wave; s1 waves to n0; n0 waves 1 before B");
}

#[test]
fn two_larges_that_end_at_once_owe_one_wave_each_at_most() {
    // The setting is one gate, and that is C's: the other wave goes over into open service.
    play(
        &Config::default(),
        2,
        "0  | large A,B,C,D; small s1..s20 | A to n0; B to n1
         9  | done A,B | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before C; \
                         n1 owes Wave; s9..s16 waves to n1; n1 waves 8 before C; \
                         n1 opens NotNeeded
         10 | done s1,s9     | s17 to n1
         11 | done s2..s8    | C to n0; n1 drains for D until ever
         12 | done s10..s17  | D to n1",
    );
    // Where the setting is two, both stay closed.
    play(
        &Config { max_drains: 2, ..Config::default() },
        2,
        "0  | large A,B,C,D; small s1..s20 | A to n0; B to n1
         9  | done A,B | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before C; \
                         n1 owes Wave; s9..s16 waves to n1; n1 waves 8 before C; \
                         n1 drains for D not C
         10 | done s1,s9     |
         11 | done s2..s8    | C to n0
         12 | done s10..s16  | D to n1",
    );
}

#[test]
fn larges_that_end_one_after_the_other_leave_one_gate_closed_and_the_other_nodes_to_smalls() {
    // All nodes are in the larges' hands, and both queues are long: if each wave kept its gate, all
    // three nodes would alternate for as long as larges wait, and most of their GPUs idle.
    let mut timeline = Timeline::new(&limits(90, 200), 3);
    for line in "0  | large A,B,C,D,E,F,G,H limit=200; small s1..s60 limit=90 | A to n0; B to n1; C to n2
         10 | done A     | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before D
         20 | done B     | n1 owes Wave; s9..s16 waves to n1; n1 waves 8 before D; n1 opens NotNeeded
         25 | done s1    |
         26 | done s9    | s17 to n1
         30 | done C     | n2 owes OtherNodeOpen; D to n2; n0 drains for E not D
         40 | done s10..s13 | s18..s21 to n1
         45 | done D     | n2 owes OtherNodeOpen; E to n2; n0 drains for F not E
         50 | done s2..s8 | F to n0; n1 drains for G until 130
         60 | done E     | n2 owes Wave; s22..s29 waves to n2; n2 waves 8 before G; n2 opens NotNeeded
         61 | done s22   | s30 to n2"
        .lines()
    {
        timeline.play(line);
        let gates = timeline.pool.nodes().values().filter(|node| node.gate().is_some()).count();
        assert!(gates <= 1, "{gates} gates after {line}");
    }
}

#[test]
fn priority_then_creation_then_number_is_the_order() {
    play(
        &Config::default(),
        1,
        "0 | small s1..s8                                   | s1..s8 to n0
         1 | small a; small b created=0; small c prio=1; small d prio=1 |
         2 | done s1 | c to n0
         3 | done s2 | d to n0
         4 | done s3 | b to n0
         5 | done s4 | a to n0",
    );
}

#[test]
fn a_node_of_another_size_takes_smalls_and_no_larges() {
    let mut timeline =
        play(&Config::default(), 0, "0 | node n0 gpus=4; small s1..s5; large A | s1..s4 to n0");
    assert!(matches!(timeline.why("A"), Some(Wait::NoNodeFits(_))));
}

#[test]
fn a_cordoned_node_takes_nobody_and_what_runs_there_counts() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s3            | s1..s3 to n0
         1 | node n0 cordoned        |
         2 | small s4; large A       |
         3 | node n0                 | n0 drains for A until ever
         4 | done s1..s3             | A to n0",
    );
    assert_eq!(timeline.gpus("A").len(), 8);
}

#[test]
fn a_new_node_takes_who_waits() {
    play(
        &Config::default(),
        1,
        "0 | small s1..s10     | s1..s8 to n0
         1 | large A           | n0 drains for A until ever
         2 | node n1           | A to n1; n0 opens NoLargeWaits
         3 | node n2           | s9..s10 to n2",
    );
}

#[test]
fn a_gate_that_opens_lets_another_node_be_taken_or_closed_in_the_same_decision() {
    // n1 must stay open while n0 drains; once n0 cannot take A, n1 may, before a small does.
    play(
        &Config { keep_open: 1, ..Config::default() },
        2,
        "0 | small s1..s9            | s1..s8 to n0; s9 to n1
         1 | done s9; large A        | A to n1
         2 | done A; large B on=n0   | n1 owes NoLargeWaits; n0 drains for B until ever
         3 | large C                 |
         4 | node n0 bad=1; small t1 | n0 opens NodeUnfit; C to n1",
    );
}

#[test]
fn a_kept_open_node_is_no_obstacle_for_ever_to_a_large_that_fits_nowhere_else() {
    // A fits n1 alone, which is the last open node while larges follow one another on n0.
    play(
        &Config { keep_open: 1, ..Config::default() },
        2,
        "0 | large X                    | X to n0
         1 | small s1                   | s1 to n1
         2 | large A on=n1; large B,C   |
         9 | done X                     | n0 owes NoLargeWaits; n1 drains for A until ever
         10 | small s2                  | s2 to n0
         11 | done s1                   | A to n1",
    );
}

#[test]
fn no_wave_and_no_gate_is_for_a_later_large_while_an_earlier_one_waits_for_an_open_node() {
    // Smalls that fit n0 alone would have a wave there before C, and A would wait on and on.
    play(
        &Config { keep_open: 1, ..Config::default() },
        2,
        "0  | large X                                | X to n0
         1  | small s1 on=n1                         | s1 to n1
         2  | large A on=n1; large C; small t1 on=n0 |
         9  | done X                   | n0 owes NoLargeWaits; n1 drains for A until ever; t1 to n0
         10 | done s1                  | A to n1",
    );
}

#[test]
fn a_spare_gate_opens_for_an_earlier_large_that_waits_for_an_open_node() {
    let keep_open = Config { keep_open: 1, ..Config::default() };
    let start = "0 | small s1 on=n0; small s2 on=n1 | s1 to n0; s2 to n1
                 1 | large X on=n0                  | n0 drains for X until ever
                 2 | large A on=n1                  |";
    let mut timeline = play(&keep_open, 2, start);
    timeline.play("4 | withdraw X | n0 opens NotNeeded; n1 drains for A until ever");
    // And no later large has it instead.
    let mut timeline = play(&keep_open, 2, start);
    timeline.play(
        "3 | large B    |
         4 | withdraw X | n0 opens NotNeeded; n1 drains for A until ever",
    );
}

#[test]
fn one_wave_at_a_time_lets_larges_follow_where_another_node_is_in_a_wave_or_drains() {
    let table = "0  | large A,B,C limit=50         | A to n0; B to n1
                 1  | small s1..s9 limit=10        |
                 9  | done A                       | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before C
                 10 | large D limit=50             |";
    let mut timeline = play(&limits(10, 50), 2, table);
    timeline.play(
        "11 | done B | n1 owes Wave; s9 waves to n1; n1 waves 1 before C; n1 opens NotNeeded",
    );
    let one_wave = Config { one_wave: true, ..limits(10, 50) };
    let mut timeline = play(&one_wave, 2, table);
    // C is first, and n1 is empty now; the wave's node is for D.
    timeline.play(
        "11 | done B             | n1 owes OtherNodeNext; C to n1; n0 drains for D not C
         19 | done s1..s8        | D to n0
         20 | large E limit=50   |
         21 | done C             | n1 owes Wave; s9 waves to n1; n1 waves 1 before E",
    );
}

#[test]
fn a_drain_whose_end_nobody_knows_is_no_reason_to_leave_out_a_wave() {
    play(
        &Config { one_wave: true, ..limits(10, 50) },
        2,
        "0 | foreign f n1; large A,B limit=50; small s1 limit=10 | A to n0; n1 drains for B until ever
         9 | done A | n0 owes Wave; s1 waves to n0; n0 waves 1 before B; n1 opens NotNeeded",
    );
}

#[test]
fn a_node_with_few_healthy_gpus_does_not_stand_for_a_wave() {
    // n1 serves one small at a time, and no large could take it: if it stood for a wave, larges
    // would follow one another on n0 for ever, and smalls would get one GPU of eight.
    play(
        &limits(10, 50),
        2,
        "0  | node n1 bad=1,2,3,4,5,6,7                   |
         1  | large A limit=50                            | A to n0
         2  | small s1..s9 limit=10; large B limit=50     | s1 to n1
         9  | done A | n0 owes Wave; s2..s9 waves to n0; n0 waves 8 before B",
    );
    // Seven are one too few, and with one more elsewhere enough.
    play(
        &limits(10, 50),
        3,
        "0  | node n1 bad=1; node n2 bad=1,2,3,4,5,6,7    |
         1  | large A limit=50                            | A to n0
         2  | small s1..s9 limit=10; large B limit=50     | s1..s7 to n1; s8 to n2
         9  | done A                                      | n0 owes OtherNodeOpen; B to n0",
    );
}

#[test]
fn a_gate_that_one_large_gives_back_serves_a_later_one_in_the_same_decision() {
    // B has the gate that was A's, which is empty sooner; C, which fits n1 alone, has B's.
    play(
        &Config { max_drains: 2, ..limits(90, 90) },
        3,
        "0 | large X limit=90; small s1 on=n1 limit=50; small s2 on=n2 limit=40 \
             | X to n0; s1 to n1; s2 to n2
         1 | large A limit=90       | n2 drains for A until 40
         2 | large B limit=90       | n1 drains for B until 50
         3 | large C on=n1 limit=90 |
         4 | done X                 | n0 owes NoSmallWaits; A to n0; n2 drains for B not A; \
                                      n1 drains for C not B",
    );
}

#[test]
fn of_two_nodes_that_are_empty_at_once_each_large_takes_its_own() {
    play(
        &Config { max_drains: 2, ..limits(90, 90) },
        2,
        "0 | small s1 on=n0 limit=60; small s2 on=n1 limit=50 | s1 to n0; s2 to n1
         1 | large A,B limit=90  | n1 drains for A until 50; n0 drains for B until 60
         5 | done s1,s2          | A to n1; B to n0",
    );
}

#[test]
fn a_gate_opens_before_another_closes_so_that_never_more_are_closed_than_the_setting_says() {
    play(
        &Config { max_drains: 2, ..Config::default() },
        3,
        "0 | small s1..s24    | s1..s8 to n0; s9..s16 to n1; s17..s24 to n2
         1 | large A on=n0; large X on=n1; large B on=n2 | n0 drains for A until ever; n1 drains for X until ever
         2 | withdraw X       | n1 opens NotNeeded; n2 drains for B until ever",
    );
}

#[test]
fn no_wave_is_before_a_large_that_does_not_fit_the_node() {
    play(
        &Config::default(),
        2,
        "0 | large A on=n0; large B on=n1 | A to n0; B to n1
         1 | large C on=n1; small s1      |
         9 | done A                       | n0 owes NoLargeWaits; s1 to n0",
    );
    // Nor does such a one in front keep it from being before the next that does.
    play(
        &Config::default(),
        2,
        "0 | large A on=n0; large B on=n1    | A to n0; B to n1
         1 | large C on=n1; large D; small s1 |
         9 | done A                           | n0 owes Wave; s1 waves to n0; n0 waves 1 before D",
    );
}

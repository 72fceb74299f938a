//! One node, the plain rule: the timelines in which it differs from the tempting ones.

use sluice::policy::{Config, Phase, Wait};

use super::timeline::{Timeline, limits, play};

#[test]
fn eight_smalls_get_eight_gpus() {
    let mut timeline = play(&Config::default(), 1, "0 | small s1..s9 | s1..s8 to n0");
    let gpus: Vec<u32> = (1..=8).flat_map(|i| timeline.gpus(&format!("s{i}"))).collect();
    assert_eq!(gpus, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(timeline.gpus("s9").is_empty());
}

#[test]
fn without_larges_each_freed_gpu_is_used_at_once() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s10 | s1..s8 to n0
         3 | done s4       | s9 to n0
         4 | done s2       | s10 to n0",
    );
    assert_eq!((timeline.gpus("s9"), timeline.gpus("s10")), (vec![3], vec![1]));
}

#[test]
fn a_large_needs_all_eight_and_gets_them() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | large A    | A to n0
         1 | small s1   |
         5 | done A     | n0 owes NoLargeWaits; s1 to n0",
    );
    assert_eq!(timeline.gpus("s1"), [0]);
    let mut timeline = play(&Config::default(), 1, "0 | large A | A to n0");
    assert_eq!(timeline.gpus("A"), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_freed_gpu_stays_idle_while_the_node_drains() {
    // Greedy placement gives GPU 3 to the next small, and so for ever.
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s8 | s1..s8 to n0
         1 | large A      | n0 drains for A until ever
         2 | done s4      |
         2 | small late   |
         3 | small later  |",
    );
    assert!(matches!(timeline.why("late"), Some(Wait::GateClosed { free: 1, .. })));
    assert!(matches!(timeline.why("A"), Some(Wait::Draining { holders: 7, .. })));
}

#[test]
fn the_first_eight_then_the_large_then_the_late_small() {
    play(
        &Config::default(),
        1,
        "0  | small s1..s8        | s1..s8 to n0
         1  | large A; small late | n0 drains for A until ever
         5  | done s1..s7         |
         9  | done s8             | A to n0
         20 | tick                |
         30 | done A              | n0 owes NoLargeWaits; late to n0",
    );
}

#[test]
fn arrivals_do_not_extend_a_drain() {
    let mut timeline = play(
        &limits(10, 50),
        1,
        "0  | small s1..s8 limit=10    | s1..s8 to n0
         4  | large A limit=50         | n0 drains for A until 10
         5  | small late1..late20 limit=10 |
         9  | small last1 limit=10     |",
    );
    assert_eq!(timeline.latest_start("A"), Some(10));
    timeline.play("10 | done s1..s8 | A to n0");
}

#[test]
fn a_small_between_two_larges_runs_as_a_wave_between_them() {
    play(
        &Config::default(),
        1,
        "0  | large A     | A to n0
         1  | small s1    |
         2  | large B     |
         10 | done A      | n0 owes Wave; s1 waves to n0; n0 waves 1 before B
         11 | small late1 |
         15 | done s1     | B to n0
         25 | done B      | n0 owes NoLargeWaits; late1 to n0",
    );
}

#[test]
fn larges_without_end_do_not_starve_smalls() {
    play(
        &Config::default(),
        1,
        "0  | large A; small s1..s20 | A to n0
         1  | large B                |
         9  | done A                 | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before B
         10 | large C                |
         19 | done s1..s8            | B to n0
         20 | large D                |
         29 | done B                 | n0 owes Wave; s9..s16 waves to n0; n0 waves 8 before C
         39 | done s9..s16           | C to n0
         49 | done C                 | n0 owes Wave; s17..s20 waves to n0; n0 waves 4 before D
         59 | done s17..s20          | D to n0",
    );
}

#[test]
fn a_wave_is_at_most_eight_and_is_not_refilled() {
    play(
        &Config::default(),
        1,
        "0  | large A           | A to n0
         1  | large B; small s1..s12 |
         9  | done A            | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before B
         10 | done s1           |
         11 | done s2..s7       |
         12 | small late1       |
         13 | done s8           | B to n0",
    );
}

#[test]
fn a_wave_may_be_set_smaller() {
    play(
        &Config { wave_size: 3, ..Config::default() },
        1,
        "0  | large A           | A to n0
         1  | large B; small s1..s12 |
         9  | done A            | n0 owes Wave; s1..s3 waves to n0; n0 waves 3 before B
         10 | done s1..s3       | B to n0",
    );
}

#[test]
fn unrestricted_service_consumes_the_credit() {
    // B arrives while smalls are served freely after A: it pays for no second wave.
    play(
        &Config::default(),
        1,
        "0  | large A        | A to n0
         1  | small s1..s3   |
         9  | done A         | n0 owes NoLargeWaits; s1..s3 to n0
         10 | large B        | n0 drains for B until ever
         11 | small late1    |
         15 | done s1..s3    | B to n0
         25 | done B         | n0 owes NoLargeWaits; late1 to n0",
    );
}

#[test]
fn credit_is_not_kept_over_an_idle_time() {
    play(
        &Config::default(),
        1,
        "0  | large A            | A to n0
         9  | done A             | n0 owes NoLargeWaits
         20 | large B; small s1  | B to n0
         29 | done B             | n0 owes NoLargeWaits; s1 to n0",
    );
}

#[test]
fn failed_and_cancelled_work_gives_every_gpu_back() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s8       | s1..s8 to n0
         1 | large A            | n0 drains for A until ever
         2 | failed s1..s4      |
         3 | cancelled s5..s8   | A to n0
         4 | failed A           | n0 owes NoLargeWaits
         5 | small t1..t8       | t1..t8 to n0",
    );
    assert_eq!(timeline.gpus("t8"), [7]);
    let counters = timeline.pool.counters();
    assert_eq!((counters.small.failed, counters.small.cancelled), (4, 4));
    assert_eq!((counters.small.admitted, counters.large.failed), (16, 1));
}

#[test]
fn a_cancelled_job_never_gets_a_gpu() {
    play(
        &Config::default(),
        1,
        "0 | small s1..s10   | s1..s8 to n0
         1 | withdraw s9     |
         2 | done s1         | s10 to n0",
    );
}

#[test]
fn cancel_and_reserve_have_one_winner() {
    // Deletion and a free GPU at one instant: deletion wins, and the next in the queue is served.
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s10           | s1..s8 to n0
         1 | done s1; withdraw s9    | s10 to n0",
    );
    // Deletion after the reservation: it has run, and its GPU comes back exactly once.
    timeline.play(
        "2 | withdraw s10       |
         3 | small s11          |
         4 | cancelled s10      | s11 to n0
         5 | small s12          |
         6 | cancelled s10      |",
    );
    let counters = timeline.pool.counters().small;
    assert_eq!((counters.admitted, counters.cancelled), (10, 2));
}

#[test]
fn a_gpu_is_released_exactly_once() {
    let mut timeline = play(
        &Config::default(),
        1,
        "0 | small s1..s10         | s1..s8 to n0
         1 | done s1; done s1      | s9 to n0
         2 | failed s1             |",
    );
    assert_eq!(timeline.gpus("s9"), [0]);
    let counters = timeline.pool.counters().small;
    assert_eq!((counters.completed, counters.failed), (1, 0));
}

#[test]
fn the_eleventh_small_outwaits_the_tempting_bound() {
    // S = 10, L = 100. Ten smalls ahead of `ours`, eight busy GPUs, no large: the tempting bound
    // S + ceil(11/8)(L+S) is 3S + 2L = 230; intermittent larges make it 4S + 2L = 240.
    // A large that comes just after a small started stands in a line of its own.
    let mut timeline = play(
        &limits(10, 100),
        1,
        "0   | small r1..r8 limit=10             | r1..r8 to n0
         0   | small a1..a10,ours limit=10       |
         10  | done r1                           | a1 to n0
         10  | large A limit=100                 | n0 drains for A until 20
         10  | done r2..r8                       |
         20  | done a1                           | A to n0
         120 | done A                            | n0 owes NoLargeWaits; a2..a9 to n0
         130 | done a2                           | a10 to n0
         130 | large B limit=100                 | n0 drains for B until 140
         130 | done a3..a9                       |",
    );
    assert_eq!(timeline.latest_start("B"), Some(140));
    timeline.play(
        "140 | done a10 | B to n0
         240 | done B   | n0 owes NoLargeWaits; ours to n0",
    );
    let waited = timeline.now.0 / 1_000;
    assert_eq!(waited, 4 * 10 + 2 * 100);
    assert!(waited > 10 + 2 * (100 + 10), "the tempting bound holds here after all");
    assert!(waited <= 2 * (100 + 2 * 10), "the stated bound is broken");
}

#[test]
fn phases_are_what_the_timeline_says() {
    let mut timeline = play(&Config::default(), 1, "0 | small s1 | s1 to n0");
    let phase = |timeline: &Timeline| timeline.pool.nodes().values().next().unwrap().phase;
    assert_eq!(phase(&timeline), Phase::Open);
    timeline.play("1 | large A | n0 drains for A until ever");
    let a = timeline.id("A");
    assert!(matches!(phase(&timeline), Phase::Draining(gate) if gate.job == a));
    timeline.play("2 | done s1 | A to n0");
    assert_eq!(phase(&timeline), Phase::Exclusive(a));
    timeline.play(
        "3 | small t1; large B |
         4 | done A | n0 owes Wave; t1 waves to n0; n0 waves 1 before B",
    );
    let b = timeline.id("B");
    assert!(matches!(phase(&timeline), Phase::Wave { admitted: 1, gate } if gate.job == b));
}

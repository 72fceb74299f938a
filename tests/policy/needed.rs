//! What a page lists of those who must end, and what it leaves out, one rule of the list at a time.

use sluice::policy::{Config, Enough, Holders, JobId, Millis, Need, Waits};

use super::changes::waits;
use super::timeline::{Timeline, limits, play};

fn needs(timeline: &mut Timeline, name: &str) -> Vec<Need> {
    waits(timeline, name).needs
}

fn names(timeline: &mut Timeline, holders: &Holders) -> Vec<String> {
    let table = timeline.table();
    let name = |job: JobId| table.pods[&job].trim_start_matches("team/").to_owned();
    holders.named.iter().map(|holder| name(holder.job)).collect()
}

#[test]
fn an_end_is_left_out_that_mattered_only_until_another_one_was() {
    // If s1 ends, n0 is empty when w ends: A goes there, and u to n1, where there is room if s3 has
    // ended. If s1 does not, u goes to n0, whatever s3 does.
    let config = Config { gpus_per_node: 3, wave_size: 3, backfill: true, ..limits(100, 500) };
    let mut timeline = play(
        &config,
        2,
        "0  | small s1 limit=80         | s1 to n0
         48 | wide w gpus=2 limit=100   | w to n0
         48 | small s3 limit=40         | s3 to n1
         61 | small s4 limit=30         | s4 to n1
         64 | large A limit=200         | n1 drains for A until 91
         64 | wide u gpus=2 limit=30    |",
    );
    let needs = needs(&mut timeline, "u");
    let [Need::Ends { node: None, holders, enough: Enough::All }] = &needs[..] else {
        panic!("{needs:?}")
    };
    assert_eq!(names(&mut timeline, holders), ["w"]);
}

#[test]
fn a_large_with_a_gate_is_told_when_its_own_node_is_empty() {
    let mut timeline = play(
        &limits(100, 500),
        2,
        "0  | large A limit=100 | A to n0
         45 | small s limit=70  | s to n1
         72 | large B limit=400 | n1 drains for B until 115",
    );
    let waits = waits(&mut timeline, "B");
    assert_eq!(waits.foreseen, Some(Millis::from_secs(115)), "not at 100, when n0 is empty");
    let [Need::Ends { holders, enough: Enough::Any(1), .. }] = &waits.needs[..] else {
        panic!("{waits:?}")
    };
    assert_eq!(names(&mut timeline, holders), ["A", "s"]);
}

/// What a small waits for on twelve full nodes, the last of which may be emptied for a large: how
/// many pods are named, and how many more counted, of whom the end of any one is enough.
fn any_of_many(smalls: &str, large: &str) -> (usize, u32) {
    let mut timeline = Timeline::new(&limits(100, 500), 12);
    let nodes = (0..12).map(|node| format!("s{}..s{} to n{node}", 8 * node + 1, 8 * node + 8));
    let nodes = nodes.collect::<Vec<_>>().join("; ");
    timeline.play(&format!("0 | {smalls} | {nodes}\n{large}\n2 | small t limit=100 |"));
    let needs = needs(&mut timeline, "t");
    let [Need::Ends { node: None, holders, enough: Enough::Any(1) }] = &needs[..] else {
        panic!("{needs:?}")
    };
    (holders.named.len(), holders.more)
}

#[test]
fn of_more_pods_than_are_tried_those_that_would_do_as_well_are_counted_too() {
    assert_eq!(any_of_many("small s1..s96 limit=100", ""), (16, 80));
}

#[test]
fn pods_of_a_node_that_is_emptied_are_not_taken_to_be_like_those_of_open_nodes() {
    let large = "1 | large A on=n11 limit=500 | n11 drains for A until 100";
    assert_eq!(any_of_many("small s1..s96 limit=100", large), (16, 72));
    // Four of them end sooner than all others, so that these are tried.
    let tried = "small s1..s88 limit=100; small s89..s92 limit=50; small s93..s96 limit=100";
    assert_eq!(any_of_many(tried, large), (16, 72));
}

#[test]
fn whoever_starts_beside_it_does_not_start_before_it() {
    let mut timeline = play(
        &limits(100, 500),
        1,
        "0 | large A limit=500       | A to n0
         1 | small s1,s2 limit=100   |",
    );
    let needs = needs(&mut timeline, "s2");
    let [Need::Ends { holders, enough: Enough::All, .. }] = &needs[..] else { panic!("{needs:?}") };
    assert_eq!(names(&mut timeline, holders), ["A"]);
}

#[test]
fn a_small_that_comes_to_a_node_of_larges_is_not_said_to_follow_the_large_before_it() {
    // The turn on n2 goes on when A ends. But B goes to n1, which has been kept open until then, and
    // s, a small, has n2.
    let config = Config {
        gpus_per_node: 2,
        wave_size: 2,
        max_drains: 2,
        keep_open: 1,
        turn: Some(Millis::from_secs(1_100)),
        ..limits(100, 500)
    };
    let mut timeline = play(
        &config,
        3,
        "0   | wide v gpus=2 limit=40 on=n0 | v to n0
         39  | small r limit=100 on=n1      | r to n1
         79  | large A limit=300 on=n2      | A to n2
         90  | large B limit=400            | n0 drains for B until 90; n0 overdue for B by v
         90  | small s limit=30 on=n2       |
         90  | wide w gpus=2 limit=30 on=n2 |",
    );
    let needs = needs(&mut timeline, "w");
    let [.., Need::Runs { jobs, wave: false, credit, .. }] = &needs[..] else {
        panic!("{needs:?}")
    };
    assert_eq!((jobs[..].to_owned(), *credit), (vec![timeline.id("s")], None));
}

/// The page of `t` in a pool of so many full nodes of two GPUs: `q` goes before it and can have any,
/// `t` only those of the first node, where the first end is later than all others. Two ends are
/// enough, and each node is to be tried.
fn beside_full_nodes(nodes: u32) -> Waits {
    let config = Config { gpus_per_node: 2, wave_size: 2, ..limits(500, 500) };
    let mut timeline = Timeline::new(&config, nodes);
    let others = 2 * (nodes - 1);
    let places = (1..nodes).map(|n| format!("s{}..s{} to n{n}", 2 * n - 1, 2 * n));
    let places = places.collect::<Vec<_>>().join("; ");
    timeline.play(&format!(
        "0 | small r1..r2 limit=500; small s1..s{others} limit=100 | r1..r2 to n0; {places}
         2 | small q limit=100; small t limit=100 on=n0 |"
    ));
    waits(&mut timeline, "t")
}

/// How many pods are said to have to end.
fn ends(waits: &Waits) -> usize {
    let ends = |need: &Need| match need {
        Need::Ends { holders, enough: Enough::All, .. } => {
            holders.named.len() + holders.more as usize
        }
        _ => 0,
    };
    waits.needs.iter().map(ends).sum()
}

#[test]
fn of_more_nodes_than_there_is_time_to_try_more_is_listed_than_is_needed_and_that_is_said() {
    let tried = beside_full_nodes(60);
    assert_eq!((ends(&tried), tried.rough), (2, true));
    let hurried = beside_full_nodes(130);
    assert!(hurried.rough && ends(&hurried) > 100, "{hurried:?}");
    assert_eq!(hurried.foreseen, Some(Millis::from_secs(500)), "that is known all the same");
}

/// Whether the last of as many smalls as a pool has GPUs is told that fewer ends may be enough. All
/// GPUs are held, and all that is `held` must end; `first` waits before all others.
fn is_rough((nodes, gpus): (u32, u32), held: &str, first: &str) -> bool {
    let config = Config { gpus_per_node: gpus, wave_size: gpus, ..limits(100, 500) };
    let mut timeline = Timeline::new(&config, nodes);
    timeline.play(&format!(
        "0 | {held}
         1 | {first}; small s2..s{} limit=100 |",
        nodes * gpus
    ));
    waits(&mut timeline, &format!("s{}", nodes * gpus)).rough
}

#[test]
fn more_ends_than_are_tried_one_by_one_are_said_to_be_so_many() {
    let full = |from: u32, nodes: u32, gpus: u32| {
        let first = |node: u32| gpus * (node - from) + 1;
        let places = (from..nodes).map(|n| format!("r{}..r{} to n{n}", first(n), first(n + 1) - 1));
        places.collect::<Vec<_>>().join("; ")
    };
    let held =
        |nodes, gpus| format!("small r1..r{} limit=100 | {}", nodes * gpus, full(0, nodes, gpus));
    assert!(!is_rough((16, 4), &held(16, 4), "small s1 limit=100 on=n15"), "64 ends");
    assert!(is_rough((13, 5), &held(13, 5), "small s1 limit=100 on=n12"), "65 ends");
    // Where each end lets the next of the queue start, as many are needed as stand before it.
    assert!(!is_rough((13, 5), &held(13, 5), "small s1 limit=100"));
    // Not where one that ends has many GPUs.
    let rest = full(1, 14, 5);
    let held = format!(
        "wide w gpus=4 limit=100; small q limit=100 on=n0; small r1..r65 limit=100 | \
         w to n0; q to n0; {rest}"
    );
    assert!(is_rough((14, 5), &held, "small s1 limit=100"));
}

#[test]
fn others_that_would_do_as_well_but_not_in_each_choice_are_told_of() {
    // Any three of sixteen: too many choices to try each, where a large waits elsewhere.
    let held = "0 | small x limit=100 on=n2; small s1..s16 limit=100 on=n0,n1 | \
                x to n2; s1..s8 to n0; s9..s16 to n1
                1 | large A limit=500 on=n2; small t1..t3 limit=100 | n2 drains for A until 100";
    let mut timeline = play(&limits(100, 500), 3, held);
    let waits = waits(&mut timeline, "t3");
    assert!(waits.rough && ends(&waits) == 3, "{waits:?}");
    // A quota of another tenant matters to nobody, and each three do.
    let held = "0 | set quota=7:3; small s1..s16 limit=100 | s1..s8 to n0; s9..s16 to n1
                1 | small t1..t3 limit=100 |";
    let mut timeline = play(&limits(100, 500), 2, held);
    let needs = needs(&mut timeline, "t3");
    assert!(matches!(needs[..], [_, Need::Ends { enough: Enough::Any(3), .. }]), "{needs:?}");
    // One's own matters.
    let held = "0 | set quota=7:3; small s1..s16 limit=100 | s1..s8 to n0; s9..s16 to n1
                1 | small t1..t3 limit=100 tenant=7 |";
    let mut timeline = play(&limits(100, 500), 2, held);
    assert!(super::changes::waits(&mut timeline, "t3").rough);
}

/// What is said of the last of so many smalls in a pool of so many full nodes and one that is emptied
/// for a large, so that ends are no longer like one another.
fn beside_a_drain((nodes, gpus): (u32, u32), smalls: u32) -> Waits {
    let config = Config { gpus_per_node: gpus, wave_size: gpus, ..limits(100, 500) };
    let mut timeline = Timeline::new(&config, nodes + 1);
    let full = |n: u32| format!("r{}..r{} to n{n}", gpus * n + 1, gpus * (n + 1));
    let places: Vec<String> = (0..nodes).map(full).collect();
    let on: Vec<String> = (0..nodes).map(|n| format!("n{n}")).collect();
    timeline.play(&format!(
        "0 | small x limit=100 on=n{nodes}; small r1..r{} limit=100 on={} | x to n{nodes}; {}
         1 | large A limit=500 on=n{nodes}; small t1..t{smalls} limit=100 \
           | n{nodes} drains for A until 100",
        nodes * gpus,
        on.join(","),
        places.join("; ")
    ));
    waits(&mut timeline, &format!("t{smalls}"))
}

#[test]
fn so_many_choices_are_tried_and_not_more() {
    let any = |waits: &Waits| {
        let ends = waits.needs.last();
        let Some(Need::Ends { holders, enough: Enough::Any(2), .. }) = ends else { return None };
        Some(holders.named.len() + holders.more as usize)
    };
    let twenty = beside_a_drain((4, 5), 2);
    assert_eq!((any(&twenty), twenty.rough), (Some(20), false));
    let more = beside_a_drain((3, 7), 2);
    assert_eq!((any(&more), ends(&more), more.rough), (None, 2, true));
    // Of many that are needed no choice is tried, if there is any.
    let some = beside_a_drain((4, 7), 24);
    assert_eq!((ends(&some), some.rough), (24, true));
}

#[test]
fn of_many_that_are_alike_any_so_many_will_do() {
    let table =
        "0 | small r1..r32 limit=100 | r1..r8 to n0; r9..r16 to n1; r17..r24 to n2; r25..r32 to n3
                 1 | small t1..t24 limit=100 |";
    let waits = waits(&mut play(&limits(100, 500), 4, table), "t24");
    let Some(Need::Ends { holders, enough: Enough::Any(24), .. }) = waits.needs.last() else {
        panic!("{waits:?}")
    };
    assert_eq!((holders.named.len() + holders.more as usize, waits.rough), (32, false));
}

#[test]
fn one_end_of_many_will_do_also_where_one_of_them_has_many_gpus() {
    let mut timeline = play(
        &limits(100, 500),
        4,
        "0 | wide w gpus=4 limit=100; small r1..r28 limit=90 \
           | w to n0; r1..r4 to n0; r5..r12 to n1; r13..r20 to n2; r21..r28 to n3
         1 | small t limit=100 |",
    );
    let needs = needs(&mut timeline, "t");
    let [Need::Ends { holders, enough: Enough::Any(1), .. }] = &needs[..] else {
        panic!("{needs:?}")
    };
    assert_eq!(holders.named.len() + holders.more as usize, 29);
}

#[test]
fn one_whose_end_would_make_another_needless_is_not_listed_beside_it() {
    // q1 has y's GPU and q2 has x's; if q1 ends, t starts. If q2 did, y need not have ended.
    let mut timeline = play(
        &Config { gpus_per_node: 2, wave_size: 2, ..limits(400, 500) },
        2,
        "0 | small y limit=10 on=n0; small z limit=400 on=n0 | y..z to n0
         0 | small x limit=11 on=n1; small v limit=400 on=n1 | x..v to n1
         1 | small q1 limit=5 on=n0; small q2 limit=50; small t limit=100 |",
    );
    let q1 = timeline.id("q1");
    let needs = needs(&mut timeline, "t");
    let ended: Vec<Vec<String>> = needs
        .iter()
        .filter_map(|need| match need {
            Need::Ends { holders, enough: Enough::All, .. } => Some(names(&mut timeline, holders)),
            _ => None,
        })
        .collect();
    assert_eq!(ended, [["y"], ["x"]], "{needs:?}");
    let runs = needs.iter().find(|need| matches!(need, Need::Runs { .. }));
    let Some(Need::Runs { jobs, enough: Enough::All, .. }) = runs else { panic!("{needs:?}") };
    assert_eq!(jobs, &[q1]);
}

#[test]
fn of_more_steps_than_are_played_those_ahead_are_counted_who_would_have_come_after_them() {
    let mut timeline = play(&limits(1, 1), 1, "0 | large L1..L2105 limit=1 | L1 to n0");
    let needs = needs(&mut timeline, "L2105");
    let (l1, l2) = (timeline.id("L1"), timeline.id("L2"));
    let [Need::Ends { holders, .. }, .., Need::Rounds { larges, smalls: 0, at_least: true, .. }] =
        &needs[..]
    else {
        panic!("{needs:?}")
    };
    assert_eq!(holders.named[0].job, l1);
    let runs = needs.iter().filter_map(|need| match need {
        Need::Runs { jobs, more: 0, .. } => Some(jobs.as_slice()),
        _ => None,
    });
    let runs: Vec<&[JobId]> = runs.collect();
    assert_eq!(runs[0], [l2]);
    assert_eq!(runs.len() + usize::try_from(*larges).unwrap(), 2_105 - 2, "all but it and L1");
}

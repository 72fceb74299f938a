//! What a waiting job was told holds, and becomes later only for a stated cause.

use sluice::policy::{
    BoundMoved, Cause, Config, Millis, NodeId, Promises, TenantId, UnreserveReason,
};

use super::timeline::{Timeline, limits, play as play_table};
use super::worlds::{Random, Setup, play, unexplained};

/// Settings and a world for them, from a seed.
pub(crate) fn setup(seed: u64, faults: bool) -> Setup {
    let mut random = Random::new(seed ^ 0x5DEE_CE66);
    let unit = |units: u32| Some(Millis(u64::from(units) * 100_000));
    let gpus = [2, 2, 3, 4, 8][usize::try_from(random.below(5)).unwrap()];
    let nodes = 1 + random.below(3);
    let large = 1 + random.below(6);
    let pinned = random.chance(25) && nodes > 1;
    let config = Config {
        gpus_per_node: gpus,
        wave_size: if random.chance(75) { gpus } else { 1 + random.below(gpus) },
        max_drains: 1 + random.below(2),
        backfill: random.chance(50),
        one_wave: random.chance(30),
        turn: if random.chance(40) { unit(1 + random.below(4 * large)) } else { None },
        keep_open: u32::from(nodes > 1 && random.chance(15)),
        small_limit: unit(1 + random.below(4)),
        large_limit: unit(large),
        ..Config::default()
    };
    let events = 30 + random.below(120);
    let bad = if nodes > 1 && random.chance(25) { random.below(gpus) } else { 0 };
    let cancels = random.chance(60);
    Setup { config, nodes, events, cancels, faults, pinned, bad }
}

/// The same where quotas bind, priorities differ, and what a job fits changes while it waits.
pub(crate) fn shuffled(seed: u64, faults: bool) -> Setup {
    let mut setup = setup(seed, faults);
    let (gpus, mut random) = (setup.config.gpus_per_node, Random::new(seed));
    let most = gpus + random.below(gpus * setup.nodes);
    setup.config.quotas.insert(TenantId(1), most);
    Setup { pinned: setup.nodes > 1, ..setup }
}

#[test]
fn nothing_that_the_proofs_cover_makes_a_wait_longer_than_told_or_moves_what_was_told() {
    for seed in 0..600 {
        let setup = setup(seed, false);
        let (_, moved) = play(&setup, seed);
        let unexplained = unexplained(&setup, &moved);
        assert!(unexplained.is_empty(), "seed {seed}: {unexplained:?}");
    }
}

#[test]
fn whatever_else_happens_is_named_and_what_is_told_then_holds() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..600 {
        let (_, moved) = play(&setup(seed, true), seed);
        for moved in moved {
            let name = format!("{:?}", moved.cause);
            *seen.entry(name.split('(').next().unwrap().to_owned()).or_insert(0_u32) += 1;
        }
    }
    for cause in [
        "ServedFirst",
        "CameBack",
        "NodeGone",
        "NodeUnfit",
        "NodeBack",
        "ServableAgain",
        "Foreign",
        "Overran",
        "Unlimited",
        "Settings",
    ] {
        assert!(seen.contains_key(cause), "{cause} never moved a time: {seen:?}");
    }
}

#[test]
fn what_quotas_priorities_and_other_selectors_move_is_named_too() {
    let mut again = 0;
    for seed in 0..400 {
        let (_, moved) = play(&shuffled(seed, seed % 2 == 0), seed);
        let of = |moved: &&BoundMoved| matches!(moved.cause, Cause::ServableAgain(_));
        again += moved.iter().filter(of).count();
    }
    assert!(again > 20, "{again}");
}

#[test]
fn any_number_of_nodes_may_be_kept_open() {
    for seed in 0..150 {
        let mut setup = setup(seed, false);
        (setup.nodes, setup.config.keep_open) = (3 + u32::from(seed % 2 == 0), 2);
        let (_, moved) = play(&setup, seed);
        let unexplained = unexplained(&setup, &moved);
        assert!(unexplained.is_empty(), "seed {seed}: {unexplained:?}");
    }
}

/// A timeline of which it is asked what jobs are told.
pub(crate) struct Told {
    pub(crate) timeline: Timeline,
}

impl Told {
    pub(crate) fn new(config: &Config, nodes: u32) -> Self {
        Self { timeline: Timeline::new(config, nodes) }
    }

    /// Plays a table. Returns what moved, with names' ids.
    pub(crate) fn play(&mut self, table: &str) -> Vec<(u64, Option<u64>, Cause)> {
        self.timeline.play(table);
        let seconds = |at: Millis| at.0 / 1_000;
        let moved = std::mem::take(&mut self.timeline.moved);
        moved.iter().map(|m| (seconds(m.from), m.to.map(seconds), m.cause)).collect()
    }

    pub(crate) fn told(&mut self, name: &str) -> Option<u64> {
        let job = self.timeline.id(name);
        self.timeline.promises.bound(job)?.latest_start.map(|at| at.0 / 1_000)
    }
}

#[test]
fn what_was_told_stays_while_time_passes_and_comes_earlier_as_the_place_does() {
    // S = 10 and L = 50; with three failures at once a turn is 200, so a round is 220.
    let mut told = Told::new(&limits(10, 50), 1);
    let moved =
        told.play("0 | large R limit=50; small s1..s9 limit=10; large A limit=50 | R to n0");
    assert_eq!(
        (told.told("s1"), told.told("s9"), told.told("A")),
        (Some(220), Some(440), Some(60))
    );
    let later = told.play(
        "30 | small t1 limit=10 |
         50 | done R | n0 owes Wave; s1..s8 waves to n0; n0 waves 8 before A",
    );
    assert_eq!((moved, later), (vec![], vec![]));
    // s9 is first now: sooner than it was told. A has the node after the wave.
    assert_eq!((told.told("s9"), told.told("A")), (Some(50 + 220), Some(60)));
    assert_eq!(told.told("t1"), Some(50 + 220));
    assert_eq!(told.play("55 | done s1 |"), []);
    assert_eq!(told.told("s9"), Some(50 + 220), "not counted anew");
}

#[test]
fn who_is_served_first_moves_a_time_by_its_own_share_and_not_from_now() {
    let mut told = Told::new(&limits(10, 50), 1);
    told.play("0 | large R limit=50; small s1..s8 limit=10; large A limit=50 | R to n0");
    assert_eq!(told.told("s8"), Some(220));
    let p = told.timeline.id("p");
    let moved = told.play("40 | small p limit=10 prio=1 |");
    // s8 is ninth now: one round more, counted from its arrival. The others are still in the first.
    assert_eq!(moved, [(220, Some(220 + 220), Cause::ServedFirst(p))]);
    let q = told.timeline.id("q");
    let moved = told.play("41 | large q limit=50 prio=1 |");
    assert_eq!(moved, [(60, Some(120), Cause::ServedFirst(q))]);
}

#[test]
fn each_cause_is_named() {
    let start = "0 | small s1..s8 limit=10 | s1..s8 to n0
                 1 | small a limit=10; large A limit=50 | n0 drains for A until 10";
    let causes = |config: &Config, table: &str| -> Vec<Cause> {
        let mut told = Told::new(config, 1);
        assert_eq!(told.play(start), []);
        let mut causes: Vec<Cause> = told.play(table).into_iter().map(|moved| moved.2).collect();
        causes.dedup();
        causes
    };
    let config = limits(10, 50);
    let n0 = NodeId(0);
    let unfit = "2 | node n0 bad=3 | n0 opens NodeUnfit";
    assert_eq!(causes(&config, unfit), [Cause::NodeUnfit(n0)]);
    assert_eq!(causes(&config, "2 | gone n0 |"), [Cause::NodeGone(n0)]);
    assert_eq!(causes(&config, "2 | set paused=on |"), [Cause::Settings]);
    let foreign = "2 | done s1 |
                   3 | foreign f n0 gpus=0 |";
    assert!(matches!(causes(&config, foreign)[..], [Cause::Foreign(_)]));
    let overdue = "10.001 | tick | n0 overdue for A by s1 s2 s3 s4 s5 s6 s7 s8";
    assert!(matches!(causes(&config, overdue)[..], [Cause::Overran(_)]));
    let unlimited = "2 | small free prio=1 |";
    assert!(matches!(causes(&config, unlimited)[..], [Cause::Unlimited(_)]));
    let longer = "2 | large long limit=99 |";
    assert!(matches!(causes(&config, longer)[..], [Cause::Longer(_)]));
    assert_eq!(causes(&config, "2 | small a limit=10 created=1 on=n9 |"), [Cause::Changed]);
}

#[test]
fn each_limit_that_is_outlasted_is_told_and_nothing_in_between() {
    let mut told = Told::new(&limits(100, 500), 2);
    let moved = told.play(
        "0 | node n1 cordoned |
         1 | foreign f n1 gpus=0 end=50 |
         2 | small s1 limit=98 | s1 to n0
         3 | large A limit=500; small t limit=100 | n0 drains for A until 100",
    );
    assert_eq!((moved, told.told("A")), (vec![], Some(100)));
    let due = |told: &Told, now_ms: u64| told.timeline.promises.next_wakeup(Millis(now_ms));
    assert_eq!(due(&told, 3_000), Some(Millis(50_001)));
    // The other node's holder says nothing of the node that is emptied.
    let (f, s1) = (told.timeline.id("f"), told.timeline.id("s1"));
    let moved = told.play("50.001 | tick |");
    assert_eq!(moved, [(3 + 880, None, Cause::Overran(f))]);
    assert_eq!((told.told("A"), due(&told, 50_001)), (Some(100), Some(Millis(100_001))));
    let before = told.timeline.promises.told();
    assert_eq!(told.play("60 | tick |"), []);
    assert_eq!(told.timeline.promises.told(), before);
    let moved = told.play("100.001 | tick | n0 overdue for A by s1");
    assert_eq!(moved, [(100, None, Cause::Overran(s1))]);
}

#[test]
fn who_comes_back_counts_anew() {
    let mut timeline = Timeline::slow(&limits(10, 50), 1);
    let mut promises = Promises::default();
    let mut note = |timeline: &Timeline| {
        let (inputs, decided) = timeline.last.clone();
        promises.note(&timeline.pool, &inputs, &decided, timeline.now)
    };
    timeline.play("0 | small s1..s16 limit=10 | s1..s8 to n0");
    assert_eq!(note(&timeline), []);
    timeline.play("5 | refuse s1 | s1 off n0 BindFailed until 10; s9 to n0");
    let moved = note(&timeline);
    // s16 was eighth of those that waited; s1 goes before it again, so it is ninth.
    let (s1, s16) = (timeline.id("s1"), timeline.id("s16"));
    let cause = Cause::CameBack(s1, UnreserveReason::BindFailed);
    assert_eq!(moved.iter().map(|m| (m.job, m.cause)).collect::<Vec<_>>(), [(s16, cause)]);
}

#[test]
fn smalls_behind_a_gate_that_is_given_up_again_and_again_do_not_outwait_their_figure() {
    // Ever again a small that fits behind the gate takes a GPU, and the gate opens without its
    // large just before one of those in front of the gate ends. If that could go on, those that
    // wait would get one GPU of eight: f8, in the first round of 40, would start at 72.
    let mut timeline = Timeline::new(&Config { backfill: true, ..limits(10, 5) }, 1);
    timeline.play(
        "0  | small r1 limit=10; small r2..r8 limit=9; small f1..f8 limit=10 | r1..r8 to n0
         1  | large A limit=5             | n0 drains for A until 10
         9  | done r2..r8                 |
         9  | small x1..x7 limit=1        | x1..x7 fills n0
         9  | withdraw A                  | n0 opens NoLargeWaits
         9  | done r1                     | f1 to n0
         9  | large B limit=5             | n0 drains for B until 19
         10 | done x1..x7                 |
         10 | small y1..y7 limit=8        |",
    );
    let told = timeline.latest_start("f8").unwrap();
    // Without the rule: y1..y7 fill n0, B is withdrawn at 18, f2 starts, and so on.
    timeline.play("18 | withdraw B                  | n0 opens NoLargeWaits; f2..f8 to n0");
    assert!(timeline.now.0 / 1_000 <= told);
}

#[test]
fn who_is_served_in_its_turn_moves_nobodys_time() {
    let mut told = Told::new(&limits(10, 50), 1);
    told.play("0 | small r1..r8 limit=10; small s1..s8 limit=10 | r1..r8 to n0");
    assert_eq!(told.told("s8"), Some(220));
    assert_eq!(told.play("5 | done r1 | s1 to n0"), []);
    assert_eq!(told.told("s8"), Some(220));
}

#[test]
fn who_comes_and_is_served_at_once_moves_those_of_its_queue_by_its_own_share() {
    let mut told = Told::new(&limits(10, 50), 2);
    told.play(
        "0 | large R limit=50; small s1..s8 on=n0 limit=10; large B on=n0 limit=50 | R to n0",
    );
    assert_eq!((told.told("s8"), told.told("B")), (Some(220), Some(60)));
    // A large that has another node moves larges, and no small.
    let q = told.timeline.id("q");
    let moved = told.play("1 | large q limit=40 prio=1 | q to n1");
    assert_eq!(moved, [(60, Some(61), Cause::ServedFirst(q))]);
    assert_eq!(told.told("s8"), Some(220));
    let p = told.timeline.id("p");
    let moved = told.play(
        "40 | withdraw B; done R; small p on=n0 limit=10 prio=1 \
             | n0 owes NoLargeWaits; p to n0; s1..s7 to n0",
    );
    assert_eq!(moved, [(220, Some(40 + 220), Cause::ServedFirst(p))]);
}

#[test]
fn who_fills_a_gap_behind_a_gate_takes_no_time_from_those_in_front() {
    let mut told = Told::new(&Config { backfill: true, ..limits(10, 50) }, 1);
    let moved = told.play(
        "0 | small r1..r8 limit=10                | r1..r8 to n0
         1 | large A limit=50                     | n0 drains for A until 10
         2 | small s1..s8 limit=10                |
         3 | done r1; small p prio=1 limit=5      | p fills n0",
    );
    assert_eq!(moved, []);
    assert_eq!(told.told("s8"), Some(2 + 10 + 220));
}

#[test]
fn a_large_that_takes_the_drained_node_of_another_is_named() {
    let mut told = Told::new(&Config { max_drains: 2, ..limits(90, 90) }, 2);
    told.play(
        "0 | small s1 on=n0 limit=10; small s2 on=n1 limit=30 | s1 to n0; s2 to n1
         1 | large A limit=90 | n0 drains for A until 10",
    );
    assert_eq!(told.told("A"), Some(10));
    let q = told.timeline.id("q");
    let moved =
        told.play("8 | done s1; large q prio=1 limit=90 | q to n0; n1 drains for A until 30");
    assert_eq!(moved, [(10, Some(30), Cause::ServedFirst(q))]);
}

#[test]
fn a_job_that_runs_and_should_have_ended_already_is_named() {
    let mut timeline = Timeline::slow(&limits(10, 50), 1);
    let mut promises = Promises::default();
    let mut note = |timeline: &Timeline| {
        let (inputs, decided) = timeline.last.clone();
        promises.note(&timeline.pool, &inputs, &decided, timeline.now)
    };
    timeline.play("0 | small s1..s9 limit=10 | s1..s8 to n0");
    assert_eq!(note(&timeline), []);
    timeline.play("5 | bind s1; start s1 end=3 |");
    let moved = note(&timeline);
    let (s1, s9) = (timeline.id("s1"), timeline.id("s9"));
    let moved: Vec<_> = moved.iter().map(|m| (m.job, m.to, m.cause)).collect();
    assert_eq!(moved, [(s9, None, Cause::Overran(s1))]);
}

/// What moved, each cause once, and by what line.
fn causes_of(config: &Config, nodes: u32, start: &str, then: &str) -> Vec<Cause> {
    let mut told = Told::new(config, nodes);
    assert_eq!(told.play(start), []);
    let mut causes: Vec<Cause> = told.play(then).into_iter().map(|moved| moved.2).collect();
    causes.dedup();
    causes
}

#[test]
fn settings_that_no_figure_rests_on_move_nothing() {
    let start = "0 | large R limit=50; small s1 limit=10; large A limit=50 | R to n0";
    for set in ["quota=8:3", "drain_limit=500", "drain_limit=500 evict=on"] {
        let then = format!("5 | set {set} |");
        assert_eq!(causes_of(&limits(10, 50), 1, start, &then), [], "{set}");
    }
    assert_eq!(causes_of(&limits(10, 50), 1, start, "5 | set backfill=on |"), [Cause::Settings]);
}

#[test]
fn a_foreign_pod_moves_times_when_it_comes_grows_or_stays_longer() {
    let start = "0 | large R limit=50 on=n0; small s1 on=n0 limit=10 | R to n0
                 1 | foreign f n1 gpus=0,1 end=30                     |";
    let causes = |then: &str| {
        let mut told = Told::new(&limits(90, 90), 2);
        told.play(start);
        let f = told.timeline.id("f");
        let causes: Vec<Cause> = told.play(then).into_iter().map(|moved| moved.2).collect();
        assert!(causes.iter().all(|cause| *cause == Cause::Foreign(f)), "{causes:?}");
        causes.len()
    };
    assert_eq!(causes("2 | foreign f n1 gpus=0,1 end=30 |"), 0);
    assert_eq!(causes("2 | foreign f n1 gpus=0 end=20 |"), 0);
    assert_eq!(causes("2 | foreign f n1 gpus=0,1 end=40 |"), 1);
    assert_eq!(causes("2 | foreign f n1 gpus=0,1,2 end=30 |"), 1);
    assert_eq!(causes("2 | foreign f n1 gpus=0,2 end=20 |"), 1);
    assert_eq!(causes("2 | foreign f n1 gpus=0,1 |"), 1);
}

#[test]
fn a_node_that_comes_back_moves_times_only_where_others_may_have_waited_for_it() {
    let causes = |config: &Config, on: &str, decided: &str| {
        // A foreign pod is on n1 for a while, so that no large starts there at once.
        let start = format!(
            "0 | node n1 cordoned; foreign f n1 end=60; large R on=n0 limit=50 | R to n0
             1 | small s1 on=n0 limit=10; large A {on} limit=50                |"
        );
        causes_of(config, 2, &start, &format!("5 | node n1 | {decided}"))
    };
    let (config, drains) = (limits(90, 90), "n1 drains for A until 60");
    assert_eq!(causes(&config, "", drains), []);
    assert_eq!(causes(&config, "on=n0", ""), []);
    let one_wave = Config { one_wave: true, ..config };
    assert_eq!(causes(&one_wave, "", drains), [Cause::NodeBack(NodeId(1))]);
}

#[test]
fn of_two_jobs_that_may_run_equally_long_the_one_that_runs_is_named() {
    let mut told = Told::new(&limits(10, 50), 2);
    told.play("0 | small r1..r8 on=n0 limit=10; small a on=n0 limit=10 | r1..r8 to n0");
    let (runs, _) = (told.timeline.id("X"), told.timeline.id("Y"));
    let moved = told.play("1 | large X,Y on=n1 limit=99 | X to n1");
    assert_eq!(moved.iter().map(|moved| moved.2).collect::<Vec<_>>(), [Cause::Longer(runs)]);
}

#[test]
fn a_small_that_fits_one_node_only_has_its_wave_there_whoever_goes_before_it() {
    // x goes before t and is served on n1. If that were enough, larges would follow one another on
    // n0, where alone t can start, as long as ever another such x comes in time.
    play_table(
        &limits(10, 50),
        2,
        "0  | large A on=n0 limit=50                               | A to n0
         1  | small t on=n0 limit=10; large B on=n0 limit=50       |
         38 | small s1..s8 on=n1 limit=10                          | s1..s8 to n1
         40 | small x limit=10 prio=1                              |
         41 | done A | n0 owes Wave; x waves to n0; t waves to n0; n0 waves 2 before B",
    );
    // The same where n1 is in a wave, and one at a time is enough.
    play_table(
        &Config { one_wave: true, ..limits(10, 50) },
        2,
        "0  | large A,B limit=50                                      | A to n0; B to n1
         1  | small y on=n1 limit=10; small t on=n0 limit=10; large C,D limit=50 |
         30 | done B | n1 owes Wave; y waves to n1; n1 waves 1 before C
         31 | small x limit=10 prio=1                                 |
         32 | done A | n0 owes Wave; x waves to n0; t waves to n0; n0 waves 2 before C; \
                       n0 opens NotNeeded",
    );
}

#[test]
fn no_gate_of_a_later_large_stays_closed_where_an_earlier_one_waits_for_an_open_node() {
    // If n1 opened only once n0 is free, B could have n0 as well, before t.
    play_table(
        &Config { keep_open: 1, ..limits(10, 50) },
        3,
        "0 | large X limit=50; small s1 on=n1 limit=10; small s2 on=n2 limit=10 | X to n0; s1 to n1; s2 to n2
         1 | large B limit=50               | n1 drains for B until 10
         2 | large P on=n2 limit=50 prio=1  | n1 opens NotNeeded; n2 drains for P until 10
         3 | small t on=n0 limit=10         |
         4 | done X | n0 owes Wave; t waves to n0; n0 waves 1 before B; n0 opens NotNeeded",
    );
}

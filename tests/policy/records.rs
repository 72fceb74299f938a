//! Records: whatever happens is recorded, and decided again the same; what is different is named.

use sluice::explain::NameTable;
use sluice::journal::{self, Kind, Played, Record, Recorder};
use sluice::policy::{
    Config, Decision, Fits, GpuSet, Input, Job, JobId, Millis, NodeId, NodeSpec, Outcome, Pool,
    Promises, Shape, State, Stepped, TenantId,
};

use super::timeline::{Timeline, limits, play};
use super::told::{every_cause, untold};

/// Replays records and asserts that they are whole, and that every decision is the same to the
/// byte.
pub(crate) fn replays(text: &str) {
    let (records, faults) = journal::read("records", text.as_bytes());
    assert_eq!(faults, []);
    let played = journal::replay("records", &records, faults, None);
    assert!(played.is_same(), "{played}");
    let lines: Vec<&str> = text.lines().collect();
    let (mut pool, mut promises) = (None, Promises::default());
    for (number, record) in records {
        let line = lines[usize::try_from(number).unwrap() - 1];
        let is = match record.is {
            Kind::State(state) => {
                let restored = Pool::from_state((*state).clone()).unwrap();
                promises = Promises::from_told(state.told.clone().unwrap(), &restored);
                let told = Some(promises.told());
                let state = State { told, ..restored.state() };
                pool = Some(restored);
                Kind::State(Box::new(state))
            }
            Kind::Step { inputs, .. } => {
                let pool = pool.as_mut().unwrap();
                let stepped = promises.step(pool, &inputs, Millis(record.now_ms));
                Kind::Step { inputs, decisions: stepped.decisions, moved: stepped.moved }
            }
        };
        assert_eq!(Record { is, ..record }.line(), line);
    }
}

pub(crate) fn replay(text: &str) -> Played {
    let (records, faults) = journal::read("day.jsonl", text.as_bytes());
    journal::replay("day.jsonl", &records, faults, None)
}

/// A day with a drain, a wave, a quota, a refused binding and a foreign pod.
pub(crate) fn day() -> String {
    let mut timeline = play(
        &limits(100, 500),
        1,
        "0  | small s1..s8 limit=100       | s1..s8 to n0
         1  | large A,B limit=500          | n0 drains for A until 100
         2  | small t1..t9 limit=90        |
         50 | done s1..s8                  | A to n0
         60 | done A                       | n0 owes Wave; t1..t8 waves to n0; n0 waves 8 before B
         70 | done t1..t8                  | B to n0",
    );
    timeline.records()
}

#[test]
fn the_same_code_decides_the_same() {
    let played = replay(&day());
    assert!(played.is_same());
    let extent = played.pools["default"];
    // Eighteen pods were admitted, bound and started; each line of the table is a step.
    assert_eq!((extent.steps, extent.passed_over, extent.states), (10, 0, 1));
    assert_eq!(
        played.to_string(),
        "day.jsonl: pool default: 10 steps with 72 inputs and 21 decisions, 1 m 10 s from \
         1970-01-01 00:00:00 UTC: the same decisions. 1 state on the way compared.\n"
    );
}

#[test]
fn another_setting_is_noticed_where_it_first_matters() {
    let changed = day().replacen("\"wave_size\":8", "\"wave_size\":3", 1);
    let played = replay(&changed);
    assert_eq!(played.differences.len(), 1, "{played}");
    let text = played.to_string();
    let expected = [
        "this code decides otherwise. 3 steps after that not compared.",
        "day.jsonl:8: pool default, step 7 at 60000 ms: decision 5 is another one",
        "  recorded: Reserved team/t4: GPU 3 of node n0 is reserved for this pod. {\"Reserved\"",
        "  now:      WaveStarted team/B: A wave of 3 small pods starts on node n0; team/B is next",
    ];
    for part in expected {
        assert!(text.contains(part), "{part}\nnot in\n{text}");
    }
}

#[test]
fn another_state_is_noticed_though_the_decisions_are_the_same() {
    let text = day();
    let last = text.lines().last().unwrap();
    let changed = last.replacen("\"completed\":16", "\"completed\":17", 1);
    assert_ne!(changed, last);
    let played = replay(&text.replace(last, &changed));
    assert_eq!(
        played.to_string().lines().skip(1).collect::<Vec<_>>(),
        [
            "day.jsonl:12: pool default, step 10 at 70000 ms: the same decisions lead to another \
             state, first in nodes.0.counters.small.completed",
            "  recorded: 17",
            "  now:      16",
        ]
    );
}

#[test]
fn what_cannot_be_replayed_is_named_with_its_line() {
    let text = day();
    let lines: Vec<&str> = text.lines().collect();
    let faults = |text: String| -> Vec<String> {
        replay(&text).faults.iter().map(ToString::to_string).collect()
    };
    let without = |skip: std::ops::Range<usize>| {
        let kept = lines.iter().enumerate().filter(|(at, _)| !skip.contains(at));
        kept.flat_map(|(_, line)| [*line, "\n"]).collect::<String>()
    };
    let cut = &text[..text.len() - 40];
    let cases: [(&str, String, &str); 12] = [
        ("empty", String::new(), "day.jsonl:1: found no record at all; allowed: lines that begin"),
        ("cut off", cut.to_owned(), "day.jsonl:12: found only the beginning of a record: {\"v\":1"),
        ("no JSON", format!("hello\n{text}"), "day.jsonl:1: found no JSON object: expected value"),
        (
            "of tomorrow",
            text.replacen("\"v\":1", "\"v\":2", 1),
            "day.jsonl:1: found a record of \
          version 2; allowed: version 1, which is what sluice",
        ),
        ("no version", text.replacen("\"v\":1,", "", 1), "day.jsonl:1: found a record without"),
        (
            "of what ran",
            "{\"event\":\"node\"}\n".to_owned(),
            "day.jsonl:1: found a record of what ran",
        ),
        (
            "a new fact",
            text.replacen("\"Bound\"", "\"Warmed\"", 1),
            "day.jsonl:3: found unknown \
          variant `Warmed`",
        ),
        (
            "a step is missing",
            without(4..5),
            "day.jsonl:5: found step 5 of pool default; allowed: step 4",
        ),
        (
            "the last step before a state is missing",
            without(10..11),
            "day.jsonl:11: found a state after step 10 of pool default; allowed: step 10 before it",
        ),
        (
            "the last steps before a state are missing",
            without(8..11),
            "day.jsonl:9: found a state after step 10 of pool default; allowed: steps 8 to 10 \
             before it",
        ),
        (
            "all of tomorrow",
            text.replace("{\"v\":1", "{\"v\":2"),
            "day.jsonl:1: found a record of version 2, as in all 12 up to line 12; allowed: version \
             1, which",
        ),
        (
            "no state",
            without(0..1),
            "day.jsonl:1: found step 1 of pool default; allowed: a record of \
          the pool's state before",
        ),
    ];
    for (name, text, expected) in cases {
        let found = faults(text);
        assert!(found.first().is_some_and(|f| f.starts_with(expected)), "{name}: {found:#?}");
        assert!(!name.contains("all") || found.len() == 1, "{name}: {found:#?}");
    }
}

#[test]
fn histories_one_after_the_other_are_no_gap_and_the_span_is_that_of_all() {
    let twice = day() + &every_kind();
    let played = replay(&twice);
    assert!(played.is_same(), "{played}");
    let said = played.to_string();
    assert!(
        said.contains(", 1 m 10 s from 1970-01-01 00:00:00 UTC: the same decisions."),
        "{said}"
    );
}

#[test]
fn nothing_compared_is_not_called_the_same() {
    let unusable = day().replacen("\"wave_size\":8", "\"wave_size\":9", 2);
    let said = replay(&unusable).to_string();
    assert!(
        said.starts_with(
            "day.jsonl: pool default: 0 steps with 0 inputs and 0 decisions, 1 m 10 s from \
             1970-01-01 00:00:00 UTC: no decision was compared. 10 steps after that not compared.\n"
        ),
        "{said}"
    );
}

#[test]
fn an_unknown_setting_is_not_read_as_if_there_were_none() {
    let changed = day().replacen("\"paused\":false", "\"paused\":false,\"hurry\":true", 1);
    let faults = replay(&changed).faults;
    assert!(faults[0].found.contains("unknown field `hurry`"), "{faults:#?}");
}

fn small(id: u64) -> Input {
    Input::Queued(Box::new(Job {
        id: JobId(id),
        shape: Shape::Small,
        priority: 0,
        created: Millis(id),
        limit: Some(Millis::from_secs(60)),
        tenant: TenantId(0),
        fits: Fits::Any,
    }))
}

/// A pool with one GPU whose steps are recorded.
struct One {
    pool: Pool,
    promises: Promises,
    recorder: Recorder,
}

impl One {
    fn new(recorder: Recorder) -> Self {
        let limit = Some(Millis::from_secs(60));
        let config = Config { gpus_per_node: 1, wave_size: 1, ..Config::default() };
        let config = Config { small_limit: limit, large_limit: limit, ..config };
        let promises = Promises::default();
        let mut one = Self { pool: Pool::new(config).unwrap(), promises, recorder };
        let gpus = GpuSet::first(1);
        let spec = NodeSpec { gpus, healthy: gpus, schedulable: true };
        one.step(vec![Input::NodeChanged { node: NodeId(0), spec }], 0);
        one
    }

    fn step(&mut self, inputs: Vec<Input>, now_ms: u64) -> Stepped {
        let (pool, promises, nobody) = (&mut self.pool, &mut self.promises, &NameTable::default());
        self.recorder.step(pool, promises, inputs, Millis(now_ms), nobody)
    }

    fn records(&mut self, now_ms: u64) -> String {
        let nobody = NameTable::default();
        let now = Millis(now_ms);
        self.recorder.snapshot(&self.pool, &self.promises, now, &nobody).into_lines().collect()
    }
}

fn released(id: u64) -> Input {
    Input::Released { job: JobId(id), outcome: Outcome::Completed }
}

#[test]
fn a_step_without_news_counts_where_the_clock_steps_back() {
    let mut one = One::new(Recorder::unbounded("p"));
    one.step(vec![small(1)], 0);
    one.step(vec![Input::BindFailed { job: JobId(1) }, small(2)], 1_000);
    // The first stands back until 6 and is ready at 7, which is not recorded by itself.
    assert_eq!(one.step(vec![], 7_000).decisions, []);
    let decided = one.step(vec![released(2)], 3_000).decisions;
    assert!(matches!(decided[..], [Decision::Reserved { job: JobId(1), .. }]), "{decided:?}");
    let text = one.records(3_000);
    replays(&text);
    assert!(text.contains("\"now_ms\":7000,\"is\":{\"step\":{\"inputs\":[],\"decisions\":[]"));
}

#[test]
fn steps_without_news_are_not_written() {
    let mut one = One::new(Recorder::unbounded("p"));
    let before = one.recorder.bytes();
    for second in 1..100 {
        assert!(!one.step(vec![], 1_000 * second).noted);
    }
    assert_eq!(one.recorder.bytes(), before);
}

#[test]
fn memory_is_bounded_and_what_is_kept_can_be_replayed() {
    const MOST: usize = 20_000;
    let mut one = One::new(Recorder::new("p", MOST));
    for id in 1..=500 {
        one.step(vec![small(id)], 2 * id);
        one.step(vec![released(id)], 2 * id + 1);
        assert!(one.recorder.bytes() <= MOST, "{} bytes", one.recorder.bytes());
    }
    let text = one.records(1_001);
    replays(&text);
    let steps = replay(&text).pools["p"].steps;
    assert!((20..500).contains(&steps), "{steps} steps");
}

#[test]
fn a_state_that_is_too_large_is_not_kept_and_the_snapshot_has_it_all_the_same() {
    let mut one = One::new(Recorder::new("p", 1_200));
    one.step((1..=100).map(small).collect(), 1);
    one.step(vec![small(101)], 2);
    assert!(one.recorder.bytes() <= 1_200);
    let text = one.records(2);
    replays(&text);
    assert_eq!(text.lines().count(), 1);
    assert!(text.contains("\"id\":101"));
}

#[test]
fn nothing_is_kept_where_nothing_may_be() {
    let mut one = One::new(Recorder::new("p", 0));
    one.step(vec![small(1)], 0);
    assert_eq!(one.recorder.bytes(), 0);
    let text = one.records(0);
    replays(&text);
    assert_eq!(
        replay(&text).to_string(),
        "day.jsonl: pool p: 0 steps with 0 inputs and 0 decisions, 0 ms from 1970-01-01 00:00:00 \
         UTC: no decision was compared.\n"
    );
}

/// Records with each kind of input and each kind of decision.
pub(crate) fn every_kind() -> String {
    let evict = Config {
        drain_limit: Some(Millis::from_secs(50)),
        evict_overdue: true,
        ..limits(100, 500)
    };
    let mut slow = Timeline::slow(&limits(100, 500), 1);
    slow.play(
        "0 | small a,b limit=100; node n1 gpus=8 | a..b to n0
         1 | refuse a | a off n0 BindFailed until 6
         2 | bind b |
         3 | start b end=93 |
         4 | holds b gpus=5 |
         5 | foreign f n0 count=1 gpus=7 end=60; withdraw a |
         6 | vanish b; cancelled f |
         7 | done b; set backfill=on |
         8 | gone n0 |",
    );
    let mut overdue = play(
        &evict,
        1,
        "0  | small s1 limit=100 | s1 to n0
         1  | large A limit=500 | n0 drains for A until 100
         51 | tick | n0 overdue for A by s1; s1 evicted n0
         52 | withdraw A | n0 opens NoLargeWaits",
    );
    let mut overtaken = play(
        &limits(100, 500),
        1,
        "0 | small s1 limit=100; wide w gpus=2 limit=100 | s1 to n0; w to n0
         1 | large A limit=500 | n0 drains for A until 100
         2 | large B prio=1 limit=500 | n0 drains for B not A",
    );
    let mut broken = play(
        &limits(100, 500),
        1,
        "0 | small s1,s2 limit=100 | s1..s2 to n0
         1 | holds s1 gpus=1 | n0 sees Overlap(JobId(1), JobId(2))",
    );
    let rest = [&mut slow, &mut overdue, &mut overtaken, &mut broken].map(Timeline::records);
    day() + &rest.concat()
}

/// Records that are kept in a file, which this code must read and decide the same.
fn kept(name: &str, now: impl FnOnce() -> String) -> String {
    let path = format!("{}/tests/records/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, now()).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let played = replay(&text);
    assert!(
        played.is_same(),
        "{path}: {played}Where the format or the rule was changed on purpose, UPDATE_GOLDEN=1 \
         writes these records anew; a format that reads otherwise takes another journal::VERSION."
    );
    text
}

#[test]
fn records_of_before_are_read_and_decided_the_same() {
    // Such as were written before they had what was told.
    let text = kept("v1.jsonl", || untold(&every_kind()));
    assert!(!text.contains("\"told\"") && !text.contains("\"moved\""));
    for kind in [
        "Released",
        "Withdrawn",
        "NodeGone",
        "Configured",
        "NodeChanged",
        "Bound",
        "Started",
        "Vanished",
        "Holds",
        "Foreign",
        "BindFailed",
        "Queued",
        "Reserved",
        "Unreserved",
        "GateClosed",
        "GateRetargeted",
        "GateOpened",
        "CreditSettled",
        "WaveStarted",
        "DrainOverdue",
        "Evict",
        "Observed",
    ] {
        assert!(text.contains(&format!("{{\"{kind}\":")), "no {kind} in the records");
    }
}

#[test]
fn records_with_what_was_told_are_read_and_decided_the_same() {
    let text = kept("v1-told.jsonl", || every_kind() + &every_cause());
    for cause in [
        "{\"CameBack\":",
        "{\"Foreign\":",
        "{\"Longer\":",
        "{\"NodeGone\":",
        "{\"NodeUnfit\":",
        "{\"Overran\":",
        "{\"Quota\":",
        "{\"ServedFirst\":",
        "{\"Unlimited\":",
        "\"Changed\"",
        "\"Settings\"",
    ] {
        assert!(text.contains(&format!("\"cause\":{cause}")), "no {cause} in the records");
    }
}

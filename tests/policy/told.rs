//! What waiting pods were told: it is kept in records, checked when they are decided again, and said
//! from them as it was said then.

use std::collections::{BTreeMap, BTreeSet};

use sluice::explain::names::utc;
use sluice::explain::{Context, Words, wait};
use sluice::journal::{self, Kind, Record, What};
use sluice::policy::{BoundMoved, JobId, Millis, State};

use super::records::{day, replay};
use super::timeline::{Timeline, limits, play};

/// Histories in which causes of many kinds move what somebody was told.
pub(crate) fn every_cause() -> String {
    let start = "0 | small s1..s8 limit=100 | s1..s8 to n0
                 1 | small u1..u4 limit=100; large A limit=500 | n0 drains for A until 100";
    let mut text = String::new();
    for table in [
        "2 | large B limit=500 prio=1 | n0 drains for B not A",
        "2 | gone n0 |",
        "2 | node n0 bad=3 | n0 opens NodeUnfit",
        "2 | done s1 |
         3 | foreign f n0 gpus=0 |",
        "100.001 | tick | n0 overdue for A by s1 s2 s3 s4 s5 s6 s7 s8",
        "2 | small free prio=1 |",
        "2 | large long limit=999 |",
        "2 | small u1 limit=100 created=1 on=n9 |",
        "2 | set paused=on |",
    ] {
        text += &play(&limits(100, 500), 1, &format!("{start}\n{table}")).records();
    }
    text += &play(
        &limits(100, 500),
        1,
        "0 | small s1..s8 limit=100 | s1..s8 to n0
         1 | small q1,q2 limit=100 tenant=7 |
         2 | set quota=7:1 |",
    )
    .records();
    let mut slow = Timeline::slow(&limits(100, 500), 1);
    slow.play(
        "0 | small s1..s16 limit=100 | s1..s8 to n0
         5 | refuse s1 | s1 off n0 BindFailed until 10; s9 to n0",
    );
    text + &slow.records()
}

fn records(text: &str) -> Vec<(u64, Record)> {
    let (records, faults) = journal::read("day.jsonl", text.as_bytes());
    assert_eq!(faults, []);
    records
}

pub(crate) fn written<'a>(records: impl IntoIterator<Item = &'a Record>) -> String {
    records.into_iter().map(|record| record.line() + "\n").collect()
}

/// The same records as they were before they had what was told.
pub(crate) fn untold(text: &str) -> String {
    let bare = |record: &mut Record| match &mut record.is {
        Kind::State(state) => state.told = None,
        Kind::Step { moved, .. } => moved.clear(),
    };
    let mut records = records(text);
    for (_, record) in &mut records {
        bare(record);
    }
    written(records.iter().map(|(_, record)| record))
}

/// The histories of a text: each begins where the numbers do.
pub(crate) fn histories(text: &str) -> Vec<Vec<Record>> {
    let mut histories: Vec<Vec<Record>> = Vec::new();
    for (_, record) in records(text) {
        if record.seq == 0 || histories.is_empty() {
            histories.push(Vec::new());
        }
        histories.last_mut().unwrap().push(record);
    }
    histories
}

#[test]
fn a_later_moment_gives_no_later_time_without_a_cause() {
    let mut moves = 0;
    for history in histories(&(day() + &every_cause())) {
        let lines: Vec<(u64, Record)> = (1..).zip(history.iter().cloned()).collect();
        let mut told: BTreeMap<JobId, Millis> = BTreeMap::new();
        let last = history.iter().map(|record| record.now_ms).max().unwrap();
        let between = (0..last / 1_000).map(|second| second * 1_000);
        let moments: BTreeSet<u64> = history.iter().map(|r| r.now_ms).chain(between).collect();
        for at in moments.into_iter().map(Millis) {
            let played = journal::replay("day.jsonl", &lines, Vec::new(), Some(at));
            let end = &played.ends["default"];
            let causes = moved_at(&history, at);
            for job in [JobId(1), JobId(9)].into_iter().chain((10..32).map(JobId)) {
                let explanation = end.explain(job, at);
                let says = explanation.as_ref().and_then(|e| e.waits()?.bound.latest_start);
                if let Some(before) = told.remove(&job)
                    && explanation.is_some_and(|e| e.waits().is_some())
                    && says.is_none_or(|says| says > before)
                {
                    let why = causes.iter().rev().find(|moved| moved.job == job);
                    let why = why.unwrap_or_else(|| panic!("{before} became {says:?} at {at}"));
                    assert_eq!(why.to, says, "{why:?}");
                    moves += 1;
                }
                told.extend(says.map(|says| (job, says)));
            }
        }
    }
    assert!(moves >= 15, "only {moves} times moved");
}

fn moved_at(history: &[Record], at: Millis) -> Vec<BoundMoved> {
    let steps = history.iter().filter(|record| record.now_ms == at.0);
    let moved = steps.flat_map(|record| match &record.is {
        Kind::Step { moved, .. } => moved.clone(),
        Kind::State(_) => Vec::new(),
    });
    moved.collect()
}

#[test]
fn a_small_that_only_waits_is_told_one_time() {
    let text = day();
    let (records, _) = journal::read("day.jsonl", text.as_bytes());
    let says = |second: u64| {
        let at = Millis::from_secs(second);
        let played = journal::replay("day.jsonl", &records, Vec::new(), Some(at));
        let (end, names) = (&played.ends["default"], &played.names["default"]);
        let context = Context::new(Words { names, time: utc }, "default", end.pool.config());
        let job = names.jobs_named("team/t9").next().unwrap();
        let (_, sentence) = wait::condition(&end.explain(job, at).unwrap(), &context).unwrap();
        sentence.split(" It starts by ").nth(1).unwrap().to_owned()
    };
    // S = 100, L = 500, three failures at once of 60 each: a round of 880, from when it was first.
    let first = says(60);
    assert_eq!(first, "1970-01-01 00:15:40 UTC at the latest.");
    for later in [61, 65, 69, 70] {
        assert_eq!(says(later), first, "at {later}");
    }
}

#[test]
fn another_time_that_was_told_is_noticed() {
    let first = histories(&every_cause()).remove(0);
    let text = written(&first);
    let before = "\"cause\":{\"ServedFirst\":14}";
    let played = replay(&text.replacen(before, "\"cause\":\"Settings\"", 1));
    let [difference] = &played.differences[..] else { panic!("{played}") };
    assert!(matches!(difference.what, What::Told { number: 1, of: 1, .. }), "{difference:?}");
    let said = played.to_string();
    for part in [
        "the same decisions, but later start 1 that was told is another one\n  recorded: team/A: \
         The pod starts by 1970-01-01 00:11:42 UTC at the latest, not by 1970-01-01 00:01:40 UTC: \
         the pool's settings changed. {\"job\":13,",
        "not by 1970-01-01 00:01:40 UTC: team/B came later and is served first. {\"job\":13,",
    ] {
        assert!(said.contains(part), "{part}\nnot in\n{said}");
    }
    let missing = text.replacen(",\"moved\":[{\"job\":13,", ",\"moved\":[],\"m\":[{\"job\":13,", 1);
    assert_ne!(missing, text);
    assert!(replay(&missing).faults[0].found.contains("unknown field `m`"));
}

#[test]
fn another_time_in_a_state_is_noticed() {
    let text = day();
    let changed = text.replacen("\"latest_start\":940000", "\"latest_start\":941000", 1);
    assert_ne!(changed, text);
    let said = replay(&changed).to_string();
    assert!(said.contains("another state, first in told.jobs.19.bound.latest_start"), "{said}");
}

#[test]
fn records_without_what_was_told_count_as_told_then() {
    let text = untold(&(day() + &every_cause()));
    assert!(!text.contains("\"told\"") && !text.contains("\"moved\""));
    let played = replay(&text);
    assert!(played.is_same(), "{played}");
    assert_eq!(played.pools["default"].moved, 0);
    // From a state alone: the time stays while nothing happens.
    let state = text.lines().nth(11).unwrap().to_owned() + "\n";
    let (records, _) = journal::read("day.jsonl", state.as_bytes());
    let Kind::State(bare) = &records[0].1.is else { panic!("{state}") };
    assert_eq!(State::clone(bare).told, None);
    let end = &journal::replay("day.jsonl", &records, Vec::new(), None).ends["default"];
    let says = |second: u64| {
        let explanation = end.explain(JobId(19), Millis::from_secs(second)).unwrap();
        explanation.waits().unwrap().bound.latest_start
    };
    assert_eq!((says(70), says(75)), (Some(Millis::from_secs(950)), Some(Millis::from_secs(950))));
}

//! Pure: recorded inputs are decided again, and compared with what was decided and told then.
//!
//! A difference is reported once. What follows it rests on another state, so the pool is not
//! compared any more until the next record of its state, where it goes on from what was recorded.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::{Kind, Record};
use crate::explain::NameTable;
use crate::policy::{
    BoundMoved, Decision, Explanation, Input, JobId, Millis, Pool, Promises, State, Stepped,
};
use crate::trace::Fault;

/// What a replay found.
#[derive(Serialize, Clone, Debug)]
pub struct Played {
    /// The file.
    pub file: String,
    /// What was replayed of each pool.
    pub pools: BTreeMap<String, Extent>,
    /// Where this code decides otherwise.
    pub differences: Vec<Difference>,
    /// What cannot be replayed.
    pub faults: Vec<Fault>,
    /// Names of everybody in the records.
    #[serde(skip)]
    pub names: BTreeMap<String, NameTable>,
    /// The state of each pool after its last record, and when that was, where it is as recorded.
    #[serde(skip)]
    pub ends: BTreeMap<String, End>,
    /// The latest time of a record of each pool, whether it was to be replayed or not.
    #[serde(skip)]
    pub last: BTreeMap<String, Millis>,
}

/// What the records of a pool lead to.
#[derive(Clone, Debug)]
pub struct End {
    /// The state.
    pub pool: Pool,
    /// What its waiting jobs were told.
    pub promises: Promises,
    /// When the last record was.
    pub at: Millis,
}

impl End {
    /// Where a job stands, with what it was told; `None` if it neither waits nor holds GPUs.
    pub fn explain(&self, job: JobId, now: Millis) -> Option<Explanation> {
        self.promises.explain(&self.pool, job, now)
    }
}

/// How much was replayed of one pool.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// The earliest time of a record.
    pub from_ms: u64,
    /// The latest.
    pub to_ms: u64,
    /// Steps that were decided again.
    pub steps: u64,
    /// What the policy was told in them.
    pub inputs: u64,
    /// What it decided in them.
    pub decisions: u64,
    /// Waiting jobs that were told a later time in them.
    pub moved: u64,
    /// States that were compared with those that the steps led to.
    pub states: u64,
    /// Steps after a difference or a gap, which were not compared.
    pub passed_over: u64,
}

/// One place where this code decides otherwise.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Difference {
    /// The line of the record, from 1.
    pub line: u64,
    /// The pool.
    pub pool: String,
    /// The number of the step.
    pub seq: u64,
    /// The time of the step.
    pub now_ms: u64,
    /// What is different.
    #[serde(flatten)]
    pub what: What,
}

/// What is different.
#[derive(Serialize, Clone, PartialEq, Debug)]
#[serde(rename_all = "camelCase")]
pub enum What {
    /// A decision.
    Decision {
        /// Which one of its step, from 1.
        number: usize,
        /// How many the step had.
        of: usize,
        /// What was decided then; nothing if the step had fewer.
        recorded: Option<Decision>,
        /// What is decided now; nothing if it is fewer.
        got: Option<Decision>,
    },
    /// What a waiting job was told.
    Told {
        /// Which one of its step, from 1.
        number: usize,
        /// How many the step had.
        of: usize,
        /// The later time that was told then; nothing if the step had fewer.
        recorded: Option<BoundMoved>,
        /// The one that is told now; nothing if it is fewer.
        got: Option<BoundMoved>,
    },
    /// The state that the same decisions led to.
    State {
        /// The first field that differs, as a path.
        field: String,
        /// What it was then.
        recorded: Value,
        /// What it is now.
        got: Value,
    },
}

impl Played {
    /// Whether everything could be replayed, and was decided as before.
    pub fn is_same(&self) -> bool {
        self.differences.is_empty() && self.faults.is_empty()
    }
}

/// Decides what was recorded again, up to and including `until` where it is given.
pub fn replay(
    file: &str,
    records: &[(u64, Record)],
    faults: Vec<Fault>,
    until: Option<Millis>,
) -> Played {
    let mut player = Player {
        played: Played {
            file: file.to_owned(),
            pools: BTreeMap::new(),
            differences: Vec::new(),
            faults,
            names: BTreeMap::new(),
            ends: BTreeMap::new(),
            last: BTreeMap::new(),
        },
        runs: BTreeMap::new(),
    };
    let mut over = BTreeSet::new();
    for (line, record) in records {
        let last = player.played.last.entry(record.pool.clone()).or_default();
        *last = (*last).max(Millis(record.now_ms));
        if until.is_some_and(|until| record.now_ms > until.0) {
            over.insert(&record.pool);
        }
        if !over.contains(&record.pool) {
            player.take(*line, record);
        }
    }
    let Player { mut played, runs } = player;
    let known = runs.into_iter().filter(|(_, run)| run.in_step);
    let end = |run: Run| Some(End { pool: run.pool?, promises: run.promises, at: run.at });
    played.ends = known.filter_map(|(name, run)| Some((name, end(run)?))).collect();
    played
}

struct Player {
    played: Played,
    runs: BTreeMap<String, Run>,
}

#[derive(Default)]
struct Run {
    /// The state that the records led to; none while it is not known.
    pool: Option<Pool>,
    /// What its waiting jobs were told.
    promises: Promises,
    /// Whether that is what was recorded. Records of before it was kept say nothing of it.
    told: bool,
    /// Whether that is the state that was recorded as far as one can tell.
    in_step: bool,
    /// Whether it was said that it is not known.
    lost: bool,
    seq: u64,
    at: Millis,
}

impl Player {
    fn take(&mut self, line: u64, record: &Record) {
        let extent = self
            .played
            .pools
            .entry(record.pool.clone())
            .or_insert_with(|| Extent { from_ms: record.now_ms, ..Extent::default() });
        // A clock may step back, and a file have more than one history.
        extent.from_ms = extent.from_ms.min(record.now_ms);
        extent.to_ms = extent.to_ms.max(record.now_ms);
        self.played.names.entry(record.pool.clone()).or_default().learn(&record.names);
        match &record.is {
            Kind::State(state) => self.state(line, record, state),
            Kind::Step { inputs, decisions, moved } => {
                self.step(line, record, inputs, decisions, moved);
            }
        }
    }

    fn state(&mut self, line: u64, record: &Record, state: &State) {
        let run = self.runs.entry(record.pool.clone()).or_default();
        let missing = match &run.pool {
            // Numbers begin anew where another leader does.
            Some(_) if record.seq > run.seq => Some(run.seq + 1..=record.seq),
            _ => None,
        };
        let follows = run.in_step && run.seq == record.seq;
        if let Some(pool) = run.pool.as_ref().filter(|_| follows) {
            if let Some(extent) = self.played.pools.get_mut(&record.pool) {
                extent.states += 1;
            }
            let told = state.told.as_ref().map(|_| run.promises.told());
            let got = to_value(&State { told, ..pool.state() });
            if let Some((field, recorded, got)) = first_difference("", &to_value(state), &got) {
                let what = What::State { field, recorded, got };
                self.played.differences.push(difference(line, record, what));
            }
        }
        let at = Millis(record.now_ms);
        match Pool::from_state(state.clone()) {
            Ok(pool) => {
                let promises = match &state.told {
                    Some(told) => Promises::from_told(told.clone(), &pool),
                    None if follows => std::mem::take(&mut run.promises),
                    None => first_told(&pool, at),
                };
                *run = Run {
                    pool: Some(pool),
                    promises,
                    told: state.told.is_some(),
                    in_step: true,
                    lost: false,
                    seq: record.seq,
                    at,
                };
            }
            Err(error) => {
                (run.pool, run.lost) = (None, true);
                let allowed = "a state that this code can run".to_owned();
                self.fault(line, error.to_string(), allowed);
            }
        }
        if let Some(missing) = missing {
            let found = format!("a state after step {} of pool {}", record.seq, record.pool);
            let allowed = match missing.clone().count() {
                1 => format!("step {} before it", record.seq),
                _ => format!("steps {} to {} before it", missing.start(), missing.end()),
            };
            self.fault(line, found, allowed);
        }
    }

    fn step(
        &mut self,
        line: u64,
        record: &Record,
        inputs: &[Input],
        decisions: &[Decision],
        moved: &[BoundMoved],
    ) {
        let run = self.runs.entry(record.pool.clone()).or_default();
        let Some(extent) = self.played.pools.get_mut(&record.pool) else { return };
        let Some(pool) = &mut run.pool else {
            extent.passed_over += 1;
            if std::mem::replace(&mut run.lost, true) {
                return;
            }
            let found = format!("step {} of pool {}", record.seq, record.pool);
            let allowed = "a record of the pool's state before its first step".to_owned();
            self.fault(line, found, allowed);
            return;
        };
        let follows = run.seq + 1;
        if record.seq != follows {
            let found = format!("step {} of pool {}", record.seq, record.pool);
            // What follows is another history, up to the next state.
            (run.pool, run.lost) = (None, true);
            extent.passed_over += 1;
            let allowed = format!("step {follows}, or a record of the pool's state in between");
            self.fault(line, found, allowed);
            return;
        }
        (run.seq, run.at) = (record.seq, Millis(record.now_ms));
        if !run.in_step {
            extent.passed_over += 1;
            return;
        }
        let Stepped { decisions: got, moved: told, .. } = run.promises.step(pool, inputs, run.at);
        extent.steps += 1;
        extent.inputs += count(inputs.len());
        extent.decisions += count(decisions.len());
        extent.moved += count(moved.len());
        let what = if let Some((number, recorded, got)) = first_other(decisions, &got) {
            What::Decision { number, of: decisions.len(), recorded, got }
        } else if let Some((number, recorded, got)) = first_other(moved, &told).filter(|_| run.told)
        {
            What::Told { number, of: moved.len(), recorded, got }
        } else {
            return;
        };
        run.in_step = false;
        self.played.differences.push(difference(line, record, what));
    }

    fn fault(&mut self, line: u64, found: String, allowed: String) {
        let file = self.played.file.clone();
        self.played.faults.push(Fault { file, line, column: String::new(), found, allowed });
    }
}

/// Where a record does not say what was told, it counts as told then.
fn first_told(pool: &Pool, at: Millis) -> Promises {
    let mut promises = Promises::default();
    promises.note(pool, &[], &[], at);
    promises
}

/// The first of two lists' parts that is another one: which, and both.
fn first_other<T: Clone + PartialEq>(
    recorded: &[T],
    got: &[T],
) -> Option<(usize, Option<T>, Option<T>)> {
    let at = (0..recorded.len().max(got.len())).find(|&at| recorded.get(at) != got.get(at))?;
    Some((at + 1, recorded.get(at).cloned(), got.get(at).cloned()))
}

fn difference(line: u64, record: &Record, what: What) -> Difference {
    let (pool, seq, now_ms) = (record.pool.clone(), record.seq, record.now_ms);
    Difference { line, pool, seq, now_ms, what }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn to_value(state: &State) -> Value {
    // A state is made of numbers, lists and maps by number.
    serde_json::to_value(state).unwrap_or_default()
}

/// The first field, in the order of their names, that differs.
fn first_difference(path: &str, one: &Value, other: &Value) -> Option<(String, Value, Value)> {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            let null = &Value::Null;
            keys.into_iter().find_map(|key| {
                let (a, b) = (a.get(key).unwrap_or(null), b.get(key).unwrap_or(null));
                first_difference(&below(key), a, b)
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs
                .map(|(at, (a, b))| first_difference(&below(&at.to_string()), a, b))
                .find_map(|d| d)
        }
        (one, other) if one == other => None,
        (one, other) => Some((path.to_owned(), one.clone(), other.clone())),
    }
}

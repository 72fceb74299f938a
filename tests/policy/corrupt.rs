//! Records that nobody can have written: each is a fault or another history, and never a crash.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Map, Value, json};
use sluice::explain::names::utc;
use sluice::explain::{Context, Words, text, wait};
use sluice::journal;
use sluice::policy::Millis;

use super::records::{day, every_kind};
use super::told::{every_cause, histories, written};

/// Whatever can be done with records.
fn use_all(lines: &str) {
    let (records, faults) = journal::read("corrupt", lines.as_bytes());
    let played = journal::replay("corrupt", &records, faults, None);
    let _ = (played.to_string(), serde_json::to_string(&played).unwrap());
    for (pool, end) in &played.ends {
        let names = &played.names[pool];
        let context = Context::new(Words { names, time: utc }, pool, end.pool.config());
        for at in [end.at, end.at + Millis::from_secs(1)] {
            for &job in names.pods.keys() {
                let Some(explanation) = end.explain(job, at) else { continue };
                let _ = text::text(&explanation, &context);
                let _ = wait::condition(&explanation, &context);
                let _ = sluice::explain::json::json(&explanation, &context);
            }
        }
        let _ = (end.pool.next_wakeup(end.at), end.promises.next_wakeup(end.at));
    }
}

/// A way down to a part of a value.
type Path = Vec<Step>;

#[derive(Clone)]
enum Step {
    Field(String),
    /// The name of a field, and not what it holds.
    Name(String),
    Element(usize),
}

/// The numbers of a value, and the names of fields that are numbers.
fn numbers(value: &Value, path: &Path, found: &mut Vec<Path>) {
    let below = |step: Step| path.iter().cloned().chain([step]).collect::<Path>();
    match value {
        Value::Number(_) => found.push(path.clone()),
        Value::Array(parts) => {
            for (at, part) in parts.iter().enumerate() {
                numbers(part, &below(Step::Element(at)), found);
            }
        }
        Value::Object(fields) => {
            for (name, part) in fields {
                if name.parse::<u64>().is_ok() {
                    found.push(below(Step::Name(name.clone())));
                }
                numbers(part, &below(Step::Field(name.clone())), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// What a number means: the way to it without who and how many.
fn meaning(path: &Path) -> String {
    let said = path.iter().map(|step| match step {
        Step::Field(name) if name.parse::<u64>().is_err() => name,
        Step::Field(_) => "*",
        Step::Name(_) => "name",
        Step::Element(_) => "element",
    });
    said.collect::<Vec<_>>().join(".")
}

fn put(value: &mut Value, path: &[Step], number: &Value) {
    let [first, rest @ ..] = path else {
        *value = number.clone();
        return;
    };
    match first {
        Step::Element(at) => put(&mut value[*at], rest, number),
        Step::Field(name) => put(&mut value[name.as_str()], rest, number),
        Step::Name(name) => {
            let fields: &mut Map<String, Value> = value.as_object_mut().unwrap();
            let part = fields.remove(name).unwrap();
            fields.insert(number.to_string(), part);
        }
    }
}

/// Puts extremes in place of numbers of these records: once for each meaning, or everywhere.
fn corrupt(text: &str, everywhere: bool) -> (u32, BTreeSet<String>) {
    let extremes =
        [json!(0), json!(-1), json!(64), json!(u32::MAX), json!(u64::MAX - 1), json!(u64::MAX)];
    let (mut tried, mut crashes, mut known) = (0, BTreeSet::new(), BTreeSet::new());
    for history in histories(text) {
        let lines: Vec<String> = history.iter().map(|record| written([record])).collect();
        for (at, line) in lines.iter().enumerate() {
            let whole: Value = serde_json::from_str(line).unwrap();
            let mut found = Vec::new();
            numbers(&whole, &Path::new(), &mut found);
            for path in found {
                if !known.insert(meaning(&path)) && !everywhere {
                    continue;
                }
                for extreme in &extremes {
                    let mut other = whole.clone();
                    put(&mut other, &path, extreme);
                    let mut lines = lines.clone();
                    lines[at] = format!("{other}\n");
                    let content = lines.concat();
                    tried += 1;
                    if catch_unwind(AssertUnwindSafe(|| use_all(&content))).is_err() {
                        crashes.insert(format!("{extreme} at {}", meaning(&path)));
                    }
                }
            }
        }
    }
    (tried, crashes)
}

#[test]
fn an_impossible_number_crashes_nothing() {
    let (tried, crashes) = corrupt(&(day() + &every_kind() + &every_cause()), false);
    assert!(tried > 500, "only {tried} tried");
    assert!(crashes.is_empty(), "{crashes:#?}");
}

#[test]
#[ignore = "a minute: each number of the records"]
fn an_impossible_number_crashes_nothing_anywhere() {
    let (tried, crashes) = corrupt(&(day() + &every_kind() + &every_cause()), true);
    assert!(crashes.is_empty(), "of {tried}: {crashes:#?}");
}

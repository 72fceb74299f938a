//! Pure: what a replay found, as a person reads it.

use std::fmt::{self, Write as _};

use super::replay::{Difference, Extent, Played, What};
use crate::explain::decision::decided;
use crate::explain::moved::moved;
use crate::explain::names::utc;
use crate::explain::{NameTable, Words};
use crate::policy::{BoundMoved, Decision, Millis};
use crate::timeline::length;

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, extent) in &self.pools {
            let differs = self.differences.iter().any(|difference| difference.pool == *name);
            writeln!(f, "{}: pool {name}: {}", self.file, told(extent, differs))?;
        }
        let nobody = NameTable::default();
        for difference in &self.differences {
            let names = self.names.get(&difference.pool).unwrap_or(&nobody);
            let words = Words { names, time: utc };
            writeln!(f, "{}:{}: {}", self.file, difference.line, differs(difference, &words))?;
        }
        for fault in &self.faults {
            writeln!(f, "{fault}")?;
        }
        Ok(())
    }
}

fn told(extent: &Extent, differs: bool) -> String {
    let span = length(extent.to_ms.saturating_sub(extent.from_ms));
    let mut text = format!(
        "{} with {} and {}, {span} from {}: {}.",
        counted(extent.steps, "step"),
        counted(extent.inputs, "input"),
        counted(extent.decisions, "decision"),
        // A beginning is rounded down.
        utc(Millis(extent.from_ms / 1_000 * 1_000)),
        match extent.steps {
            _ if differs => "this code decides otherwise",
            0 => "no decision was compared",
            _ => "the same decisions",
        },
    );
    if extent.moved > 0 {
        let later = counted(extent.moved, "later start");
        // Writing to a String cannot fail.
        let _ = write!(text, " Pods were told {later}.");
    }
    if extent.states > 0 {
        let _ = write!(text, " {} on the way compared.", counted(extent.states, "state"));
    }
    if extent.passed_over > 0 {
        let steps = counted(extent.passed_over, "step");
        let _ = write!(text, " {steps} after that not compared.");
    }
    text
}

fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn differs(difference: &Difference, words: &Words<'_>) -> String {
    let Difference { pool, seq, now_ms, what, .. } = difference;
    let at = format!("pool {pool}, step {seq} at {now_ms} ms");
    match what {
        What::Decision { number, of, recorded, got } => {
            let recorded = recorded.as_ref().map_or_else(
                || format!("no more, there were {of}"),
                |decision| said(decision, words),
            );
            let got =
                got.as_ref().map_or_else(|| "none".to_owned(), |decision| said(decision, words));
            format!(
                "{at}: decision {number} is another one\n  recorded: {recorded}\n  now:      {got}"
            )
        }
        What::Told { number, of, recorded, got } => {
            let recorded = recorded.as_ref().map_or_else(
                || format!("no more, there were {of}"),
                |moved| told_later(moved, words),
            );
            let got =
                got.as_ref().map_or_else(|| "none".to_owned(), |moved| told_later(moved, words));
            format!(
                "{at}: the same decisions, but later start {number} that was told is another one\n  \
                 recorded: {recorded}\n  now:      {got}"
            )
        }
        What::State { field, recorded, got } => format!(
            "{at}: the same decisions lead to another state, first in {field}\n  recorded: \
             {recorded}\n  now:      {got}"
        ),
    }
}

/// A decision as a sentence, with the pod that it is about, and as it is.
fn said(decision: &Decision, words: &Words<'_>) -> String {
    let (reason, message) = decided(decision, words);
    let pod = decision.about().1.map_or_else(String::new, |job| format!(" {}:", words.pod(job)));
    // A decision is made of numbers, lists and names.
    let exact = serde_json::to_string(decision).unwrap_or_default();
    format!("{reason}{pod} {message} {exact}")
}

/// A later start as a sentence, with the pod that was told, and as it is.
fn told_later(told: &BoundMoved, words: &Words<'_>) -> String {
    let exact = serde_json::to_string(told).unwrap_or_default();
    format!("{}: {} {exact}", words.pod(told.job), moved(told, words))
}

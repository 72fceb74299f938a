//! What a person is told of a pod: every rule, every stage, every reason, as pages in
//! `explained.txt`. `UPDATE_GOLDEN=1` writes that file anew: read it before it is committed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sluice::explain::{Context, Words, json, text, wait};
use sluice::policy::{Millis, Standing, Wait};

use super::explained_cases::{Case, case, cases};
use super::timeline::Timeline;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policy/explained.txt");

fn seconds(at: Millis) -> String {
    format!("second {}", at.0.div_ceil(1_000))
}

/// Plays a case and hands over its last moment.
fn play<T>(case: &Case, look: impl FnOnce(&mut Timeline) -> T) -> T {
    let mut timeline = if case.slow {
        Timeline::slow(&case.config, case.nodes)
    } else {
        Timeline::new(&case.config, case.nodes)
    };
    look(timeline.play(case.table))
}

#[test]
fn pages_read_as_a_person_would_say_it() {
    let mut pages = String::new();
    for case in cases() {
        let page = play(&case, |timeline| {
            let job = timeline.id(case.pod);
            let names = timeline.table();
            let words = Words { names: &names, time: seconds };
            let context = Context::new(words, "default", timeline.pool.config());
            let explanation = timeline.pool.explain(job, timeline.now).unwrap();
            if let Some((reason, message)) = wait::condition(&explanation, &context) {
                let told = text::text(&explanation, &context);
                assert!(
                    told.contains(reason) && told.contains(message.split(". ").next().unwrap())
                );
            }
            text::text(&explanation, &context)
        });
        writeln!(pages, "# {}\n\n{page}", case.what).unwrap();
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &pages).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    let (mut ours, mut theirs) = (pages.split("# "), golden.split("# "));
    while let (Some(page), Some(expected)) = (ours.next(), theirs.next()) {
        assert_eq!(page, expected);
    }
    assert_eq!(pages, golden, "UPDATE_GOLDEN=1 writes the file anew");
}

#[test]
fn every_rule_every_need_and_every_change_has_its_page() {
    let (mut reasons, mut needs) = (BTreeSet::new(), BTreeSet::new());
    let (mut changes, mut gaps) = (BTreeSet::new(), BTreeSet::new());
    for case in cases() {
        play(&case, |timeline| {
            let job = timeline.id(case.pod);
            let explanation = timeline.pool.explain(job, timeline.now).unwrap();
            let names = timeline.table();
            let words = Words { names: &names, time: seconds };
            let context = Context::new(words, "default", timeline.pool.config());
            reasons.insert(sluice::explain::standing(&explanation, &context).0);
            if let Standing::Waits(waits) = explanation.standing {
                changes.extend(waits.changes.iter().map(kind));
                needs.extend(waits.needs.iter().map(kind));
                if let Wait::GateClosed { gap, .. } = waits.wait {
                    gaps.insert(kind(&gap));
                }
            }
        });
    }
    assert_eq!(
        reasons.into_iter().collect::<Vec<_>>().join(" "),
        "BackingOff Behind Bound Busy Draining Exclusive Foreign GateClosed Gathering Kept \
         KeptOpen NoNodeFits NodesHeld Paused Quota QuotaTurn Releasing Reserved Running Wave"
    );
    assert_eq!(
        needs.into_iter().collect::<Vec<_>>().join(" "),
        "Ends Fit Resume Rounds Runs Setting Starts Time"
    );
    assert_eq!(
        changes.into_iter().collect::<Vec<_>>().join(" "),
        "Arrival Backfill Binding EarlyEnds Evict KeepFewerOpen LimitOf LimitOn NodeFit NodeJoins \
         NodeLost OtherNode Overtaken Placement Priority Quota Resume Servable ShorterLimit TurnGoesOn"
    );
    // One that waits behind more pods than are tried has a test of its own.
    assert_eq!(
        gaps.into_iter().collect::<Vec<_>>().join(" "),
        "Endless Full NotFilled Protects TooFew TooShort"
    );
}

fn kind(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split(['(', ' ']).next().unwrap_or_default().to_owned()
}

#[test]
fn json_names_the_very_pods_and_their_latest_ends() {
    let case = case(
        "drain",
        "B",
        "0 | small s1 limit=100; small s2 limit=40 | s1..s2 to n0
         1 | large A,B limit=500 | n0 drains for A until 100",
    );
    let value = play(&case, |timeline| {
        let job = timeline.id(case.pod);
        let names = timeline.table();
        let words = Words { names: &names, time: seconds };
        let context = Context::new(words, "default", timeline.pool.config());
        json::json(&timeline.pool.explain(job, timeline.now).unwrap(), &context)
    });
    let expected = serde_json::json!({
        "version": 2, "pod": "team/B", "pool": "default", "now_ms": 1_000,
        "shape": "whole-node-large", "gpus": 8, "reason": "Behind",
        "message": "1 pod of this shape stands before it; team/A goes first.",
        "waits": {
            "place": 2, "of": 2, "created_ms": 1_000,
            "first": [
                {"kind": "Ends", "node": "n0", "enough": "All", "more": 0,
                 "sentence": "Every pod that holds GPUs of node n0 must end:",
                 "pods": [
                    {"pod": "team/s2", "node": "n0", "gpus": [1], "stage": "Running",
                     "latest_end_ms": 40_000},
                    {"pod": "team/s1", "node": "n0", "gpus": [0], "stage": "Running",
                     "latest_end_ms": 100_000}]},
                {"kind": "Runs", "pods": ["team/A"], "more": 0, "enough": "All",
                 "limit_ms": 500_000, "wave": false, "credit": null,
                 "sentence": "team/A must start and end, in at most 8 m 20 s."},
            ],
            "rough": false,
            "foreseen_start_ms": 600_000,
            "latest_start_ms": 701_000,
            "basis": {
                "kind": "Place", "place": 2, "small_ms": 100_000, "large_ms": 500_000,
                "turn_ms": 500_000, "failures_ms": 180_000, "control_plane_ms": 45_000,
                "once_ms": 100_000, "rounds": 1, "round_ms": 600_000, "told_before": false,
            },
            "rests_on": "place 2 of its queue, 1 m 40 s for a small pod and 8 m 20 s for a \
                         whole-node pod, 45 s of each for the control plane, in all 1 m 40 s and \
                         1 round of 10 m",
            "changes": [
                {"effect": "Sooner", "kind": "EarlyEnds",
                 "if": "those that it waits for end before their limits"},
                {"effect": "Sooner", "kind": "Priority", "pod": "team/A",
                 "if": "it is created anew with a higher priority than team/A"},
                {"effect": "Later", "kind": "Overtaken",
                 "if": "a whole-node pod with a higher priority arrives"},
                {"effect": "Later", "kind": "Arrival", "shape": "small",
                 "if": "small pods arrive, which then have a wave before it"},
            ],
        },
    });
    assert_eq!(value, expected);
}

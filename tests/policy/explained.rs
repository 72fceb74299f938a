//! What a person is told of a pod: every rule, every stage, every reason, as pages in
//! `explained.txt`. `UPDATE_GOLDEN=1` writes that file anew: read it before it is committed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sluice::explain::{Context, Words, json, text, wait};
use sluice::policy::{Change, Config, Millis, Standing};

use super::timeline::{Timeline, limits};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policy/explained.txt");

struct Case {
    what: &'static str,
    config: Config,
    nodes: u32,
    table: &'static str,
    pod: &'static str,
    /// Nobody is bound and started but whom the table says.
    slow: bool,
}

fn case(what: &'static str, pod: &'static str, table: &'static str) -> Case {
    Case { what, config: limits(100, 500), nodes: 1, table, pod, slow: false }
}

fn on(nodes: u32, case: Case) -> Case {
    Case { nodes, ..case }
}

fn with(config: Config, mut case: Case) -> Case {
    case.config = config;
    case
}

fn slow(case: Case) -> Case {
    Case { slow: true, ..case }
}

fn seconds(at: Millis) -> String {
    format!("second {}", at.0.div_ceil(1_000))
}

fn balanced() -> Config {
    Config { backfill: true, turn: Some(Millis::from_secs(2_000)), ..limits(100, 500) }
}

fn held_back() -> Vec<Case> {
    vec![
        case("A paused pool", "a", "0 | set paused=on; small a limit=100 |"),
        slow(case(
            "A pod whose binding was refused",
            "a",
            "0 | small a limit=100 | a to n0
             1 | refuse a | a off n0 BindFailed until 6",
        )),
        slow(case(
            "A pod that was not bound in time",
            "a",
            "0 | small a limit=100 | a to n0
             30 | tick | a off n0 Expired until 35",
        )),
        case(
            "A namespace that holds what it may",
            "s3",
            "0 | set quota=7:2 |
             1 | small s1..s3 tenant=7 limit=100; small s4 limit=100 | s1..s2 to n0; s4 to n0",
        ),
        case(
            "A large that its namespace's quota can never hold",
            "A",
            "0 | set quota=7:2 |
             1 | large A tenant=7 limit=500 |",
        ),
        on(
            2,
            case(
                "A small whose namespace's large goes first",
                "s2",
                "0 | set quota=7:8 |
                 1 | small s1 tenant=7 limit=100 | s1 to n0
                 2 | large A tenant=7 limit=500; small s2 tenant=7 limit=100 |",
            ),
        ),
    ]
}

fn no_node() -> Vec<Case> {
    vec![
        on(0, case("A pool without nodes", "a", "0 | small a limit=100 |")),
        case("A pod that matches no node", "a", "0 | small a on=n5 limit=100 |"),
        case("A cordoned node", "a", "0 | node n0 cordoned; small a limit=100 |"),
        on(
            0,
            case(
                "Nodes of another size",
                "A",
                "0 | node n0 gpus=4; node n1 gpus=16; large A limit=500 |",
            ),
        ),
        case("A GPU that is not healthy", "A", "0 | node n0 bad=3; large A limit=500 |"),
        on(
            2,
            case(
                "Two nodes, each with another fault",
                "A",
                "0 | node n0 bad=3,4; node n1 cordoned; large A limit=500 |",
            ),
        ),
    ]
}

fn larges() -> Vec<Case> {
    let drain = "0 | small s1..s3 limit=100 | s1..s3 to n0
                 1 | large A,B limit=500 | n0 drains for A until 100";
    let kept = Config { keep_open: 1, ..limits(100, 500) };
    vec![
        case("The first large, while a node is emptied for it", "A", drain),
        case("The second large", "B", drain),
        case(
            "A drain whose last pod has outlasted its limit",
            "A",
            "0 | small s1 limit=100 | s1 to n0
             1 | large A limit=500 | n0 drains for A until 100
             100.001 | tick | n0 overdue for A by s1
             110 | tick |",
        ),
        case(
            "A drain behind a pod without a limit",
            "A",
            "0 | small s1 limit=100; small free | s1..free to n0
             1 | large A limit=500 | n0 drains for A until ever",
        ),
        case(
            "A large behind a wave",
            "B",
            "0 | large A,B limit=500; small s1..s2 limit=100 | A to n0
             40 | done A | n0 owes Wave; s1..s2 waves to n0; n0 waves 2 before B",
        ),
        case("A large while another runs", "B", "0 | large A,B limit=500 | A to n0"),
        case("The fifth large", "E", "0 | large A,B,C,D,E limit=500 | A to n0"),
        on(
            2,
            case(
                "A large on a pool whose nodes are all held by larges",
                "C",
                "0 | large A limit=500; large B limit=300; large C limit=500 | A to n0; B to n1",
            ),
        ),
        with(kept, case("A node that is kept open for smalls", "A", "0 | large A limit=500 |")),
        on(
            2,
            case(
                "A foreign pod holds up the drain",
                "A",
                "0 | foreign f n0 count=2; small s1 limit=100 on=n1 | s1 to n1
                 1 | large A limit=500 on=n0 | n0 drains for A until ever",
            ),
        ),
    ]
}

fn smalls() -> Vec<Case> {
    let gate = "0 | small s1..s8 limit=100 | s1..s8 to n0
                1 | large A limit=500 | n0 drains for A until 100
                2 | done s1,s2; small t1 limit=100 |";
    vec![
        case("A small behind a closed gate", "t1", gate),
        with(
            balanced(),
            case("A small behind a closed gate that is too long to be let in", "t1", gate),
        ),
        case(
            "A small while a large runs",
            "s1",
            "0 | large A limit=500; small s1 limit=100 | A to n0",
        ),
        case(
            "The tenth small",
            "s18",
            "0 | small s1..s8 limit=100 | s1..s8 to n0
             1 | large A limit=500 | n0 drains for A until 100
             2 | small s9..s18 limit=100 |",
        ),
        case(
            "Every GPU is held",
            "s10",
            "0 | small s1..s8 limit=100; small s9,s10 limit=50 | s1..s8 to n0",
        ),
        with(
            Config { large_limit: None, ..limits(100, 500) },
            case(
                "A pool without a limit for larges",
                "s9",
                "0 | small s1..s9 limit=90 | s1..s8 to n0",
            ),
        ),
        case(
            "A wide small for which GPUs are kept",
            "w",
            "0 | small s1..s5 limit=100 | s1..s5 to n0
             1 | wide w gpus=4 limit=100 |",
        ),
        case(
            "A small behind a wide one",
            "t",
            "0 | small s1..s5 limit=100 | s1..s5 to n0
             1 | wide w gpus=4 limit=100 |
             2 | small t limit=10 |",
        ),
        case(
            "A wide small behind another",
            "v",
            "0 | small s1..s7 limit=100 | s1..s7 to n0
             1 | wide w gpus=4 limit=100 |
             2 | wide v gpus=2 limit=100 |",
        ),
        case(
            "A wide small for which there are too few healthy GPUs",
            "w",
            "0 | node n0 bad=0,1,2,3,4 |
             1 | wide w gpus=4 limit=100 |",
        ),
    ]
}

fn with_gpus() -> Vec<Case> {
    let admitted = "0 | small a limit=100 | a to n0";
    let drain = "0 | small s1..s3 limit=100 | s1..s3 to n0
                 1 | large A limit=500 | n0 drains for A until 100";
    vec![
        slow(case("A pod with a reservation", "a", admitted)),
        slow(case("A pod that is bound", "a", "0 | small a limit=100 | a to n0\n1 | bind a |")),
        case("A pod that runs", "a", admitted),
        case("A large that runs", "A", "0 | large A limit=500 | A to n0"),
        case("A pod that holds up a drain", "s1", drain),
        case("A pod without a limit", "a", "0 | small a | a to n0"),
        case("A pod that is gone and not released", "a", "0 | small a | a to n0\n5 | vanish a |"),
        case(
            "A pod of a wave",
            "s1",
            "0 | large A,B limit=500; small s1 limit=100 | A to n0
             40 | done A | n0 owes Wave; s1 waves to n0; n0 waves 1 before B",
        ),
        with(
            balanced(),
            case(
                "A pod that was let in behind the gate",
                "t",
                "0 | small s1..s2 limit=100 | s1..s2 to n0
                 1 | large A limit=500 | n0 drains for A until 100
                 2 | small t limit=50 | t fills n0",
            ),
        ),
        with(
            Config {
                drain_limit: Some(Millis::from_secs(50)),
                evict_overdue: true,
                ..limits(100, 500)
            },
            case(
                "A pod that is evicted",
                "s1",
                "0 | small s1 limit=100 | s1 to n0
                 1 | large A limit=500 | n0 drains for A until 100
                 51 | tick | n0 overdue for A by s1; s1 evicted n0",
            ),
        ),
        case("A pod that went round Sluice", "f", "0 | foreign f n0 count=2 |"),
    ]
}

fn cases() -> Vec<Case> {
    [held_back(), no_node(), larges(), smalls(), with_gpus()].into_iter().flatten().collect()
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
fn every_rule_and_every_change_has_its_page() {
    let (mut reasons, mut changes) = (BTreeSet::new(), BTreeSet::new());
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
            }
        });
    }
    let all = [
        "BackingOff",
        "Behind",
        "Bound",
        "Busy",
        "Draining",
        "Exclusive",
        "Foreign",
        "GateClosed",
        "Gathering",
        "Kept",
        "KeptOpen",
        "NoNodeFits",
        "NodesHeld",
        "Paused",
        "Quota",
        "QuotaTurn",
        "Releasing",
        "Reserved",
        "Running",
        "Wave",
    ];
    assert_eq!(reasons.into_iter().collect::<Vec<_>>(), all);
    assert_eq!(changes.len(), 16, "{changes:?}");
}

fn kind(change: &Change) -> String {
    let text = format!("{change:?}");
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
        "version": 1, "pod": "team/B", "pool": "default", "now_ms": 1_000,
        "shape": "whole-node-large", "gpus": 8, "reason": "Behind",
        "message": "1 pod of this shape is served first; next is team/A.",
        "waits": {
            "place": 2, "of": 2, "created_ms": 1_000,
            "first": [
                {"kind": "Ends", "node": "n0", "enough": "All", "more": 0,
                 "sentence": "Every pod that holds GPUs of node n0 must end:",
                 "pods": [
                    {"pod": "team/s2", "gpus": [1], "stage": "Running", "latest_end_ms": 40_000},
                    {"pod": "team/s1", "gpus": [0], "stage": "Running", "latest_end_ms": 100_000}]},
                {"kind": "Starts", "pods": ["team/A"], "more": 0, "sentence": "team/A must start."},
            ],
            "latest_start_ms": 701_000,
            "rests_on": "place 2 of its queue, and the longest limit of each shape",
            "changes": [
                {"effect": "Sooner", "if": "those that it waits for end before their limits"},
                {"effect": "Sooner",
                 "if": "it is created anew with a higher priority than team/A"},
                {"effect": "Later", "if": "a whole-node pod with a higher priority arrives"},
            ],
        },
    });
    assert_eq!(value, expected);
}

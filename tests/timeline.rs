//! `sluice timeline`: its two pictures byte by byte, its check rule by rule, and both against
//! schedules that keep the rule.
//!
//! `UPDATE_GOLDEN=1` writes the expected files anew.

#[path = "timeline/schedule.rs"]
mod schedule;
#[path = "timeline/wide.rs"]
mod wide;

use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use schedule::{Plan, lines};
use sluice::timeline::check::{Report, Rules, check};
use sluice::timeline::record::{Fault, Record, read};
use sluice::timeline::{Timeline, svg, text};

const DEMO: &str = include_str!("timeline/demo.jsonl");
const PLAIN: text::Options = text::Options { width: 100, color: false };

/// A legal history on two GPUs: two smalls, a large that waits for both, a small behind it.
const LEGAL: &str = r#"
{"event":"node","node":"n","gpus":["g0","g1"]}
{"event":"phase","node":"n","phase":"Open","time_ms":0}
{"event":"pod","pod":"a","uid":"a","shape":"small","created_ms":900,"admitted_ms":950}
{"event":"start","pod":"a","uid":"a","node":"n","gpus":["g0"],"time_ms":1000}
{"event":"end","pod":"a","uid":"a","time_ms":5000,"exit":0}
{"event":"pod","pod":"b","uid":"b","shape":"small","created_ms":900,"admitted_ms":950}
{"event":"start","pod":"b","uid":"b","node":"n","gpus":["g1"],"time_ms":1000}
{"event":"end","pod":"b","uid":"b","time_ms":4000,"exit":0}
{"event":"phase","node":"n","phase":"Draining","for":"l","time_ms":2000}
{"event":"pod","pod":"l","uid":"l","shape":"whole-node-large","created_ms":2000,"admitted_ms":5050}
{"event":"phase","node":"n","phase":"Exclusive","for":"l","time_ms":5050}
{"event":"start","pod":"l","uid":"l","node":"n","gpus":["g0","g1"],"time_ms":5200}
{"event":"end","pod":"l","uid":"l","time_ms":8000,"exit":0}
{"event":"phase","node":"n","phase":"Wave","for":"m","time_ms":8050}
{"event":"pod","pod":"c","uid":"c","shape":"small","created_ms":3000,"admitted_ms":8060}
{"event":"start","pod":"c","uid":"c","node":"n","gpus":["g1"],"time_ms":8100}
{"event":"end","pod":"c","uid":"c","time_ms":9000,"exit":0}
"#;

fn records(input: &str) -> Vec<Record> {
    let (mut records, mut faults) = (Vec::new(), Vec::new());
    read("test", input.as_bytes(), &mut records, &mut faults);
    assert_eq!(faults, []);
    records
}

fn timeline(input: &str) -> Timeline {
    Timeline::new(records(input))
}

fn report(input: &str) -> Report {
    check(&timeline(input), Rules::default())
}

/// The legal history with one line changed; `from` must occur in it once.
fn but(from: &str, to: &str) -> String {
    assert_eq!(LEGAL.matches(from).count(), 1, "{from}");
    LEGAL.replace(from, to)
}

/// Rules that are broken, and the sentences.
fn broken(input: &str) -> Vec<(&'static str, Vec<String>)> {
    let findings = report(input).findings.into_iter();
    let broken = findings.filter(|finding| !finding.violations.is_empty());
    broken.map(|finding| (finding.rule, finding.violations)).collect()
}

fn assert_broken(input: &str, expected: &[(&str, &str)]) {
    let broken = broken(input);
    let flat: Vec<(&str, &str)> = broken
        .iter()
        .flat_map(|(rule, sentences)| sentences.iter().map(|s| (*rule, s.as_str())))
        .collect();
    assert_eq!(flat, expected);
}

const ENDS: &str = "every start has an end";
const AGREE: &str = "the records agree";
const HOLDER: &str = "one container on a GPU at a time";
const SMALL: &str = "a small has exactly one GPU";
const LARGE: &str = "a large has every GPU of its node";
const ALONE: &str = "nothing runs beside a large";
const GATE: &str = "no small is admitted behind a closed gate";
const WAVE: &str = "a wave has at most its size";

fn golden(name: &str, got: &str) {
    const READABLE: &str = "the folder of this test is part of the package";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/timeline").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, got).expect(READABLE);
    }
    let expected = std::fs::read_to_string(&path).expect(READABLE);
    assert!(got == expected, "{name} differs; UPDATE_GOLDEN=1 writes it anew. Got:\n{got}");
}

#[test]
fn the_text_is_as_kept() {
    let demo = timeline(DEMO);
    let report = check(&demo, Rules::default());
    golden("demo.txt", &format!("{}\n{report}", text::render(&demo, PLAIN)));
}

#[test]
fn the_picture_is_as_kept() {
    golden("small.svg", &svg::render(&timeline(LEGAL), "Two GPUs"));
}

#[test]
fn colour_adds_nothing_but_colour() {
    let demo = timeline(DEMO);
    let colored = text::render(&demo, text::Options { color: true, ..PLAIN });
    assert!(colored.contains("\x1b[1;33m") && colored.contains("\x1b[36m"));
    let mut bare = String::new();
    for (at, part) in colored.split('\x1b').enumerate() {
        bare.push_str(if at == 0 { part } else { part.split_once('m').unwrap().1 });
    }
    let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    assert_eq!(trimmed(&bare), trimmed(&text::render(&demo, PLAIN)));
}

#[test]
fn a_legal_history_passes_every_rule_with_cases() {
    let report = report(LEGAL);
    assert_eq!(report.violations(), 0, "{report}");
    let cases: Vec<usize> = report.findings.iter().map(|finding| finding.cases).collect();
    assert_eq!(cases, [4, 4, 2, 3, 1, 1, 1, 1]);
    assert!(report.findings.iter().all(|finding| finding.note.is_none()));
}

#[test]
fn nothing_shown_is_no_pass() {
    let nothing = [(ENDS, "no container reported a start, so nothing was shown")];
    assert_broken("", &nothing);
    assert_broken(r#"{"event":"node","node":"n","gpus":["g0"]}"#, &nothing);
}

#[test]
fn a_start_without_an_end_is_found() {
    let input = but(r#"{"event":"end","pod":"c","uid":"c","time_ms":9000,"exit":0}"#, "");
    assert_broken(&input, &[(ENDS, "c started on node n at 7.2 s and reported no end")]);
}

#[test]
fn an_end_without_a_start_is_found() {
    let input = format!(r#"{LEGAL}{{"event":"end","pod":"a","uid":"a","time_ms":6000}}"#);
    assert_broken(&input, &[(AGREE, "pod a reports an end without a start")]);
}

#[test]
fn a_gpu_held_twice_is_found() {
    let input = but(r#""gpus":["g1"],"time_ms":1000"#, r#""gpus":["g0"],"time_ms":1000"#);
    assert_broken(
        &input,
        &[(HOLDER, "g0 of node n was held by a and b at once, from 100 ms to 3.1 s")],
    );
}

#[test]
fn the_same_gpu_id_on_two_nodes_is_two_gpus() {
    let other = LEGAL.replace(r#""n""#, r#""m""#).replace(r#"uid":""#, r#"uid":"other-"#);
    assert_broken(&format!("{LEGAL}{other}"), &[]);
}

#[test]
fn a_gpu_handed_over_within_one_millisecond_is_held_once() {
    assert_broken(&but(r#""uid":"a","time_ms":5000"#, r#""uid":"a","time_ms":5200"#), &[]);
    let input = but(r#""uid":"a","time_ms":5000"#, r#""uid":"a","time_ms":5201"#);
    assert_eq!(broken(&input).iter().map(|(rule, _)| *rule).collect::<Vec<_>>(), [HOLDER, ALONE]);
}

#[test]
fn a_small_with_two_gpus_or_none_is_found() {
    let input = but(r#""gpus":["g1"],"time_ms":8100"#, r#""gpus":["g1","g0"],"time_ms":8100"#);
    assert_broken(&input, &[(SMALL, "c is small and saw 2 GPUs on node n, not one")]);
    let input = but(r#""gpus":["g1"],"time_ms":8100"#, r#""gpus":[],"time_ms":8100"#);
    assert_broken(&input, &[(SMALL, "c is small and saw 0 GPUs on node n, not one")]);
}

#[test]
fn a_large_without_every_gpu_is_found() {
    let input = but(r#""gpus":["g0","g1"],"time_ms":5200"#, r#""gpus":["g0"],"time_ms":5200"#);
    assert_broken(&input, &[(LARGE, "l is large and saw 1 of the 2 GPUs of node n")]);
}

#[test]
fn a_pod_of_unknown_shape_with_several_gpus_is_held_to_be_large() {
    let input = r#"
{"event":"node","node":"n","gpus":["g0","g1","g2"]}
{"event":"start","pod":"x","uid":"x","node":"n","gpus":["g0","g2"],"time_ms":1}
{"event":"end","pod":"x","uid":"x","time_ms":2}"#;
    assert_broken(input, &[(LARGE, "x is large and saw 2 of the 3 GPUs of node n")]);
}

#[test]
fn a_small_beside_a_large_is_found() {
    // The large has lost a GPU to the small, so each of the two rules has something to say.
    let input = but(r#""gpus":["g0","g1"],"time_ms":5200"#, r#""gpus":["g0"],"time_ms":5200"#)
        .replace(r#""gpus":["g1"],"time_ms":8100"#, r#""gpus":["g1"],"time_ms":7100"#);
    assert_broken(
        &input,
        &[
            (LARGE, "l is large and saw 1 of the 2 GPUs of node n"),
            (ALONE, "c ran beside l on node n from 6.2 s to 7.1 s, and one of them is large"),
        ],
    );
}

/// A small that is admitted and starts while `g1` is idle behind the gate.
fn behind_the_gate(admitted: &str) -> String {
    format!(
        r#"{LEGAL}
{{"event":"pod","pod":"d","uid":"d","shape":"small","created_ms":1500{admitted}}}
{{"event":"start","pod":"d","uid":"d","node":"n","gpus":["g1"],"time_ms":4200}}
{{"event":"end","pod":"d","uid":"d","time_ms":4800}}"#
    )
}

#[test]
fn a_small_admitted_behind_the_gate_is_found() {
    let input = behind_the_gate(r#","admitted_ms":4100"#);
    let sentence = "d was admitted to node n at 3.2 s, behind the gate that closed at 1.1 s for l";
    assert_broken(&input, &[(GATE, sentence)]);

    // Admitted before the gate closed: the container may start late.
    assert_broken(&behind_the_gate(r#","admitted_ms":1990"#), &[]);
    // Two watches may tell the two facts in the wrong order, but not by more than the slack.
    assert_broken(&behind_the_gate(r#","admitted_ms":2250"#), &[]);
    assert_eq!(broken(&behind_the_gate(r#","admitted_ms":2251"#)).len(), 1);

    let rules = Rules { backfill: true, ..Rules::default() };
    let allowed = check(&timeline(&input), rules);
    assert_eq!(allowed.violations(), 0);
    assert!(allowed.to_string().contains("not judged: the pool allows backfill"));
}

#[test]
fn a_verdict_says_what_it_could_not_judge() {
    let report = report(&behind_the_gate(""));
    assert_eq!(report.violations(), 0);
    assert!(report.to_string().contains("(1 start without an admission time)"), "{report}");

    let unlisted = check(
        &timeline(&but(r#"{"event":"node","node":"n","gpus":["g0","g1"]}"#, "")),
        Rules::default(),
    );
    assert_eq!(unlisted.violations(), 0);
    assert!(unlisted.to_string().contains("against the GPUs that were seen"), "{unlisted}");
}

#[test]
fn a_wave_beyond_its_size_is_found() {
    // Two more smalls on one GPU, one after the other: only the wave's size is exceeded.
    let more = r#"
{"event":"start","pod":"e","uid":"e","node":"n","gpus":["g0"],"time_ms":8100}
{"event":"end","pod":"e","uid":"e","time_ms":8200}
{"event":"start","pod":"f","uid":"f","node":"n","gpus":["g0"],"time_ms":8300}
{"event":"end","pod":"f","uid":"f","time_ms":9000}
{"event":"phase","node":"n","phase":"Draining","for":"m","time_ms":9500}"#;
    let input = format!("{LEGAL}{more}");
    let sentence = "3 smalls started in the wave on node n from 7.2 s to 8.6 s, and 2 may";
    assert_broken(&input, &[(WAVE, sentence)]);
    let wider = Rules { wave_size: Some(3), ..Rules::default() };
    assert_eq!(check(&timeline(&input), wider).violations(), 0);
    // A container that is started again in the same pod takes no further place.
    let again = input.replace(r#""f""#, r#""e""#);
    assert_broken(&again, &[]);
    // The wave is one, also where the large behind it changes meanwhile.
    let split = r#"
{"event":"phase","node":"n","phase":"Wave","for":"other","time_ms":8250}"#;
    assert_eq!(broken(&format!("{input}{split}")).len(), 1);
}

#[test]
fn records_that_contradict_each_other_are_found() {
    let input = but(r#""gpus":["g1"],"time_ms":8100"#, r#""gpus":["g9"],"time_ms":8100"#);
    let sentences: Vec<String> = broken(&input).into_iter().flat_map(|(_, s)| s).collect();
    assert!(
        sentences.contains(
            &"a container on node n saw GPU g9, which the node's list does not have".to_owned()
        ),
        "{sentences:?}"
    );
    let input = format!(r#"{LEGAL}{{"event":"pod","pod":"z","uid":"a","shape":"small"}}"#);
    assert_broken(&input, &[(AGREE, "one pod has the names a and z")]);
    let input =
        format!(r#"{LEGAL}{{"event":"pod","pod":"a","uid":"a","shape":"whole-node-large"}}"#);
    assert_broken(&input, &[(AGREE, "pod a is said to be small and whole-node-large")]);
}

#[test]
fn a_list_that_grew_is_no_contradiction() {
    let input = format!(r#"{LEGAL}{{"event":"node","node":"n","gpus":["g1"]}}"#);
    assert_broken(&input, &[]);
    assert_eq!(timeline(&input).nodes[0].gpus, ["g0", "g1"]);
}

#[test]
fn every_bad_line_is_reported_with_its_place() {
    let input = b"\n{\"event\":\"start\",\"pod\":\"a\"}\nnonsense\n\
        {\"event\":\"end\",\"pod\":\"a\",\"uid\":\"\",\"time_ms\":1}\n\
        {\"event\":\"phase\",\"node\":\"n\",\"phase\":\"Shut\",\"time_ms\":1}\n\
        {\"event\":\"end\",\"pod\":\"a\",\"uid\":\"a\",\"time_ms\":-1}\n\
        {\"event\":\"node\",\"node\":\"n\",\"gpus\":[\"g\",\"g\"]}\n\
        {\"event\":\"other\"}\n\xff\n\
        {\"event\":\"end\",\"pod\":\"a\",\"uid\":\"a\",\"time_ms\":1,\"more\":[]}";
    let (mut records, mut faults) = (Vec::new(), Vec::new());
    read("f", input, &mut records, &mut faults);
    assert_eq!(records.len(), 1);
    let shown: Vec<String> = faults.iter().map(Fault::to_string).collect();
    let parts = [
        ("f:2: ", "missing field `time_ms`"),
        ("f:3: ", "expected ident (column 2)"),
        ("f:4: ", "field `uid` is empty"),
        ("f:5: ", "unknown variant `Shut`"),
        ("f:6: ", "invalid value: integer `-1`"),
        ("f:7: ", "GPU g is named twice"),
        ("f:8: ", "unknown variant `other`"),
        ("f:9: ", "expected value"),
    ];
    assert_eq!(shown.len(), parts.len(), "{shown:#?}");
    for (line, (place, reason)) in shown.iter().zip(parts) {
        assert!(line.starts_with(place) && line.contains(reason), "{line}");
    }
}

#[test]
fn a_container_started_again_in_its_pod_is_two_runs() {
    let input = r#"
{"event":"start","pod":"a","uid":"a","node":"n","gpus":["g0"],"time_ms":10}
{"event":"start","pod":"a","uid":"a","node":"n","gpus":["g0"],"time_ms":20}
{"event":"end","pod":"a","uid":"a","time_ms":30,"exit":3}"#;
    let timeline = timeline(input);
    let runs: Vec<_> = timeline.nodes[0]
        .runs
        .iter()
        .map(|run| (run.from_ms, run.to_ms, run.ended, run.exit))
        .collect();
    assert_eq!(runs, [(10, 20, false, None), (20, 30, true, Some(3))]);
    assert_broken(input, &[(ENDS, "a started on node n at 0 ms and reported no end")]);
}

#[test]
fn names_are_shown_without_a_namespace_that_all_share() {
    let one = LEGAL.replace(r#""pod":"a""#, r#""pod":"team/a""#);
    assert!(timeline(&one).pods.iter().all(|pod| !pod.name.contains('/')));
    let two = one.replace(r#""pod":"b""#, r#""pod":"other/b""#);
    assert_eq!(timeline(&two).pods[0].name, "other/b");
}

#[test]
fn gpus_are_in_natural_order_unless_listed() {
    let line = |at: usize| {
        let run = format!(r#""pod":"p{at}","uid":"p{at}""#);
        [
            format!(r#"{{"event":"start",{run},"node":"n","gpus":["gpu-{at}"],"time_ms":1}}"#),
            format!(r#"{{"event":"end",{run},"time_ms":9}}"#),
        ]
        .join("\n")
    };
    let input = (0..12).rev().map(line).collect::<Vec<_>>().join("\n");
    let expected: Vec<String> = (0..12).map(|at| format!("gpu-{at}")).collect();
    assert_eq!(timeline(&input).nodes[0].gpus, expected);
}

#[test]
fn the_command_reads_files_writes_the_picture_and_tells_by_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (dir.path().join("good.jsonl"), dir.path().join("bad.jsonl"));
    std::fs::write(&good, LEGAL).unwrap();
    std::fs::write(&bad, "{\"event\":\"end\"}\n[]\n").unwrap();
    let picture = dir.path().join("out.svg");
    let sluice = |args: &[&Path]| {
        Command::new(env!("CARGO_BIN_EXE_sluice")).arg("timeline").args(args).output().unwrap()
    };

    let run = sluice(&[&good, "--check".as_ref(), "--svg".as_ref(), &picture]);
    assert!(run.status.success(), "{run:?}");
    assert!(String::from_utf8(run.stdout).unwrap().ends_with("Every rule holds.\n"));
    let title = "Which pod ran on which GPUs";
    assert_eq!(std::fs::read_to_string(picture).unwrap(), svg::render(&timeline(LEGAL), title));

    let run = sluice(&[&good, "--check".as_ref(), "--json".as_ref()]);
    let json: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["timeline"]["pods"][0]["shape"], "small");
    assert_eq!(json["check"]["findings"][0]["cases"], 4);

    let run = sluice(&[&good, &bad]);
    assert!(!run.status.success());
    let shown = String::from_utf8(run.stderr).unwrap();
    assert!(shown.contains("bad.jsonl:1: ") && shown.contains("bad.jsonl:2: "), "{shown}");

    let empty = dir.path().join("empty.jsonl");
    std::fs::write(&empty, "").unwrap();
    assert!(!sluice(&[&empty, "--check".as_ref()]).status.success());
    assert!(sluice(&[&empty]).status.success(), "to show nothing is no fault");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Schedules that keep the rule pass, whatever the order of the lines and however often they
    /// are given, and both pictures can be drawn of them.
    #[test]
    fn legal_schedules_pass(plan in schedule::plan(), rotate in 0..1000_usize) {
        let ordered = lines(&plan);
        let timeline = Timeline::new(records(&ordered.join("\n")));
        let report = check(&timeline, Rules::default());
        prop_assert_eq!(report.violations(), 0, "{}\n{}", report, text::render(&timeline, PLAIN));
        let starts = ordered.iter().filter(|line| line.contains(r#""start""#)).count();
        prop_assert_eq!(report.findings[0].cases, starts);
        prop_assert_eq!(starts, plan.pods.len());

        let mut other = ordered.clone();
        other.rotate_left(rotate % ordered.len());
        other.extend(ordered);
        let other = Timeline::new(records(&other.join("\n")));
        prop_assert_eq!(&other, &timeline);
        prop_assert_eq!(svg::render(&other, "t"), svg::render(&timeline, "t"));
        for width in [1, 40, 100, 300] {
            for line in text::render(&timeline, text::Options { width, ..PLAIN }).lines() {
                prop_assert!(!line.contains('!') || line.starts_with("!!!"), "{}", line);
            }
        }
    }

    /// One container moved onto another's GPU, or one large cut short of a GPU, does not pass.
    #[test]
    fn spoilt_schedules_fail(plan in schedule::plan(), pick in 0..1000_usize) {
        let mut lines = lines(&plan);
        let starts: Vec<usize> = (0..lines.len())
            .filter(|at| lines[*at].contains(r#""event":"start""#))
            .collect();
        let at = starts[pick % starts.len()];
        let mut value: serde_json::Value = serde_json::from_str(&lines[at]).unwrap();
        let gpus = value["gpus"].as_array_mut().unwrap();
        if gpus.len() > 1 {
            gpus.pop();
        } else {
            gpus.push("gpu-none".into());
        }
        lines[at] = value.to_string();
        let timeline = Timeline::new(records(&lines.join("\n")));
        prop_assert!(check(&timeline, Rules::default()).violations() > 0);
    }
}

/// Keeps the generator honest: what it makes has drains, larges and waves.
#[test]
fn generated_schedules_show_the_whole_rule() {
    let plan = Plan {
        gpus: 4,
        pods: (0..30)
            .map(|at| schedule::Job {
                large: at % 9 == 4,
                created_ms: at * 300,
                runs_ms: 1000 + at % 7 * 400,
                lag_ms: 100,
            })
            .collect(),
    };
    let report = check(&Timeline::new(records(&lines(&plan).join("\n"))), Rules::default());
    assert_eq!(report.violations(), 0, "{report}");
    assert!(report.findings.iter().all(|finding| finding.cases > 0), "{report}");
}

//! `sluice replay` and `sluice explain` as they are called, on records that are kept in
//! `tests/records`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const RECORDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/records/v1.jsonl");

fn sluice(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(args)
        .env_remove("SLUICE_LOG")
        .env_remove("SLUICE_LOG_FORMAT")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that ends before it has read all of it is judged by what it says.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn complained(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The first of the histories in the file: one pool, from its first state to its last.
fn day() -> String {
    let text = std::fs::read_to_string(RECORDS).unwrap();
    let mut states = 0;
    let whole = |line: &&str| {
        states += usize::from(line.contains("\"is\":{\"state\":"));
        states < 3
    };
    text.lines().take_while(whole).flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn the_same_decisions_are_a_success() {
    let output = sluice(&["replay", RECORDS], "");
    assert!(output.status.success(), "{}", complained(&output));
    assert!(said(&output).contains("the same decisions"), "{}", said(&output));
    let output = sluice(&["replay", "-", "-o", "json"], &day());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["pools"]["default"]["steps"], 10);
    assert_eq!(value["differences"], serde_json::json!([]));
}

#[test]
fn another_decision_is_a_failure_that_names_the_record() {
    let changed = day().replacen("\"wave_size\":8", "\"wave_size\":3", 1);
    let output = sluice(&["replay", "-"], &changed);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("-:8: pool default, step 7 at 60000 ms: decision 5"));
    assert!(complained(&output).contains("this code decides otherwise in one place"));
}

#[test]
fn a_file_that_is_cut_off_is_a_failure_that_says_so() {
    let text = day();
    let output = sluice(&["replay", "-"], &text[..text.len() - 9]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("-:12: found only the beginning of a record"));
    assert!(complained(&output).contains("not everything could be replayed: one fault"));
}

#[test]
fn a_pod_is_explained_at_any_moment_of_the_records() {
    let page = |at: &str| {
        let args = ["explain", "pod/B", "--snapshot", "-", "--at", at];
        let output = sluice(&args, &day());
        assert!(output.status.success(), "{}", complained(&output));
        said(&output)
    };
    let waits = page("1970-01-01T00:00:02Z");
    let lines: Vec<&str> = waits.lines().take(3).collect();
    assert_eq!(
        lines,
        [
            "team/B (whole-node-large in pool default) waits: Behind.",
            "1 pod of this shape stands before it; team/A goes first.",
            "It is number 2 of 2 whole-node pods that wait. It was created at 1970-01-01 00:00:01 \
             UTC.",
        ]
    );
    assert!(page("1970-01-01T00:01:00Z").starts_with(
        "team/B (whole-node-large in pool default) waits: Wave.\nNode n0 is next for this pod, \
         after one wave of small pods: team/t1, team/t2, team/t3, team/t4 and 4 others run there"
    ));
    assert!(page("1970-01-01T00:01:10Z").starts_with(
        "team/B (whole-node-large in pool default) Running.\nThe pod runs on GPUs 0, 1, 2, 3, 4, \
         5, 6, 7 of node n0.\n"
    ));
}

#[test]
fn what_a_pod_was_told_stays_while_nothing_happens() {
    let page = |at: &str| {
        let args = ["explain", "t9", "--snapshot", "-", "--at", at];
        let output = sluice(&args, &day());
        assert!(output.status.success(), "{}", complained(&output));
        said(&output)
    };
    for at in ["00:01:00", "00:01:05", "00:01:09", "00:01:10"] {
        let page = page(&format!("1970-01-01T{at}Z"));
        assert!(page.contains("\nIt starts by 1970-01-01 00:15:40 UTC at the latest."), "{page}");
    }
}

#[test]
fn a_moment_that_the_records_do_not_reach_is_refused() {
    let complaint = |at: &str| {
        let output = sluice(&["explain", "t9", "--snapshot", "-", "--at", at], &day());
        assert!(!output.status.success(), "{}", said(&output));
        complained(&output)
    };
    let over = "the records of - end at 1970-01-01 00:01:10 UTC: of later they say nothing";
    assert!(complaint("1970-01-01T00:01:10.001Z").contains(over));
    assert!(complaint("2030-01-01T00:00:00Z").contains(over));
    assert!(complaint("1960-01-01T00:00:00Z").contains("not a time from 1970 on, such as 2026"));
}

#[test]
fn a_page_from_records_that_are_decided_otherwise_comes_with_a_warning() {
    let changed = day().replacen("\"wave_size\":8", "\"wave_size\":3", 1);
    let output = sluice(&["explain", "t9", "--snapshot", "-"], &changed);
    assert!(output.status.success(), "{}", complained(&output));
    let warning = complained(&output);
    assert!(
        warning.contains("-:8: pool default, step 7: this code decides otherwise"),
        "{warning}"
    );
    let at = ["explain", "t9", "--snapshot", "-", "--at", "1970-01-01T00:01:09Z"];
    let output = sluice(&at, &changed);
    assert!(!output.status.success());
    let complaint = complained(&output);
    assert!(complaint.contains("since this code decides otherwise from line 8 on"), "{complaint}");
}

#[test]
fn an_explanation_for_programs_has_the_same_facts() {
    let args = ["explain", "t9", "-n", "team", "--snapshot", "-", "-o", "json"];
    let output = sluice(&args, &day());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&value["pod"], &value["reason"]), (&"team/t9".into(), &"Exclusive".into()));
    assert_eq!(value["waits"]["first"][0]["pods"][0]["pod"], "team/B");
}

#[test]
fn who_cannot_be_explained_is_told_why() {
    let complaint = |args: &[&str]| {
        let output = sluice(&[&["explain", "--snapshot", "-"], args].concat(), &day());
        assert_eq!(output.status.code(), Some(1));
        complained(&output)
    };
    assert!(complaint(&["nobody"]).contains("- does not know of a pod nobody"));
    assert!(complaint(&["B", "-n", "other"]).contains("does not know of a pod B"));
    assert!(
        complaint(&["s1"]).contains("pod s1 neither waits nor holds GPUs at 1970-01-01 00:01:10")
    );
}

//! The command line, as scripts use it.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn sluice(args: &[&str]) -> Output {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/scenarios");
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).current_dir(data).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = sluice(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Searches short enough for a build without optimisation.
const QUICK: [&str; 4] = ["--online-budget", "50", "--offline-budget", "500"];
const MIXED: [&str; 4] = ["simulate", "3-mixed.csv", "--demand", "3-mixed.demand.csv"];

#[test]
fn programs_get_the_fields_that_are_promised() {
    // A name that comes twice is played once.
    let policies = "fifo-strict-peak,easy-elastic,fifo-strict-peak";
    let out = json(&[&MIXED[..], &["--policy", policies, "--json", "--check"]].concat());
    let policies = out["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 2);
    for (policy, name) in policies.iter().zip(["fifo-strict-peak", "easy-elastic"]) {
        assert_eq!(policy["name"], name);
        let utilisation = policy["utilisation"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&utilisation));
        for field in ["value_gpu_hours", "value_done", "rt_shortfall_gpu_hours"] {
            assert!(policy[field].is_f64(), "{field}");
        }
        for field in ["deadline_misses", "jobs_started"] {
            assert!(policy[field].is_u64(), "{field}");
        }
        assert_eq!(policy["violations"], Value::Array(Vec::new()));
        let schedule = policy["schedule"].as_array().unwrap();
        assert_eq!(schedule.len() as u64, policy["jobs_started"].as_u64().unwrap());
        let run = &schedule[0];
        assert!(run["job_id"].is_string() && run["gpus"].is_array());
        assert!(run["end_min"].as_u64().unwrap() > run["start_min"].as_u64().unwrap());
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let once = || sluice(&[&MIXED[..], &QUICK, &["--json"]].concat()).stdout;
    assert!(!once().is_empty());
    assert_eq!(once(), once());
}

#[test]
fn people_get_a_table_and_faults_with_their_place() {
    let output = sluice(&[&MIXED[..], &QUICK].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "30 jobs on 8 GPUs",
        "peak/mean",
        "upper bound",
        "fifo-strict-peak",
        "phase-fair",
        "left out",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let output = sluice(&["simulate", "3-mixed.csv"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("3-mixed.csv:2: column expected_duration"), "{text}");
    let output = sluice(&["simulate", "3-mixed.csv", "--policy", "no-such"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("phase-fair"));
}

#[test]
fn a_plan_is_a_table_of_starts_with_their_reasons() {
    let plan = ["plan", "3-mixed.csv", "--demand", "3-mixed.demand.csv", "--check"];
    let output = sluice(&[&plan[..], &QUICK].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut reader = csv::Reader::from_reader(&output.stdout[..]);
    assert_eq!(&reader.headers().unwrap()[1], "job_id");
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 30, "each job has a line, started or not");
    assert!(rows.iter().any(|row| &row[7] == "planned"));
    assert!(rows.iter().any(|row| &row[7] == "no-room" && row[4].is_empty()));
}

/// What runs at the moment of planning stays where it is.
#[test]
fn a_plan_from_now_on_inherits_what_runs() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = folder.path().join("jobs.csv");
    let header = "job_id,workload_type,priority,arrival_time,deadline,min_gpus,max_gpus,\
                  expected_duration,actual_start,actual_end,gpu_ids,outcome\n";
    let rows = "gone,eval,5,06:00,,2,2,2h,06:00,08:00,0-1,completed\n\
                runs,train,5,07:00,,3,3,4h,08:00,,2-4,running\n\
                new,train,5,08:30,,8,8,2h,,,,\n";
    std::fs::write(&jobs, format!("{header}{rows}")).unwrap();
    let jobs = jobs.to_str().unwrap();
    let args = ["plan", jobs, "--now", "09:00", "--check", "--offline-budget", "100"];
    let output = sluice(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("runs,5,2-4,09:00,12:00,yes,inherited"), "{text}");
    assert!(text.contains("new,5,0-7,12:00,14:00,yes,planned"), "{text}");
    assert!(!text.contains("gone"), "{text}");
}

/// The options of `simulate` are those of `plan`; JSON is all that goes to standard output.
#[test]
fn plan_takes_the_options_of_simulate() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (svg, html) = (path("a.svg"), path("a.html"));
    for command in ["simulate", "plan"] {
        let out = json(&[
            command,
            "3-mixed.csv",
            "--demand",
            "3-mixed.demand.csv",
            "--policy",
            "easy-elastic,greedy",
            "--gpus",
            "8",
            "--horizon",
            "24h",
            "--step",
            "15m",
            "--seed",
            "7",
            "--json",
            "--svg",
            &svg,
            "--html",
            &html,
            "--check",
        ]);
        assert_eq!(out["seed"], 7);
        let names: Vec<_> =
            out["policies"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
        assert_eq!(names, ["easy-elastic", "greedy"]);
        assert!(
            out["policies"][0]["upper_bound"].as_f64() >= out["policies"][0]["value_done"].as_f64()
        );
        let score = &out["policies"][0]["schedule"][0]["score"];
        for term in [
            "useful_work",
            "realtime_shortfall",
            "churn",
            "fragmentation",
            "deadline_risk",
            "staleness_risk",
        ] {
            assert!(score[term].is_i64(), "{term}: {score}");
        }
        for file in [&svg, &html] {
            assert!(std::fs::read_to_string(file).unwrap().contains("<svg "), "{file}");
            std::fs::remove_file(file).unwrap();
        }
    }
    let output = sluice(&["simulate", "3-mixed.csv", "--svg", "/no/such/folder/a.svg"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
}

#[test]
fn a_review_answers_and_says_when_the_record_contradicts_itself() {
    let review = ["review", "3-mixed.csv", "--demand", "3-mixed.demand.csv", "--as"];
    let out = json(&[&review[..], &["fifo-skip-peak", "--online-budget", "20", "--json"]].concat());
    let answers = out["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 5);
    for (number, answer) in (1..).zip(answers) {
        assert!(answer["question"].as_str().unwrap().starts_with(&format!("{number}. ")));
    }
    assert_eq!(out["contradictions"], Value::Array(Vec::new()));

    let folder = tempfile::tempdir().unwrap();
    let jobs = folder.path().join("jobs.csv");
    let list = "job_id,workload_type,priority,arrival_time,deadline,min_gpus,max_gpus,\
                expected_duration,actual_start,actual_end,gpu_ids\n\
                one,eval,5,00:00,,2,2,2h,00:00,02:00,0-1\n\
                two,eval,5,00:00,,2,2,2h,01:00,03:00,1-2\n";
    std::fs::write(&jobs, list).unwrap();
    let jobs = jobs.to_str().unwrap();
    assert!(sluice(&["review", jobs]).status.success());
    let output = sluice(&["review", jobs, "--check"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("the record contradicts itself once"), "{text}");
    assert!(text.contains("one and two both held GPUs {1} at 01:00"), "{text}");
    assert!(text.contains("5. Which estimates"), "{text}");
    std::fs::write(jobs, b"job_id,\xff\n").unwrap();
    let output = sluice(&["review", jobs]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("jobs.csv:1: found the byte 0xff; allowed: text in UTF-8"), "{text}");
}

/// A list through a pipe, with other widths left out for everybody.
#[test]
fn a_list_comes_through_a_pipe() {
    use std::io::Write as _;
    use std::process::Stdio;
    let list = "job_id,submission_time,duration,num_gpu\nx,0,3600,8\ny,60,60,1\nz,60,60,4\n";
    let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["simulate", "-", "--only-widths", "1,8", "--policy", "phase-fair,easy-peak"])
        .args(["--json", "--check"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let out: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(out["problem"]["jobs"], 2);
    assert!(out["remarks"][0]["found"].as_str().unwrap().starts_with("1 jobs of other widths"));
    assert_eq!(out["policies"][0]["schedule"][1]["start_min"], 60);
}

/// The first interrupt ends the search with the best so far; what had not begun is left out.
#[test]
fn an_interrupt_gives_the_best_so_far() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::process::Stdio;
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/scenarios");
    let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["simulate", "5-small-jobs.csv", "--demand", "5-small-jobs.demand.csv", "--policy"])
        .args(["plan-offline,greedy", "--offline-budget", "4000000000", "--json", "--check"])
        .current_dir(data)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It is interrupted once it says to the kernel that it listens to interrupts.
    let status = format!("/proc/{}/status", child.id());
    let listens = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        caught.is_some_and(|mask| mask >> 1 & 1 == 1)
    };
    while !listens() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let out: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(out["interrupted"], true);
    assert_eq!(out["policies"][0]["name"], "plan-offline");
    assert!(out["policies"][0]["jobs_started"].as_u64().unwrap() > 0);
    let skipped = serde_json::json!([{
        "name": "greedy", "reason": "interrupted before it began",
    }]);
    assert_eq!(out["skipped"], skipped);
}

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
    let policies = "fifo-strict-peak,easy-elastic";
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

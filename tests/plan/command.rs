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
    let once = || sluice(&[&MIXED[..], &["--json"]].concat()).stdout;
    assert!(!once().is_empty());
    assert_eq!(once(), once());
}

#[test]
fn people_get_a_table_and_faults_with_their_place() {
    let output = sluice(&MIXED);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["30 jobs on 8 GPUs", "peak/mean", "fifo-strict-peak", "phase-fair", "left out"] {
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

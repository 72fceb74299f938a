//! The five questions, on days whose answers can be worked out by hand.

use sluice::plan::compare::Effort;
use sluice::plan::review::{Answer, review};
use sluice::trace::{Source, Workload};

use crate::support::quick;

const HEADER: &str = "job_id,workload_type,priority,arrival_time,deadline,min_gpus,max_gpus,\
                      expected_duration,actual_start,actual_end,gpu_ids,outcome,user\n";

fn answers(rows: &str, demand: Option<&str>) -> Vec<Answer> {
    let jobs = format!("{HEADER}{rows}");
    let demand = demand.map(|content| Source { name: "demand.csv", content });
    let workload = Workload::read(Source { name: "jobs.csv", content: &jobs }, demand)
        .unwrap_or_else(|faults| panic!("{faults}"));
    review(&workload, 8, &Effort { online: Some(50), ..quick() })
}

#[test]
fn idle_reservations_are_named_by_gpu_and_interval() {
    let rows = "rt,serve,10,00:00,24:00,1,3,demand-curve,,,5-7,,\n";
    let all = answers(rows, Some("job_id,time,gpus\nrt,00:00,1\nrt,08:00,3\nrt,20:00,0\n"));
    // GPU 5 serves the floor all day; 6 and 7 only from 8 to 20.
    assert_eq!(all[0].figures["idle_gpu_hours"], 24.0);
    assert_eq!(all[0].figures["gpus"][0]["gpu"], 6);
    assert_eq!(all[0].figures["gpus"][0]["intervals_min"][0], serde_json::json!([0, 480]));
    assert_eq!(all[0].figures["gpus"][1]["intervals_min"][1], serde_json::json!([1200, 1440]));
    assert!(all[0].details[0].contains("GPU 6: idle 12.0 h, longest"), "{:?}", all[0].details);
}

#[test]
fn a_block_missed_names_what_would_have_joined_it() {
    // Six are free from 1:00 on, but split by one in the middle until 5:00.
    let rows = "low,eval,5,00:00,,2,2,1h,00:00,01:00,0-1,completed,\n\
                mid,eval,5,00:00,,1,1,5h,00:00,05:00,4,completed,\n\
                end,eval,5,00:00,,1,1,5h,00:00,05:00,7,completed,\n\
                big,train,5,00:30,,5,5,1h,05:00,06:00,0-4,completed,\n";
    let all = answers(rows, None);
    let jobs = all[1].figures["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 1, "{}", all[1]);
    assert_eq!(jobs[0]["job_id"], "big");
    // From 1:00 to 5:00; before that only four are free.
    assert_eq!(jobs[0]["hours"], 4.0);
    assert_eq!(jobs[0]["joined_by"], serde_json::json!(["mid"]));
}

#[test]
fn inversions_say_whether_they_could_have_been_avoided() {
    let rows = "calm,batch,2,00:00,24:00,8,8,4h,00:00,04:00,0-7,completed,\n\
                high,train,9,01:00,12:00,4,4,2h,04:00,06:00,0-3,completed,\n\
                rush,batch,1,04:00,07:00,4,4,2h,04:00,06:00,4-7,completed,\n\
                next,train,8,05:00,20:00,8,8,1h,06:00,07:00,0-7,completed,\n";
    let all = answers(rows, None);
    let pairs = all[2].figures["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 1, "{}", all[2]);
    assert_eq!((&pairs[0]["low"], &pairs[0]["high"]), (&"calm".into(), &"high".into()));
    assert_eq!((&pairs[0]["wait_hours"], &pairs[0]["avoidable"]), (&3.0.into(), &true.into()));
}

#[test]
fn a_trough_is_given_away_only_once() {
    let rows = "rt,serve,10,00:00,24:00,0,8,demand-curve,,,0-7,,\n\
                one,train,5,00:00,12:00,8,8,4h,12:00,16:00,0-7,completed,\n\
                two,train,4,00:00,12:00,8,8,4h,16:00,20:00,0-7,completed,\n\
                six,train,3,00:00,12:00,8,8,4h,,,,cancelled,\n";
    let demand = "job_id,time,gpus\nrt,00:00,0\nrt,08:00,6\nrt,11:00,0\n";
    let all = answers(rows, Some(demand));
    let jobs = all[3].figures["jobs"].as_array().unwrap();
    // Eight hours without demand hold two of the three.
    let names: Vec<_> = jobs.iter().map(|job| (&job["job_id"], &job["start_min"])).collect();
    assert_eq!(names, [(&"one".into(), &0.into()), (&"two".into(), &240.into())], "{}", all[3]);
    assert!(jobs.iter().all(|job| job["would_have_been_in_time"] == true));
}

#[test]
fn estimates_are_judged_by_their_consequence() {
    // The second is believed to fit before noon and does not; the third would have.
    let rows = "good,eval,5,00:00,,1,1,2h,00:00,02:00,0,completed,ann\n\
                bad,train,9,00:00,12:00,8,8,10h,00:00,20:00,0-7,completed,ben\n\
                lost,train,6,00:00,12:00,8,8,11h,20:00,24:00,0-7,failed,ben\n\
                third,sweep,6,00:00,12:00,8,8,8h,13:00,21:00,0-7,completed,ann\n";
    let all = answers(rows, None);
    let groups = all[4].figures["groups"].as_array().unwrap();
    let group = |name: &str| groups.iter().find(|group| group["group"] == name).unwrap();
    assert_eq!(group("train")["median_ratio"], 2.0);
    assert_eq!(group("train")["runs"], 1, "one that failed says nothing about its estimate");
    assert_eq!(all[4].figures["left_out"], 1);
    assert_eq!(group("eval")["value_done_change_percent"], 0.0);
    assert!(group("train")["value_done_change_percent"].as_f64().unwrap() > 2.0, "{}", all[4]);
    assert_eq!(group("user ben")["median_ratio"], 2.0);
}

#[test]
fn what_the_record_lacks_is_named() {
    let jobs = "job_id,submission_time,duration,num_gpu\nx,0,3600,8\n";
    let workload = Workload::read(Source { name: "itp", content: jobs }, None).unwrap();
    let all = review(&workload, 8, &quick());
    assert_eq!(all.len(), 5);
    for (answer, need) in all.iter().zip([
        "a service",
        "column actual_start",
        "column priority",
        "column gpu_ids",
        "column actual_end",
    ]) {
        assert!(answer.summary.starts_with("cannot be answered: needs "), "{answer}");
        assert!(answer.needs.iter().any(|n| n.starts_with(need)), "{need}: {:?}", answer.needs);
    }
}

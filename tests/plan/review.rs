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
    let review = review(&workload, 8, 1, &Effort { online: Some(50), ..quick() });
    assert_eq!(review.contradictions, [""; 0]);
    review.answers
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
    assert!(all[0].details[0].contains("GPU 6 (rt): idle 12.0 h, longest"), "{:?}", all[0].details);
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
                bad,train,9,00:00,12:00,8,8,10h,02:00,22:00,0-7,completed,ben\n\
                lost,train,6,00:00,12:00,8,8,11h,D+1 06:00,D+1 10:00,0-7,failed,ben\n\
                third,sweep,6,00:00,12:00,8,8,8h,22:00,D+1 06:00,0-7,completed,ann\n";
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
    let all = review(&workload, 8, 1, &quick()).answers;
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

#[test]
fn a_gpu_is_not_idle_while_a_job_runs_on_it_and_each_service_has_its_own() {
    // chat keeps 6-7 and needs one until noon, then two; code keeps 4-5 from 06:00 to 18:00 and
    // needs none but its floor of one. A job borrowed GPU 7 from 02:00 to 04:00.
    let rows = "chat,serve,10,00:00,24:00,0,2,demand-curve,,,6-7,,\n\
                code,serve,9,06:00,18:00,1,2,demand-curve,,,4-5,,\n\
                eval,eval,5,00:00,,1,1,2h,02:00,04:00,7,completed,\n";
    let demand = "job_id,time,gpus\nchat,00:00,1\nchat,12:00,2\ncode,00:00,0\n";
    let all = answers(rows, Some(demand));
    let gpus = all[0].figures["gpus"].as_array().unwrap();
    let facts: Vec<_> = gpus
        .iter()
        .map(|gpu| {
            (gpu["gpu"].as_u64().unwrap(), gpu["service"].as_str().unwrap(), &gpu["intervals_min"])
        })
        .collect();
    let code = serde_json::json!([[360, 1080]]);
    let chat = serde_json::json!([[0, 120], [240, 720]]);
    assert_eq!(facts, [(5, "code", &code), (7, "chat", &chat)], "{}", all[0]);
    assert_eq!(all[0].figures["idle_gpu_hours"], 22.0);
}

#[test]
fn blocks_are_missed_on_each_node_and_over_several() {
    // Until 02:00 four are free on each of two nodes, and big needs eight: they lie on two nodes.
    // mid needs four, and finds two and two on `a`, one job between them, until 01:00.
    let header = HEADER.replace("gpu_ids", "gpu_ids,node");
    let jobs = format!(
        "{header}one,eval,5,00:00,,2,2,1h,00:00,01:00,2-3,a,completed,\n\
         two,eval,5,00:00,,2,2,2h,00:00,02:00,6-7,a,completed,\n\
         low,eval,5,00:00,,6,6,2h,00:00,02:00,0-5,b,completed,\n\
         mid,train,5,00:00,,4,4,1h,01:00,02:00,0-3,a,completed,\n\
         big,train,5,00:00,,8,8,1h,02:00,03:00,0-7,a,completed,\n"
    );
    let workload = Workload::read(Source { name: "jobs.csv", content: &jobs }, None).unwrap();
    let names: Vec<_> = workload.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let review = review(&workload, 8, 2, &quick());
    assert_eq!(review.contradictions, [""; 0]);
    let jobs = review.answers[1].figures["jobs"].as_array().unwrap();
    let facts: Vec<_> = jobs.iter().map(|job| (&job["job_id"], &job["hours"])).collect();
    // In all only six are free in the first hour, and four in the second.
    assert_eq!(facts, [(&"mid".into(), &1.0.into())], "{}", review.answers[1]);
    assert_eq!(jobs[0]["joined_by"], serde_json::json!(["one", "low", "two"]));
    assert_eq!(jobs[0]["hours_over_several_nodes"], 0.0);
    // Alone on one node of the two, `two` leaves six, and `low` two: eight, on two nodes.
    let jobs = format!(
        "{header}two,eval,5,00:00,,2,2,2h,00:00,02:00,6-7,a,completed,\n\
         low,eval,5,00:00,,6,6,2h,00:00,02:00,0-5,b,completed,\n\
         big,train,5,00:30,,8,8,1h,02:00,03:00,0-7,a,completed,\n"
    );
    let workload = Workload::read(Source { name: "jobs.csv", content: &jobs }, None).unwrap();
    let review = review_of(&workload, 2);
    let job = &review[1].figures["jobs"][0];
    assert_eq!((&job["job_id"], &job["hours"]), (&"big".into(), &1.5.into()), "{}", review[1]);
    assert_eq!(job["hours_over_several_nodes"], 1.5);
    assert_eq!(job["joined_by"], serde_json::json!(["low", "two"]));
}

fn review_of(workload: &Workload, nodes: usize) -> Vec<Answer> {
    review(workload, 8, nodes, &quick()).answers
}

/// Neither of two lows alone makes room; both together do.
#[test]
fn several_can_stand_in_the_way_together() {
    let rows = "left,batch,2,00:00,24:00,4,4,4h,00:00,04:00,0-3,completed,\n\
                right,batch,3,00:00,05:00,4,4,4h,00:00,04:00,4-7,completed,\n\
                high,train,9,01:00,12:00,8,8,2h,04:00,06:00,0-7,completed,\n";
    let all = answers(rows, None);
    let pairs = all[2].figures["pairs"].as_array().unwrap();
    let facts: Vec<_> =
        pairs.iter().map(|pair| (&pair["low"], &pair["avoidable"], &pair["together"])).collect();
    let yes = serde_json::Value::Bool(true);
    let no = serde_json::Value::Bool(false);
    assert_eq!(facts, [(&"left".into(), &yes, &yes), (&"right".into(), &no, &yes)], "{}", all[2]);
}

#[test]
fn a_record_that_cannot_have_been_is_told() {
    let jobs = format!(
        "{HEADER}one,eval,5,00:00,,2,2,2h,00:00,02:00,0-1,completed,\n\
         two,eval,5,00:00,,2,2,2h,01:00,03:00,1-2,completed,\n\
         six,eval,5,00:00,,1,1,2h,02:00,04:00,9,completed,\n"
    );
    let workload = Workload::read(Source { name: "jobs.csv", content: &jobs }, None).unwrap();
    let found = review(&workload, 8, 1, &quick()).contradictions;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("six held GPUs") && found[1].contains("one and two both"));
    // Whoever ran without known GPUs leaves 2 to 4 open.
    let jobs = jobs.replace(",0-1,", ",,");
    let workload = Workload::read(Source { name: "jobs.csv", content: &jobs }, None).unwrap();
    let need = &review_of(&workload, 1)[1].needs[0];
    assert!(need.contains("1 are without, such as one"), "{need}");
}

/// Every policy that keeps no peak leaves nothing reserved, which is an answer and no gap.
#[test]
fn what_a_policy_would_have_done_answers_the_first_four() {
    use sluice::plan::compare::{Name, play};
    use sluice::plan::review::as_history;
    let (workload, problem) =
        (crate::support::workload("3-mixed"), crate::support::problem("3-mixed"));
    for (name, idle) in [(Name::FifoSkipPeak, true), (Name::EasyElastic, false)] {
        let entry = play(&problem, name, &quick()).unwrap();
        let history = as_history(&workload, &entry, &problem, 0);
        let review = review(&history, 8, 1, &Effort { online: Some(20), ..quick() });
        assert_eq!(review.contradictions, [""; 0]);
        for answer in &review.answers[..4] {
            assert!(answer.needs.is_empty(), "{name}: {answer}");
        }
        let hours = review.answers[0].figures["idle_gpu_hours"].as_f64().unwrap();
        // 4 of 8 are kept, and 1.86 in use on average.
        assert_eq!(idle, (hours - (4.0 * 24.0 - 44.75)).abs() < 1.0, "{hours}");
        assert_eq!(hours > 0.0, idle);
    }
}

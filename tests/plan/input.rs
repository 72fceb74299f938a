//! Job lists in every layout, and what is said about broken ones.

use sluice::trace::{Column, Format, HOUR_MS, MINUTE_MS, Outcome, Source, Workload};

const HEADER: &str = "job_id, workload_type, priority, arrival_time, deadline, min_gpus, max_gpus, \
                      expected_duration";

fn source<'a>(name: &'a str, content: &'a str) -> Source<'a> {
    Source { name, content }
}

fn faults(jobs: &str, demand: Option<&str>) -> Vec<String> {
    let demand = demand.map(|content| source("demand.csv", content));
    let faults = Workload::read(source("jobs.csv", jobs), demand).expect_err("it is broken");
    faults.0.iter().map(ToString::to_string).collect()
}

#[test]
fn the_list_of_the_article_is_read_as_it_stands() {
    let jobs = format!(
        "{HEADER}\n\
         rt-chat, real-time-inference, 10, 00:00, 24:00, 2, 8, demand-curve\n\
         lora-support, training-lora, 7, 02:10, 12:00, 1, 4, 5h\n\
         nightly-eval, evaluation, 5, 01:00, 08:00, 2, 2, 3h\n\
         embed-backfill, batch-inference, 4, 00:30, 18:00, 1, 4, 9h\n"
    );
    let demand = "job_id, time, gpus\nrt-chat, 09:00, 6\nrt-chat, 00:00, 2\n";
    let workload =
        Workload::read(source("jobs.csv", &jobs), Some(source("demand.csv", demand))).unwrap();
    assert_eq!(workload.jobs.len(), 3);
    let lora = &workload.jobs[0];
    assert_eq!((lora.id.as_str(), lora.priority, lora.line), ("lora-support", 7, 3));
    assert_eq!((lora.arrival_ms, lora.deadline_ms), (130 * MINUTE_MS, Some(12 * HOUR_MS)));
    assert_eq!((lora.min_gpus, lora.max_gpus, lora.expected_ms), (1, 4, 5 * HOUR_MS));
    let chat = &workload.services[0];
    assert_eq!(chat.demand, [(0, 2), (9 * HOUR_MS, 6)]);
    assert_eq!(chat.deadline_ms, Some(24 * HOUR_MS));
    assert!(!workload.columns.contains(&Column::ActualStart));
}

#[test]
fn every_fault_is_named_at_once_with_its_place() {
    let jobs = format!(
        "{HEADER}\n\
         a, eval, eleven, 1:00, 08:00, 2, 2, 3h\n\
         b, eval, 5, 25:00, 08:00, 4, 2, 3h\n\
         c, eval, 5, 01:00, 00:30, 2, 2, soon\n\
         d, eval, 5, 01:00, 00:30, 2, 2, 1h\n\
         a, eval, 5, 01:00, 08:00, 2, 2\n\
         d, eval, 0, 01:00, 08:00, 65, 2, 1h\n\
         rt, serve, 5, 01:00, 08:00, 0, 2, demand-curve\n\
         d, eval, 1, 01:00, 08:00, 0, 2, 1h\n"
    );
    let demand = "job_id,time,gpus\nother,00:00,1\n";
    let found = faults(&jobs, Some(demand));
    let expect = [
        "jobs.csv:2: column priority: found \"eleven\"; allowed: a whole number from 1 to 1000",
        "jobs.csv:3: column arrival_time: found \"25:00\"; allowed: a time such as 08:30",
        "jobs.csv:4: column expected_duration: found \"soon\"; allowed: a duration such as 5h",
        "jobs.csv:6: found 7 fields; allowed: 8 fields, as in the header",
        "jobs.csv:7: column priority: found \"0\"",
        "jobs.csv:7: column min_gpus: found \"65\"",
        "jobs.csv:5: column deadline: found not after arrival_time; allowed: a later time",
        "jobs.csv:8: column expected_duration: found \"rt\", whose demand no file gives",
        "jobs.csv:9: column min_gpus: found \"0\"; allowed: 1 or more for a job",
        "demand.csv:2: column job_id: found \"other\"; allowed: a job of the list",
    ];
    for start in expect {
        assert!(found.iter().any(|fault| fault.starts_with(start)), "{start}\n{found:#?}");
    }
    // One of line 3's two faults stands in another column.
    assert!(found.len() >= expect.len(), "{found:#?}");
}

#[test]
fn a_header_must_be_whole_and_without_slips() {
    let found = faults("job_id,priority,dead_line\nx,1,2\n", None);
    assert!(found.iter().any(|f| f.contains("column deadline: found no such column")), "{found:?}");
    assert!(found.iter().any(|f| f.contains("column dead_line: found an unknown column")));
    assert_eq!(found.len(), 7, "{found:#?}");
    assert!(faults("", None)[0].contains("column job_id: found no such column"));
    assert!(faults(&format!("{HEADER}\n"), None)[0].contains("no job at all"));
}

#[test]
fn what_really_happened_is_optional() {
    let jobs = format!(
        "{HEADER}, actual_start, actual_end, gpu_ids, outcome, user\n\
         a, eval, 5, 01:00, 08:00, 2, 2, 3h, 01:30, 05:00, 0-1, completed, ann\n\
         b, eval, 5, 01:00, , 3, 3, 3h, 02:00, 04:00, 2;4-5, failed,\n\
         c, eval, 5, 01:00, 08:00, 2, 2, 3h, , , , ,\n"
    );
    let workload = Workload::read(source("jobs.csv", &jobs), None).unwrap();
    let [a, b, c] = &workload.jobs[..] else { panic!("{workload:?}") };
    assert_eq!(a.actual.gpus, [0, 1]);
    assert_eq!(a.ran_ms(), Some(210 * MINUTE_MS));
    assert_eq!(a.user.as_deref(), Some("ann"));
    assert_eq!(b.actual.gpus, [2, 4, 5]);
    assert_eq!((b.actual.outcome, b.ran_ms()), (Some(Outcome::Failed), None));
    assert_eq!((c.actual.start_ms, c.deadline_ms), (None, Some(8 * HOUR_MS)));
    let broken = format!(
        "{HEADER}, actual_start, actual_end, gpu_ids, outcome\n\
         a, eval, 5, 01:00, 08:00, 2, 2, 3h, 00:30, 00:10, 3-1, lost\n\
         b, eval, 5, 01:00, 08:00, 2, 2, 3h, , 02:00, 0-1, completed\n\
         c, eval, 5, 01:00, 08:00, 2, 2, 3h, 00:30, 00:10, 0-1, failed\n"
    );
    let found = faults(&broken, None);
    for part in [
        "gpu_ids: found \"3-1\"",
        "outcome: found \"lost\"",
        "an end without a start",
        "actual_end: found before actual_start",
        "actual_start: found before arrival_time",
    ] {
        assert!(found.iter().any(|fault| fault.contains(part)), "{part}\n{found:#?}");
    }
}

#[test]
fn dates_stand_everywhere_or_nowhere() {
    let line = |arrival: &str, deadline: &str| {
        format!("{HEADER}\na, eval, 5, {arrival}, {deadline}, 1, 1, 3h\n")
    };
    let dated = line("2026-11-30T22:00:00Z", "2026-12-01T06:00:00Z");
    let workload = Workload::read(source("jobs.csv", &dated), None).unwrap();
    assert_eq!(workload.jobs[0].arrival_ms, 22 * HOUR_MS);
    assert_eq!(workload.jobs[0].deadline_ms, Some(30 * HOUR_MS));
    assert_eq!(workload.origin_ms, Some(1_795_996_800_000));
    let days = line("D+1 02:00", "D+1 08:00");
    let workload = Workload::read(source("jobs.csv", &days), None).unwrap();
    assert_eq!(workload.jobs[0].arrival_ms, 26 * HOUR_MS);
    let found = faults(&line("2026-11-30T22:00:00Z", "24:00"), None);
    assert!(found[0].contains("dates everywhere or nowhere"), "{found:?}");
}

#[test]
fn other_layouts_are_recognised() {
    let itp = "job_id,submission_time,duration,num_gpu\nx,90000,3600,8\ny,86500,60,1\n";
    let workload = Workload::read(source("itp.csv", itp), None).unwrap();
    assert_eq!(workload.format, Format::Itp);
    assert_eq!(workload.jobs[0].arrival_ms, 3_600_000);
    assert_eq!((workload.jobs[0].min_gpus, workload.jobs[0].expected_ms), (8, HOUR_MS));
    assert!(!workload.columns.contains(&Column::Priority));

    let swf = "; UnixStartTime: 0\n\
               1 0 60 3600 4 -1 -1 4 7200 -1 1 12 1 1 2 -1 -1 -1\n\
               2 10 -1 -1 -1 -1 -1 2 600 -1 5 12 1 1 2 -1 -1 -1\n";
    let workload = Workload::read(source("trace.swf", swf), None).unwrap();
    assert_eq!(workload.format, Format::Swf);
    let job = &workload.jobs[0];
    assert_eq!((job.expected_ms, job.ran_ms()), (2 * HOUR_MS, Some(HOUR_MS)));
    assert_eq!(job.actual.start_ms, Some(60_000));
    assert_eq!(workload.jobs[1].actual.outcome, Some(Outcome::Cancelled));
    let found = faults("; x\n1 -1 0 1 x 1 1 1 1 1 1 1 1 1 1 1 1 1\n2 0 0\n", None);
    assert_eq!(found.len(), 2, "{found:?}");

    let records = concat!(
        "{\"event\":\"node\",\"node\":\"n\",\"gpus\":[\"g0\",\"g1\"]}\n",
        "{\"event\":\"pod\",\"pod\":\"a\",\"uid\":\"u\",\"shape\":\"small\",\"created_ms\":86400500}\n",
        "{\"event\":\"start\",\"time_ms\":86401000,\"pod\":\"a\",\"uid\":\"u\",\"node\":\"n\",",
        "\"gpus\":[\"g1\"]}\n",
        "{\"event\":\"end\",\"time_ms\":86405000,\"pod\":\"a\",\"uid\":\"u\",\"exit\":0}\n",
    );
    let workload = Workload::read(source("history.jsonl", records), None).unwrap();
    assert_eq!(workload.format, Format::Records);
    let job = &workload.jobs[0];
    assert_eq!((job.arrival_ms, job.actual.start_ms), (500, Some(1000)));
    assert_eq!((&job.actual.gpus[..], job.expected_ms), (&[1][..], 4000));
    let found = faults("{\"event\":\"pod\"}\n{\"event\":\"nonsense\"}\n", None);
    assert_eq!(found.len(), 2, "{found:?}");
}

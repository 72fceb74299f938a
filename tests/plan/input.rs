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
        "# a list with something wrong in each line\n\n{HEADER}\n\
         a, eval, eleven, 1:00, 08:00, 2, 2, 3h\n\
         b, eval, 5, 25:00, 08:00, 4, 2, 3h\n\
         # a comment between\n\
         c, eval, 5, 01:00, 00:30, 2, 2, soon\n\
         d, eval, 5, 01:00, 00:30, 2, 2, 1h\n\
         a, eval, 5, 01:00, 08:00, 2, 2\n\
         d, eval, 0, 01:00, 08:00, 65, 2, 1h\n\
         rt, serve, 5, 01:00, 08:00, 0, 2, demand-curve\n\
         e, eval, 1, 01:00, 01:00, 0, 2, 1h\n\
         , , , , , , ,\n\
         rs, serve, x, 01:00, 08:00, 0, 2, demand-curve\n"
    );
    let demand = "job_id,time,gpus\nother,00:00,1\nrs,00:00,1\nrs,noon,65\n,01:00,-1\n";
    let found = faults(&jobs, Some(demand));
    let expect = [
        "jobs.csv:4: column priority: found \"eleven\"; allowed: a whole number from 1 to 1000",
        "jobs.csv:5: column arrival_time: found \"25:00\"; allowed: a time such as 08:30",
        "jobs.csv:5: column min_gpus: found \"4\"; allowed: at most max_gpus, which is 2",
        "jobs.csv:7: column expected_duration: found \"soon\"; allowed: a duration up to 10000d",
        "jobs.csv:7: column deadline: found \"00:30\"; allowed: a time after arrival_time, which is \
         01:00",
        "jobs.csv:8: column deadline: found \"00:30\"; allowed: a time after",
        "jobs.csv:9: found 7 fields; allowed: 8 fields, as in the header",
        "jobs.csv:10: column priority: found \"0\"",
        "jobs.csv:10: column min_gpus: found \"65\"",
        "jobs.csv:10: column job_id: found \"d\" again (before in line 8); allowed: each job once",
        "jobs.csv:11: column expected_duration: found \"rt\", whose demand no file gives",
        "jobs.csv:12: column min_gpus: found \"0\"; allowed: 1 or more for a job",
        "jobs.csv:12: column deadline: found \"01:00\"",
        "jobs.csv:14: column priority: found \"x\"",
        "demand.csv:2: column job_id: found \"other\"; allowed: a job of the list",
        "demand.csv:4: column time: found \"noon\"",
        "demand.csv:4: column gpus: found \"65\"; allowed: a whole number from 0 to 64",
        "demand.csv:5: column job_id: found nothing; allowed: a name",
        "demand.csv:5: column gpus: found \"-1\"",
    ];
    for start in expect {
        assert!(found.iter().any(|fault| fault.starts_with(start)), "{start}\n{found:#?}");
    }
    assert_eq!(found.len(), expect.len(), "{found:#?}");
}

#[test]
fn a_header_must_be_whole_and_without_slips() {
    let found = faults("job_id,priority,dead_line\nx,0,2\n", None);
    assert!(found.iter().any(|f| f.contains("column deadline: found no such column")), "{found:?}");
    assert!(found.iter().any(|f| f.contains("column dead_line: found an unknown column")));
    assert!(found.iter().any(|f| f.contains("jobs.csv:2: column priority")), "rows are read too");
    assert_eq!(found.len(), 8, "{found:#?}");
    assert!(faults("", None)[0].contains("jobs.csv:1: found nothing; allowed: a line that names"));
    assert!(faults(&format!("{HEADER}\n"), None)[0].contains("no job at all"));
    let twice = faults(&format!("{HEADER}, user, user\n"), None);
    assert!(twice[0].contains("column user: found the column twice"), "{twice:?}");
    for sign in [";", "\t", "|"] {
        let found = faults(&HEADER.replace(", ", sign), None);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains("allowed: columns separated by commas"), "{found:?}");
    }
}

/// What spreadsheets and editors on other systems write.
#[test]
fn spreadsheets_write_csv_in_many_ways() {
    let rows = [
        "\u{feff}# made by hand\r\n\r\n",
        HEADER,
        "\r\n\"a, b\", \"say \"\"x\"\"\",5 , 01:00,\"08:00\" ,2,2,3h\r\n",
        ",,,,,,,\r\n",
        "c\"d, \"two\nlines\", 5, 01:00, , 2, 2, \"3h\"\r",
        "Ü, eval, 5, 01:00, , 2, 2, 3h",
    ];
    let jobs = rows.concat();
    let workload =
        Workload::read(source("jobs.csv", &jobs), None).unwrap_or_else(|faults| panic!("{faults}"));
    let facts: Vec<_> =
        workload.jobs.iter().map(|job| (job.id.as_str(), job.kind.as_str(), job.line)).collect();
    assert_eq!(
        facts,
        [("a, b", "say \"x\"", 4), ("c\"d", "two\nlines", 6), ("Ü", "eval", 8)],
        "{workload:?}"
    );
    let open =
        format!("{HEADER}\na, \"eval, 5, 01:00, , 2, 2, 3h\nb, eval, x, 01:00, , 2, 2, 3h\n");
    let found = faults(&open, None);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("jobs.csv:2: found a quote that is never closed"), "{found:?}");
    assert!(found[1].starts_with("jobs.csv:3: column priority: found \"x\""), "{found:?}");
}

/// Nothing that is read can make a sum of GPU-time overflow.
#[test]
fn spans_beyond_reason_are_refused() {
    let line = |rest: &str| format!("{HEADER}\na, eval, 5, 01:00, , 2, 2, {rest}\n");
    assert!(Workload::read(source("jobs.csv", &line("10000d")), None).is_ok());
    assert_eq!(faults(&line("10001d"), None).len(), 1);
    assert_eq!(faults(&line("999999999999h"), None).len(), 1);
    let itp = "job_id,submission_time,duration,num_gpu\nx,0,864000001,8\ny,0,1,100001\nx,0,1,1\n";
    let found = faults(itp, None);
    assert_eq!(found.len(), 2, "{found:#?}");
    let swf = "1 0 1 1e12 1 -1 -1 1 1 -1 1 1 1 1 1 -1 -1 -1\n";
    assert!(faults(swf, None)[0].contains("column 4 (run time): found \"1e12\""));
    for twice in [
        "job_id,submission_time,duration,num_gpu\nx,0,60,8\nx,0,60,1\n",
        "1 0 1 9 1 -1 -1 1 1 -1 1 1 1 1 1 -1 -1 -1\n1 0 1 9 1 -1 -1 1 1 -1 1 1 1 1 1 -1 -1 -1\n",
    ] {
        assert!(faults(twice, None)[0].contains("each job once"));
    }
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
         c, eval, 5, 01:00, 08:00, 2, 2, 3h, 00:30, 00:10, 0-1, failed\n\
         d, eval, 5, 01:00, 08:00, 2, 2, 3h, 02:00, 04:00, 0-2, running\n\
         e, eval, 5, 01:00, 08:00, 2, 2, demand-curve, , , 0-1, failed\n"
    );
    let found = faults(&broken, None);
    for part in [
        "gpu_ids: found \"3-1\"",
        "outcome: found \"lost\"",
        "jobs.csv:2: column actual_start: found \"00:30\"; allowed: no time before arrival_time",
        "jobs.csv:2: column actual_end: found \"00:10\"; allowed: no time before actual_start",
        "jobs.csv:3: column actual_end: found \"02:00\"; allowed: actual_start too",
        "jobs.csv:3: column gpu_ids: found \"0-1\"; allowed: nothing without actual_start",
        "jobs.csv:5: column gpu_ids: found \"0-2\"; allowed: 2 to 2 GPUs",
        "jobs.csv:5: column actual_end: found \"04:00\"; allowed: nothing while",
        "jobs.csv:6: column outcome: found \"failed\"; allowed: nothing for a demand-curve",
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
    // What never ran, and what nobody knows the size of, is told and left out.
    let archive = "\u{feff}1 0 60 3600 4 -1 -1 4 7200 -1 1 12 1 1 2 -1 -1 -1\n\
                   2 10 -1 -1 -1 -1 -1 2 -1 -1 5 12 1 1 2 -1 -1 -1\n\
                   3 10 -1 9 -1 -1 -1 -1 -1 -1 5 12 1 1 2 -1 -1 -1\n";
    let workload = Workload::read(source("trace.swf", archive), None).unwrap();
    assert_eq!((workload.format, workload.jobs.len()), (Format::Swf, 1));
    let told: Vec<_> = workload.remarks.iter().map(|fault| (fault.line, &*fault.found)).collect();
    let expected = [
        (2, "neither, so the row is left out"),
        (3, "no number of processors, so the row is left out"),
    ];
    assert_eq!(told, expected);

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
    let broken = "{\"event\":\"pod\"}\n{\"event\":\"nonsense\"}\nno json\n{\"a\":1}\n";
    let found = faults(broken, None);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found[2].starts_with("jobs.csv:3: found no JSON"), "{found:?}");
}

/// Two pods of one name one after the other on one of two nodes, and one that waits.
const RECORDS: &str = r#"
{"event":"node","node":"n1","gpus":["g0","g1","g2","g3"]}
{"event":"node","node":"n2","gpus":["h0","h1","h2","h3"]}
{"event":"pod","pod":"ns/a","uid":"u1","shape":"small","created_ms":86400500,"priority":100000,"limit_ms":7200000}
{"event":"start","time_ms":86401000,"pod":"ns/a","uid":"u1","node":"n2","gpus":["h1"]}
{"event":"end","time_ms":86405000,"pod":"ns/a","uid":"u1","exit":3}
{"event":"pod","pod":"ns/a","uid":"u2","shape":"small","created_ms":86405500,"priority":-5}
{"event":"start","time_ms":86406000,"pod":"ns/a","uid":"u2","node":"n2","gpus":["h1"]}
{"event":"pod","pod":"ns/big","uid":"u3","shape":"whole-node-large","created_ms":86406500}
{"event":"phase","time_ms":86407000,"node":"n2","phase":"Draining","for":"ns/big"}
"#;

#[test]
fn records_tell_priorities_limits_and_nodes() {
    let workload = Workload::read(source("r.jsonl", RECORDS), None).unwrap();
    let nodes: Vec<_> = workload.nodes.iter().map(|n| (n.name.as_str(), n.gpus)).collect();
    assert_eq!(nodes, [("n1", Some(4)), ("n2", Some(4))]);
    let [a, again, big] = &workload.jobs[..] else { panic!("{workload:?}") };
    assert_eq!((a.id.as_str(), again.id.as_str()), ("ns/a (u1)", "ns/a (u2)"));
    assert_eq!((a.priority, again.priority, big.priority), (2, 1, 1), "places, not numbers");
    assert_eq!((a.expected_ms, a.actual.outcome), (2 * HOUR_MS, Some(Outcome::Failed)));
    assert_eq!((a.actual.node, &a.actual.gpus[..]), (1, &[1][..]));
    assert_eq!((again.actual.outcome, again.expected_ms), (Some(Outcome::Running), 1000));
    assert_eq!((big.min_gpus, big.actual.start_ms), (4, None));
    assert_eq!(workload.end_ms, Some(7000));
    for column in [Column::Priority, Column::ExpectedDuration, Column::Node, Column::GpuIds] {
        assert!(workload.columns.contains(&column), "{column:?}");
    }
}

/// The controller's log: lines as `tracing` writes them, with the decision in `cause`.
#[test]
fn the_log_of_decisions_is_a_history() {
    use sluice::policy::UnreserveReason;
    use sluice::policy::{Decision, GpuSet, Input, JobId, Kind, Millis, NodeId, Outcome as Ended};
    let line = |second: u32, pod: &str, more: &str, cause: &serde_json::Value| {
        let line = serde_json::json!({
            "timestamp": format!("2026-11-30T10:00:{second:02}.250Z"), "level": "INFO",
            "message": "…", "pool": "default", "node": "n1", "pod": pod,
            "cause": cause.to_string(), "target": "sluice::controller::publish",
        });
        let line = line.to_string();
        format!("{},{more}}}\n", &line[..line.len() - 1])
    };
    let reserved = |job, gpus| {
        let (job, node) = (JobId(job), NodeId(0));
        let decision = Decision::Reserved { job, node, gpus: GpuSet(gpus), kind: Kind::Direct };
        serde_json::json!({ "decision": decision })
    };
    let unreserved = {
        let (job, node, retry_at) = (JobId(2), NodeId(0), Millis(1));
        let reason = UnreserveReason::Expired;
        serde_json::json!({ "decision": Decision::Unreserved { job, node, reason, retry_at } })
    };
    let released =
        |job, outcome| serde_json::json!({ "fact": Input::Released { job: JobId(job), outcome } });
    let told = r#""shape":"Small","waited_ms":2000,"priority":7,"limit_ms":60000"#;
    let log = [
        "{\"timestamp\":\"2026-11-30T09:59:00Z\",\"level\":\"INFO\",\"message\":\"starts\"}\n"
            .to_owned(),
        line(10, "ns/a", told, &reserved(1, 0b1)),
        line(11, "ns/b", told, &reserved(2, 0b10)),
        line(12, "ns/b", "\"x\":0", &unreserved),
        line(20, "ns/a", "\"x\":0", &released(1, Ended::Completed)),
        line(21, "ns/a", r#""shape":"Large","waited_ms":500"#, &reserved(3, 0xff)),
        line(30, "ns/a", "\"x\":0", &released(3, Ended::Failed)),
    ];
    let workload = Workload::read(source("log.jsonl", &log.concat()), None)
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(workload.format, Format::Records);
    let [a, again] = &workload.jobs[..] else { panic!("{workload:?}") };
    let ten = 10 * HOUR_MS + 250;
    assert_eq!((a.arrival_ms, a.actual.start_ms), (ten + 8_000, Some(ten + 10_000)));
    assert_eq!((a.actual.end_ms, a.actual.outcome), (Some(ten + 20_000), Some(Outcome::Completed)));
    assert_eq!((a.priority, a.expected_ms, a.kind.as_str()), (7, 60_000, "small"));
    assert_eq!((&again.actual.gpus.len(), again.kind.as_str()), (&8, "whole-node-large"));
    assert_eq!(again.actual.outcome, Some(Outcome::Failed));
    let broken = line(10, "ns/a", told, &serde_json::json!({ "decision": "?" }));
    assert!(faults(&broken, None)[0].contains("jobs.csv:1: found a cause that is no decision"));
}

/// The list tells what was wanted, the records what happened.
#[test]
fn a_list_and_its_records_make_one_history() {
    let jobs = format!(
        "{HEADER}\n\
         big, train, 9, 00:00, 01:00, 4, 4, 30m\n\
         gone, eval, 5, 00:00, 01:00, 1, 1, 30m\n\
         rt, serve, 10, 00:00, 01:00, 0, 2, demand-curve\n"
    );
    let records = RECORDS.replace("u2", "u1");
    let read = |jobs: &str, records: &str| {
        Workload::read_all(
            source("jobs.csv", jobs),
            Some(source("demand.csv", "job_id,time,gpus\nrt,00:00,1\n")),
            Some(source("r.jsonl", records)),
        )
    };
    let workload = read(&jobs, &records).unwrap_or_else(|faults| panic!("{faults}"));
    let names: Vec<_> = workload.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(names, ["big", "gone", "ns/a"]);
    let big = &workload.jobs[0];
    assert_eq!((big.priority, big.arrival_ms, big.deadline_ms), (9, 6_500, Some(HOUR_MS)));
    assert_eq!(big.actual.outcome, Some(Outcome::Cancelled));
    assert_eq!((workload.services.len(), workload.nodes.len()), (1, 2));
    let told: Vec<_> = workload.remarks.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("found no pod gone") && told[1].contains("found ns/a"), "{told:?}");
    let other = records.replace("u1", "u8").replace("u3", "u9").replace("ns/", "other/");
    let twice = read(&jobs, &(records + &other)).expect_err("which of the two?");
    assert!(twice.to_string().contains("found 2 pods big; allowed: one"), "{twice}");
}

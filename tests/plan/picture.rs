//! The picture and the report in HTML: whole, readable, the same each time.

use sluice::plan::compare::{Name, play};
use sluice::plan::metrics::{in_use, to_f64};
use sluice::plan::report::Report;
use sluice::plan::{html, picture};

use crate::support::{problem, quick};

fn report() -> Report {
    let mut problem = problem("5-small-jobs");
    "a<b>&\"c\"".clone_into(&mut problem.jobs[7].name);
    let names = [Name::FifoStrictPeak, Name::EasyElastic, Name::PlanOnline];
    let entries = names.map(|name| play(&problem, name, &quick()).unwrap()).to_vec();
    Report {
        problem,
        seed: 1,
        entries,
        bound: None,
        skipped: Vec::new(),
        violations: None,
        interrupted: false,
        begin_ms: 0,
        remarks: Vec::new(),
    }
}

#[test]
fn every_job_that_ran_is_in_the_picture() {
    let report = report();
    let svg = picture::render(&report, "A day");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg, picture::render(&report, "A day"));
    for entry in &report.entries {
        assert!(svg.contains(&format!(">{}</text>", entry.name)));
    }
    for entry in &report.entries {
        // The curve of what is in use covers what the utilisation says.
        let horizon_ms = report.problem.horizon_ms;
        let curve = in_use(&report.problem, &entry.schedule);
        let ends = curve.iter().skip(1).map(|(at, _)| *at).chain([horizon_ms]);
        let area: u64 =
            curve.iter().zip(ends).map(|((at, gpus), to)| (to - at) * u64::from(*gpus)).sum();
        let share = to_f64(area) / to_f64(report.problem.capacity_ms());
        assert!((share - entry.metrics.utilisation).abs() < 1e-9, "{}", entry.name);
    }
    let ran: usize = report.entries.iter().map(|entry| entry.schedule.runs.len()).sum();
    assert_eq!(svg.matches(", priority ").count(), ran, "each run says all about itself");
    assert!(!svg.contains("a<b>") && svg.contains("a&lt;b&gt;&amp;&quot;c&quot;"));
    // Nothing is drawn outside the paper.
    let numbers = |key: &str| {
        let key = format!(" {key}=\"");
        let parts = svg.split(key.as_str()).skip(1);
        parts.filter_map(|part| part.split('"').next()?.parse::<f64>().ok()).collect::<Vec<_>>()
    };
    assert!(numbers("x").iter().all(|x| (0.0..=1240.0).contains(x)));
    assert!(numbers("width").iter().all(|width| *width >= 0.0));
}

/// Several nodes, a play that begins at half past eight, and one that lasts three minutes.
#[test]
fn nodes_and_short_plays_are_drawn_with_their_clock() {
    let mut report = report();
    report.problem.nodes = 2;
    report.problem.services.clear();
    report.begin_ms = 8 * 3_600_000 + 1_800_000;
    let names = [Name::EasyElastic, Name::Greedy];
    report.entries = names.map(|name| play(&report.problem, name, &quick()).unwrap()).to_vec();
    let svg = picture::render(&report, "A day");
    let ran: usize = report.entries.iter().map(|entry| entry.schedule.runs.len()).sum();
    assert_eq!(svg.matches(", priority ").count(), ran);
    for part in [">node 0</text>", ">node 1</text>", "2 nodes of 8 GPUs", ">10:00</text>"] {
        assert!(svg.contains(part), "{part}");
    }
    assert!(!svg.contains(">00:00</text>") && svg.contains("until D+1 08:30"));
    report.problem.horizon_ms = 180_000;
    let svg = picture::render(&report, "Three minutes");
    assert!(svg.contains(">08:30:15</text>"), "marks each 15 seconds");
}

#[test]
fn the_html_report_needs_nothing_else() {
    let html = html::render(&report(), "A day");
    assert!(html.contains("<svg ") && html.ends_with("</body></html>\n"));
    for from_elsewhere in ["<script", "src=", "<link", "@import", "url(http"] {
        assert!(!html.contains(from_elsewhere), "{from_elsewhere}");
    }
    assert!(html.contains("Why plan-online started what"));
    for policy in ["fifo-strict-peak", "easy-elastic", "plan-online"] {
        assert!(html.contains(&format!("Why {policy} started what")), "each start is explained");
    }
    assert!(html.contains("useful work"));
    assert_eq!(html.matches("<table>").count(), html.matches("</table>").count());
}

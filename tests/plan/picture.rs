//! The picture and the report in HTML: whole, readable, the same each time.

use sluice::plan::compare::{Name, play};
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

#[test]
fn the_html_report_needs_nothing_else() {
    let html = html::render(&report(), "A day");
    assert!(html.contains("<svg ") && html.ends_with("</body></html>\n"));
    for from_elsewhere in ["<script", "src=", "<link", "@import", "url(http"] {
        assert!(!html.contains(from_elsewhere), "{from_elsewhere}");
    }
    assert!(html.contains("Why plan-online started what"));
    assert!(html.contains("useful work"));
    assert_eq!(html.matches("<table>").count(), html.matches("</table>").count());
}

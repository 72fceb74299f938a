//! Pure side: the report as one HTML file that needs nothing else: table, picture, explanations.

use std::fmt::Write as _;

use super::picture;
use super::report::Report;
use crate::timeline::svg::draw::escape;
use crate::trace::clock_time;

const HEAD: &str = "<style>
body { font: 15px/1.5 Inter, \"Helvetica Neue\", Arial, sans-serif; color: #1f2933;
       margin: 32px auto; max-width: 1260px; padding: 0 16px }
table { border-collapse: collapse; margin: 16px 0; font-variant-numeric: tabular-nums }
th, td { padding: 4px 12px; text-align: right; border-bottom: 1px solid #dde2e7 }
th:first-child, td:first-child { text-align: left }
thead th { border-bottom: 2px solid #9fb3c8 }
.bound { color: #52606d; font-style: italic }
svg { max-width: 100%; height: auto }
details { margin: 8px 0 } summary { cursor: pointer; font-weight: 600 }
</style>";

/// Writes the report.
pub fn render(report: &Report, title: &str) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n\
         {HEAD}</head><body>\n<h1>{0}</h1>\n",
        escape(title)
    );
    for line in report.heading().lines() {
        let _ = writeln!(out, "<p>{}</p>", escape(line));
    }
    table(&mut out, report);
    out.push_str(
        "<p>Utilisation counts GPU-time in which a job ran or a service served demand. Value is \
         priority × GPU-hours: all that ran, and what ended by its deadline.</p>\n",
    );
    for skipped in &report.skipped {
        let _ = writeln!(out, "<p>{}: left out, {}</p>", skipped.name, escape(&skipped.reason));
    }
    out.push_str(&picture::render(report, "Who ran on which GPUs"));
    waits(&mut out, report);
    explanations(&mut out, report);
    out.push_str("</body></html>\n");
    out
}

fn table(out: &mut String, report: &Report) {
    out.push_str(
        "<table><thead><tr><th>policy</th><th>utilisation</th><th>value</th><th>by deadline</th>\
         <th>demand not served</th><th>started</th><th>deadlines missed</th><th>apart</th>\
         </tr></thead><tbody>\n",
    );
    for entry in &report.entries {
        let m = &entry.metrics;
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{:.1} %</td><td>{:.0}</td><td>{:.0}</td><td>{:.1} h</td>\
             <td>{}</td><td>{}</td><td>{:.1} h</td></tr>",
            entry.name,
            m.utilisation * 100.0,
            m.value_gpu_hours,
            m.value_done,
            m.rt_shortfall_gpu_hours,
            m.jobs_started,
            m.deadline_misses,
            m.fragmented_gpu_hours,
        );
    }
    if let Some(bound) = &report.bound {
        let _ = writeln!(
            out,
            "<tr class=\"bound\"><td>proved upper bound</td><td>{:.1} %</td><td></td>\
             <td>{:.0}</td><td></td><td></td><td></td><td></td></tr>",
            bound.utilisation * 100.0,
            bound.value_done,
        );
    }
    out.push_str("</tbody></table>\n");
}

fn waits(out: &mut String, report: &Report) {
    out.push_str("<details><summary>Waits by type of work</summary>\n");
    for entry in &report.entries {
        let _ = writeln!(
            out,
            "<table><thead><tr><th>{}</th><th>jobs</th><th>started</th><th>mean</th>\
             <th>median</th><th>95 %</th><th>longest</th></tr></thead><tbody>",
            entry.name
        );
        for (kind, waits) in &entry.metrics.waits {
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.0} min</td><td>{:.0} min</td>\
                 <td>{:.0} min</td><td>{:.0} min</td></tr>",
                escape(kind),
                waits.jobs,
                waits.started,
                waits.mean_min,
                waits.median_min,
                waits.p95_min,
                waits.max_min,
            );
        }
        out.push_str("</tbody></table>\n");
    }
    out.push_str("</details>\n");
}

fn explanations(out: &mut String, report: &Report) {
    for entry in report.entries.iter().filter(|entry| !entry.explanations.is_empty()) {
        let _ = writeln!(out, "<details><summary>Why {} started what</summary><ul>", entry.name);
        for why in &entry.explanations {
            let _ = writeln!(
                out,
                "<li>{} {} ({}): {}</li>",
                clock_time(report.begin_ms + why.start_ms),
                escape(&report.problem.jobs[why.job].name),
                why.reason,
                why.score,
            );
        }
        out.push_str("</ul></details>\n");
    }
}

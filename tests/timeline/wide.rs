//! Wide smalls in the records: what the check asks of them, and how they are drawn.

use sluice::timeline::{svg, text};

use super::{GATE, HOLDER, PLAIN, assert_broken, broken, report, timeline};

const WIDE: &str = "a wide small has the GPUs it asks for";

/// A wide small of two GPUs beside a small on four.
const BESIDE: &str = r#"
{"event":"node","node":"n","gpus":["g0","g1","g2","g3"]}
{"event":"phase","node":"n","phase":"Open","time_ms":0}
{"event":"pod","pod":"w","uid":"w","shape":"wide-small","gpus":2,"created_ms":900,"admitted_ms":950}
{"event":"start","pod":"w","uid":"w","node":"n","gpus":["g0","g1"],"time_ms":1000}
{"event":"end","pod":"w","uid":"w","time_ms":5000,"exit":0}
{"event":"pod","pod":"b","uid":"b","shape":"small","created_ms":900,"admitted_ms":950}
{"event":"start","pod":"b","uid":"b","node":"n","gpus":["g2"],"time_ms":1000}
{"event":"end","pod":"b","uid":"b","time_ms":4000,"exit":0}
"#;

#[test]
fn a_wide_small_has_the_gpus_it_asks_for() {
    assert_broken(BESIDE, &[]);
    let finding = report(BESIDE).findings.into_iter().find(|finding| finding.rule == WIDE);
    assert_eq!(finding.map(|finding| (finding.cases, finding.unit)), Some((1, "wide pod")));
    let three = BESIDE.replace(r#"["g0","g1"]"#, r#"["g0","g1","g3"]"#);
    assert_broken(&three, &[(WIDE, "w asks for 2 and saw 3 GPUs on node n")]);
    // What its containers saw one after the other is taken together.
    let next = r#"{"event":"start","pod":"w","uid":"w","node":"n","gpus":["g1"],"time_ms":5100}
{"event":"end","pod":"w","uid":"w","time_ms":5900,"exit":0}"#;
    assert_broken(&format!("{}{next}", BESIDE.replace(r#"["g0","g1"]"#, r#"["g0"]"#)), &[]);
    // Where nobody says how many it asks for, any number between one and all is right.
    let unsaid = three.replace(r#""gpus":2,"#, "");
    assert_broken(&unsaid, &[]);
    let all = unsaid.replace(r#""g1","g3"]"#, r#""g1","g2","g3"]"#);
    let broken: Vec<&str> = broken(&all).into_iter().map(|(rule, _)| rule).collect();
    assert_eq!(broken, [HOLDER, WIDE]);
}

#[test]
fn wide_smalls_count_as_smalls_of_a_wave_and_behind_a_gate() {
    let drain = r#"{"event":"phase","node":"n","phase":"Draining","for":"l","time_ms":100}"#;
    let broken = broken(&format!("{BESIDE}{drain}"));
    assert_eq!(broken.len(), 1);
    assert!(broken[0].0 == GATE && broken[0].1.iter().any(|s| s.starts_with("w was admitted")));
}

#[test]
fn a_wide_small_is_drawn_on_each_of_its_gpus() {
    let drawn = text::render(&timeline(BESIDE), PLAIN);
    assert!(drawn.starts_with("2 pods (1 small, 1 wide-small, 0 whole-node-large)"), "{drawn}");
    let lines =
        drawn.lines().filter(|line| line.contains("b\u{2501}") || line.contains("a\u{2501}"));
    assert_eq!(lines.filter(|line| line.contains('\u{2578}')).count(), 4, "{drawn}");
    let svg = svg::render(&timeline(BESIDE), "Four GPUs");
    assert!(svg.contains("1 small, 1 wide-small and 0 whole-node-large pods"));
}

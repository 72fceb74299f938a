//! Pure side: whether what the containers saw keeps what Sluice promises.
//!
//! The verdict rests on facts that containers reported. Phases and admission times are used only
//! for the two rules that speak of them, and every rule says how many cases it looked at, so
//! that an empty input cannot pass for a good one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::time::length;
use super::{Node, Phase, PhaseSpan, Run, Shape, Timeline};

/// By how much two watches are taken to differ, if nobody says otherwise.
pub const SLACK_MS: u64 = 250;

/// What the pool's policy allows, and how exact the records are.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Most smalls in one wave; the number of GPUs of the node if absent.
    pub wave_size: Option<usize>,
    /// Whether smalls may be admitted behind a closed gate (the pool's backfill option).
    pub backfill: bool,
    /// By how much the times of phases, admissions and containers may differ for one and the same
    /// moment: each comes through a watch or a clock of its own. Only the two rules that compare
    /// them look at it.
    pub slack_ms: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { wave_size: None, backfill: false, slack_ms: SLACK_MS }
    }
}

/// One rule, and what came of it.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What must hold.
    pub rule: &'static str,
    /// How many cases were looked at.
    pub cases: usize,
    /// What a case is.
    pub unit: &'static str,
    /// What limits the verdict, if anything does.
    pub note: Option<String>,
    /// Where it does not hold, in sentences.
    pub violations: Vec<String>,
}

/// Every rule.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// In a fixed order.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many violations there are.
    pub fn violations(&self) -> usize {
        self.findings.iter().map(|finding| finding.violations.len()).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Checked against what the containers reported:")?;
        let width = |text: &str| text.chars().count();
        let rule = self.findings.iter().map(|f| width(f.rule)).max().unwrap_or(0);
        let cases = |finding: &Finding| {
            let plural = if finding.cases == 1 { "" } else { "s" };
            format!("{} {}{plural}", finding.cases, finding.unit)
        };
        let column = self.findings.iter().map(|f| width(&cases(f))).max().unwrap_or(0);
        for finding in &self.findings {
            let verdict = match (finding.violations.len(), finding.cases) {
                (0, 0) => "none to check",
                (0, _) => "holds",
                _ => "BROKEN",
            };
            write!(f, "  {:rule$}  {:column$}  {verdict}", finding.rule, cases(finding))?;
            if let Some(note) = &finding.note {
                write!(f, " ({note})")?;
            }
            writeln!(f)?;
        }
        for sentence in self.findings.iter().flat_map(|finding| &finding.violations) {
            writeln!(f, "VIOLATION: {sentence}.")?;
        }
        match self.violations() {
            0 => writeln!(f, "Every rule holds."),
            1 => writeln!(f, "1 violation."),
            many => writeln!(f, "{many} violations."),
        }
    }
}

/// Checks everything.
pub fn check(timeline: &Timeline, rules: Rules) -> Report {
    let view = View { timeline, rules };
    let mut findings = vec![
        view.ends(),
        view.agreement(),
        view.one_holder(),
        view.small_has_one(),
        view.large_has_all(),
        view.large_is_alone(),
        view.gate_is_closed(),
        view.wave_is_bounded(),
    ];
    // Wide smalls need a word only where there are some.
    if timeline.pods.iter().any(|pod| pod.shape == Shape::Wide) {
        findings.insert(4, view.wide_has_its_count());
    }
    Report { findings }
}

struct View<'a> {
    timeline: &'a Timeline,
    rules: Rules,
}

impl<'a> View<'a> {
    fn all(&self) -> impl Iterator<Item = (&'a Node, &'a Run)> {
        self.timeline.nodes.iter().flat_map(|node| node.runs.iter().map(move |run| (node, run)))
    }

    fn of(&self, shape: Shape) -> impl Iterator<Item = (&'a Node, &'a Run)> {
        self.all().filter(move |(_, run)| self.shape(run) == shape)
    }

    fn shape(&self, run: &Run) -> Shape {
        self.timeline.pods[run.pod].shape
    }

    fn name(&self, run: &Run) -> &str {
        &self.timeline.pods[run.pod].name
    }

    /// Time since the begin, as the pictures show it.
    fn at(&self, time_ms: u64) -> String {
        length(time_ms.saturating_sub(self.timeline.begin_ms))
    }

    fn ends(&self) -> Finding {
        let mut violations: Vec<String> = self
            .all()
            .filter(|(_, run)| !run.ended)
            .map(|(node, run)| {
                let (name, at) = (self.name(run), self.at(run.from_ms));
                format!("{name} started on node {} at {at} and reported no end", node.name)
            })
            .collect();
        let cases = self.all().count();
        if cases == 0 {
            violations.push("no container reported a start, so nothing was shown".to_owned());
        }
        finding("every start has an end", (cases, "start"), violations)
    }

    fn agreement(&self) -> Finding {
        let violations = self.timeline.contradictions.clone();
        finding("the records agree", (self.timeline.pods.len(), "pod"), violations)
    }

    fn one_holder(&self) -> Finding {
        let mut violations = Vec::new();
        for node in &self.timeline.nodes {
            for (gpu, id) in node.gpus.iter().enumerate() {
                let holders = node.runs.iter().filter(|run| run.gpus.contains(&gpu));
                for (a, b) in overlapping(holders) {
                    violations.push(format!(
                        "{id} of node {} was held by {} and {} at once, from {} to {}",
                        node.name,
                        self.name(a),
                        self.name(b),
                        self.at(b.from_ms),
                        self.at(a.to_ms.min(b.to_ms)),
                    ));
                }
            }
        }
        let gpus = self.timeline.nodes.iter().map(|node| node.gpus.len()).sum();
        finding("one container on a GPU at a time", (gpus, "GPU"), violations)
    }

    fn small_has_one(&self) -> Finding {
        let wrong = self.of(Shape::Small).filter(|(_, run)| run.gpus.len() != 1);
        let violations = wrong.map(|(node, run)| {
            let (name, gpus) = (self.name(run), run.gpus.len());
            format!("{name} is small and saw {gpus} GPUs on node {}, not one", node.name)
        });
        let cases = (self.of(Shape::Small).count(), "small start");
        finding("a small has exactly one GPU", cases, violations.collect())
    }

    /// What a pod's containers on one node saw together, since they may share its GPUs.
    fn wide_has_its_count(&self) -> Finding {
        let mut seen: BTreeMap<(&str, usize), BTreeSet<usize>> = BTreeMap::new();
        for (node, run) in self.of(Shape::Wide) {
            seen.entry((&node.name, run.pod)).or_default().extend(&run.gpus);
        }
        let has = |name| self.timeline.nodes.iter().find(|node| node.name == name);
        let wrong = seen.iter().filter_map(|(&(name, at), gpus)| {
            let (pod, all) = (&self.timeline.pods[at], has(name)?.gpus.len());
            let saw = gpus.len();
            let asked = pod.asked.and_then(|asked| usize::try_from(asked).ok());
            let right = asked.map_or(1 < saw && saw < all, |asked| saw == asked);
            let wants = asked.map_or_else(|| format!("2 to {}", all - 1), |n| n.to_string());
            (!right)
                .then(|| format!("{} asks for {wants} and saw {saw} GPUs on node {name}", pod.name))
        });
        let violations = wrong.collect();
        finding("a wide small has the GPUs it asks for", (seen.len(), "wide pod"), violations)
    }

    fn large_has_all(&self) -> Finding {
        let wrong = self.of(Shape::Large).filter(|(node, run)| run.gpus.len() != node.gpus.len());
        let violations = wrong.map(|(node, run)| {
            let (name, saw, has) = (self.name(run), run.gpus.len(), node.gpus.len());
            format!("{name} is large and saw {saw} of the {has} GPUs of node {}", node.name)
        });
        let cases = (self.of(Shape::Large).count(), "large start");
        let mut finding = finding("a large has every GPU of its node", cases, violations.collect());
        if self.of(Shape::Large).any(|(node, _)| !node.listed) {
            finding.note = Some("a node without a list: against the GPUs that were seen".into());
        }
        finding
    }

    fn large_is_alone(&self) -> Finding {
        let mut violations = Vec::new();
        for node in &self.timeline.nodes {
            for (a, b) in overlapping(node.runs.iter()) {
                if [a, b].iter().all(|run| self.shape(run).is_small()) {
                    continue;
                }
                violations.push(format!(
                    "{} ran beside {} on node {} from {} to {}, and one of them is large",
                    self.name(b),
                    self.name(a),
                    node.name,
                    self.at(b.from_ms),
                    self.at(a.to_ms.min(b.to_ms)),
                ));
            }
        }
        let cases = (self.of(Shape::Large).count(), "large start");
        finding("nothing runs beside a large", cases, violations)
    }

    fn gate_is_closed(&self) -> Finding {
        let (mut drains, mut unknown, mut violations) = (0, 0, Vec::new());
        for node in &self.timeline.nodes {
            for drain in spans(node, Phase::Draining) {
                drains += 1;
                for run in self.small_starts(node, &drain) {
                    let pod = &self.timeline.pods[run.pod];
                    let Some(admitted_ms) = pod.admitted_ms else {
                        unknown += 1;
                        continue;
                    };
                    let open_ms = drain.from_ms.saturating_add(self.rules.slack_ms);
                    if admitted_ms > open_ms && !self.rules.backfill {
                        violations.push(format!(
                            "{} was admitted to node {} at {}, behind the gate that closed at {}{}",
                            pod.name,
                            node.name,
                            self.at(admitted_ms),
                            self.at(drain.from_ms),
                            drain.for_pod.as_ref().map_or(String::new(), |p| format!(" for {p}")),
                        ));
                    }
                }
            }
        }
        let mut finding =
            finding("no small is admitted behind a closed gate", (drains, "drain"), violations);
        if self.rules.backfill {
            finding.note = Some("not judged: the pool allows backfill".to_owned());
        } else if unknown > 0 {
            let starts = if unknown == 1 { "start" } else { "starts" };
            finding.note = Some(format!("{unknown} {starts} without an admission time"));
        }
        finding
    }

    fn wave_is_bounded(&self) -> Finding {
        let (mut waves, mut violations) = (0, Vec::new());
        for node in &self.timeline.nodes {
            let most = self.rules.wave_size.unwrap_or(node.gpus.len());
            for wave in spans(node, Phase::Wave) {
                waves += 1;
                // Pods, not starts: a container that is started again is no further admission.
                let pods: BTreeSet<usize> =
                    self.small_starts(node, &wave).map(|run| run.pod).collect();
                if pods.len() > most {
                    violations.push(format!(
                        "{} smalls started in the wave on node {} from {} to {}, and {most} may",
                        pods.len(),
                        node.name,
                        self.at(wave.from_ms),
                        self.at(wave.to_ms),
                    ));
                }
            }
        }
        finding("a wave has at most its size", (waves, "wave"), violations)
    }

    /// Starts of smalls on that node within that time. What starts in its last moments may belong
    /// to what follows.
    fn small_starts(&self, node: &'a Node, span: &PhaseSpan) -> impl Iterator<Item = &'a Run> {
        let within = span.from_ms..span.to_ms.saturating_sub(self.rules.slack_ms);
        node.runs
            .iter()
            .filter(move |run| self.shape(run).is_small() && within.contains(&run.from_ms))
    }
}

fn finding(
    rule: &'static str,
    (cases, unit): (usize, &'static str),
    violations: Vec<String>,
) -> Finding {
    Finding { rule, cases, unit, note: None, violations }
}

/// Pairs of runs that overlap in time, the one that started earlier first.
pub(super) fn overlapping<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<(&'a Run, &'a Run)> {
    let mut pairs = Vec::new();
    let mut going: Vec<&Run> = Vec::new();
    for run in runs {
        going.retain(|earlier| earlier.to_ms > run.from_ms);
        pairs.extend(going.iter().map(|earlier| (*earlier, run)));
        going.push(run);
    }
    pairs
}

/// Spans of that phase; neighbours are one, whichever pod they name.
fn spans(node: &Node, phase: Phase) -> Vec<PhaseSpan> {
    let mut spans: Vec<PhaseSpan> = Vec::new();
    for span in node.phases.iter().filter(|span| span.phase == phase) {
        match spans.last_mut() {
            Some(last) if last.to_ms == span.from_ms => last.to_ms = span.to_ms,
            _ => spans.push(span.clone()),
        }
    }
    spans
}

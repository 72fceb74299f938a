//! Pure: an explanation as the page that a person reads.

use super::change::{basis, change};
use super::need::need;
use super::{Context, hold, shape_name, standing, wait};
use crate::policy::{Effect, Explanation, Job, Need, Shape, Standing, Waits};

/// The page, with its last end of line.
pub fn text(explanation: &Explanation, context: &Context<'_>) -> String {
    let mut lines = vec![head(explanation, context)];
    match &explanation.standing {
        Standing::Waits(waits) => waiting(&mut lines, waits, explanation, context),
        Standing::Holds(holds) => lines.extend(hold::further(holds, &context.words)),
    }
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

fn head(explanation: &Explanation, context: &Context<'_>) -> String {
    let (reason, message) = standing(explanation, context);
    let pod = context.words.pod(explanation.job);
    let what = match &explanation.known {
        Some(job) => format!("{} in pool {}", shape_name(job.shape), context.pool),
        None => format!("in pool {}", context.pool),
    };
    let verb = if explanation.waits().is_some() { "waits: " } else { "" };
    format!("{pod} ({what}) {verb}{reason}.\n{message}")
}

fn waiting(
    lines: &mut Vec<String>,
    waits: &Waits,
    explanation: &Explanation,
    context: &Context<'_>,
) {
    let job = explanation.known.as_ref();
    let shape = job.map_or(Shape::Small, |job| job.shape);
    lines.push(rank(waits, job, context));
    if !waits.needs.is_empty() {
        let rough = "First (one way; fewer of these, or others, may do as well):";
        lines.push(if waits.rough { rough } else { "First:" }.to_owned());
    }
    for wanted in &waits.needs {
        let (sentence, below) = need(wanted, explanation.now, context);
        lines.push(format!("  {sentence}"));
        lines.extend(below.iter().map(|line| format!("    {line}")));
    }
    if let Some(at) = waits.foreseen.filter(|&at| Some(at) != waits.bound.latest_start) {
        let at = context.words.at(at);
        let only_time = waits.needs.iter().all(|need| matches!(need, Need::Time { .. }));
        let long = if only_time { "" } else { "that takes as long as it may and " };
        lines.push(format!("If {long}nothing else arrives, it starts at {at}."));
    }
    let told = wait::bound(waits.bound, explanation.now, &context.words);
    lines.push(match (waits.bound.latest_start, told) {
        (Some(_), Some(told)) => format!("{told} That rests on {}.", basis(waits, shape, context)),
        (Some(at), None) => format!(
            "It should have started by {}, which rests on {}.",
            context.words.at(at),
            basis(waits, shape, context)
        ),
        (None, Some(told)) => told,
        (None, None) => {
            format!("No latest start can be given: {}.", basis(waits, shape, context))
        }
    });
    // Nothing that is sure to happen lets it start.
    let for_ever = waits
        .needs
        .iter()
        .any(|need| matches!(need, Need::Resume | Need::Setting | Need::Fit { .. }));
    let sooner = if for_ever { "It can start" } else { "It starts sooner" };
    for (effect, label) in [
        (Effect::Sooner, sooner),
        (Effect::Bounded, "A latest start could be given"),
        (Effect::Later, "It may start later"),
    ] {
        let changes = waits.changes.iter().filter(|change| change.effect() == effect);
        lines.extend(changes.map(|c| format!("{label} if {}.", change(c, shape, context))));
    }
}

fn rank(waits: &Waits, job: Option<&Job>, context: &Context<'_>) -> String {
    let kind = if job.is_none_or(|job| job.shape.is_small()) { "small" } else { "whole-node" };
    let since = job.map_or_else(String::new, |job| {
        format!(" It was created at {}.", (context.words.time)(job.created))
    });
    let Waits { place, of, .. } = waits;
    match of {
        1 => format!("It is the only {kind} pod that waits.{since}"),
        _ => format!("It is number {place} of {of} {kind} pods that wait.{since}"),
    }
}

//! Pure: what must happen before a pod starts, as a person would say it.

use super::Context;
use super::decision::due;
use super::names::{counted, gpus};
use crate::policy::{Enough, Holder, Holders, JobId, Millis, Need, NodeId, Unfit};

/// Something that must happen first: a sentence, and what belongs under it.
pub fn need(need: &Need, now: Millis, context: &Context<'_>) -> (String, Vec<String>) {
    let words = &context.words;
    match need {
        Need::Resume => ("The pool must be resumed.".to_owned(), Vec::new()),
        Need::Setting => {
            ("The pool's settings must change: nothing else helps.".to_owned(), Vec::new())
        }
        Need::Time { until } => (format!("It must be {}.", words.at(*until)), Vec::new()),
        Need::Fit { nodes, more } => {
            let told = |&(node, unfit): &(NodeId, Unfit)| {
                format!("node {} {}", words.node(node), self::unfit(unfit))
            };
            let told = nodes.iter().map(told).chain(others(*more, "node")).collect::<Vec<_>>();
            let sentence = "There must be a node that the pod fits";
            (format!("{sentence}{}", if told.is_empty() { "." } else { ":" }), told)
        }
        Need::Ends { node, holders: Holders { named, more }, enough } => {
            let place = node.map(|node| words.node(node));
            let told = named.iter().map(|h| holder(h, node.is_none(), now, context));
            let sentence = ends(place.as_deref(), *enough, named.len() + *more as usize);
            (sentence, told.chain(others(*more, "pod")).collect())
        }
        Need::Runs { jobs, more, .. } => {
            let one = jobs.len() == 1 && *more == 0;
            (runs(need, context), if one { Vec::new() } else { vec![pods(jobs, *more, context)] })
        }
        Need::Starts { jobs, more: 0 } if jobs.len() == 1 => {
            (format!("{} starts before it.", pods(jobs, 0, context)), Vec::new())
        }
        Need::Starts { jobs, more } => {
            let told = vec![pods(jobs, *more, context)];
            ("These start before it, in this order:".to_owned(), told)
        }
        Need::Rounds { larges, smalls, first, at_least } => {
            let kinds = [(*larges, "whole-node pod"), (*smalls, "small pod")];
            let kinds = kinds.into_iter().filter(|&(count, _)| count > 0);
            let kinds: Vec<String> =
                kinds.map(|(count, kind)| counted(count, kind, &format!("{kind}s"))).collect();
            let (first, kinds) = (words.pod(*first), kinds.join(" and "));
            let told = match at_least {
                true => format!("After that at least {kinds} must start, {first} first."),
                false => format!("After that {kinds} must start and end, {first} first."),
            };
            (told, Vec::new())
        }
    }
}

fn ends(node: Option<&str>, enough: Enough, all: usize) -> String {
    match (enough, node) {
        (Enough::All, Some(node)) if all == 1 => {
            format!("The pod that holds GPUs of node {node} must end:")
        }
        (Enough::All, Some(node)) => format!("Every pod that holds GPUs of node {node} must end:"),
        (Enough::All, None) if all == 1 => "This pod must end:".to_owned(),
        (Enough::All, None) => "All of these must end:".to_owned(),
        (Enough::Any(1), _) => "One of these must end:".to_owned(),
        (Enough::Any(count), _) => format!("{count} of these must end:"),
    }
}

fn runs(need: &Need, context: &Context<'_>) -> String {
    let Need::Runs { jobs, more, enough, limit, wave, credit } = need else {
        return String::new();
    };
    let within = |each: &str| match limit {
        Some(limit) => format!(", {each}in at most {}", length(*limit)),
        None => ", and nothing limits how long that takes".to_owned(),
    };
    match (&jobs[..], enough) {
        ([only], Enough::All) if *more == 0 => {
            let because = credit.map_or_else(String::new, |credit| format!(": {}", due(credit)));
            format!("{} must start and end{}{because}.", context.words.pod(*only), within(""))
        }
        (_, Enough::All) if *wave => {
            format!("A wave of small pods must start and end{}:", within("each "))
        }
        (_, Enough::All) => format!("These must start and end{}:", within("each ")),
        (_, Enough::Any(1)) => format!("One of these must start and end{}:", within("")),
        (_, Enough::Any(count)) => {
            format!("{count} of these must start and end{}:", within("each "))
        }
    }
}

/// In one line, since of those that wait there is no more to say than their names.
fn pods(jobs: &[JobId], more: u32, context: &Context<'_>) -> String {
    let all = jobs.iter().map(|&job| context.words.pod(job)).chain(others(more, "pod"));
    all.collect::<Vec<_>>().join(", ")
}

fn holder(holder: &Holder, place: bool, now: Millis, context: &Context<'_>) -> String {
    let words = &context.words;
    let until = match holder.latest_end {
        Some(end) if end < now => format!("should have ended by {}", words.at(end)),
        Some(end) => format!("until {} at the latest", words.at(end)),
        None => "nothing limits how long".to_owned(),
    };
    let of = if place { format!(" of node {}", words.node(holder.node)) } else { String::new() };
    format!("{}: {}{of}, {until}", words.pod(holder.job), gpus(holder.gpus))
}

fn others(more: u32, noun: &str) -> impl Iterator<Item = String> {
    (more > 0)
        .then(|| counted(more, &format!("other {noun}"), &format!("other {noun}s")))
        .into_iter()
}

fn unfit(unfit: Unfit) -> String {
    match unfit {
        Unfit::NotMatched => {
            "does not match its node selector, affinity and tolerations".to_owned()
        }
        Unfit::Unschedulable => {
            "takes no new work: it is cordoned, not ready, or gives out no GPUs".to_owned()
        }
        Unfit::Size(has) => format!("has {}", counted(has, "GPU", "GPUs")),
        Unfit::Unhealthy(set) => format!("has {} unhealthy", gpus(set)),
    }
}

/// A length of time, without what is zero in it.
pub(super) fn length(span: Millis) -> String {
    let length = crate::timeline::length(span.0);
    let whole = length.strip_suffix(" 00 s").map(str::to_owned);
    whole.unwrap_or_else(|| length.replace(".0 s", " s"))
}

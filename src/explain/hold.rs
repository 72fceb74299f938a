//! Pure: what a pod that has GPUs is doing with them.

use super::Words;
use super::decision::reserved;
use super::names::gpus;
use crate::policy::{Holding, Holds, Kind, Shape, Stage};

/// How far the pod has come: a reason for programs and a sentence for people.
pub fn rule(holds: &Holds, words: &Words<'_>) -> (&'static str, String) {
    let Holds { node, holding, .. } = holds;
    let (name, set) = (words.node(*node), gpus(holding.gpus));
    if holding.kind == Kind::Foreign {
        let message = format!("The pod did not go through Sluice, and holds {set} of node {name}.");
        return ("Foreign", message);
    }
    match holding.stage {
        Stage::Reserved => ("Reserved", reserved(words, *node, holding.gpus)),
        Stage::Bound => ("Bound", format!("The pod is bound to node {name}, where it gets {set}.")),
        Stage::Running => ("Running", format!("The pod runs on {set} of node {name}.")),
        Stage::Releasing => {
            let message = format!(
                "The pod is gone from the API server, and its containers may still run on {set} \
                 of node {name}; they are not given on before they are gone."
            );
            ("Releasing", message)
        }
    }
}

/// Further sentences: by which rule it came by its GPUs, until when, and whom it holds up.
pub fn further(holds: &Holds, words: &Words<'_>) -> Vec<String> {
    let Holds { node, holding, emptied_for } = holds;
    let name = words.node(*node);
    let mut all = Vec::new();
    let since = words.at(holding.since);
    all.extend(match holding.kind {
        Kind::Direct if holding.shape.is_some_and(Shape::is_small) => {
            Some(format!("It was admitted at {since}, when the node was open and had room."))
        }
        Kind::Direct => Some(format!("It was admitted at {since}, when the node was empty.")),
        Kind::Wave => {
            Some(format!("It was admitted at {since}, in the wave after a whole-node pod."))
        }
        Kind::Backfill => Some(format!(
            "It was admitted at {since} behind the closed gate, since it ends before the drain."
        )),
        Kind::Foreign => Some(format!("Sluice has seen it there since {since}.")),
    });
    all.extend(expiry(holding, words));
    all.push(match holding.latest_end {
        Some(end) => format!("Its GPUs are free again by {} at the latest.", words.at(end)),
        None => {
            "Nothing limits how long it holds them: it has no activeDeadlineSeconds.".to_owned()
        }
    });
    if let Some(large) = emptied_for {
        let large = words.pod(*large);
        all.push(format!("Node {name} is being emptied for {large}, which waits for this pod."));
    }
    if holding.evicting {
        all.push(format!("Its eviction was asked for: the drain of node {name} is overdue."));
    }
    all
}

fn expiry(holding: &Holding, words: &Words<'_>) -> Option<String> {
    let expires = holding.expires.filter(|_| holding.stage == Stage::Reserved)?;
    Some(format!(
        "kube-scheduler must bind it by {}; else the reservation is taken back, and others pass.",
        words.at(expires)
    ))
}

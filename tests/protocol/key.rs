//! The key of a state, which two states share if nothing that can follow tells them apart.
//!
//! Versions are part of it only as an order: which of two copies is newer, and whether a copy is
//! the server's. A copy that trails can never become current again. Revisions are no part of it,
//! nor is which of the two replicas is called the first.

use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher};

use sluice::api::{GpuNode, GpuNodeStatus};
use sluice::policy::Pool;
use sluice::translate::plan::Action;
use sluice::translate::pod::Admitted;
use sluice::translate::{Known, PodFacts};

use super::replica::{Outcome, Replica, Sent};
use super::server::PodEvent;
use super::state::State;

/// The key of a state; with what has happened, where a run wants to know.
pub(crate) fn of(state: &State, marked: bool) -> u64 {
    let mut text = Text(DefaultHasher::new());
    write(state, marked, &mut text).expect("a hasher takes everything");
    text.0.finish()
}

/// The key of what a leader believes.
pub(crate) fn of_run(run: &(Pool, Known)) -> u64 {
    hash(|text| write!(text, "{run:?}"))
}

/// The key of what a write says.
pub(crate) fn of_action(action: &Action) -> u64 {
    hash(|text| match action {
        Action::WriteLedger { object, read, .. } => {
            write_ledger(text, object)?;
            write_status(text, read)
        }
        Action::Tell { pod, admitted: told, nominate, .. } => {
            write!(text, "tell {}{nominate:?}", pod.uid)?;
            admitted(text, Some(told))
        }
        other => write!(text, "{other:?}"),
    })
}

/// Text that is hashed as it is written.
struct Text(DefaultHasher);

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

fn write(state: &State, marked: bool, text: &mut Text) -> fmt::Result {
    write!(text, "{}{:?}{:?}{}", state.now.0, state.left, state.fault, state.idle)?;
    write!(text, "{}{:?}{:?}", state.created, state.underway, state.promised)?;
    write!(text, "{:?}", state.containers)?;
    for at in state.written_at.values() {
        write!(text, "{}", *at < state.now)?;
    }
    if marked {
        write!(text, "{:?}", state.marks)?;
    }
    // The order in which extenders came to it says nothing.
    write!(
        text,
        "{:?}",
        sorted(state.bindings.iter().map(|of| hash(|text| write!(text, "{of:?}"))))
    )?;
    for ledger in state.server.ledgers.values() {
        write_ledger(text, ledger)?;
    }
    for pod in state.server.pods.values() {
        write_pod(text, pod)?;
    }
    let adrift = state.adrift.iter().map(|of| hash(|text| write_sent(text, state, of)));
    write!(text, "{:?}", sorted(adrift))?;
    let replicas = state.replicas.iter().enumerate().map(|(index, replica)| {
        hash(|text| {
            write!(text, "{}", state.lease == Some(index))?;
            write_replica(text, state, replica)
        })
    });
    write!(text, "{:?}", sorted(replicas))
}

fn sorted(hashes: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut hashes: Vec<u64> = hashes.collect();
    hashes.sort_unstable();
    hashes
}

fn hash(write: impl FnOnce(&mut Text) -> fmt::Result) -> u64 {
    let mut text = Text(DefaultHasher::new());
    write(&mut text).expect("a hasher takes everything");
    text.0.finish()
}

fn write_replica(text: &mut Text, state: &State, replica: &Replica) -> fmt::Result {
    write!(text, "{}{}{}", replica.news, replica.starts_over, replica.paused)?;
    write!(text, "{}", replica.late)?;
    for (name, ledger) in &replica.ledgers {
        known_ledger(text, state, name, ledger)?;
    }
    for event in &replica.ledgers_to_see {
        known_ledger(text, state, event.metadata.name.as_deref().unwrap_or_default(), event)?;
    }
    for pod in replica.pods.values() {
        known_pod(text, state, pod)?;
    }
    for event in &replica.pods_to_see {
        match event {
            PodEvent::Is(pod) => known_pod(text, state, pod)?,
            PodEvent::Gone(pod) => write!(text, "gone {} {:?}", pod.who.uid, pod.ended)?,
        }
    }
    for (uid, pod) in &replica.gone {
        write!(text, "{uid}{:?}", pod.ended)?;
    }
    if replica.run.is_some() {
        write!(text, "{}", replica.run_key)?;
    }
    let sent = replica.sent.iter().map(|sent| {
        hash(|text| {
            write_sent(text, state, sent)?;
            match &sent.arrived {
                None => write!(text, "sent"),
                Some(Outcome::Ledger(ledger)) => known_ledger(
                    text,
                    state,
                    ledger.metadata.name.as_deref().unwrap_or_default(),
                    ledger,
                ),
                Some(Outcome::Pod(pod)) => known_pod(text, state, pod),
                Some(Outcome::Conflict) => write!(text, "conflict"),
                Some(Outcome::Gone) => write!(text, "gone"),
            }
        })
    });
    write!(text, "{:?}", sorted(sent))
}

/// A ledger as somebody knows it.
fn known_ledger(text: &mut Text, state: &State, name: &str, ledger: &GpuNode) -> fmt::Result {
    let server = &state.server.ledgers[name].metadata.resource_version;
    if *server == ledger.metadata.resource_version {
        return write!(text, "{name} current");
    }
    write_ledger(text, ledger)
}

fn write_ledger(text: &mut Text, ledger: &GpuNode) -> fmt::Result {
    let name = ledger.metadata.name.as_deref().unwrap_or_default();
    write!(text, "{name}")?;
    ledger.status.as_ref().map_or(Ok(()), |status| write_status(text, status))
}

fn write_status(text: &mut Text, status: &GpuNodeStatus) -> fmt::Result {
    write!(text, "{:?}", GpuNodeStatus { revision: 0, ..status.clone() })
}

/// A pod as somebody knows it.
fn known_pod(text: &mut Text, state: &State, pod: &PodFacts) -> fmt::Result {
    let server = state.server.pods.get(&pod.who.uid);
    if server.is_some_and(|server| server.version == pod.version) {
        return write!(text, "{} current", pod.who.uid);
    }
    write_pod(text, pod)
}

fn write_pod(text: &mut Text, pod: &PodFacts) -> fmt::Result {
    write!(text, "{}{}{:?}{:?}", pod.who.uid, pod.gated, pod.node, pod.nominated)?;
    write!(text, "{:?}{:?}{}", pod.sequence, pod.ended, pod.deleting)?;
    admitted(text, pod.admitted.as_ref())
}

/// Why a pod waits is told again only together with something else.
fn admitted(text: &mut Text, told: Option<&Admitted>) -> fmt::Result {
    match told.filter(|told| told.yes) {
        Some(told) => write!(text, "{}", told.message),
        None => write!(text, "waits"),
    }
}

/// A write, and whether it would still be made from what is there.
fn write_sent(text: &mut Text, state: &State, sent: &Sent) -> fmt::Result {
    write!(text, "{}", sent.key)?;
    let Action::WriteLedger { object, .. } = &*sent.action else { return Ok(()) };
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let server = &state.server.ledgers[name].metadata.resource_version;
    write!(text, "{}", *server == object.metadata.resource_version)
}

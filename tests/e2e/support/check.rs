//! What has to hold after every scenario: all GPUs free, counters right, the invariants kept in
//! each version of the ledger and in what the containers saw, and no line at level ERROR.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::json;
use sluice::api::{
    GpuNode, GpuNodeStatus, NodePhase, Reservation, ReservationKind, ShapeCounters, names,
};

use super::scenario::{Scenario, View};
use super::world::{History, State};
use super::{Cluster, GPUS, LIMIT, SYSTEM, command, logs, pods, records};

/// What was so before a scenario.
pub(crate) struct Before {
    small: ShapeCounters,
    large: ShapeCounters,
    logs: logs::Marks,
    ledgers: BTreeMap<String, usize>,
}

impl Before {
    /// As it is now.
    pub(crate) fn take(cluster: &Cluster) -> Result<Self> {
        let state = cluster.world.now();
        let pool = state.pool().and_then(|pool| pool.last().status.clone()).context("no pool")?;
        Ok(Self {
            small: pool.small.counters,
            large: pool.whole_node_large.counters,
            logs: logs::Marks::now(SYSTEM),
            ledgers: state
                .nodes
                .iter()
                .map(|(uid, node)| (uid.clone(), node.versions.len()))
                .collect(),
        })
    }
}

/// Waits until nothing holds or waits for a GPU anywhere.
pub(crate) async fn idle(cluster: &Cluster, when: &str) -> Result<()> {
    let what = format!("{when}: every GPU is free, every node Open, nothing waits");
    cluster.world.until(&what, LIMIT, |state| idle_now(state).then_some(())).await
}

fn idle_now(state: &State) -> bool {
    let Some(pool) = state.pool().and_then(|pool| pool.last().status.as_ref()) else {
        return false;
    };
    let mut nodes = state.nodes.values().filter(|node| node.gone_ms.is_none()).peekable();
    nodes.peek().is_some()
        && nodes.all(|node| node.last().status.as_ref().is_some_and(node_idle))
        && [&pool.small, &pool.whole_node_large]
            .iter()
            .all(|shape| shape.queue.depth == 0 && shape.running == 0 && shape.admitted == 0)
        && pool.gpus.capacity > 0
        && pool.gpus.free == pool.gpus.capacity
}

fn node_idle(status: &GpuNodeStatus) -> bool {
    status.phase == NodePhase::Open
        && status.reservations.is_empty()
        && status.releasing.is_empty()
        && status.drain.is_none()
        && status.wave.is_none()
        && status.free.len() == status.gpus.len()
        && status.gpus.iter().all(|gpu| gpu.holder.is_none())
        && !status.gpus.is_empty()
}

/// All checks.
pub(crate) async fn after(scenario: &Scenario) -> Result<()> {
    idle(&scenario.cluster, "after the scenario").await?;
    if scenario.counters_go_on() {
        counters(scenario).await?;
    }
    ledgers(scenario)?;
    containers(scenario).await?;
    let errors = scenario.before.logs.errors_since(SYSTEM);
    ensure!(errors.is_empty(), "lines at level ERROR in Sluice's logs:\n{}", errors.join("\n"));
    Ok(())
}

/// By how much a shape's counters have to grow.
#[derive(Debug)]
struct Expected {
    /// So much, as the API server knows it.
    counters: ShapeCounters,
    /// Of the cancelled, those that never were seen to hold GPUs: they may have been admitted by a
    /// decision that the deletion overtook before it was written.
    overtaken: i64,
}

impl Expected {
    fn met_by(&self, grown: ShapeCounters) -> bool {
        let extra = grown.admitted - self.counters.admitted;
        let rest = ShapeCounters { admitted: self.counters.admitted, ..grown };
        rest == self.counters && (0..=self.overtaken).contains(&extra)
    }
}

/// How the pods of these shapes ended.
fn expected(view: &View<'_>, shapes: &[&str]) -> Expected {
    let mut counters = ShapeCounters::default();
    let mut overtaken = 0;
    let of_shape =
        |pod: &&History<Pod>| pods::shape(pod.last()).is_some_and(|s| shapes.contains(&s));
    for pod in view.histories().filter(of_shape) {
        let admitted = admissions(view, pod);
        let foreign = admitted == 0 && pod.first(|pod| pods::node(pod).is_some()).is_some();
        if foreign {
            continue;
        }
        counters.admitted += admitted;
        match ending(pod) {
            Ending::Completed => counters.completed += 1,
            Ending::Failed => counters.failed += 1,
            Ending::Cancelled => {
                counters.cancelled += 1;
                overtaken += i64::from(admitted == 0);
            }
        }
    }
    Expected { counters, overtaken }
}

/// How often GPUs were reserved for a pod: how often it came into some ledger.
fn admissions(view: &View<'_>, pod: &History<Pod>) -> i64 {
    let uid = pod.last().uid();
    let mut admissions = 0;
    for node in view.state.nodes.values() {
        let mut held = false;
        for status in node.versions.iter().filter_map(|seen| seen.object.status.as_ref()) {
            let holds = status
                .reservations
                .iter()
                .any(|one| Some(&one.uid) == uid.as_ref() && one.kind != ReservationKind::Foreign);
            admissions += i64::from(holds && !held);
            held = holds;
        }
    }
    admissions
}

enum Ending {
    Completed,
    Failed,
    Cancelled,
}

/// Deletion counts only if it came before the end.
fn ending(pod: &History<Pod>) -> Ending {
    let end = pod.first(pods::terminal);
    let deletion = pod.first(|pod| pod.metadata.deletion_timestamp.is_some());
    match (end, deletion) {
        (Some(end), deletion) if deletion.is_none_or(|at| at.version > end.version) => {
            if pods::phase(&end.object) == "Succeeded" {
                Ending::Completed
            } else {
                Ending::Failed
            }
        }
        _ => Ending::Cancelled,
    }
}

async fn counters(scenario: &Scenario) -> Result<()> {
    let smalls = [names::SHAPE_SMALL, names::SHAPE_WIDE];
    let larges = [names::SHAPE_LARGE];
    let wanted = scenario.look(|view| [expected(view, &smalls), expected(view, &larges)]);
    let before = [scenario.before.small, scenario.before.large];
    let text = format!("the pool's counters grew by {wanted:?} (small, whole-node-large)");
    // The status is written a moment after the ledger.
    let outcome = scenario
        .until(&text, |view| {
            let pool = view.pool()?;
            let now = [pool.small.counters, pool.whole_node_large.counters];
            (0..2).all(|at| wanted[at].met_by(growth(now[at], before[at]))).then_some(())
        })
        .await;
    let grown = scenario.look(|view| {
        let pool = view.pool()?;
        Some([
            growth(pool.small.counters, before[0]),
            growth(pool.whole_node_large.counters, before[1]),
        ])
    });
    outcome.with_context(|| format!("they grew by {grown:?}, not by {wanted:?}"))
}

fn growth(now: ShapeCounters, before: ShapeCounters) -> ShapeCounters {
    ShapeCounters {
        admitted: now.admitted - before.admitted,
        completed: now.completed - before.completed,
        failed: now.failed - before.failed,
        cancelled: now.cancelled - before.cancelled,
    }
}

/// The invariants in each version of each ledger that the scenario brought about.
fn ledgers(scenario: &Scenario) -> Result<()> {
    let state = scenario.cluster.world.now();
    for (uid, node) in &state.nodes {
        let known = scenario.before.ledgers.get(uid).copied().unwrap_or(0).saturating_sub(1);
        let mut previous: Option<&GpuNode> = None;
        for seen in &node.versions[known.min(node.versions.len() - 1)..] {
            if let Some(status) = seen.object.status.as_ref() {
                let earlier = previous.and_then(|node| node.status.as_ref());
                ledger(status, earlier).with_context(|| {
                    format!(
                        "ledger of {} at version {}:\n{}",
                        node.last().name_any(),
                        seen.version,
                        serde_json::to_string_pretty(status).unwrap_or_default()
                    )
                })?;
            }
            previous = Some(&seen.object);
        }
    }
    Ok(())
}

fn ledger(status: &GpuNodeStatus, before: Option<&GpuNodeStatus>) -> Result<()> {
    let mut held = BTreeSet::new();
    for reservation in &status.reservations {
        for gpu in &reservation.gpus {
            ensure!(held.insert(gpu), "GPU {gpu} is held twice");
        }
        let gpus = reservation.gpus.len();
        match reservation.shape.as_deref() {
            _ if reservation.kind == ReservationKind::Foreign => {}
            Some(names::SHAPE_SMALL) => ensure!(gpus == 1, "a small holds {gpus} GPUs"),
            Some(names::SHAPE_WIDE) => {
                let several = 1 < gpus && gpus < status.gpus.len();
                ensure!(several, "a wide small holds {gpus} GPUs");
            }
            Some(names::SHAPE_LARGE) => {
                ensure!(gpus == status.gpus.len(), "a large holds {gpus} GPUs");
            }
            other => bail!("a reservation of shape {other:?}"),
        }
    }
    if let Some(free) = status.free.iter().find(|gpu| held.contains(gpu)) {
        bail!("GPU {free} is free and held");
    }
    let larges = status.reservations.iter().filter(|one| is_large(one)).count();
    let others = status.reservations.len() - larges;
    ensure!(larges <= 1 && (larges == 0 || others == 0), "a large is not alone");
    ensure!((larges == 1) == (status.phase == NodePhase::Exclusive), "phase and large disagree");
    if let Some(wave) = &status.wave {
        ensure!(wave.admitted <= wave.size, "a wave of {} of {}", wave.admitted, wave.size);
        ensure!(usize::try_from(wave.size)? <= GPUS, "a wave of size {}", wave.size);
    }
    if let Some(before) = before.filter(|before| before.phase == NodePhase::Draining)
        && status.phase == NodePhase::Draining
        && before.drain.as_ref().map(|drain| &drain.pod)
            == status.drain.as_ref().map(|drain| &drain.pod)
    {
        let new = status.reservations.iter().find(|one| {
            one.kind != ReservationKind::Foreign
                && one.kind != ReservationKind::Backfill
                && before.reservations.iter().all(|earlier| earlier.uid != one.uid)
        });
        ensure!(new.is_none(), "admitted while the gate was closed: {new:?}");
    }
    Ok(())
}

fn is_large(reservation: &Reservation) -> bool {
    reservation.shape.as_deref() == Some(names::SHAPE_LARGE)
}

/// The same check as `sluice timeline --check` makes for a user, on what the containers saw.
async fn containers(scenario: &Scenario) -> Result<()> {
    let folder = scenario.folder.join("records");
    if records::files(&folder).is_empty() {
        return Ok(());
    }
    std::fs::write(
        folder.join("facts.jsonl"),
        scenario.look(|view| facts(view, &scenario.before)),
    )?;
    let mut arguments = vec!["timeline".to_owned(), "--check".to_owned()];
    arguments.extend(records::files(&folder).iter().map(|path| path.display().to_string()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = command::output(env!("CARGO_BIN_EXE_sluice"), &arguments).await?;
    ensure!(output.status.success(), "sluice {arguments:?}:\n{}{}", output.stdout, output.stderr);
    Ok(())
}

/// What the API server knows, in the timeline's format.
fn facts(view: &View<'_>, before: &Before) -> String {
    let mut text = String::new();
    for node in view.state.nodes.values() {
        let name = node.last().name_any();
        if let Some(status) = &node.last().status {
            let gpus: Vec<&str> = status.gpus.iter().map(|gpu| gpu.id.as_str()).collect();
            if !gpus.is_empty() {
                line(&mut text, &json!({"event": "node", "node": name, "gpus": gpus}));
            }
        }
        let mut shown = None;
        let known = before.ledgers.get(&node_uid(node)).copied().unwrap_or(0).saturating_sub(1);
        for seen in node.versions.iter().skip(known) {
            let Some(status) = &seen.object.status else { continue };
            let pod = status.drain.as_ref().map(|drain| &drain.pod);
            let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
            if shown.as_ref() != Some(&(status.phase, pod.clone())) {
                let mut record = json!({
                    "event": "phase", "node": name, "phase": status.phase, "time_ms": seen.at_ms,
                });
                if let Some(pod) = &pod {
                    record["for"] = json!(pod);
                }
                line(&mut text, &record);
                shown = Some((status.phase, pod));
            }
        }
    }
    for pod in view.histories() {
        let last = pod.last();
        let (Some(shape), Some(uid)) = (pods::shape(last), last.uid()) else { continue };
        let at = |holds: fn(&Pod) -> bool| pod.first(holds).map(|seen| seen.at_ms);
        let name = format!("{}/{}", last.namespace().unwrap_or_default(), last.name_any());
        line(
            &mut text,
            &json!({
                "event": "pod", "pod": name, "uid": uid, "shape": shape, "gpus": pods::gpus(last),
                "created_ms": pod.versions.first().map(|seen| seen.at_ms),
                "admitted_ms": at(pods::admitted),
                "bound_ms": at(|pod| pods::node(pod).is_some()),
            }),
        );
    }
    text
}

fn node_uid(node: &History<GpuNode>) -> String {
    node.last().uid().unwrap_or_default()
}

fn line(text: &mut String, record: &serde_json::Value) {
    let _ = writeln!(text, "{record}");
}

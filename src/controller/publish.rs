//! Cluster side: what was decided, as log lines, Events and figures, all from one record.
//!
//! Events are a courtesy: they are written in the background from a bounded queue, and one that
//! finds it full is counted and dropped. The log line is never dropped.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::api::names;
use crate::metrics::{
    Metrics, PoolLabel, QueueLabel, ReasonLabel, ShapeLabel, ShapeValue, TransitionLabel,
};
use crate::policy::{Decision, Input, Kind, UnreserveReason};
use crate::translate::record::{BYPASSED, Cause, Record, Tone};

/// Events that may wait to be written: a burst of some hundred admissions.
const QUEUE: usize = 1_024;
/// How long writing one Event may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// The API server refuses longer notes.
const NOTE_MAX: usize = 1_000;
const LABEL: QueueLabel = QueueLabel { queue: "events" };

/// Publishes records.
#[derive(Clone)]
pub(super) struct Publisher {
    events: mpsc::Sender<(Event, ObjectReference)>,
    metrics: Metrics,
}

impl Publisher {
    /// A publisher, and the task that writes its Events until every publisher is gone.
    pub(super) fn new(client: Client, metrics: Metrics) -> (Self, impl Future<Output = ()> + Send) {
        let (events, queue) = mpsc::channel(QUEUE);
        let writer = write(client, metrics.clone(), queue);
        (Self { events, metrics }, writer)
    }

    /// Publishes one record: a log line, the figures, and where it is worth one an Event on the
    /// pod that it is about, or else on the node's ledger.
    pub(super) fn publish(&self, record: &Record) {
        let cause = serde_json::to_string(&record.cause).unwrap_or_default();
        let node = record.node.as_deref().unwrap_or_default();
        let pod = record.pod.as_ref();
        let pod = pod.map(|who| format!("{}/{}", who.namespace, who.name)).unwrap_or_default();
        let (pool, reason, message) = (&record.pool, record.reason, &record.message);
        // These lines in JSON are a history that `sluice review` reads.
        let Record { waited_ms, drained_ms, priority, limit_ms, .. } = *record;
        let shape = record.shape.map(|shape| format!("{shape:?}"));
        let shape = shape.as_deref();
        if record.tone == Tone::Warning {
            warn!(
                %pool, node, pod, reason, shape, waited_ms, drained_ms, priority, limit_ms, cause,
                "{message}"
            );
        } else {
            info!(
                %pool, node, pod, reason, shape, waited_ms, drained_ms, priority, limit_ms, cause,
                "{message}"
            );
        }
        self.count(record);
        if record.tone > Tone::Quiet {
            self.event(record, regarding(record), None);
        }
        if record.reason == BYPASSED {
            // Events that differ only in their words are counted as one that came again.
            self.event(record, object("GpuPool", &record.pool), Some(regarding(record)));
        }
    }

    fn event(
        &self,
        record: &Record,
        regarding: ObjectReference,
        secondary: Option<ObjectReference>,
    ) {
        let warning = record.tone == Tone::Warning;
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: record.reason.to_owned(),
            note: Some(cut(&record.message)),
            action: record.reason.to_owned(),
            secondary,
        };
        if self.events.try_send((event, regarding)).is_err() {
            self.metrics.outbox_dropped.get_or_create_owned(&LABEL).inc();
        }
    }

    fn count(&self, record: &Record) {
        let pool = || record.pool.clone();
        let metrics = &self.metrics;
        let transition = |how| {
            let shape = ShapeValue(record.shape?);
            Some(TransitionLabel { pool: pool(), shape, how })
        };
        match &record.cause {
            Cause::Decision(Decision::Reserved { kind, .. }) => {
                if let Some(label) = transition(rule(*kind)) {
                    metrics.admissions.get_or_create_owned(&label).inc();
                    let label = ShapeLabel { pool: pool(), shape: label.shape };
                    let waited = record.waited_ms.map(seconds).unwrap_or_default();
                    metrics.queue_wait.get_or_create_owned(&label).observe(waited);
                }
                if let Some(drained) = record.drained_ms.map(seconds) {
                    let label = PoolLabel { pool: pool() };
                    metrics.drain_duration.get_or_create_owned(&label).observe(drained);
                }
            }
            Cause::Decision(Decision::Unreserved { reason, .. }) => {
                let label = ReasonLabel { pool: pool(), reason: taken_back(*reason) };
                metrics.unreserved.get_or_create_owned(&label).inc();
            }
            Cause::Decision(Decision::Refused { .. }) => {
                metrics.refused_commits.get_or_create_owned(&PoolLabel { pool: pool() }).inc();
            }
            Cause::Fact(Input::Released { .. }) => {
                if let Some(label) = transition(record.reason) {
                    metrics.ended.get_or_create_owned(&label).inc();
                }
            }
            Cause::Fact(Input::Foreign { .. }) => {
                metrics.bypasses.get_or_create_owned(&PoolLabel { pool: pool() }).inc();
            }
            Cause::Decision(_) | Cause::Fact(_) | Cause::Agent(_) | Cause::Moved(_) => {}
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "no wait comes near the 2^53 ms that are exact")]
pub(super) fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}

const fn rule(kind: Kind) -> &'static str {
    match kind {
        Kind::Direct => "direct",
        Kind::Wave => "wave",
        Kind::Backfill => "backfill",
        Kind::Foreign => "foreign",
    }
}

const fn taken_back(reason: UnreserveReason) -> &'static str {
    match reason {
        UnreserveReason::Expired => "expired",
        UnreserveReason::BindFailed => "bind_failed",
        UnreserveReason::NodeUnfit => "node_unfit",
        UnreserveReason::Displaced => "displaced",
        UnreserveReason::NodeGone => "node_gone",
    }
}

fn regarding(record: &Record) -> ObjectReference {
    if let Some(pod) = &record.pod {
        return ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
    }
    match &record.node {
        Some(node) => object("GpuNode", node),
        None => object("GpuPool", &record.pool),
    }
}

fn object(kind: &str, name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{}/{}", names::GROUP, names::VERSION)),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

fn cut(message: &str) -> String {
    if message.len() <= NOTE_MAX {
        return message.to_owned();
    }
    let end = (0..=NOTE_MAX).rev().find(|&at| message.is_char_boundary(at)).unwrap_or_default();
    message[..end].to_owned()
}

async fn write(
    client: Client,
    metrics: Metrics,
    mut queue: mpsc::Receiver<(Event, ObjectReference)>,
) {
    let instance = std::env::var("POD_NAME").ok();
    let reporter = Reporter { controller: names::MANAGER_CONTROLLER.to_owned(), instance };
    let recorder = Recorder::new(client, reporter);
    while let Some((event, regarding)) = queue.recv().await {
        let waiting = i64::try_from(queue.len()).unwrap_or(i64::MAX);
        metrics.outbox_depth.get_or_create_owned(&LABEL).set(waiting);
        let name = regarding.name.clone().unwrap_or_default();
        let call = recorder.publish(&event, &regarding);
        let error = match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {CALL_LIMIT:?}"),
        };
        metrics.outbox_dropped.get_or_create_owned(&LABEL).inc();
        warn!(reason = event.reason, regarding = name, error, "Event not written");
    }
}

//! Pure: whether a node's agent can be relied upon.
//!
//! An agent writes the ledger only when something changes, so its silence proves nothing. That it
//! is alive is told by its pod: kubelet asks it every few seconds whether it follows the ledger and
//! kubelet's own list, and the API server hears of changes only, which costs nothing on a quiet
//! cluster. What it owes is told by the ledger: an answer about each pod that is being released.
//!
//! Nothing that is decided rests on this. GPUs of a pod that is gone stay held until the agent has
//! answered, however long that takes; here a person is told why.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use super::text::pods;
use super::time::{millis, spoken};
use super::{Known, NodeFacts, World};
use crate::api::{GpuNodeStatus, PodRef, names};
use crate::policy::{Millis, Node, NodeId, Pool, Stage};

/// How long an agent may be away before it is said: its pod is replaced at an upgrade.
const AWAY: Millis = Millis::from_secs(60);
/// How long an answer about a pod may take beyond the pod's grace period and the usual margin. For
/// a pod with the usual grace period this is 60 s after the question.
const ANSWER_LATE: Millis = Millis::from_secs(20);
/// Condition of a ledger that says whether its node's agent can be relied upon.
pub const CONDITION: &str = "AgentReady";
/// Its reason where the node has no agent.
const GONE: &str = "AgentGone";

/// The pod of a node's agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentPod {
    /// The pod.
    pub who: PodRef,
    /// Whether kubelet finds it ready.
    pub ready: bool,
    /// Since when that is so.
    pub since: Millis,
}

impl AgentPod {
    /// Reads a pod, if it is a node agent's; with the name of its node.
    pub fn read(pod: &Pod) -> Option<(String, Self)> {
        let meta = &pod.metadata;
        let labels = meta.labels.as_ref()?;
        let is = |name: &str, value: &str| labels.get(name).is_some_and(|found| found == value);
        if !is(names::LABEL_APP, names::APP) || !is(names::LABEL_COMPONENT, names::COMPONENT_AGENT)
        {
            return None;
        }
        let node = pod.spec.as_ref()?.node_name.clone().filter(|name| !name.is_empty())?;
        let status = pod.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
        let since = ready.and_then(|condition| condition.last_transition_time.as_ref());
        let since = since.or(meta.creation_timestamp.as_ref()).map(millis).unwrap_or_default();
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        let who = PodRef {
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            uid: text(&meta.uid),
        };
        let ready = ready.is_some_and(|condition| condition.status == "True");
        Some((node, Self { who, ready, since }))
    }

    /// The one of two pods on a node that tells more: while one is replaced there may be two.
    #[must_use]
    pub fn better(self, other: Self) -> Self {
        if (other.ready, other.since) > (self.ready, self.since) { other } else { self }
    }
}

/// How a node's agent stands, in words.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct AgentWord {
    /// Whether it can be relied upon.
    pub ready: bool,
    /// CamelCase.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// Pods about which it owes an answer.
    pub unanswered: u32,
}

/// How the agents of a pool's nodes stand; nothing of a node that has none.
pub fn words(world: &World, pool: &Pool, known: &Known) -> BTreeMap<NodeId, AgentWord> {
    let of = |facts: &NodeFacts| {
        let id = known.ids.node(&facts.name, &facts.uid)?;
        let (node, status) = (pool.nodes().get(&id)?, world.ledger(facts)?);
        Some((id, word(world, known, facts, node, status)?))
    };
    world.nodes.values().filter_map(|facts| of(facts)).collect()
}

fn word(
    world: &World,
    known: &Known,
    facts: &NodeFacts,
    node: &Node,
    status: &GpuNodeStatus,
) -> Option<AgentWord> {
    let pod = world.agents.get(&facts.name);
    let reports = status.agent_seen.is_some();
    if pod.is_none() && !reports {
        return None;
    }
    let long = |since: &Millis| *since + AWAY <= world.now;
    let away = match pod {
        Some(pod) if !pod.ready && long(&pod.since) => Some((
            "AgentNotReady",
            format!(
                "The node agent {} has not been ready since {}.",
                pods(std::slice::from_ref(&pod.who)),
                spoken(pod.since)
            ),
        )),
        Some(_) => None,
        None => known.agent_missing.get(&facts.name).filter(|since| long(since)).map(|&since| {
            let since = spoken(since);
            (GONE, format!("There has been no node agent on the node since {since}."))
        }),
    };
    let owed = if reports { unanswered(world, known, node) } else { Vec::new() };
    let debt = (!owed.is_empty()).then(|| {
        format!(
            "The agent does not say that the containers of {} are gone; their GPUs stay held until \
             it does.",
            pods(&owed)
        )
    });
    let unanswered = u32::try_from(owed.len()).unwrap_or(u32::MAX);
    let parts: Vec<String> = away.iter().map(|(_, text)| text.clone()).chain(debt).collect();
    let message = parts.join(" ");
    let reason = match (away, unanswered) {
        (Some((reason, _)), _) => reason,
        (None, 0) => {
            let message = "The node agent is at work.".to_owned();
            return Some(AgentWord { ready: true, reason: "AgentAtWork", message, unanswered });
        }
        (None, _) => "ReleaseUnanswered",
    };
    Some(AgentWord { ready: false, reason, message, unanswered })
}

/// Since when a ledger says that its node has no agent. A controller that starts anew has not seen
/// the pod go.
pub fn gone_since(status: &GpuNodeStatus) -> Option<Millis> {
    let told = status.conditions.iter().find(|condition| condition.type_ == CONDITION)?;
    let gone = told.status == "False" && told.reason == GONE;
    gone.then(|| Millis(millis(&told.last_transition_time).0.saturating_sub(AWAY.0)))
}

/// Pods that are gone from the API server and about which the agent owes an answer.
fn unanswered(world: &World, known: &Known, node: &Node) -> Vec<PodRef> {
    let releasing = node.holdings.iter().filter(|(_, h)| h.stage == Stage::Releasing);
    let late = releasing.filter(|(job, _)| {
        known.release_at.get(job).is_some_and(|&at| at + ANSWER_LATE <= world.now)
    });
    late.filter_map(|(&job, _)| known.ids.pod(job)).cloned().collect()
}

/// What the ledger's condition says, if it has one.
pub fn told(status: &GpuNodeStatus) -> Option<bool> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == CONDITION)?;
    Some(condition.status == "True")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::{Value, from_value, json};

    use super::*;
    use crate::api::GpuStatus;
    use crate::translate::fixture::{Scene, at, on, pod, stamp};

    fn agent(ready: Option<(bool, u64)>) -> Value {
        let conditions = ready.map(|(ready, since)| {
            let status = if ready { "True" } else { "False" };
            json!([{"type": "Ready", "status": status, "lastTransitionTime": stamp(since)}])
        });
        json!({
            "metadata": {
                "name": "agent-1", "namespace": "sluice", "uid": "u1",
                "creationTimestamp": stamp(0),
                "labels": {"app.kubernetes.io/name": "sluice",
                           "app.kubernetes.io/component": "agent"}},
            "spec": {"nodeName": "n", "containers": []},
            "status": {"conditions": conditions}})
    }

    fn read(object: Value) -> Option<AgentPod> {
        AgentPod::read(&from_value(object).unwrap()).map(|(_, agent)| agent)
    }

    #[test]
    fn an_agents_pod_is_known_by_its_labels() {
        let ready = read(agent(Some((true, 7)))).unwrap();
        assert_eq!((ready.ready, ready.since), (true, at(7)));
        let young = read(agent(None)).unwrap();
        assert_eq!((young.ready, young.since), (false, at(0)));
        assert_eq!(young.clone().better(ready.clone()), ready);
        assert_eq!(ready.clone().better(young), ready);
        let mut other = agent(Some((true, 7)));
        other["metadata"]["labels"]["app.kubernetes.io/component"] = json!("controller");
        assert_eq!(read(other), None);
    }

    /// A node whose agent holds pod `s`, which was just deleted by force.
    fn scene() -> Scene {
        let mut scene = Scene::new(&["n"]);
        scene.put(pod("s", "small", 0, json!({})));
        scene.settle();
        scene.put(pod("s", "small", 0, on("n", Some(1))));
        scene.change_ledger("n", |status| {
            status.agent_seen = Some(crate::translate::time::began(at(0)));
            let gpu =
                |index| GpuStatus { index, id: format!("GPU-{index}"), ..GpuStatus::default() };
            status.gpus = (0..8).map(gpu).collect();
        });
        scene.settle();
        scene.world.agents.insert("n".to_owned(), read(agent(Some((true, 0)))).unwrap());
        scene.remove("s");
        scene.settle();
        scene
    }

    fn says(scene: &mut Scene, seconds: u64) -> Option<AgentWord> {
        scene.world.now = at(seconds);
        scene.settle();
        let word = words(&scene.world, &scene.pool, &scene.known).into_values().next();
        assert_eq!(told(scene.ledger("n")), word.as_ref().map(|word| word.ready), "{seconds} s");
        word
    }

    #[test]
    fn an_answer_that_does_not_come_is_told_and_nothing_is_released() {
        let mut scene = scene();
        // Its grace period is 5 s, the margin 10 s.
        assert!(says(&mut scene, 34).unwrap().ready);
        let late = says(&mut scene, 35).unwrap();
        assert_eq!((late.reason, late.unanswered), ("ReleaseUnanswered", 1));
        assert!(late.message.contains("containers of team/s are gone"), "{}", late.message);
        assert_eq!(says(&mut scene, 100_000).unwrap().reason, "ReleaseUnanswered");
        assert_eq!(scene.ledger("n").reservations.len(), 1, "held as long as it takes");
        scene.change_ledger("n", |status| status.released = vec!["s".to_owned()]);
        assert!(says(&mut scene, 100_001).unwrap().ready);
        assert_eq!(scene.ledger("n").reservations.len(), 0);
    }

    #[test]
    fn an_agent_that_is_away_for_long_is_told_with_its_name_and_since_when() {
        let mut scene = scene();
        scene.change_ledger("n", |status| status.released = vec!["s".to_owned()]);
        scene.world.agents.insert("n".to_owned(), read(agent(Some((false, 100)))).unwrap());
        assert!(says(&mut scene, 159).unwrap().ready);
        let away = says(&mut scene, 160).unwrap();
        assert_eq!(away.reason, "AgentNotReady");
        let since = spoken(at(100));
        assert!(away.message.contains("sluice/agent-1") && away.message.contains(&since));

        scene.world.agents.clear();
        assert!(says(&mut scene, 200).unwrap().ready, "its pod may be replaced");
        assert!(says(&mut scene, 259).unwrap().ready);
        assert_eq!(says(&mut scene, 260).unwrap().reason, "AgentGone");
        let (pool, known) = crate::translate::restore::restore(&scene.world).unwrap();
        (scene.pool, scene.known) = (pool, known);
        assert_eq!(says(&mut scene, 261).unwrap().reason, "AgentGone", "after a new start as well");
        scene.change_ledger("n", |status| status.agent_seen = None);
        assert_eq!(says(&mut scene, 261), None, "a node without an agent lacks none");
    }
}

//! The controller where something stays broken: objects that it cannot read, writes that are always
//! refused, agents that do not answer.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

mod support;

use serde_json::{Value, json};
use sluice::cli::node::unmark;
use sluice::metrics::PoolLabel;
use support::control_plane::{ControlPlane, path};
use support::ledger::ledger_path;

const SMALL: &str = "small";
const LARGE: &str = "whole-node-large";
const POOL: &str = "/apis/sluice.dev/v1alpha1/gpupools/default";
const NODE: &str = "/api/v1/nodes/n1";
const AGENT: &str = "/api/v1/namespaces/sluice/pods/agent-1";

/// A condition of an object, as its status and its message.
fn condition(object: Option<Value>, kind: &str) -> Option<(String, String)> {
    let object = object?;
    let found = object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)?;
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    Some((text("status"), text("message")))
}

#[tokio::test]
async fn a_pool_that_cannot_be_read_is_there_all_the_same() {
    let mut plane = ControlPlane::start(3);
    plane.create("a", SMALL);
    plane.until_run(&["a"]).await;
    plane.server.change(POOL, |pool| pool["spec"]["drain"] = json!({"onTimeLimit": "Explode"}));
    let told = |plane: &ControlPlane| {
        condition(plane.server.get(POOL), "Ready").filter(|(status, text)| {
            status == "False" && text.contains("cannot read the object") && text.contains("Explode")
        })
    };
    plane.until("a word in the pool", |plane| told(plane).is_some()).await;
    // What could be read last goes on.
    plane.create("b", SMALL);
    plane.until_run(&["a", "b"]).await;

    // A controller that has never been able to read it takes nothing down.
    plane.kill();
    plane.server.change(POOL, |pool| pool["status"]["conditions"] = json!([]));
    plane.create("c", SMALL);
    plane.launch();
    plane.until("a word in the pool", |plane| told(plane).is_some()).await;
    plane.end("a", "Succeeded");
    plane.pass(100);
    assert_eq!(plane.status().reservations.len(), 2);
    assert!(plane.gated("c"));
    assert_eq!(plane.reason("c").as_deref(), None, "there is such a pool");

    plane.server.change(POOL, |pool| {
        pool["spec"].as_object_mut().unwrap().remove("drain");
    });
    plane.until_run(&["b", "c"]).await;
    plane
        .until("no complaint", |plane| {
            condition(plane.server.get(POOL), "Ready").is_some_and(|(status, _)| status == "True")
        })
        .await;
}

#[tokio::test]
async fn pods_that_cannot_be_told_take_nobodys_turn() {
    let plane = ControlPlane::start(2);
    plane.create("l", LARGE);
    plane.until_run(&["l"]).await;
    // More than are looked at in one round, and before the other in any order.
    for number in 100..200 {
        let name = format!("a{number}");
        plane.server.forbid(&format!("PATCH {}/status", path(&name)));
        plane.create(&name, SMALL);
    }
    plane.create("z", SMALL);
    plane.until("the last told", |plane| plane.reason("z").is_some()).await;
}

fn agent(ready: bool, since: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "agent-1", "namespace": "sluice", "uid": "agent-1",
            "labels": {"app.kubernetes.io/name": "sluice",
                       "app.kubernetes.io/component": "agent"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "agent", "image": "x"}]},
        "status": {"phase": "Running", "conditions": [{
            "type": "Ready", "status": if ready { "True" } else { "False" },
            "lastTransitionTime": since}]}})
}

fn agent_says(plane: &ControlPlane, status: &str, word: &str) -> bool {
    condition(plane.server.get(&ledger_path("n1")), "AgentReady")
        .is_some_and(|(now, text)| now == status && text.contains(word))
}

fn events(plane: &ControlPlane, reason: &str) -> Vec<Value> {
    let paths = plane.server.paths("/apis/events.k8s.io/v1/events");
    let events = paths.iter().filter_map(|path| plane.server.get(path));
    events.filter(|event| event["reason"] == reason).collect()
}

#[tokio::test]
async fn an_agent_that_does_not_answer_is_told_and_nothing_starts_in_its_dark() {
    let plane = ControlPlane::start(2);
    plane.server.put(AGENT, agent(true, &plane.time()));
    plane.create("a", SMALL);
    plane.until_run(&["a"]).await;
    plane.agent_finds("a");
    plane.until("an agent at work", |plane| agent_says(plane, "True", "at work")).await;
    plane.server.remove(&path("a"));
    plane.until("the question", |plane| plane.status().releasing == ["a"]).await;
    assert_eq!(plane.status().releasing_gpus, 1);
    plane.create("l", LARGE);
    plane.until("a closed gate", |plane| plane.reason("l").as_deref() == Some("Draining")).await;

    plane.pass(60);
    plane.until("a word about it", |plane| agent_says(plane, "False", "team/a are gone")).await;
    plane
        .until("an Event, and a word in the pool", |plane| {
            let events = events(plane, "ReleaseUnanswered");
            let shape = plane.server.get(POOL).unwrap()["status"]["small"].clone();
            events.iter().any(|event| event["regarding"]["kind"] == "GpuNode")
                && condition(plane.server.get(POOL), "Degraded")
                    .is_some_and(|(_, text)| text.contains("agents of 1 node cannot"))
                && (&shape["running"], &shape["releasing"]) == (&json!(0), &json!(1))
        })
        .await;
    let label = PoolLabel { pool: "default".to_owned() };
    assert_eq!(plane.metrics.releases_unanswered.get_or_create(&label).get(), 1);
    assert_eq!(plane.metrics.agents_not_ready.get_or_create(&label).get(), 1);

    // Its pod goes as well, and nothing starts however long that lasts.
    plane.server.change(AGENT, |pod| *pod = agent(false, &plane.time()));
    plane.pass(100_000);
    plane
        .until("its name", |plane| agent_says(plane, "False", "sluice/agent-1 has not been"))
        .await;
    assert!(plane.gated("l"));
    plane.server.change(AGENT, |pod| *pod = agent(true, &plane.time()));
    plane.server.change(&ledger_path("n1"), |ledger| {
        ledger["status"]["released"] = json!(["a"]);
        ledger["status"]["gpus"][0].as_object_mut().unwrap().remove("holder");
    });
    plane.until_run(&["l"]).await;
    plane.until("it is back", |plane| agent_says(plane, "True", "at work")).await;
    plane.until("an Event", |plane| !events(plane, "AgentAtWork").is_empty()).await;
}

#[tokio::test]
async fn marks_of_a_controller_that_is_gone_are_taken_back() {
    let mut plane = ControlPlane::start(2);
    plane.add_node("n2");
    plane.server.change("/api/v1/nodes/n2", |node| {
        node["metadata"]["annotations"] =
            json!({"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"});
        node["spec"]["unschedulable"] = json!(true);
    });
    let others = plane.server.get("/api/v1/nodes/n2").unwrap();
    plane.create("a", SMALL);
    plane.until_run(&["a"]).await;
    plane.create("l", LARGE);
    let marked = |plane: &ControlPlane| {
        plane.server.get(NODE).unwrap()["metadata"]["annotations"]
            .as_object()
            .map_or(0, serde_json::Map::len)
    };
    plane.until("marks", |plane| marked(plane) == 2).await;
    plane.kill();
    unmark(&plane.server.client()).await.unwrap();
    assert_eq!(marked(&plane), 0);
    assert_eq!(plane.server.get("/api/v1/nodes/n2").unwrap(), others, "somebody else's mark");
}

//! A snapshot of a controller at work, replayed and explained without it; and a look at the same
//! cluster from outside.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

mod support;

use sluice::controller::peek::Cluster;
use sluice::explain::names::utc;
use sluice::explain::{Context, Words, wait};
use sluice::journal;
use sluice::policy::Millis;
use support::control_plane::ControlPlane;

const HOST: &str = "127.0.0.1:10263";

/// Two smalls run, a large waits for the node, and a late small for the large.
async fn drained() -> ControlPlane {
    let plane = ControlPlane::start(2);
    plane.create("s1", "small");
    plane.create("s2", "small");
    plane.until_run(&["s1", "s2"]).await;
    plane.create("big", "whole-node-large");
    plane.until("the gate closes", |p| p.reason("big").as_deref() == Some("Draining")).await;
    plane.create("late", "small");
    plane.until("late waits", |p| p.reason("late").as_deref() == Some("GateClosed")).await;
    plane
}

fn message(plane: &ControlPlane, name: &str) -> String {
    let pod = plane.pod(name).unwrap();
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let ours = conditions.iter().find(|c| c["type"] == "sluice.dev/Admitted").unwrap();
    ours["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_replayed_and_explains_what_the_pod_was_told() {
    let plane = drained().await;
    let (status, text) = plane.snapshot(HOST).await;
    assert_eq!(status, 200, "{text}");
    let (records, faults) = journal::read("snapshot", text.as_bytes());
    let played = journal::replay("snapshot", &records, faults, None);
    assert!(played.is_same(), "{played}");
    assert!(played.pools["default"].steps >= 3, "{played}");

    let (pool, now) = &played.ends["default"];
    let names = &played.names["default"];
    let context = Context::new(Words { names, time: utc }, "default", pool.config());
    for (name, reason) in [("team/big", "Draining"), ("team/late", "GateClosed")] {
        let job = names.jobs_named(name).next().unwrap();
        let explanation = pool.explain(job, *now).unwrap();
        let (said, sentence) = wait::condition(&explanation, &context).unwrap();
        assert_eq!(said, reason);
        let told = message(&plane, name.trim_start_matches("team/"));
        // The promised time may be an earlier one than is found now.
        let first = sentence.split(" It starts by").next().unwrap();
        assert!(told.starts_with(first), "{told}\n{sentence}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_loopback_host_and_a_leader_are_answered() {
    let mut plane = drained().await;
    let (status, text) = plane.snapshot("sluice.example:10263").await;
    assert_eq!(status, 403, "{text}");
    assert!(!text.contains("team/"), "{text}");
    plane.kill();
    plane.server.put(
        "/apis/coordination.k8s.io/v1/namespaces/sluice/leases/leader",
        serde_json::json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "leader", "namespace": "sluice"},
            "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3_600,
                     "leaseTransitions": 5, "acquireTime": "2030-01-01T00:00:00.000000Z",
                     "renewTime": "2030-01-01T00:00:00.000000Z"}}),
    );
    plane.launch();
    let (status, text) = plane.snapshot(HOST).await;
    assert_eq!(status, 503);
    assert_eq!(text, "this replica does not lead: ask the one that holds the lease\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_from_outside_says_what_the_leader_says() {
    let plane = drained().await;
    let now = Millis(plane.clock.now().0);
    let cluster = Cluster::look(&plane.server.client(), now).await.unwrap();
    let big = cluster.explain("team", "big").unwrap();
    assert_eq!((&big.json["reason"], &big.json["pod"]), (&"Draining".into(), &"team/big".into()));
    let first = &big.json["waits"]["first"][0];
    assert_eq!(first["pods"][0]["pod"], "team/s1");
    assert!(big.text.starts_with("team/big (whole-node-large in pool default) waits: Draining.\n"));
    let late = cluster.explain("team", "late").unwrap();
    assert_eq!(late.json["reason"], "GateClosed");
    assert_eq!(late.json["remarks"], serde_json::Value::Null);
    let runs = cluster.explain("team", "s1").unwrap();
    assert_eq!(runs.json["reason"], "Running");
    assert_eq!(runs.json["holds"]["emptied_for"], "team/big");
    assert!(cluster.explain("team", "nobody").is_none());

    plane.end("s2", "Succeeded");
    let cluster = Cluster::look(&plane.server.client(), now).await.unwrap();
    assert_eq!(cluster.explain("team", "s2").unwrap().json["reason"], "Ended");
}

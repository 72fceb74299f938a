//! A snapshot of a controller at work, replayed and explained without it; and a look at the same
//! cluster from outside.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

mod support;

use serde_json::json;
use sluice::controller::peek::Cluster;
use sluice::explain::names::utc;
use sluice::explain::{Context, Words, wait};
use sluice::journal;
use sluice::policy::Millis;
use support::control_plane::ControlPlane;

const HOST: &str = "127.0.0.1:10263";

/// Two smalls run, a large waits for the node, and a late small for the large; time passes, and
/// another small comes.
async fn drained() -> ControlPlane {
    let limits = json!({"small": {"maxSeconds": 150}, "wholeNodeLarge": {"maxSeconds": 300}});
    let plane = ControlPlane::with(2, json!({"limits": limits}));
    plane.create("s1", "small");
    plane.create("s2", "small");
    plane.until_run(&["s1", "s2"]).await;
    plane.create("big", "whole-node-large");
    plane.until("the gate closes", |p| p.reason("big").as_deref() == Some("Draining")).await;
    plane.create("late", "small");
    plane.until("late waits", |p| p.reason("late").as_deref() == Some("GateClosed")).await;
    plane.clock.advance(Millis::from_secs(5));
    plane.create("last", "small");
    plane.until("last waits", |p| p.reason("last").as_deref() == Some("GateClosed")).await;
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

    let end = &played.ends["default"];
    let names = &played.names["default"];
    let context = Context::new(Words { names, time: utc }, "default", end.pool.config());
    for (name, reason) in
        [("team/big", "Draining"), ("team/late", "GateClosed"), ("team/last", "GateClosed")]
    {
        let job = names.jobs_named(name).next().unwrap();
        for later_ms in [0, 1_000, 9_000] {
            let explanation = end.explain(job, end.at + Millis(later_ms)).unwrap();
            let (said, sentence) = wait::condition(&explanation, &context).unwrap();
            assert_eq!(said, reason);
            let told = message(&plane, name.trim_start_matches("team/"));
            assert!(told.contains(" It starts by "), "{told}");
            assert_eq!(sentence, told, "{later_ms} ms later");
        }
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
    for later in [Millis(0), Millis(1_000), Millis(9_000)] {
        let cluster = Cluster::look(&plane.server.client(), now + later).await.unwrap();
        for name in ["big", "late", "last"] {
            let (told, page) = (message(&plane, name), cluster.explain("team", name).unwrap());
            let told = format!("It starts by {} at the latest.", wait::told(&told).unwrap());
            assert!(page.text.contains(&told), "{told}\n{}", page.text);
            assert_eq!(page.json["remarks"], serde_json::Value::Null);
        }
    }
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

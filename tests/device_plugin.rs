//! Cluster side: the node agent against a kubelet of these tests, over real sockets, and against
//! an API server of these tests. The real ones follow in the tests on a cluster.

#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used)]

#[path = "device_plugin/api.rs"]
mod api;
#[path = "device_plugin/kubelet.rs"]
mod kubelet;
#[path = "device_plugin/node.rs"]
mod node;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use sluice::agent::allocate::{HandOver, VISIBLE_DEVICES};
use sluice::agent::wire::deviceplugin::{Device, Empty, PreStartContainerRequest};
use tonic::Code;

use self::kubelet::{Event, Kubelet, within};
use self::node::{Node, allocate, healthy, prefer, reservation};

// === registration

#[tokio::test]
async fn it_registers_serves_every_gpu_and_leaves_nothing_behind() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    let (request, devices) = kubelet.registered().await;
    assert_eq!(
        (request.version.as_str(), request.resource_name.as_str()),
        ("v1beta1", "nvidia.com/gpu")
    );
    assert!(request.options.unwrap().get_preferred_allocation_available);
    let ids: Vec<String> = devices.iter().map(|device| device.id.clone()).collect();
    assert_eq!(ids, node.ids());
    assert_eq!(healthy(&devices), 8);
    let numa = |device: &Device| device.topology.as_ref().unwrap().nodes[0].id;
    assert_eq!(devices.iter().map(numa).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
    let mut plugin = kubelet.client(&request.endpoint).await;
    let options = plugin.get_device_plugin_options(Empty {}).await.unwrap().into_inner();
    assert!(options.get_preferred_allocation_available && !options.pre_start_required);
    plugin.pre_start_container(PreStartContainerRequest::default()).await.unwrap();
    agent.stop().await;
    assert_eq!(node.own_sockets(), Vec::<String>::new());
}

#[tokio::test]
async fn a_dropped_stream_leads_to_a_new_registration() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    let (mut last, _) = kubelet.registered().await;
    for _ in 0..3 {
        kubelet.drop_streams();
        let (next, devices) = kubelet.registered().await;
        assert_ne!(next.endpoint, last.endpoint, "a path that kubelet may still hold is not used");
        assert_eq!(devices.len(), 8);
        last = next;
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_lost_socket_is_replaced_before_the_old_stream_ends() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    let (first, _) = kubelet.registered().await;
    std::fs::remove_file(node.plugins().join(&first.endpoint)).unwrap();
    let mut registered = false;
    loop {
        match kubelet.event().await {
            Event::Registered(request) => {
                assert_ne!(request.endpoint, first.endpoint);
                registered = true;
            }
            Event::List(..) => {}
            Event::Ended(endpoint) => {
                assert_eq!(endpoint, first.endpoint);
                break;
            }
        }
    }
    assert!(registered, "kubelet had the new one before it lost the old one");
    agent.stop().await;
}

/// Kubelet restarts again and again, with pauses from nothing to longer than the agent's own.
async fn restarts(poll_only: bool, rounds: u64) {
    let mut node = Node::new();
    node.options.poll_only = poll_only;
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    kubelet.registered().await;
    for round in 0..rounds {
        let folder = kubelet.stop().await;
        tokio::time::sleep(Duration::from_millis(round * 37 % 400)).await;
        kubelet = Kubelet::start(&folder);
        let (_, devices) = kubelet.registered().await;
        assert_eq!(healthy(&devices), 8);
    }
    agent.stop().await;
}

#[tokio::test]
async fn kubelet_may_restart_at_any_moment() {
    restarts(false, 8).await;
}

#[tokio::test]
async fn kubelet_may_restart_at_any_moment_without_inotify() {
    restarts(true, 4).await;
}

/// How often the race below is run; more with `SLUICE_TEST_ROUNDS`.
fn rounds() -> u64 {
    std::env::var("SLUICE_TEST_ROUNDS").map_or(40, |rounds| rounds.parse().unwrap())
}

#[tokio::test]
async fn agent_and_kubelet_may_start_in_any_order() {
    let mut offsets = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..rounds() {
        // From 100 ms before to 100 ms after.
        offsets ^= offsets << 13;
        offsets ^= offsets >> 7;
        offsets ^= offsets << 17;
        let offset_ms = i64::try_from(offsets % 201).unwrap() - 100;
        let node = Node::new();
        // What a kubelet that was killed has left.
        drop(UnixSocketFile::make(&node.plugins().join("kubelet.sock")));
        let pause = Duration::from_millis(offset_ms.unsigned_abs());
        let (agent, mut kubelet);
        if offset_ms < 0 {
            kubelet = Kubelet::start(node.plugins());
            tokio::time::sleep(pause).await;
            agent = node.start_with(None);
        } else {
            agent = node.start_with(None);
            tokio::time::sleep(pause).await;
            kubelet = Kubelet::start(node.plugins());
        }
        let (_, devices) = kubelet.registered().await;
        assert_eq!(devices.len(), 8, "round {round}, offset {offset_ms} ms");
        agent.stop().await;
    }
}

/// A socket file that nobody listens on.
struct UnixSocketFile;

impl UnixSocketFile {
    fn make(path: &Path) -> std::os::unix::net::UnixListener {
        std::os::unix::net::UnixListener::bind(path).unwrap()
    }
}

#[tokio::test]
async fn a_replaced_plugin_folder_is_followed() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    for _ in 0..3 {
        kubelet.registered().await;
        kubelet.stop().await;
        let old = node.root.path().join("old");
        std::fs::rename(node.plugins(), &old).unwrap();
        std::fs::create_dir(node.plugins()).unwrap();
        std::fs::remove_dir_all(old).unwrap();
        kubelet = Kubelet::start(node.plugins());
    }
    kubelet.registered().await;
    agent.stop().await;
}

#[tokio::test]
async fn a_refused_registration_is_tried_again() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.plugins());
    kubelet.refuse(3);
    let agent = node.start();
    kubelet.registered().await;
    assert!(node.metrics.text().contains("registrations_total{outcome=\"refused\"} 3"));
    assert_eq!(node.own_sockets().len(), 1, "failed attempts leave no sockets");
    agent.stop().await;
}

// === device lists and health

#[tokio::test]
async fn two_streams_both_get_the_full_list() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    let (request, _) = kubelet.registered().await;
    let mut plugin = kubelet.client(&request.endpoint).await;
    let mut second = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
    let first_list = within(second.message()).await.unwrap().unwrap().devices;
    assert_eq!(healthy(&first_list), 8);
    node.set_faults("5 xid 79: gone\n");
    let list = kubelet.list(|devices| healthy(devices) == 7).await;
    let other = within(second.message()).await.unwrap().unwrap().devices;
    assert_eq!(list, other);
    assert_eq!(list.len(), 8, "a full list, the faulty GPU in it");
    assert_eq!(list[5].health, "Unhealthy");
    agent.stop().await;
}

#[tokio::test]
async fn a_gpu_that_flaps_is_out_until_it_is_quiet_and_then_comes_back() {
    let node = Node::new();
    node.api.create_ledger(&json!({}));
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    kubelet.registered().await;
    for flip in 0..10 {
        node.set_faults(if flip % 2 == 0 { "5 flapping\n" } else { "" });
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let status = node.api.until(|status| status.gpus.iter().any(|gpu| gpu.reason.is_some())).await;
    assert_eq!(status.gpus[5].reason.as_deref(), Some("flapping"));
    node.set_faults("");
    let mut lists = 0;
    loop {
        lists += 1;
        if healthy(&kubelet.list(|_| true).await) == 8 {
            break;
        }
    }
    assert_eq!(lists, 2, "one list when it went, one when it came back");
    node.api.until(|status| status.gpus.iter().all(|gpu| gpu.reason.is_none())).await;
    agent.stop().await;
}

// === allocation

#[tokio::test]
async fn kubelet_is_steered_to_the_reserved_gpus() {
    let node = Node::new();
    let ids = node.ids();
    node.api.create_ledger(&json!({ "reservations": [
        reservation("late", &[&ids[1]], "Reserved", "2026-01-01T00:00:02Z"),
        reservation("early", &[&ids[6]], "Bound", "2026-01-01T00:00:01Z"),
        reservation("runs", &[&ids[0]], "Running", "2026-01-01T00:00:00Z"),
    ] }));
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    let (request, _) = kubelet.registered().await;
    // The report shows that the agent has read the ledger.
    node.api.until(|status| status.gpus.len() == 8).await;
    let mut plugin = kubelet.client(&request.endpoint).await;
    assert_eq!(prefer(&mut plugin, &ids[1..], 1).await, [ids[6].clone()]);
    let without_6: Vec<String> = ids[1..].iter().filter(|id| **id != ids[6]).cloned().collect();
    assert_eq!(prefer(&mut plugin, &without_6, 1).await, [ids[1].clone()]);

    let all: Vec<&String> = ids.iter().collect();
    node.api.decide(
        "reservations",
        json!([reservation("large", &all, "Reserved", "2026-01-01T00:00:03Z"),]),
    );
    within(async {
        // The watch carries the new reservation to the agent.
        while prefer(&mut plugin, &ids, 1).await != [ids[0].clone()] {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(prefer(&mut plugin, &ids, 8).await, ids);
    agent.stop().await;
}

#[tokio::test]
async fn gpus_are_handed_over_by_environment_or_by_cdi() {
    for how in [HandOver::Env, HandOver::Cdi { kind: "nvidia.com/gpu".to_owned() }] {
        let mut node = Node::new();
        node.options.hand_over = how.clone();
        node.options.cdi_dir = Some(node.root.path().join("cdi"));
        let ids = node.ids();
        let mut kubelet = Kubelet::start(node.plugins());
        let agent = node.start_with(None);
        let (request, _) = kubelet.registered().await;
        let mut plugin = kubelet.client(&request.endpoint).await;
        let given = allocate(&mut plugin, &[ids[3].clone(), ids[1].clone()]).await.unwrap();
        let spec = node.root.path().join("cdi/sluice-nvidia.com-gpu.json");
        if how == HandOver::Env {
            assert_eq!(given.envs[VISIBLE_DEVICES], format!("{},{}", ids[1], ids[3]));
            assert!(given.cdi_devices.is_empty() && !spec.exists());
        } else {
            let names: Vec<&String> = given.cdi_devices.iter().map(|d| &d.name).collect();
            let name = |id| format!("nvidia.com/gpu={id}");
            assert_eq!(names, [&name(&ids[1]), &name(&ids[3])]);
            assert!(given.envs.is_empty());
            let text = std::fs::read_to_string(spec).unwrap();
            assert!(ids.iter().all(|id| text.contains(id.as_str())));
        }
        agent.stop().await;
    }
}

#[tokio::test]
async fn unknown_and_unhealthy_gpus_are_refused() {
    let node = Node::new();
    let ids = node.ids();
    node.set_faults("2 burnt\n");
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    let (request, devices) = kubelet.registered().await;
    assert_eq!(healthy(&devices), 7, "known to be faulty before the first list");
    let mut plugin = kubelet.client(&request.endpoint).await;
    let error = allocate(&mut plugin, &["GPU-elsewhere".to_owned()]).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("not known on this node"), "{error}");
    let error = allocate(&mut plugin, &ids[2..3]).await.unwrap_err();
    assert!(error.message().contains("unhealthy: burnt"), "{error}");
    let text = node.metrics.text();
    assert!(text.contains("allocations_total{outcome=\"unhealthy_gpu\"} 1"), "{text}");
    agent.stop().await;
}

// === holders

#[tokio::test]
async fn a_force_deleted_pod_keeps_its_gpu_and_no_other_pod_gets_it() {
    let node = Node::new();
    let ids = node.ids();
    node.api.create_ledger(&json!({}));
    node.api.pod("a", "u1", "Running");
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    let (request, _) = kubelet.registered().await;
    let mut plugin = kubelet.client(&request.endpoint).await;
    allocate(&mut plugin, &ids[4..5]).await.unwrap();
    node.pods.set("a", &ids[4..5]);
    node.processes("u1", true);
    let holder = |status: &sluice::api::GpuNodeStatus, index: usize| {
        status.gpus.get(index).and_then(|gpu| gpu.holder.as_ref()).map(|pod| pod.uid.clone())
    };
    node.api.until(|status| holder(status, 4).as_deref() == Some("u1")).await;

    // Deleted by force: gone from the API server and from kubelet's list, and alive.
    node.api.delete_pod("a");
    node.pods.remove("a");
    node.api.decide("releasing", json!(["u1"]));
    let error = allocate(&mut plugin, &ids[4..5]).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("containers of pod ns/a (UID u1) live"), "{error}");
    let others: Vec<String> = ids[4..].to_vec();
    let chosen = within(async {
        // The next look moves the GPU to the end of the preference.
        loop {
            let chosen = prefer(&mut plugin, &others, 1).await;
            if chosen[0] != ids[4] {
                return chosen;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(chosen, [ids[5].clone()]);
    let status = node.api.status();
    assert_eq!(holder(&status, 4).as_deref(), Some("u1"));
    assert!(status.released.is_empty());

    node.processes("u1", false);
    std::fs::remove_dir_all(node.cgroup("u1")).unwrap();
    let status = node.api.until(|status| status.released == ["u1"]).await;
    assert_eq!(holder(&status, 4), None, "answer and holder change in one write");
    allocate(&mut plugin, &ids[4..5]).await.unwrap();
    node.api.decide("releasing", json!([]));
    node.api.until(|status| status.released.is_empty()).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_pod_that_ends_by_itself_hands_its_gpu_on_at_once() {
    let node = Node::new();
    let ids = node.ids();
    node.api.create_ledger(&json!({}));
    node.api.pod("a", "u1", "Running");
    node.pods.set("a", &ids[..1]);
    node.processes("u1", true);
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    let (request, _) = kubelet.registered().await;
    let held =
        |status: &sluice::api::GpuNodeStatus| status.gpus.iter().any(|gpu| gpu.holder.is_some());
    node.api.until(held).await;
    node.processes("u1", false);
    node.pods.remove("a");
    node.api.pod("a", "u1", "Succeeded");
    let mut plugin = kubelet.client(&request.endpoint).await;
    allocate(&mut plugin, &ids[..1]).await.expect("an empty cgroup refuses nothing");
    node.api.until(|status| !status.gpus.is_empty() && !held(status)).await;
    agent.stop().await;
}

#[tokio::test]
async fn holders_survive_a_restart_of_the_agent() {
    let node = Node::new();
    let ids = node.ids();
    let gpu = |index: usize, uid: &str| {
        json!({
            "index": index, "id": ids[index], "health": "Healthy",
            "holder": { "namespace": "ns", "name": uid, "uid": uid },
        })
    };
    // What the agent wrote before: one pod lives on after a forced deletion, one is gone.
    node.api.create_ledger(&json!({ "gpus": [gpu(0, "lives"), gpu(1, "gone")] }));
    node.processes("lives", true);
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    let (request, _) = kubelet.registered().await;
    let mut plugin = kubelet.client(&request.endpoint).await;
    let error = allocate(&mut plugin, &ids[..1]).await.unwrap_err();
    assert!(error.message().contains("pod ns/lives"), "{error}");
    let held = |status: &sluice::api::GpuNodeStatus| -> BTreeSet<String> {
        status.gpus.iter().filter_map(|gpu| gpu.holder.as_ref()).map(|p| p.uid.clone()).collect()
    };
    let both = ["gone".to_owned(), "lives".to_owned()].into();
    node.api.until(|status| status.gpus.len() == 8 && held(status) == both).await;
    let one = ["lives".to_owned()].into();
    let status = node.api.until(|status| held(status) == one).await;
    assert!(status.agent_seen.is_some());
    agent.stop().await;
}

#[tokio::test]
async fn the_agent_writes_on_change_and_waits_for_its_ledger() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.plugins());
    let agent = node.start();
    kubelet.registered().await;
    assert_eq!(node.api.applied(), 0, "no ledger, no write");
    node.api.create_ledger(&json!({}));
    node.api.until(|status| status.gpus.len() == 8).await;
    // Changes that are the controller's own, a pod that has no GPU, and some seconds of looks.
    for revision in 1..=5 {
        node.api.decide("revision", json!(revision));
        node.api.pod("other", "u7", "Running");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(node.api.applied(), 1);
    // Somebody else's hand in the agent's fields is put right.
    node.api.decide("gpus", json!([]));
    node.api.until(|status| status.gpus.len() == 8).await;
    assert_eq!(node.api.applied(), 2);
    node.set_faults("0 burnt\n");
    node.api.until(|status| status.gpus[0].reason.as_deref() == Some("burnt")).await;
    assert_eq!(node.api.applied(), 3);
    agent.stop().await;
}

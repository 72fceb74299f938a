//! The stages that the cluster goes through, and the checks that belong to one of them.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::server::{By, Server};
use crate::{root, tables};

/// Far more than anything takes: an API server that lost a definition needs half a minute to
/// believe in a new one.
const LIMIT: Duration = Duration::from_secs(120);

/// What the cluster holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The chart, completing and checking pods.
    Served,
    /// The chart as it is where the API server serves no mutating policies.
    Unserved,
}

/// The cluster and where it stands.
#[derive(Default)]
pub(crate) struct Stages {
    server: Option<Server>,
    now: Option<Stage>,
    before: BTreeSet<String>,
}

impl Stages {
    /// Brings the cluster to a stage.
    pub(crate) fn enter(&mut self, stage: Stage) -> Result<&Server, String> {
        if self.server.is_none() {
            run("kubectl", &["create", "namespace", "sluice-system"])?;
            self.before = everything()?;
        }
        let server = self.server.get_or_insert_with(Server::connect);
        if self.now == Some(stage) {
            return Ok(server);
        }
        let mutating = match stage {
            Stage::Served => "Auto",
            Stage::Unserved => "Never",
        };
        install(&root().join("charts/sluice"), mutating)?;
        run("kubectl", &["apply", "--filename", &tables().join("pools.yaml").to_string_lossy()])?;
        eventually("the policies in force", || in_force(server, stage))?;
        self.now = Some(stage);
        Ok(server)
    }
}

/// Installs or upgrades. Nothing of Sluice runs: the pods ask for a node that is not there.
fn install(chart: &std::path::Path, mutating: &str) -> Result<(), String> {
    let mutating = format!("admission.mutating={mutating}");
    let chart = chart.to_string_lossy();
    let args = ["upgrade", "--install", "sluice", &*chart, "--namespace", "sluice-system"];
    let values = [
        "--set",
        &mutating,
        "--set",
        "defaultPool.create=false,controller.nodeSelector.there=none,agent.nodeSelector.there=none",
    ];
    run("helm", &[&args[..], &values].concat()).map(drop)
}

const PODS: &str = "/api/v1/namespaces/default/pods?dryRun=All";

fn pod(labels: &Value, resources: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "labels": labels},
        "spec": {"containers": [{"name": "a", "image": "none", "resources": resources}]},
    })
}

/// Whether the policies answer as they do in a stage: each part of each of them is seen at work.
fn in_force(server: &Server, stage: Stage) -> bool {
    let ask = |labels: Value, resource: &str, count: i32| {
        server.send(By::Admin, "POST", PODS, &pod(&labels, &json!({"limits": {resource: count}})))
    };
    let refused = |labels: Value, count: i32, word: &str| {
        ask(labels, "nvidia.com/gpu", count).is_err_and(|message| message.contains(word))
    };
    let inferred = |labels: Value, resource: &str| {
        ask(labels, resource, 1).is_ok_and(|reply| reply["spec"]["schedulerName"] == "sluice")
    };
    let small = json!({"sluice.dev/shape": "small"});
    let both = refused(json!({"sluice.dev/shape": "none"}), 1, "is not a shape");
    let (plain, four) = (json!({}), json!({"sluice.dev/pool": "four"}));
    match stage {
        Stage::Served => {
            both && refused(small.clone(), 3, "exactly 1")
                && inferred(plain, "nvidia.com/gpu")
                && inferred(four, "example.com/gpu")
                && ask(small, "nvidia.com/gpu", 1).is_ok_and(|reply| {
                    reply["spec"]["schedulingGates"][0]["name"] == "sluice.dev/admission"
                        && reply["spec"]["activeDeadlineSeconds"] == 600
                })
        }
        Stage::Unserved => {
            both && refused(small, 1, "behind a gate")
                && !inferred(plain, "nvidia.com/gpu")
                && !inferred(four, "example.com/gpu")
        }
    }
}

pub(crate) fn definitions_bring_no_warning() -> Result<(), String> {
    let crds = root().join("crds");
    let output = Command::new("kubectl")
        .args(["create", "--dry-run=server", "--filename"])
        .arg(crds)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && told.is_empty() { Ok(()) } else { Err(told.into_owned()) }
}

pub(crate) fn explained(stages: &mut Stages, kind: &str) -> Result<(), libtest_mimic::Failed> {
    stages.enter(Stage::Served)?;
    for part in ["spec", "status"] {
        let what = format!("{kind}.{part}");
        eventually("the schema published", || run("kubectl", &["explain", &what]).is_ok())?;
        let told = run("kubectl", &["explain", "--recursive=false", &what])?;
        assert!(told.contains("DESCRIPTION:"), "{told}");
        assert!(!told.contains("<no description>") && !told.contains("<empty>"), "{told}");
    }
    if kind == "gpupools" {
        let told = run("kubectl", &["explain", "gpool.spec.drain"])?;
        assert!(told.contains("How nodes are drained for a waiting large."), "{told}");
        assert!(told.contains("enum: Wait, Evict"), "{told}");
    }
    Ok(())
}

pub(crate) fn policies_bring_no_warning(stages: &mut Stages) -> Result<(), libtest_mimic::Failed> {
    let server = stages.enter(Stage::Served)?;
    let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    for name in ["sluice-shape", "sluice-limits", "sluice-agent"] {
        let mut policy = Value::Null;
        eventually("the policy checked", || {
            policy = server
                .send(By::Admin, "GET", &format!("{path}/{name}"), &Value::Null)
                .unwrap_or_default();
            policy["status"]["observedGeneration"] == policy["metadata"]["generation"]
                && policy["metadata"]["generation"].is_i64()
        })?;
        let warnings = &policy["status"]["typeChecking"]["expressionWarnings"];
        assert!(warnings.is_null(), "{name}: {warnings:#}");
    }
    Ok(())
}

/// An agent's token is good for one ledger.
pub(crate) fn agents_write_their_own_ledger(
    stages: &mut Stages,
) -> Result<(), libtest_mimic::Failed> {
    let server = stages.enter(Stage::Served)?;
    let path = "/apis/sluice.dev/v1alpha1/gpunodes";
    let change = json!({"status": {"released": ["pod"]}});
    let write = |node: &str| {
        let status = format!("{path}/{node}/status?dryRun=All");
        server.send(By::Agent, "PATCH", &status, &change)
    };
    for node in ["here", "there"] {
        let ledger = json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": node},
            "spec": {"pool": "default", "nodeUid": node},
        });
        server.send(By::Admin, "POST", path, &ledger)?;
    }
    write("here")?;
    let refused = write("there").unwrap_err();
    assert!(refused.contains("the ledger of its own node only"), "{refused}");
    for node in ["here", "there"] {
        server.send(By::Admin, "DELETE", &format!("{path}/{node}"), &Value::Null)?;
    }
    Ok(())
}

/// A cluster whose definitions were deleted by mistake goes on for everyone else.
pub(crate) fn other_pods_pass_without_definitions(
    stages: &mut Stages,
) -> Result<(), libtest_mimic::Failed> {
    let server = stages.enter(Stage::Served)?;
    run("kubectl", &["delete", "crd", "gpupools.sluice.dev"])?;
    let bare = |resources: Value| {
        let pod = pod(&json!({"app": "other"}), &resources);
        server.send(By::Admin, "POST", PODS, &pod)
    };
    eventually("the pools gone from the policies", || {
        bare(json!({})).unwrap();
        bare(json!({"limits": {"nvidia.com/gpu": 1}})).unwrap()["spec"]["schedulerName"]
            == "default-scheduler"
    })?;
    // An upgrade from the same chart mends it.
    stages.now = None;
    stages.enter(Stage::Served)?;
    Ok(())
}

/// `helm upgrade` brings a new field to the API server, and the pools stay.
pub(crate) fn upgrades_definitions(stages: &mut Stages) -> Result<(), libtest_mimic::Failed> {
    let server = stages.enter(Stage::Served)?;
    let next = tempfile::tempdir().unwrap();
    let chart = next.path().join("sluice");
    let from = root().join("charts/sluice");
    run("cp", &["--recursive", &from.to_string_lossy(), &chart.to_string_lossy()])?;
    let file = chart.join("files/crds/gpupools.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let paused = "              paused:\n";
    let added = "              motto:\n                type: string\n";
    assert_eq!(text.matches(paused).count(), 1);
    std::fs::write(&file, text.replace(paused, &format!("{added}{paused}"))).unwrap();

    let pool = "/apis/sluice.dev/v1alpha1/gpupools/four";
    let uid = server.send(By::Admin, "GET", pool, &Value::Null)?["metadata"]["uid"].clone();
    install(&chart, "Auto")?;
    let motto = json!({"spec": {"motto": "festina lente"}});
    let strict = format!("{pool}?dryRun=All&fieldValidation=Strict");
    eventually("the new field served", || {
        server.send(By::Admin, "PATCH", &strict, &motto).is_ok()
    })?;
    let now = server.send(By::Admin, "GET", pool, &Value::Null)?;
    assert_eq!(now["metadata"]["uid"], uid, "the pool is the same one");
    stages.now = None;
    Ok(())
}

pub(crate) fn uninstall_leaves_nothing(stages: &mut Stages) -> Result<(), libtest_mimic::Failed> {
    stages.enter(Stage::Served)?;
    assert!(everything()?.len() > stages.before.len(), "there is something to remove");
    // The job that follows an uninstallation runs Sluice's image, which this cluster has not. The
    // end-to-end tests let it run.
    run("helm", &["uninstall", "sluice", "--namespace", "sluice-system", "--no-hooks"])?;
    stages.now = None;
    let mut left = BTreeSet::new();
    let gone = eventually("everything removed", || {
        left = everything().map_or_else(|e| BTreeSet::from([e]), |now| &now - &stages.before);
        left.is_empty()
    });
    gone.map_err(|error| format!("{error}: {left:?}").into())
}

/// The name of every object in the cluster, but for records of the past and what changes by itself.
fn everything() -> Result<BTreeSet<String>, String> {
    let kinds = run("kubectl", &["api-resources", "--verbs=list", "--output=name"])?;
    let kinds: Vec<_> = kinds
        .split_whitespace()
        .filter(|kind| !kind.starts_with("events") && !kind.starts_with("componentstatuses"))
        .collect();
    let kinds = kinds.join(",");
    let names = run("kubectl", &["get", &kinds, "--all-namespaces", "--output=name"])?;
    // Kubelet makes its node's lease in its own time.
    let own = |name: &&str| !name.is_empty() && !name.ends_with("/gpu-node-1");
    Ok(names.lines().filter(own).map(str::to_owned).collect())
}

/// Asks until it is so. Policies and schemas give no sign when they come into force.
#[allow(clippy::disallowed_methods, reason = "a test has no other clock than the real one")]
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) -> Result<(), String> {
    let end = Instant::now() + LIMIT;
    while !so() {
        if Instant::now() > end {
            return Err(format!("not within {LIMIT:?}: {what}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Runs a program that must succeed, and gives its standard output.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {}: {told}", args.join(" ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

//! Cluster side: what the chart renders, checked without a cluster.
//!
//! Rendering is helm's own: `SLUICE_HELM`, else the pinned one that `tests/cluster` builds (minutes,
//! once).

#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used)]

mod render;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sluice::api::{GpuPool, Preset, names};
use sluice::cli::Cli;

use render::{Rendered, SERVED, container, helm, list, root, strings, template};

#[test]
fn lint_finds_nothing() {
    let output = helm(&["lint", "--strict", "charts/sluice"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_scheduler_profile_is_guarded() {
    let more = r#"gpu.furtherResourceNames=["example.com/gpu"]"#;
    let config = Rendered::with(&["--set-json", more]).scheduler();
    let extenders = list(&config["extenders"]);
    assert_eq!(extenders.len(), 1);
    let managed = json!([
        {"name": names::DEFAULT_RESOURCE, "ignoredByScheduler": false},
        {"name": "example.com/gpu", "ignoredByScheduler": false},
    ]);
    let wanted = json!({
        "urlPrefix": "http://127.0.0.1:10262", "filterVerb": "filter", "bindVerb": "bind",
        "nodeCacheCapable": true, "ignorable": false, "httpTimeout": "5s",
        "managedResources": managed,
    });
    assert_eq!(extenders[0], wanted);

    let profiles = list(&config["profiles"]);
    assert_eq!(profiles.len(), 1, "the cluster's own scheduler serves every other pod");
    assert_eq!(profiles[0]["schedulerName"], names::SCHEDULER);
    let disabled = &profiles[0]["plugins"]["multiPoint"]["disabled"];
    assert_eq!(*disabled, json!([{"name": "DefaultPreemption"}]));
    let scoring = &profiles[0]["pluginConfig"][0]["args"]["scoringStrategy"];
    assert_eq!(scoring["type"], "MostAllocated");
    assert_eq!(scoring["resources"][0]["name"], names::DEFAULT_RESOURCE);

    assert_eq!(config["percentageOfNodesToScore"], 100);
    assert_eq!(config["podInitialBackoffSeconds"], 1);
    assert_eq!(config["podMaxBackoffSeconds"], 1);
    assert_eq!(config["leaderElection"]["resourceNamespace"], "sluice-system");
}

#[test]
fn arguments_are_those_of_the_binary() {
    let all = Rendered::with(&[
        "--set=agent.backend=simulated,agent.handOver=cdi,agent.cdi.writeSpecTo=/var/run/cdi",
    ]);
    let nvml = Rendered::with(&[]);
    for container in [
        container(nvml.unmark(), "unmark"),
        container(all.controller(), "default-pool"),
        container(all.controller(), "controller"),
        container(all.agent(), "agent"),
        container(nvml.agent(), "agent"),
    ] {
        let mut args = vec!["sluice".to_owned()];
        args.extend(strings(&container["args"]));
        let parsed = Cli::from_args(args.iter().map(Into::into).collect());
        assert!(parsed.is_ok(), "{args:?}: {}", parsed.unwrap_err());
    }
}

#[test]
fn containers_can_do_no_more_than_they_need() {
    let rendered = Rendered::with(&[]);
    let mut seen = BTreeSet::new();
    for pod in [rendered.controller(), rendered.agent(), rendered.unmark()] {
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        for key in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(pod.get(key).is_none(), "{key}");
        }
        for container in list(&pod["initContainers"]).iter().chain(list(&pod["containers"])) {
            let name = container["name"].as_str().unwrap();
            seen.insert(name.to_owned());
            let wanted = json!({
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            });
            assert_eq!(container["securityContext"], wanted, "{name}");
            assert!(container["resources"]["requests"]["memory"].is_string(), "{name}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
            let lives = container.get("livenessProbe").is_some();
            let ends = ["default-pool", "unmark"].contains(&name);
            assert_eq!(lives, !ends, "{name} has probes unless it ends by itself");
            assert_eq!(lives, container.get("readinessProbe").is_some(), "{name}");
        }
    }
    let wanted = ["agent", "controller", "default-pool", "kube-scheduler", "unmark"];
    let wanted = wanted.map(str::to_owned);
    assert_eq!(seen, BTreeSet::from(wanted));

    let user = &rendered.controller()["securityContext"];
    assert_eq!(user["runAsNonRoot"], true);
    assert_eq!(user["runAsUser"], 65532);
    let paths: Vec<_> = list(&rendered.agent()["volumes"])
        .iter()
        .map(|volume| volume["hostPath"]["path"].as_str().unwrap())
        .collect();
    let wanted =
        ["/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources", "/sys/fs/cgroup"];
    assert_eq!(paths, wanted);
    for mount in list(&container(rendered.agent(), "agent")["volumeMounts"]) {
        let writes = mount["readOnly"] != true;
        assert_eq!(writes, mount["name"] == "device-plugins", "{mount}");
    }
}

#[test]
fn rights_are_spelled_out() {
    let rendered = Rendered::with(&[]);
    let mut rules = 0;
    for ((kind, name), object) in &rendered.0 {
        for rule in list(&object["rules"]).iter().filter(|_| kind.ends_with("Role")) {
            rules += 1;
            for part in ["apiGroups", "resources", "verbs"] {
                let words = strings(&rule[part]);
                assert!(!words.is_empty(), "{name}: {rule}");
                assert!(words.iter().all(|word| !word.contains('*')), "{name}: {rule}");
            }
            let resources = strings(&rule["resources"]);
            let never = ["secrets", "pods/exec", "serviceaccounts", "clusterroles"];
            assert!(resources.iter().all(|r| !never.contains(&r.as_str())), "{name}: {rule}");
        }
    }
    assert!(rules > 8, "only {rules} rules seen");

    let agent = strings_of_rules(rendered.get("ClusterRole", "sluice-agent"));
    let wanted = ["gpunodes get list watch", "gpunodes/status patch", "pods get list watch"];
    assert_eq!(agent, wanted.map(str::to_owned));
    let controller = strings_of_rules(rendered.get("ClusterRole", "sluice-controller"));
    // Each verb is one that the code uses.
    let wanted = [
        "pods get list watch patch",
        "pods/status patch",
        "pods/binding pods/eviction create",
        "nodes list watch patch",
        "events create patch",
        "gpupools list watch",
        "gpupools/status patch",
        "gpunodes get list watch create delete",
        "gpunodes/status update",
        "gpupools create patch (default)",
    ];
    assert_eq!(controller, wanted.map(str::to_owned));

    let unmark = strings_of_rules(rendered.get("ClusterRole", "sluice-unmark"));
    assert_eq!(unmark, ["nodes list patch"]);
    let own = strings_of_rules(rendered.get("Role", "sluice-controller"));
    let named = "leases get update patch (sluice-controller) (sluice-kube-scheduler)";
    assert_eq!(own, [named, "leases create"]);

    let none = Rendered::with(&["--set=defaultPool.create=false"]);
    let controller = strings_of_rules(none.get("ClusterRole", "sluice-controller"));
    assert!(!controller.iter().any(|rule| rule.contains("create patch (")), "{controller:?}");
    assert!(none.controller().get("initContainers").is_none());
}

fn strings_of_rules(role: &Value) -> Vec<String> {
    list(&role["rules"])
        .iter()
        .map(|rule| {
            let mut words = strings(&rule["resources"]);
            words.extend(strings(&rule["verbs"]));
            words.extend(strings(&rule["resourceNames"]).iter().map(|name| format!("({name})")));
            words.join(" ")
        })
        .collect()
}

#[test]
fn accounts_and_references_exist() {
    let rendered = Rendered::with(&[]);
    for ((kind, name), object) in &rendered.0 {
        if !kind.ends_with("RoleBinding") {
            continue;
        }
        let role = object["roleRef"]["name"].as_str().unwrap();
        if !role.starts_with("system:") {
            rendered.get(object["roleRef"]["kind"].as_str().unwrap(), role);
        }
        for subject in list(&object["subjects"]) {
            assert_eq!(subject["namespace"], "sluice-system", "{name}");
            rendered.get("ServiceAccount", subject["name"].as_str().unwrap());
        }
    }
    for pod in [rendered.controller(), rendered.agent(), rendered.unmark()] {
        rendered.get("ServiceAccount", pod["serviceAccountName"].as_str().unwrap());
    }
    // By these the controller knows an agent's pod.
    let agent = &rendered.get("DaemonSet", "sluice-agent")["spec"]["template"]["metadata"];
    assert_eq!(agent["labels"][names::LABEL_APP], names::APP);
    assert_eq!(agent["labels"][names::LABEL_COMPONENT], names::COMPONENT_AGENT);
    rendered.get("Lease", names::LEASE);
    let lease = rendered.scheduler()["leaderElection"]["resourceName"].clone();
    rendered.get("Lease", lease.as_str().unwrap());
}

/// What takes the marks off the nodes comes when all else is gone, and goes with what it needs.
#[test]
fn what_runs_after_an_uninstallation_leaves_nothing() {
    let rendered = Rendered::with(&[]);
    let policy = "before-hook-creation,hook-succeeded,hook-failed";
    for kind in ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"] {
        // The job comes last.
        let weight = if kind == "Job" { "0" } else { "-1" };
        let wanted = json!({"helm.sh/hook": "post-delete", "helm.sh/hook-weight": weight,
                            "helm.sh/hook-delete-policy": policy});
        assert_eq!(rendered.get(kind, "sluice-unmark")["metadata"]["annotations"], wanted);
    }
}

#[test]
fn definitions_are_upgraded_and_kept_on_request() {
    for (keep, args) in [(false, &[][..]), (true, &["--set=crds.keep=true"][..])] {
        let rendered = Rendered::with(args);
        for definition in sluice::cli::crd::definitions() {
            let name = definition.metadata.name.as_deref().unwrap();
            let object = rendered.get("CustomResourceDefinition", name);
            let read: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::
                CustomResourceDefinition = serde_json::from_value(object.clone()).unwrap();
            let spec = |d: &_| serde_json::to_string(d).unwrap().replace("\\n", " ");
            assert_eq!(spec(&read.spec), spec(&definition.spec), "{name}");
            let policy = object["metadata"]["annotations"]["helm.sh/resource-policy"].as_str();
            assert_eq!(policy, keep.then_some("keep"), "{name}");
        }
    }
}

#[test]
fn the_default_pool_is_one() {
    let rendered = Rendered::with(&[
        "--set=gpu.resourceName=example.com/gpu,gpu.perNode=4,gpu.nodeSelector.gpu=yes",
        "--set=defaultPool.spec.waveSize=2,defaultPool.spec.limits.small.maxSeconds=60",
    ]);
    let pool: GpuPool = serde_json::from_value(rendered.pool()).unwrap();
    assert_eq!(pool.metadata.name.as_deref(), Some(names::DEFAULT_POOL));
    assert_eq!(pool.spec.resource_name, "example.com/gpu");
    assert_eq!(pool.spec.gpus_per_node, 4);
    assert_eq!(pool.spec.wave_size, Some(2));
    assert_eq!(pool.spec.limits.small.max_seconds, Some(60));
    assert_eq!(pool.spec.preset, Preset::Plain);
    assert_eq!(pool.spec.node_selector["gpu"], "yes");
    assert_eq!(rendered.agent()["nodeSelector"], json!({"gpu": "yes"}));
    let rendered = Rendered::with(&["--set=gpu.perNode=4,agent.backend=simulated"]);
    let args = strings(&container(rendered.agent(), "agent")["args"]);
    assert!(args.contains(&"--simulated-gpus=4".to_owned()), "{args:?}");
}

#[test]
fn the_default_pool_takes_every_option() {
    let options = json!({
        "preset": "Balanced", "backfill": "WithinDrain", "turnSeconds": 900,
        "oneWaveAtATime": true, "keepOpen": 1,
    });
    let set = format!("defaultPool.spec={options}");
    let pool = Rendered::with(&["--set-json", &set]).pool();
    for (option, value) in options.as_object().unwrap() {
        assert_eq!(pool["spec"][option], *value);
    }
    let read: GpuPool = serde_json::from_value(pool).unwrap();
    assert_eq!((read.spec.preset, read.spec.keep_open), (Preset::Balanced, Some(1)));
    // A field that the type has and the schema of the values lacks could not be set.
    let schema = std::fs::read_to_string(root().join("charts/sluice/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let spec = &schema["properties"]["defaultPool"]["properties"]["spec"]["properties"];
    let pools = sluice::cli::crd::definitions().swap_remove(0);
    let pools = serde_json::to_value(&pools.spec.versions[0].schema).unwrap();
    let fields = pools["openAPIV3Schema"]["properties"]["spec"]["properties"].as_object().unwrap();
    let elsewhere = ["nodeSelector", "resourceName", "gpusPerNode"];
    for field in fields.keys().filter(|field| !elsewhere.contains(&field.as_str())) {
        assert!(spec[field].is_object(), "{field} is not in values.schema.json");
    }
}

#[test]
fn a_change_of_what_is_read_at_start_restarts_the_controller() {
    let sum = |args: &[&str]| {
        let rendered = Rendered::with(args);
        let object = rendered.get("Deployment", "sluice-controller");
        object["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone()
    };
    let first = sum(&[]);
    assert!(first.is_string());
    assert_eq!(first, sum(&["--set=metrics.service=false"]));
    assert_ne!(first, sum(&["--set=defaultPool.spec.paused=true"]));
    assert_ne!(first, sum(&["--set=kubeScheduler.qps=7"]));
}

#[test]
fn the_scheduler_is_of_the_cluster_s_version() {
    for (cluster, tag) in [("1.36.3", "v1.36.3"), ("v1.35.4+k3s1", "v1.35.4")] {
        let rendered = Rendered::with(&["--kube-version", cluster]);
        let image = container(rendered.controller(), "kube-scheduler")["image"].clone();
        assert_eq!(image.as_str().unwrap().rsplit(':').next(), Some(tag));
    }
    let old = template(&["--kube-version", "1.32.0"]);
    assert!(!old.status.success(), "the custom resources' rules need a later API server");
}

#[test]
fn pods_are_completed_where_that_is_served() {
    let kind = "MutatingAdmissionPolicy";
    for (mutating, served, wanted) in [
        ("Auto", false, false),
        ("Auto", true, true),
        ("Always", false, true),
        ("Never", true, false),
    ] {
        let set = format!("--set=admission.mutating={mutating}");
        let mut args = vec![set.as_str()];
        args.extend(served.then_some(["--api-versions", SERVED]).iter().flatten());
        let rendered = Rendered::with(&args);
        assert_eq!(rendered.has(kind), wanted, "{args:?}");
        assert!(rendered.has("ValidatingAdmissionPolicy"));
    }
}

#[test]
fn every_policy_is_bound_and_harms_no_other_pod() {
    let rendered = Rendered::with(&["--api-versions", SERVED]);
    let mut policies = 0;
    for ((kind, name), policy) in &rendered.0 {
        if !kind.ends_with("AdmissionPolicy") {
            continue;
        }
        policies += 1;
        let binding = rendered.get(&format!("{kind}Binding"), name);
        assert_eq!(binding["spec"]["policyName"], *name);
        let spec = &policy["spec"];
        let by_pool = spec.get("paramKind").is_some();
        assert_eq!(by_pool, binding["spec"].get("paramRef").is_some(), "{name}");
        // A policy that needs a pool fails where pools are not defined, before its conditions are
        // looked at. It must then either reach labelled pods only, or refuse nothing.
        let labelled_only = spec["matchConstraints"].get("objectSelector").is_some();
        if by_pool && !labelled_only {
            assert_eq!(spec["failurePolicy"], "Ignore", "{kind} {name}");
        } else {
            assert_eq!(spec["failurePolicy"], "Fail", "{kind} {name}");
        }
        assert!(!list(&spec["matchConditions"]).is_empty(), "{kind} {name}");
    }
    assert_eq!(policies, 6);
}

#[test]
fn policies_use_the_names_of_the_code() {
    let output = template(&["--api-versions", SERVED]);
    let text = String::from_utf8(output.stdout).unwrap();
    let policies = text.split("kind: MutatingAdmissionPolicy").skip(1).collect::<String>();
    for name in [
        names::LABEL_SHAPE,
        names::LABEL_POOL,
        names::SHAPE_SMALL,
        names::SHAPE_LARGE,
        names::GATE,
        names::SCHEDULER,
        names::DEFAULT_POOL,
    ] {
        let quoted = [format!("'{name}'"), format!("\"{name}\"")];
        assert!(quoted.iter().any(|name| policies.contains(name)), "{name}");
    }
    assert!(policies.contains("system:serviceaccount:sluice-system:sluice-controller"));
}

#[test]
fn wrong_values_are_refused() {
    for wrong in [
        "--set=replicas=2",
        "--set=gpu.perNode=eight",
        "--set=gpu.perNode=0",
        "--set=gpu.resourceName=gpu",
        "--set=agent.backend=fake",
        "--set=agent.handOver=volume",
        "--set=admission.mutating=yes",
        "--set=kubeScheduler.extenderTimeout=5",
        "--set=defaultPool.spec.gpusPerNode=4",
        "--set=defaultPool.spec.preset=Fast",
        "--set=defaultPool.spec.backfill=Always",
        "--set=defaultPool.spec.turnSeconds=-1",
        "--set=controller.tolerations[0].keys=x",
    ] {
        let output = template(&[wrong]);
        assert!(!output.status.success(), "{wrong} is taken");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            told.contains("at '/") || told.contains("additional properties"),
            "{wrong}: {told}"
        );
    }
}

#[test]
fn switches_switch() {
    let rendered = Rendered::with(&[
        "--set=agent.enabled=false,metrics.serviceMonitor.enabled=true,controller.replicas=1",
        "--set=controller.priorityClassName=high,imagePullSecrets[0]=pull",
    ]);
    assert!(!rendered.has("DaemonSet"));
    assert!(!rendered.has("PodDisruptionBudget"));
    assert!(rendered.has("ServiceMonitor"));
    assert_eq!(rendered.controller()["priorityClassName"], "high");
    assert_eq!(rendered.controller()["imagePullSecrets"], json!([{"name": "pull"}]));
    let rendered = Rendered::with(&[
        "--set=agent.nvml.driverRoot=/run/nvidia/driver,agent.privileged=true",
        "--set=agent.nvml.runtimeClassName=nvidia",
    ]);
    assert_eq!(rendered.agent()["runtimeClassName"], "nvidia");
    let agent = container(rendered.agent(), "agent");
    assert_eq!(agent["securityContext"]["privileged"], true);
    assert!(agent["env"].to_string().contains("LD_LIBRARY_PATH"));
    let services = Rendered::with(&["--set=metrics.service=false"]);
    assert!(!services.has("Service"));
}

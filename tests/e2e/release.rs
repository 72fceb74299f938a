//! The chart's life under running pods: upgraded they do not notice, uninstalled nothing is left.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use sluice::api::{NodePhase, names};

use crate::support::pods::{self, large, small};
use crate::support::{NODE, RELEASE, SYSTEM, Scenario, command};

/// `helm upgrade` to a chart, with further values.
async fn upgrade(chart: &Path, further: &[&str]) -> Result<()> {
    let repository = command::repository();
    let path = |relative: &str| repository.join(relative).display().to_string();
    let (demo, own) = (path("examples/demo-values.yaml"), path("tests/e2e/values.yaml"));
    let chart = chart.to_str().context("the path is text")?;
    let mut words = vec!["upgrade", RELEASE, chart, "--namespace", SYSTEM];
    words.extend(["--values", &demo, "--values", &own, "--wait", "--timeout", "3m"]);
    words.extend(further);
    command::run("helm", &words).await.map(drop)
}

fn runs_on(s: &Scenario, names: &[&str]) -> Result<()> {
    s.look(|view| {
        for name in names {
            let pod = view.pod(name).with_context(|| format!("{name} is gone"))?;
            ensure!(pods::phase(pod) == "Running", "{name} is {}", pods::phase(pod));
            ensure!(view.ended(name).is_none(), "{name} has ended");
        }
        Ok(())
    })
}

async fn columns(kind: &str) -> Result<String> {
    let words = ["get", "crd", kind, "-o", "jsonpath={.spec.versions[0].additionalPrinterColumns}"];
    command::run("kubectl", &words).await
}

pub(crate) async fn upgrade_disturbs_nothing(s: &Scenario) -> Result<()> {
    s.drains_for_big(&["s-1", "s-2"]).await?;

    // An older chart, whose definition of the ledger had fewer columns.
    let chart = command::repository().join("charts/sluice");
    let older = s.folder.join("older");
    let (from, to) = (chart.display().to_string(), older.display().to_string());
    command::run("cp", &["-r", &from, &to]).await?;
    let definition = older.join("files/crds/gpunodes.yaml");
    let text = std::fs::read_to_string(&definition)?;
    std::fs::write(&definition, text.replace("name: Drained-By", "name: Older"))?;
    let crd = "gpunodes.sluice.dev";
    upgrade(&older, &[]).await?;
    ensure!(columns(crd).await?.contains("Older"), "the older definition is not in force");
    runs_on(s, &["s-1", "s-2"])?;

    let values = ["--set", "controller.replicas=1", "--set", "defaultPool.spec.waveSize=4"];
    upgrade(&chart, &values).await?;
    let now = columns(crd).await?;
    ensure!(now.contains("Drained-By") && !now.contains("Older"), "not upgraded: {now}");
    let replicas = ["get", "deployment", "sluice-controller", "-n", SYSTEM, "-o", "json"];
    let deployment: serde_json::Value =
        serde_json::from_str(&command::run("kubectl", &replicas).await?)?;
    ensure!(deployment["status"]["readyReplicas"] == 1, "{}", deployment["status"]);
    s.until("the pool has the new wave size", |view| {
        (view.state.pool()?.last().spec.wave_size == Some(4)).then_some(())
    })
    .await?;
    runs_on(s, &["s-1", "s-2"])?;
    s.phase(NodePhase::Draining).await?;
    s.finish(&["s-1", "s-2"]).await?;
    s.running(&["big"]).await?;
    // And back, under a large.
    upgrade(&chart, &["--set", "defaultPool.spec.waveSize=8"]).await?;
    runs_on(s, &["big"])?;
    s.finish(&["big"]).await?;
    s.running(&["late"]).await?;
    s.finish(&["late"]).await
}

/// Everything that carries the release's label, of every kind that the API server serves.
async fn left_behind() -> Result<String> {
    let words = ["api-resources", "--verbs=list", "--output=name"];
    let kinds = command::run("kubectl", &words).await?;
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let label = format!("app.kubernetes.io/instance={RELEASE}");
    let kinds = kinds.join(",");
    let words = ["get", &kinds, "--all-namespaces", "--selector", &label, "--output=name"];
    command::run("kubectl", &words).await
}

pub(crate) async fn uninstall_leaves_nothing(s: &Scenario) -> Result<()> {
    s.counters_start_anew();
    s.create_all(vec![small("s-1"), small("s-2")]).await?;
    s.running(&["s-1", "s-2"]).await?;
    ensure!(!left_behind().await?.is_empty(), "an installed release shows nothing");
    // In the middle of a drain, when the node is marked for cluster autoscalers.
    s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    let mark = "jsonpath={.metadata.annotations.sluice\\.dev/spared-from-scale-down}=true";
    let node = format!("node/{NODE}");
    let words = ["wait", "--for", mark, &node, "--timeout=30s"];
    command::run("kubectl", &words).await?;

    let words = ["uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout", "3m"];
    command::run("helm", &words).await?;
    s.until("Sluice's own pods are gone", |view| {
        let mut own = view.state.pods.values();
        let own = own.find(|pod| {
            pod.gone_ms.is_none() && pod.last().metadata.namespace.as_deref() == Some(SYSTEM)
        });
        own.is_none().then_some(())
    })
    .await?;
    let left = left_behind().await?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    for (kinds, mark) in [
        ("crd", "sluice"),
        ("clusterrole,clusterrolebinding", "sluice"),
        ("mutatingadmissionpolicy,mutatingadmissionpolicybinding", "sluice"),
        ("validatingadmissionpolicy,validatingadmissionpolicybinding", "sluice"),
        ("lease", "sluice"),
    ] {
        let found =
            command::run("kubectl", &["get", kinds, "--all-namespaces", "--output=name"]).await?;
        ensure!(!found.contains(mark), "left behind:\n{found}");
    }
    let words = ["get", &node, "--output=jsonpath={.metadata.annotations}"];
    let annotations = command::run("kubectl", &words).await?;
    for mark in [names::ANNOTATION_SPARED, names::ANNOTATION_NO_SCALE_DOWN] {
        ensure!(!annotations.contains(mark), "left on the node: {annotations}");
    }
    s.delete("big").await?;
    let sockets = std::fs::read_dir("/var/lib/kubelet/device-plugins")?
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<String>>>()?;
    let own = sockets.iter().find(|name| name.contains("sluice"));
    ensure!(own.is_none(), "a socket is left on the node: {own:?}");

    runs_on(s, &["s-1", "s-2"])?;
    s.finish(&["s-1", "s-2"]).await?;
    let install = command::repository().join("tests/e2e/install.sh");
    command::run(install.to_str().context("the path is text")?, &[]).await.map(drop)
}

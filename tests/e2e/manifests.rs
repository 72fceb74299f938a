//! What `kubectl apply` says to a bad manifest, and what becomes of one that says nothing of
//! Sluice. Every rule is gone through by `tests/admission`; here the installed release is asked.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use sluice::api::names;

use crate::support::pods::{Draft, large, small, unlabelled};
use crate::support::scenario::sees_all;
use crate::support::{Scenario, command};

fn manifest(s: &Scenario, draft: &Draft) -> Result<Value> {
    let folder = s.folder.to_str().context("the folder's name is text")?;
    let mut pod = draft.template(folder);
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["namespace"] = json!(s.namespace);
    Ok(pod)
}

/// `kubectl apply` fails, and says all of that.
async fn refused(case: &str, manifest: &Value, words: &[&str]) -> Result<()> {
    let output = command::apply(&manifest.to_string()).await?;
    ensure!(!output.status.success(), "{case}: was not refused");
    for word in words {
        ensure!(output.stderr.contains(word), "{case}: does not say {word}: {}", output.stderr);
    }
    Ok(())
}

fn shape(draft: Draft, shape: &str) -> Draft {
    draft.metadata(json!({"labels": {names::LABEL_SHAPE: shape}}))
}

fn gpus(mut manifest: Value, gpus: &str) -> Value {
    manifest["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": gpus});
    manifest
}

pub(crate) async fn bad_ones_are_refused(s: &Scenario) -> Result<()> {
    let write = "write sluice.dev/shape: small";
    let write_wide = "write sluice.dev/shape: wide-small";
    let bad = manifest(s, &shape(unlabelled("bad", 2), names::SHAPE_SMALL))?;
    refused("small with two GPUs", &bad, &["exactly 1", "asks for 2", write_wide]).await?;
    let bad = manifest(s, &shape(unlabelled("bad", 1), names::SHAPE_LARGE))?;
    let words = ["more than 1", "fewer than the 8", "asks for 1", write];
    let wide = manifest(s, &shape(unlabelled("bad", 1), names::SHAPE_WIDE))?;
    refused("wide-small with one GPU", &wide, &words).await?;
    refused("large with one GPU", &bad, &["exactly 8", "asks for 1", write]).await?;
    let bad = manifest(s, &shape(unlabelled("bad", 1), "medium"))?;
    refused("no shape", &bad, &["medium is not a shape", write]).await?;
    let bad = manifest(s, &small("bad").spec(json!({"activeDeadlineSeconds": 3601})))?;
    let words = ["at most 3600 seconds", "asks for 3601", "write activeDeadlineSeconds: 3600"];
    refused("runs too long", &bad, &words).await?;
    let bad = gpus(manifest(s, &small("bad"))?, "-1");
    refused("negative", &bad, &["must be greater than or equal to 0"]).await?;
    let bad = gpus(manifest(s, &small("bad"))?, "500m");
    refused("fractional", &bad, &["must be an integer"]).await?;

    s.create(large("holder")).await?;
    s.running(&["holder"]).await?;
    s.create(small("good")).await?;
    s.waiting(&["good"]).await?;
    let bad = manifest(s, &shape(small("good"), names::SHAPE_LARGE))?;
    refused("shape changed later", &bad, &["is fixed when a pod is created", "here: small"])
        .await?;
    s.finish(&["holder"]).await?;
    s.finish(&["good"]).await
}

/// A pod that asks for one GPU or for all of a node goes through Sluice without a word of it.
pub(crate) async fn a_pod_without_a_label_is_given_its_shape(s: &Scenario) -> Result<()> {
    s.create_all(vec![unlabelled("all", 8), unlabelled("one", 1)]).await?;
    s.running(&["all"]).await?;
    s.waiting(&["one"]).await?;
    s.look(|view| sees_all(view.started("all").context("started")?.1))?;
    s.finish(&["all"]).await?;
    s.running(&["one"]).await?;
    s.look(|view| {
        for (name, shape) in [("all", names::SHAPE_LARGE), ("one", names::SHAPE_SMALL)] {
            let pod = view.pod(name).context("it is there")?;
            let label = pod.labels().get(names::LABEL_SHAPE).map(String::as_str);
            ensure!(label == Some(shape), "{name} is labelled {label:?}");
        }
        Ok(())
    })?;
    s.finish(&["one"]).await
}

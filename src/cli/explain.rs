//! `sluice explain` says where a pod stands: its rank, the rule that holds it, what must happen
//! first, when it starts at the latest, and what would change that.
//!
//! From a snapshot it is pure; without one it asks the cluster that the kubeconfig names.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};

use super::input;
use super::replay::Output;
use crate::explain::names::utc;
use crate::explain::{Context, Words, json, text};
use crate::journal::{self, Difference, Played};
use crate::policy::Millis;
use crate::trace::parse_instant;

/// Arguments of `sluice explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pod.
    #[arg(value_name = "POD")]
    pod: String,
    /// Its namespace. By default that of the kubeconfig; with --snapshot, wherever the pod is.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Read records, such as a snapshot from a controller's /debug/snapshot, and no cluster; `-` is
    /// standard input.
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// The moment, from the snapshot's first record to its last [default: the last one].
    #[arg(long, value_name = "TIME", requires = "snapshot", value_parser = moment)]
    at: Option<Millis>,
    /// How it is printed.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

fn moment(text: &str) -> Result<Millis, String> {
    let at = parse_instant(text).map(Millis);
    at.ok_or_else(|| "not a time from 1970 on, such as 2026-11-30T08:30:00Z".to_owned())
}

/// Prints what can be said of the pod.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (text, json) = match &args.snapshot {
        Some(file) => from_records(args, file)?,
        None => from_cluster(args)?,
    };
    let out = match args.output {
        Output::Text => text,
        Output::Json => {
            let mut out = serde_json::to_string_pretty(&json).context("failed to write JSON")?;
            out.push('\n');
            out
        }
    };
    std::io::stdout().lock().write_all(out.as_bytes()).context("failed to print")
}

type Told = (String, serde_json::Value);

/// The pod's name, with or without the kind before it, as kubectl takes it.
fn name(args: &Args) -> &str {
    args.pod.strip_prefix("pod/").or(args.pod.strip_prefix("pods/")).unwrap_or(&args.pod)
}

fn from_records(args: &Args, file: &Path) -> anyhow::Result<Told> {
    let (file, content) = input::read(file)?;
    let (records, faults) = journal::read(&file, &content);
    let played = journal::replay(&file, &records, faults, args.at);
    for fault in &played.faults {
        tracing::warn!("{fault}");
    }
    for Difference { line, pool, seq, .. } in &played.differences {
        tracing::warn!(
            "{file}:{line}: pool {pool}, step {seq}: this code decides otherwise than was recorded, \
             as sluice replay {file} shows; what is said here rests on a state recorded after that"
        );
    }
    let found = find(args, &played);
    match &found[..] {
        [] => Err(nowhere(args, &played)),
        [(_, told)] => Ok(told.clone()),
        [first, .., last] => bail!(
            "there are {} pods of this name, such as {} and {}; name one with --namespace",
            found.len(),
            first.0,
            last.0
        ),
    }
}

/// The pods of that name that wait or hold GPUs, with what can be said of each.
fn find(args: &Args, played: &Played) -> Vec<(String, Told)> {
    let mut found = Vec::new();
    for (pool_name, end) in &played.ends {
        let Some(names) = played.names.get(pool_name) else { continue };
        if args.at.is_some_and(|at| at > last_known(played, pool_name)) {
            continue;
        }
        let context = Context::new(Words { names, time: utc }, pool_name, end.pool.config());
        for (&job, full) in names.pods.iter().filter(|(_, full)| is_meant(args, full)) {
            if let Some(explanation) = end.explain(job, args.at.unwrap_or(end.at)) {
                let told = text::text(&explanation, &context);
                found.push((full.clone(), (told, json::json(&explanation, &context))));
            }
        }
    }
    found
}

fn is_meant(args: &Args, full: &str) -> bool {
    full.split_once('/').is_some_and(|(namespace, bare)| {
        bare == name(args) && args.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
    })
}

/// Until when the records say what was: to the end of the second that their last time is shown as.
fn last_known(played: &Played, pool: &str) -> Millis {
    let last = played.last.get(pool).copied().unwrap_or_default();
    Millis(last.0.div_ceil(1_000).saturating_mul(1_000))
}

fn nowhere(args: &Args, played: &Played) -> anyhow::Error {
    let Played { file, names, ends, last, differences, .. } = played;
    let over = last.keys().map(|pool| last_known(played, pool)).max();
    if let (Some(at), Some(over)) = (args.at, over)
        && at > over
    {
        return anyhow!("the records of {file} end at {}: of later they say nothing", utc(over));
    }
    if ends.is_empty() {
        let why = match differences.last() {
            Some(Difference { line, .. }) => {
                format!(", since this code decides otherwise from line {line} on")
            }
            None => String::new(),
        };
        return anyhow!("{file} has no state that this code can lead up to that moment{why}");
    }
    let at = ends.values().map(|end| end.at).max().unwrap_or_default();
    let at = utc(args.at.unwrap_or(at));
    if names.values().flat_map(|table| table.pods.values()).any(|full| is_meant(args, full)) {
        return anyhow!("pod {} neither waits nor holds GPUs at {at}", name(args));
    }
    let bare = name(args);
    if bare.contains('/') {
        return anyhow!(
            "{file} does not know of a pod {bare}: write its bare name, and its namespace with -n"
        );
    }
    anyhow!("{file} does not know of a pod {bare}")
}

#[cfg(not(feature = "cluster"))]
fn from_cluster(_: &Args) -> anyhow::Result<Told> {
    bail!("this build cannot talk to a cluster: name a file with --snapshot")
}

#[cfg(feature = "cluster")]
fn from_cluster(args: &Args) -> anyhow::Result<Told> {
    super::ask(cluster::told(args))
}

#[cfg(feature = "cluster")]
mod cluster {
    use anyhow::Context as _;
    use kube::{Api, Client};

    use super::{Args, Told, name};
    use crate::controller::peek::Cluster;
    use crate::translate::PodFacts;

    pub(super) async fn told(args: &Args) -> anyhow::Result<Told> {
        let client = Client::try_default().await.context("failed to find the cluster")?;
        let namespace =
            args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        match Cluster::look(&client, crate::clock::now()).await {
            Ok(cluster) => {
                let told = cluster.explain(&namespace, name(args));
                let told =
                    told.with_context(|| format!("there is no pod {namespace}/{}", name(args)))?;
                Ok((told.text, told.json))
            }
            Err(error) if is_forbidden(&error.source) => {
                let told = condition(client, &namespace, name(args)).await?;
                tracing::warn!(
                    "this is the pod's own condition; to say more takes the right to list pods, \
                     nodes, gpupools and gpunodes of the whole cluster, and {} is refused",
                    error.kind
                );
                Ok(told)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn is_forbidden(error: &kube::Error) -> bool {
        matches!(error, kube::Error::Api(status) if status.code == 403)
    }

    /// What the controller wrote on the pod: a rendering of the same explanation, for who may see
    /// nothing but the pod.
    async fn condition(client: Client, namespace: &str, name: &str) -> anyhow::Result<Told> {
        let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client, namespace);
        let pod = api.get(name).await.with_context(|| format!("failed to get pod {name}"))?;
        let pod = PodFacts::read(&pod);
        let who = format!("{namespace}/{name}");
        let told = pod.admitted.with_context(|| {
            format!("pod {who} has no condition of Sluice: it is none of its pods, or new")
        })?;
        let text = format!("{who}: {}.\n{}\n", told.reason, told.message);
        let json = serde_json::json!({
            "version": crate::explain::json::VERSION, "pod": who,
            "reason": told.reason, "message": told.message,
        });
        Ok((text, json))
    }
}

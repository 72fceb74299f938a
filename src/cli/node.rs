//! Cluster side: `sluice node unmark` takes Sluice's marks off every node.
//!
//! While a node drains it is marked, so that a cluster autoscaler does not take it for idle. The
//! controller removes the mark in the end; where Sluice is uninstalled during a drain, nobody is
//! left who would, so the chart runs this once everything else is gone.

use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};

use crate::api::names;
use crate::translate::node::spare_patch;

/// How often the nodes are looked through. A write of the controller that was under way may come
/// between two looks, and one that no longer has the right to write makes no third.
const LOOKS: u32 = 5;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Nodes of one page of a list.
const PAGE: u32 = 500;

/// Arguments of `sluice node`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Remove Sluice's marks from every node, after Sluice itself was removed.
    Unmark,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Command::Unmark = args.command;
    super::ask(async {
        let client = Client::try_default().await.context("failed to find the cluster")?;
        unmark(&client).await
    })
}

/// Removes the marks, until a look finds none.
pub async fn unmark(client: &Client) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    for _ in 0..LOOKS {
        let marked = marked(&api).await?;
        if marked.is_empty() {
            return Ok(());
        }
        for name in marked {
            let (params, patch) = (PatchParams::default(), Patch::Merge(spare_patch(false)));
            match limited(api.patch(&name, &params, &patch)).await? {
                Ok(_) => tracing::info!(node = name, "mark removed"),
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error).with_context(|| format!("node {name}")),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("nodes are marked again and again: is a controller still at work?")
}

/// Names of the nodes that Sluice marked.
async fn marked(api: &Api<Node>) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = limited(api.list_metadata(&params)).await?.context("failed to list nodes")?;
        let ours = page.items.iter().filter(|node| {
            node.annotations().get(names::ANNOTATION_SPARED).is_some_and(|value| value == "true")
        });
        names.extend(ours.map(kube::ResourceExt::name_any));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(names),
        }
    }
}

async fn limited<T>(call: impl Future<Output = T>) -> anyhow::Result<T> {
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, call).await;
    answer.with_context(|| format!("no answer within {REQUEST_TIMEOUT:?}"))
}

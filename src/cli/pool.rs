//! Cluster side: `sluice pool apply` writes the pool that an installation brings.
//!
//! A chart cannot hold a `GpuPool` beside the definition of `GpuPool`: helm maps every object before
//! it creates the first. So the pool travels in a file, and the controller's pod applies it first.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource as _, ResourceExt as _};

use crate::api::{GpuPool, names};

/// Attempts while the definition is not served yet: a minute's worth.
const ATTEMPTS: u32 = 120;
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts: a definition that was just created is served after about a second.
const RETRY: Duration = Duration::from_millis(500);

/// Arguments of `sluice pool`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Apply a pool from a file, as the owner of the fields that stand in it.
    Apply {
        /// YAML file with one `GpuPool`.
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
    },
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Command::Apply { file } = &args.command;
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("failed to read {}", file.display()))?;
    let pool = read(&text).with_context(|| format!("cannot use {}", file.display()))?;
    super::ask(apply(&pool))
}

/// The manifest as it is written: fields that it leaves out stay with whoever owns them.
fn read(text: &str) -> anyhow::Result<serde_json::Value> {
    let value: serde_json::Value = serde_saphyr::from_str(text)?;
    // Read it as what it claims to be, so that a fault is named here and not by a controller.
    let kind = GpuPool::kind(&());
    if value["kind"] != *kind || value["apiVersion"] != *GpuPool::api_version(&()) {
        bail!("it is no {kind} of {}", GpuPool::api_version(&()));
    }
    let pool: GpuPool = serde_json::from_value(value.clone())?;
    if pool.name_any().is_empty() {
        bail!("it has no metadata.name");
    }
    Ok(value)
}

async fn apply(pool: &serde_json::Value) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("failed to find the cluster")?;
    let api: Api<GpuPool> = Api::all(client);
    let name = pool["metadata"]["name"].as_str().context("the pool has no name")?;
    let params = PatchParams::apply(names::MANAGER_CHART).force();
    for attempt in 1.. {
        let patch = Patch::Apply(pool);
        let request = api.patch(name, &params, &patch);
        let error = match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
            Ok(Ok(applied)) => {
                tracing::info!(pool = name, generation = applied.metadata.generation, "applied");
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(_) => bail!("the API server did not answer within {REQUEST_TIMEOUT:?}"),
        };
        // Not found is the kind, not the pool: applying creates what is absent.
        let early = matches!(&error, kube::Error::Api(status) if status.code == 404);
        if !early || attempt == ATTEMPTS {
            return Err(error).with_context(|| format!("failed to apply GpuPool {name}"));
        }
        // Asking again is the only sign there is: watching the definition would need a further right.
        tokio::time::sleep(RETRY).await;
    }
    unreachable!("the last attempt returns")
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn a_pool_is_read_as_written() {
        let text = "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {name: default}\n\
                    spec: {gpusPerNode: 4}\n";
        let value = read(text).expect("a good pool");
        assert_eq!(value["spec"], serde_json::json!({"gpusPerNode": 4}));
    }

    #[test]
    fn what_is_no_pool_is_named() {
        for (text, fault) in [
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {}", "it is no GpuPool"),
            ("metadata: {}\nspec: {}", "no metadata.name"),
            ("metadata: {name: x}\nspec: {gpusPerNode: eight}", "invalid type"),
        ] {
            let kind = "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\n";
            let text =
                if text.starts_with("api") { text.to_owned() } else { format!("{kind}{text}") };
            let error = format!("{:#}", read(&text).expect_err(&text));
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}

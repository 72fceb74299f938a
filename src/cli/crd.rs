//! Cluster side: `sluice crd` writes the custom resource definitions from the Rust types.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use serde_json::Value;

use crate::api::{GpuNode, GpuPool};

/// Where the definitions are kept: for people, and for the chart.
const DIRS: [&str; 2] = ["crds", "charts/sluice/files/crds"];

/// Arguments of `sluice crd`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder to write to; may be given more than once. Existing files are replaced.
    #[arg(long = "dir", value_name = "DIR", default_values = DIRS)]
    dirs: Vec<PathBuf>,
    /// Print the definitions to standard output and write no file.
    #[arg(long)]
    stdout: bool,
}

/// Writes or prints the definitions.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let files = files()?;
    if args.stdout {
        let mut out = std::io::stdout().lock();
        for (_, text) in &files {
            write!(out, "---\n{text}").context("failed to print the definitions")?;
        }
        return Ok(());
    }
    for dir in &args.dirs {
        write_to(dir, &files)?;
    }
    Ok(())
}

fn write_to(dir: &Path, files: &[(&'static str, String)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)
        .with_context(|| format!("failed to create folder {}", dir.display()))?;
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text)
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

/// Every definition that Sluice owns.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![GpuPool::crd(), GpuNode::crd()]
}

/// File names and contents of every definition.
pub fn files() -> anyhow::Result<Vec<(&'static str, String)>> {
    ["gpupools.yaml", "gpunodes.yaml"]
        .into_iter()
        .zip(definitions())
        .map(|(name, definition)| {
            let mut value = serde_json::to_value(&definition)
                .with_context(|| format!("failed to write {name} as JSON"))?;
            tidy(&mut value);
            let yaml = serde_saphyr::to_string(&value)
                .with_context(|| format!("failed to write {name} as YAML"))?;
            Ok((name, format!("# Written by `sluice crd` from src/api: edit there.\n{yaml}")))
        })
        .collect()
}

/// Takes traces of Rust out of what operators read, at every level of the document.
///
/// Line breaks of the source stay in a description, and `kubectl explain` would print them in the
/// middle of its own lines; limits of integers come as floats.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = unfold(text);
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        Value::Number(number) => {
            if let Some(whole) = whole(number) {
                *number = whole.into();
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The same number as an integer, if it is one and was not written so.
fn whole(number: &serde_json::Number) -> Option<i64> {
    if number.is_i64() || number.is_u64() {
        return None;
    }
    number.to_string().strip_suffix(".0")?.parse().ok()
}

/// Joins the lines of each paragraph; an empty line between paragraphs stays.
fn unfold(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|p| p.lines().collect::<Vec<_>>().join(" "));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

//! Pure side: `sluice timeline` shows what ran on which GPUs, and checks it.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde_json::json;

use super::input;
use crate::timeline::check::{Rules, SLACK_MS, check};
use crate::timeline::{Timeline, record, svg, text};

/// Arguments of `sluice timeline`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files of JSON lines, in any order; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write the picture to this file.
    #[arg(long, value_name = "OUT")]
    svg: Option<PathBuf>,
    /// Title of the picture.
    #[arg(long, default_value = "Which pod ran on which GPUs")]
    title: String,
    /// Check what happened against what Sluice promises; fail if anything was broken.
    #[arg(long)]
    check: bool,
    /// Most smalls in one wave, for --check [default: the GPUs of the node].
    #[arg(long, value_name = "N")]
    wave_size: Option<usize>,
    /// The pool allows smalls behind a closed gate (backfill), for --check.
    #[arg(long)]
    backfill: bool,
    /// By how much two watches may differ about one moment, for --check.
    #[arg(long, value_name = "MS", default_value_t = SLACK_MS)]
    slack_ms: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Columns of the text.
    #[arg(long, default_value_t = 100)]
    width: usize,
}

/// Prints the timeline, and fails if a rule was broken.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let timeline = Timeline::new(read(&args.files)?);
    let Args { wave_size, backfill, slack_ms, .. } = *args;
    let rules = Rules { wave_size, backfill, slack_ms };
    let report = args.check.then(|| check(&timeline, rules));
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::render(&timeline, &args.title))
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    let mut out = if args.json {
        let value = json!({ "version": 1, "timeline": timeline, "check": report });
        let mut out = serde_json::to_string_pretty(&value).context("failed to write JSON")?;
        out.push('\n');
        out
    } else {
        let stdout = std::io::stdout();
        let color =
            stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        text::render(&timeline, text::Options { width: args.width, color })
    };
    if let (Some(report), false) = (&report, args.json) {
        out = format!("{out}\n{report}");
    }
    std::io::stdout().lock().write_all(out.as_bytes()).context("failed to print the timeline")?;
    match report.map_or(0, |report| report.violations()) {
        0 => Ok(()),
        1 => bail!("one rule was broken once"),
        many => bail!("rules were broken {many} times"),
    }
}

/// Reads every file, and names every line that cannot be read.
fn read(files: &[PathBuf]) -> anyhow::Result<Vec<record::Record>> {
    let (mut records, mut faults) = (Vec::new(), Vec::new());
    for path in files {
        let (name, content) = input::read(path)?;
        record::read(&name, &content, &mut records, &mut faults);
    }
    if faults.is_empty() {
        return Ok(records);
    }
    let lines: Vec<String> = faults.iter().map(|fault| format!("\n  {fault}")).collect();
    bail!("{} cannot be read:{}", text::counted(faults.len(), "line"), lines.concat())
}

//! Pure side: `sluice replay` decides again what a controller recorded.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::input;
use crate::journal::{self, Played};

/// Arguments of `sluice replay`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Records, such as a snapshot from a controller's `/debug/snapshot`; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// How the result is printed.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// How a result is printed.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Prints what the replay found, and fails unless every decision is the same.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (name, content) = input::read(&args.file)?;
    let (records, faults) = journal::read(&name, &content);
    let played = journal::replay(&name, &records, faults, None);
    let text = match args.output {
        Output::Text => played.to_string(),
        Output::Json => {
            let mut text = serde_json::to_string_pretty(&played).context("failed to write JSON")?;
            text.push('\n');
            text
        }
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("failed to print the result")?;
    verdict(&played)
}

fn verdict(played: &Played) -> anyhow::Result<()> {
    match (played.differences.len(), played.faults.len()) {
        (0, 0) => Ok(()),
        (0, 1) => bail!("not everything could be replayed: one fault in the records"),
        (0, faults) => bail!("not everything could be replayed: {faults} faults in the records"),
        (1, _) => bail!("this code decides otherwise in one place"),
        (differences, _) => bail!("this code decides otherwise in {differences} places"),
    }
}

//! The `sluice` binary: parse, run, exit code.

use clap::Parser as _;

fn main() -> anyhow::Result<()> {
    sluice::cli::Cli::parse().run()
}

//! The command line: argument types and dispatch, no logic of its own.
//!
//! Commands that need no cluster stand on the pure side of the wall; the others exist only with
//! feature `cluster`.

#[cfg(feature = "cluster")]
pub mod crd;

use clap::{Parser, Subcommand};

/// One-GPU pods and whole-node pods share GPU nodes fairly.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the binary can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write the custom resource definitions.
    #[cfg(feature = "cluster")]
    Crd(crd::Args),
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            #[cfg(feature = "cluster")]
            Command::Crd(args) => crd::run(&args),
        }
    }
}

//! Pure side: `sluice simulate` plays one job list to several policies and compares them.

use super::ladder::{Ladder, refuse_breaches};
use super::work::{pretty, print};
use crate::plan::compare::Name;

/// Arguments of `sluice simulate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    ladder: Ladder,
    /// Policies to compare [default: all].
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    policy: Vec<Name>,
}

/// Compares the policies.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let names = if args.policy.is_empty() { &Name::ALL[..] } else { &args.policy };
    let report = args.ladder.play(names, 0)?;
    print(&if args.ladder.json { pretty(&report.json()?)? } else { report.text() })?;
    refuse_breaches(&report)
}

//! Pure side: `sluice simulate` plays one job list, or a stream of jobs, to several policies and
//! compares them.

use std::fmt::Display;
use std::str::FromStr;

use clap::CommandFactory as _;
use clap::error::ErrorKind;

use super::ladder::{Ladder, refuse_breaches};
use super::stream::{self, Streams};
use super::work::{pretty, print};
use crate::plan::compare::Name;
use crate::stream::Contender;

/// Arguments of `sluice simulate`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("jobs", |jobs| {
    jobs.required(false).required_unless_present("stream").conflicts_with("stream")
}))]
pub struct Args {
    #[command(flatten)]
    ladder: Ladder,
    /// Policies to compare [default: all; with --stream the usual ones].
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    policy: Vec<String>,
    #[command(flatten)]
    streams: Streams,
}

/// Compares the policies.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(spec) = args.streams.spec() {
        let mut contenders: Vec<Contender> = named(&args.policy);
        if contenders.is_empty() {
            contenders = Contender::usual();
        }
        return stream::run(&args.streams, spec, &args.ladder, &contenders);
    }
    let mut names: Vec<Name> = named(&args.policy);
    if names.is_empty() {
        names = Name::ALL.to_vec();
    }
    let report = args.ladder.play(&names, 0)?;
    print(&if args.ladder.json { pretty(&report.json()?)? } else { report.text() })?;
    refuse_breaches(&report)
}

/// The policies of these names, each once; a job list and a stream read names differently. Ends the
/// process as a wrong argument does.
fn named<T>(names: &[String]) -> Vec<T>
where
    T: FromStr + PartialEq,
    T::Err: Display,
{
    let mut policies = Vec::new();
    for name in names {
        match name.parse() {
            Ok(policy) if policies.contains(&policy) => {}
            Ok(policy) => policies.push(policy),
            Err(error) => {
                let message = format!("invalid value for '--policy <NAME>': {error}");
                super::Cli::command().error(ErrorKind::ValueValidation, message).exit()
            }
        }
    }
    policies
}

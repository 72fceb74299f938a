//! Pure side: `sluice review` answers five questions about a day that is over.

use serde_json::json;

use super::ladder::Search;
use super::progress::{Stage, Watch};
use super::work::{Work, pretty, print};
use crate::plan::build;
use crate::plan::compare::{Name, play};
use crate::plan::review::{as_history, review};

/// Arguments of `sluice review`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    work: Work,
    #[command(flatten)]
    search: Search,
    /// Take what this policy would have done for what happened, where the list has no record.
    #[arg(long = "as", value_name = "NAME")]
    as_policy: Option<Name>,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Prints the answers.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut workload = args.work.workload()?;
    let watch = Watch::start(1)?;
    let effort = args.search.effort(watch.control());
    watch.says("review", Stage::default());
    if let Some(name) = args.as_policy {
        let problem = build::problem(&workload, args.work.frame(0))?;
        let entry = play(&problem, name, &effort)?;
        workload = as_history(&workload, &entry, &problem);
    }
    let answers = review(&workload, args.work.gpus, &effort);
    watch.end();
    if args.json {
        let as_policy = args.as_policy;
        return print(&pretty(&json!({ "version": 1, "as": as_policy, "answers": answers }))?);
    }
    let texts: Vec<String> = answers.iter().map(ToString::to_string).collect();
    print(&texts.join("\n"))
}

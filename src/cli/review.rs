//! Pure side: `sluice review` answers five questions about a day that is over.

use anyhow::bail;
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
    #[arg(long = "as", alias = "policy", value_name = "NAME")]
    as_policy: Option<Name>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Fail if the record contradicts itself.
    #[arg(long)]
    check: bool,
}

/// Prints the answers.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut workload = args.work.workload()?;
    let watch = Watch::start(1)?;
    let effort = args.search.effort(watch.control());
    watch.says("review", Stage::default());
    let frame = args.work.frame(&workload, 0);
    if let Some(name) = args.as_policy {
        let problem = build::problem(&workload, frame)?;
        let entry = play(&problem, name, &effort)?;
        workload = as_history(&workload, &entry, &problem, build::begin_ms(&workload, frame));
    }
    let review = review(&workload, frame.gpus, frame.nodes, &effort);
    let interrupted = watch.end();
    print(&if args.json {
        pretty(&json!({
            "version": 1,
            "as": args.as_policy,
            "interrupted": interrupted,
            "remarks": workload.remarks,
            "contradictions": review.contradictions,
            "answers": review.answers,
        }))?
    } else {
        let notes = workload.remarks.iter().map(|fault| format!("note: {fault}\n"));
        format!("{}{review}", notes.collect::<String>())
    })?;
    match review.contradictions.len() {
        many @ 1.. if args.check => bail!("the record contradicts itself in {many} places"),
        _ => Ok(()),
    }
}

//! The work: streams like those of the study, and the public trace.

use sluice::sim::Problem;
use sluice::stream::{Spec, recorded};
use sluice::trace::{Source, Workload};

/// Run times of smalls, mean one hour before the cut.
pub(crate) const SMALLS: [&str; 4] = [
    "uniform:12m:108m",
    "exp:1h:max=8h",
    "lognormal:1h:sigma=1:max=12h",
    "pareto:1h:alpha=1.5:max=30h",
];
pub(crate) const EXPONENTIAL: usize = 1;
pub(crate) const PARETO: usize = 3;

/// One kind of work on one number of nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub(crate) head: &'static str,
    pub(crate) nodes: usize,
    pub(crate) load: f64,
    /// Of the GPU-time, in larges.
    pub(crate) share: f64,
    /// The law of smalls.
    pub(crate) small: usize,
    /// Mean run of a large, drawn evenly from half to one and a half of it.
    pub(crate) large_h: u32,
    /// Until the last arrival.
    pub(crate) hours: f64,
}

impl Pool {
    pub(crate) const fn new(head: &'static str, nodes: usize, load: f64, share: f64) -> Self {
        Self { head, nodes, load, share, small: EXPONENTIAL, large_h: 4, hours: 1_000.0 }
    }

    pub(crate) const fn of(self, small: usize, large_h: u32) -> Self {
        Self { small, large_h, ..self }
    }

    pub(crate) fn draw(&self, seed: u64) -> Problem {
        let Self { nodes, load, share, small, large_h, hours, .. } = *self;
        let (least, most) = (large_h * 30, large_h * 90);
        let whole = f64::from(u32::try_from(nodes).expect("a few"));
        let jobs =
            hours * 8.0 * whole * load * ((1.0 - share) + share / (8.0 * f64::from(large_h)));
        let law = SMALLS[small];
        let text = format!(
            "jobs={jobs:.0},load={load},large-work={share},small-run={law},\
             large-run=uniform:{least}m:{most}m"
        );
        match text.parse() {
            Ok(Spec::Drawn(drawn)) => drawn.generate(8, nodes, seed),
            other => panic!("{text} is {other:?}"),
        }
    }
}

/// The public trace: so many times as fast, on so many nodes, with its wide jobs or without.
pub(crate) fn trace(faster: f64, nodes: usize, wide: bool) -> Problem {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/traces/itp-cluster05.csv");
    let content = std::fs::read_to_string(path).expect("data is there");
    let list = Workload::read(Source { name: path, content: &content }, None);
    recorded(&list.expect("the trace can be read"), faster, wide, 8, nodes).0
}

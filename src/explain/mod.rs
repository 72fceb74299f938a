//! Pure: what the policy knows and decides, as a person would say it.
//!
//! [`Explanation`] is the one value behind it all. [`wait`] makes the pod's condition of it,
//! [`text`](mod@text) the page that `sluice explain` prints, [`json`](mod@json) what programs
//! read; [`decision`] says a decision in the words of log lines, Events and replay.

pub mod change;
pub mod decision;
pub mod hold;
pub mod json;
pub mod moved;
pub mod names;
pub mod need;
pub mod outside;
pub mod text;
pub mod wait;

pub use names::{NameTable, Names, Words};
pub use outside::Outside;

use crate::policy::{Config, Explanation, Holds, Millis, Shape, Standing, Waits};

/// What kubelet may take, from the binding until it takes a pod up, and from the last container's
/// end until it says that the pod is over. It looks after deadlines once a second and needs a moment
/// to tear a pod down; the rest is slack for a busy node.
pub const KUBELET_MARGIN: Millis = Millis::from_secs(15);

/// What a rendering needs besides the explanation.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Names and times as they are said.
    pub words: Words<'a>,
    /// The pool's name.
    pub pool: &'a str,
    /// GPUs of one node of the pool.
    pub gpus_per_node: u32,
    /// Of each pod's limit, what is not its own: from the reservation to the binding, and kubelet's.
    pub control_plane: Millis,
}

impl<'a> Context<'a> {
    /// What renders explanations of this pool.
    pub fn new(words: Words<'a>, pool: &'a str, config: &Config) -> Self {
        let control_plane = config.reservation_timeout + KUBELET_MARGIN;
        Self { words, pool, gpus_per_node: config.gpus_per_node, control_plane }
    }
}

impl Explanation {
    /// Why it waits, if it does.
    pub fn waits(&self) -> Option<&Waits> {
        match &self.standing {
            Standing::Waits(waits) => Some(waits),
            Standing::Holds(_) => None,
        }
    }

    /// What it holds, if it has GPUs.
    pub fn holds(&self) -> Option<&Holds> {
        match &self.standing {
            Standing::Holds(holds) => Some(holds),
            Standing::Waits(_) => None,
        }
    }
}

/// Reason and sentence of where a pod stands, whether it waits or not.
pub fn standing(explanation: &Explanation, context: &Context<'_>) -> (&'static str, String) {
    match &explanation.standing {
        Standing::Waits(waits) => wait::rule(waits, explanation, context),
        Standing::Holds(holds) => hold::rule(holds, &context.words),
    }
}

/// The value of the shape label.
pub const fn shape_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Small => "small",
        Shape::Wide(_) => "wide-small",
        Shape::Large => "whole-node-large",
    }
}

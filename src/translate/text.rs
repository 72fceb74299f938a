//! Pure: the names and times of one pool's world, for what is said of it.

use super::time::spoken;
use super::{Known, World};
use crate::api::PodRef;
use crate::explain::names::list;
use crate::explain::{self, Context};
use crate::policy::{JobId, NodeId, Pool};

/// `a/b`, `a/b and c/d`, or the first few and how many others.
pub fn pods(pods: &[PodRef]) -> String {
    let named = pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name));
    list(&named.collect::<Vec<_>>(), pods.len())
}

/// Pods as the subject of a verb, in the form that one of them or many take.
pub fn subject(named: &[PodRef], one: &str, many: &str) -> String {
    format!("{} {}", pods(named), if named.len() == 1 { one } else { many })
}

/// Names for the numbers in a message.
pub struct Words<'a> {
    /// The pool's state.
    pub pool: &'a Pool,
    /// The names.
    pub known: &'a Known,
    /// The world.
    pub world: &'a World,
}

impl Words<'_> {
    /// What renders an explanation.
    pub fn context(&self) -> Context<'_> {
        Context::new(self.plain(), &self.world.name, &self.world.config)
    }

    /// Names and times as they are said.
    pub fn plain(&self) -> explain::Words<'_> {
        explain::Words { names: &self.known.ids, time: spoken }
    }

    /// A pod by its job.
    pub fn pod(&self, job: JobId) -> String {
        self.plain().pod(job)
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> String {
        self.plain().node(node)
    }
}

//! Pure: the one place where a Kubernetes object becomes something that the policy knows, and back.
//!
//! Nothing here performs I/O or reads a clock. On the way in, [`PodFacts`] and [`NodeFacts`] hold
//! what matters of an object, [`World`] what matters for one pool, and [`diff`] compares it with
//! the policy's state. On the way out, [`ledger`] renders a node's state, [`plan`] compares what
//! the objects say with what they should say, and [`text`] puts it into words.

pub mod agents;
pub mod diff;
pub mod fits;
#[cfg(test)]
mod fixture;
pub mod ids;
pub mod ledger;
pub mod limits;
pub mod members;
pub mod node;
pub mod plan;
pub mod pod;
pub mod pool;
pub mod record;
pub mod restore;
pub mod status;
pub mod strays;
pub mod text;
pub mod time;
pub mod world;

pub use diff::diff;
pub use ids::Ids;
pub use node::NodeFacts;
pub use pod::PodFacts;
pub use world::{Known, World};

#[cfg(test)]
mod wide_tests;

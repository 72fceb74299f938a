//! Cluster side: watches become inputs of the policy, and its decisions are carried out.

pub mod stores;

//! The protocol between ledger, gate, binding and lease under a model checker.
//!
//! Two replicas of the controller, their extenders, users and kubelets meet at one API server. The
//! decisions, the writes that follow from them and the judgement of claims and bindings are the
//! real functions (`policy`, `translate`, `extender::filter`, `extender::promise`); the API server,
//! the watches, the lease and the order in which calls are sent, arrive and are answered are
//! modelled. What is explored and what is abstracted away is written down in
//! `docs/model-checking.md`.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

#[path = "../checker/mod.rs"]
mod checker;
mod effects;
mod extender;
mod key;
mod mutants;
mod properties;
mod replica;
mod runs;
mod server;
mod setup;
mod state;
mod steps;
mod walk;

pub(crate) use setup::Protocol;

//! The rule under a model checker: the real decision code of `src/policy` in every interleaving of
//! everything that can happen to a few jobs on a few GPUs. Pure: needs no cluster feature.
//!
//! What is explored, what is abstracted away and how a counterexample reads is written down in
//! `docs/model-checking.md`. The short runs are part of `cargo test`; the long ones are ignored
//! there and run by `cargo test --release --no-default-features --test model -- --ignored`.

mod actions;
#[path = "../checker/mod.rs"]
mod checker;
mod mutants;
mod properties;
mod runs;
mod setup;
mod state;
mod steps;
mod watch;
mod world;

//! What another order of service would have given: input, schedules, figures, command line.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bounds;
mod checker;
mod command;
mod input;
mod ladder;
mod picture;
mod planner;
mod review;
mod support;
mod trace;

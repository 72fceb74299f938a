//! What several test programs use.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it as its own")]

pub mod apiserver;
mod collections;
pub mod control_plane;
pub mod ledger;
mod patch;
pub mod rig;

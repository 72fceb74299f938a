//! Pure: what the policy knows and decides, as a person would say it.

pub mod decision;
pub mod names;

pub use names::{NameTable, Names, Words};

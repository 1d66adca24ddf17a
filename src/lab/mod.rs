//! Experiments on real brokers: what happens to a record, how long it takes, and what is lost.

pub mod result;
pub mod trace;

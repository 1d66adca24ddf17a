//! Experiments on real brokers: what happens to a record, how long it takes, and what is lost.

pub mod histogram;
pub mod process_cost;
pub mod result;
pub mod trace;

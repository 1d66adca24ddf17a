//! Experiments on real brokers: what happens to a record, and how long it takes.

pub mod trace;

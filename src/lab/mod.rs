//! Experiments on real brokers: what happens to a record, how long it takes, and what is lost.

pub mod bench;
pub mod compare;
pub mod durability;
pub mod floors;
pub mod histogram;
pub mod host;
pub mod kafka_home;
pub mod nodes;
pub mod page;
pub mod process_cost;
pub mod result;
pub mod summary;
#[cfg(test)]
mod test_result;
pub mod trace;

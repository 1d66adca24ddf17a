//! Where operations wait for a condition or for their time to be up: what Kafka calls a request
//! purgatory. Pure, one core; knows neither Kafka requests nor sockets.
//!
//! * [`wheel`] the hierarchical timing wheel that holds the deadlines;
//! * [`waiters`] operations watched under keys, completed exactly once.

mod waiters;
mod wheel;

#[cfg(test)]
mod tests;

pub use waiters::{OPERATIONS_MAX, OpId, Purgatory};
pub use wheel::{TIMERS_MAX, TimerId, TimerWheel};

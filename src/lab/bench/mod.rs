//! The load generator: producers and consumers against any broker that speaks the protocol, and
//! what they measured.
//!
//! An open loop takes each latency from the time at which the record was due, not from when the
//! tool came to it, so that a stalled broker cannot hide its stall by holding up the load. Each
//! load thread is an executor of its own with its share of the producers and consumers; nothing
//! is shared on the way of a record. The way of a produce request is lean: records are appended to
//! the buffer that goes out, due times wait in the schedule, and no task or timer belongs to a
//! single request.
//!
//! | part | owns |
//! |---|---|
//! | `plan` | what a run does, with defaults |
//! | `schedule`, `sizes`, `keys`, `content` | when records are due, how large, whose, made of what |
//! | `batch`, `outgoing`, `transaction` | batches, requests, retries, transactions: all that a producer decides |
//! | `link`, `producer`, `transactor`, `consumer` | connections and the tasks on them |
//! | `samples`, `gather`, `progress` | counting, on the load's threads and put together |
//! | `context`, `topic`, `run` | one run from its beginning to its result |
//! | `search` | rates up to the knee, and the highest that is kept |

mod batch;
mod consumer;
mod content;
mod context;
mod error;
mod gather;
mod keys;
mod link;
mod outgoing;
mod plan;
mod producer;
mod progress;
mod run;
mod samples;
mod schedule;
mod search;
mod sizes;
mod topic;
mod transaction;
mod transactor;

pub use content::Content;
pub use error::BenchError;
pub use keys::Keys;
pub use plan::{FetchPlan, Load, Plan, TopicToMake};
pub use run::{delete_topic, run};
pub use schedule::Arrivals;
pub use search::{Goal, Step, saturation, sweep};
pub use sizes::{Sizes, VALUE_BYTES_MAX};
pub use transaction::TransactionPlan;

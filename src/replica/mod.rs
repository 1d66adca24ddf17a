//! A replica's part in a partition: what its leader decides about offsets, who may read how far,
//! and the operations that wait for either. State of one shard; pure decisions, no I/O of its own
//! (the log below does that), no knowledge of sockets or other shards.
//!
//! * [`leader`] the leader's decisions: followers, high watermark, minimum in-sync replicas;
//! * [`in_sync`] the in-sync set and the change of it on its way;
//! * [`follower`] the follower's: where to fetch, where to cut;
//! * [`history`] what both must know of a log, and where two histories part;
//! * [`partition`] one partition's replica on its shard: its role beside its log;
//! * [`fetch_session`] the follower's side of incremental fetch sessions (KIP-227);
//! * [`delayed`] the produce and fetch operations that wait in purgatory;
//! * [`relocation`] a replica on its way to another log directory;
//! * [`session`] the broker's side of them;
//! * [`throttle`] how fast replicas out of sync may be copied;
//! * `mutation` faults that tests put in on purpose.

pub mod delayed;
pub mod fetch_session;
pub mod follower;
pub mod history;
pub mod in_sync;
pub mod leader;
pub(crate) mod mutation;
pub mod partition;
pub mod relocation;
pub mod session;
#[cfg(test)]
mod simulation;
pub mod throttle;

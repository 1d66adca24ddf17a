//! A replica's part in a partition: what its leader decides about offsets, who may read how far,
//! and the operations that wait for either. State of one shard; pure decisions, no I/O of its own
//! (the log below does that), no knowledge of sockets or other shards.
//!
//! * [`leader`] the leader's watermarks: high watermark, minimum in-sync replicas;
//! * [`partition`] one partition's replica on its shard: leader state beside its log;
//! * [`delayed`] the produce and fetch operations that wait in purgatory;
//! * [`session`] incremental fetch sessions (KIP-227).

pub mod delayed;
pub mod leader;
pub mod partition;
pub mod session;

//! The quorum of embedded controllers: which controller is active, and what is committed. Runs on
//! the control executor, in one task.
//!
//! **The raft log is `__cluster_metadata` itself.** One entry of the consensus is one record batch
//! of the segment file: an entry's index is the number of batches up to it, its term is the batch's
//! leader epoch, its data are the batch's bytes, offsets are the sums of record counts. So the log
//! is written and synced once, every controller holds the same bytes at the same offsets, and what
//! Kafka's tools read is what was agreed on. The empty entry by which a new term begins is the
//! LEADER_CHANGE control batch that Kafka wants there, made once by the leader. A suffix that was
//! not committed is cut off the file as the consensus says; what was committed never is, so what is
//! served to observers (committed batches only) never changes. The alternative, a log of the
//! consensus from which the metadata log is derived, costs a second write of everything and a map
//! between the two for ever.
//!
//! Term and vote stand in Kafka's `quorum-state`, synced before anything that depends on them
//! leaves. How far the log is committed is not written down: a leader finds it again.
//!
//! The consensus is the `raft` crate, sans I/O. Its protobuf parser never sees bytes of the network
//! (RUSTSEC-2024-0437): [`codec`] is our own.
//!
//! * [`node`] the task and its ways in; [`core`] the state machine that it drives;
//!   [`tail`] the log as that sees it;
//! * [`state`] term and vote; [`codec`] messages as bytes; [`admit`] what is not let in;
//! * [`peers`] the way to the other voters; [`serve`] what observers and tools are told;
//! * [`observer`] the other side: what a broker that follows asks next, and what an answer means;
//!   [`follow`] carries it out.

mod admit;
mod codec;
mod core;
pub mod follow;
mod node;
pub mod observer;
pub mod peers;
pub mod serve;
mod state;
mod tail;

pub use node::{Quorum, QuorumSettings};

#[cfg(test)]
mod tests;

//! Group coordination: the classic group protocol and committed offsets, kept per partition of
//! `__consumer_offsets` on the core that owns the partition.
//!
//! Everything here is a synchronous state machine. [`GroupCoordinatorShard`] takes commands with
//! the clock as an argument and returns [`Effects`]: answers, and records to append. The driver
//! appends them through the replica room like any producer, and reports each outcome. Requests
//! that wait are tokens. Nothing here does I/O, sleeps or draws random numbers.
//!
//! ```text
//! join_group, sync_group, ...  ─►  shard_state ─►  Effect::Reply(token, response)
//! on_tick, append_done         ─►      │       ─►  Effect::Append { records, then }
//!                                   group, offsets ◄─ replay (loading, and every stored change)
//! ```

mod appends;
mod effects;
mod expiry;
mod group;
mod joining;
mod leaving;
mod listing;
mod member;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offsets;
mod partitioning;
mod protocols;
mod rebalance;
mod records;
pub mod refusal;
mod replay;
mod settings;
mod shard_state;
mod static_members;
mod step;
mod subscription;
mod syncing;
mod timers;
pub mod transactions;

pub use appends::append_error_to_response_error;
pub use effects::{
    AppendId, Call, Clock, CoordinatorRecord, Effect, Effects, Producer, ReplyToken, Response,
};
pub use offset_commit::{TopicLookup, writes_offsets};
pub use offset_fetch::{assemble_offset_fetch, groups_of_offset_fetch};
pub use offsets::OffsetAndMetadata;
pub use partitioning::{java_string_hash, partition_for};
pub use records::ForeignKind;
pub use replay::ReplayError;
pub use settings::{GroupLimits, GroupSettings};
pub use shard_state::{GroupCoordinatorShard, Phase};

#[cfg(test)]
mod tests;

//! Transaction coordination (KIP-98, KIP-890): which producer may use a transactional id, which
//! partitions its transaction has touched, and how it ends, kept per partition of
//! `__transaction_state` on the core that owns the partition.
//!
//! Everything here is synchronous. [`TransactionCoordinatorShard`] takes commands with the time
//! as an argument and returns [`Effects`]: answers, records to append, markers to write. Nothing
//! here does I/O, sleeps, or makes producer ids.
//!
//! ```text
//! init_producer_id, add_partitions, end ─►  Effect::Append { record }   the decision, stored
//! append_done                           ─►  Effect::Reply               told to the producer
//!                                       ─►  Effect::WriteMarkers        told to the partitions
//! markers_written                       ─►  Effect::Append { record }   the transaction is over
//! ```
//!
//! A decision exists once its record is below the high watermark of the partition, and only then
//! is anybody told of it. While its record is under way everything else that would change the
//! transactional id is answered CONCURRENT_TRANSACTIONS.

mod adding;
mod effects;
mod end;
mod expiry;
mod init;
mod listing;
mod partition_state;
mod partitions;
mod record;
mod state;
mod transaction;

pub use effects::{Answer, AppendId, Effect, Effects, Markers};
pub use init::NeedsProducerId;
pub use listing::{ListFilter, Listed};
pub use partition_state::{
    Phase, ReplayError, TransactionCoordinatorShard, TransactionLimits, TransactionSettings,
};
pub use partitions::Partitions;
pub use state::State;
pub use transaction::{Producer, Transaction, TransactionVersion};

#[cfg(test)]
mod tests;

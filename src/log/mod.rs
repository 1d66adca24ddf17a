//! A partition's log on disk: Kafka's files, byte for byte, and everything that keeps them true.
//!
//! Everything of one log runs on the shard that owns the partition. `log` knows no replication,
//! no purgatory and no client: it tells whoever registered that `written` or `durable` moved.
//!
//! | part | what it owns |
//! |---|---|
//! | [`Log`] (`log`, `append`, `read`, `in_place`, `lookup`, `truncate`, `retention`, `upkeep`) | one replica's log |
//! | `writer`, `write_queue`, `direct`, `preallocation` | the way of bytes to the disk: merged writes, those in flight, space ahead |
//! | `relocate` | the place of a log taken over by its copy in another directory |
//! | `flush`, `flush_rounds`, `flush_interval`, [`journal`] | flush rounds of each directory, its redo journal |
//! | `segment`, `index`, `index_files`, `reindex`, `txn_index` | one segment, its indexes |
//! | `open`, `leftovers`, `recover`, `rebuild`, `scan` | how a log comes to life |
//! | `validator`, `producers`, `leader_epochs` | what may enter, duplicates and transactions, epochs |
//! | [`cache`], `read_ahead`, [`LogShard`] | what the logs of a shard share |
//! | `window` | bytes of a segment in several parts |
//! | `unlink` | the space of deleted files, given back piece by piece |
//! | [`dump`] | the text form of the files, as Kafka's tool prints them |
//! | [`manager`] | the logs of a shard |
//! | [`cleaner`] | compaction |
//! | [`dir`], [`checkpoint`], [`names`] | log directories and their files |

mod append;
mod append_stats;
pub mod cache;
pub mod checkpoint;
pub mod cleaner;
mod config;
pub mod dir;
mod direct;
pub mod dump;
mod error;
mod flush;
mod flush_interval;
mod flush_rounds;
mod in_place;
pub mod index;
mod index_files;
pub mod journal;
pub mod leader_epochs;
mod leftovers;
#[allow(clippy::module_inception)]
mod log;
mod lookup;
pub mod manager;
pub mod names;
mod open;
mod preallocation;
pub mod producers;
mod read;
mod read_ahead;
mod rebuild;
mod recover;
mod reindex;
mod relocate;
mod retention;
mod scan;
mod segment;
mod shard;
#[cfg(test)]
mod tests;
mod truncate;
pub mod txn_index;
mod unlink;
mod upkeep;
pub mod validator;
mod watermarks;
mod window;
mod write_queue;
mod writer;

pub use append::{AppendAs, AppendError, Appended, FollowError, Followed};
pub use append_stats::AppendStats;
pub use cleaner::{Cleaner, CleanerSettings, CleanerStats};
pub use config::{Durability, LogConfig, SegmentIo};
pub use error::{LogError, StorageFailure};
pub use flush::{FlushLimits, FlushStats};
pub use log::Log;
pub use lookup::TimestampOffset;
pub use manager::{LogManager, ManagerSettings};
pub use open::{LogOpen, RecoveryReport};
pub use producers::{ProducerLimits, VerificationGuard};
pub use read::{OffsetPosition, ReadOutcome};
pub use read_ahead::{ColdReadLimits, ReadAheadStats};
pub use recover::Cut;
pub use relocate::{HeldWrites, PlaceError};
pub use retention::{RetentionCause, RetentionReport};
pub use shard::{LogShard, ShardLimits};
pub use validator::Origin;
pub use watermarks::Watermarks;
pub use write_queue::WriteLimits;

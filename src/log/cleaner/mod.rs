//! Compaction: of each key only the last record is kept (`cleanup.policy=compact`).
//!
//! | part | what it owns |
//! |---|---|
//! | [`Cleaner`] | the cleaner of a shard: one pass at a time over the dirtiest of its logs |
//! | `choice`, `facts` | which log is cleaned next, and how far |
//! | `pass` | one pass over one log |
//! | `map_build`, `offset_map`, `key_hash` | the last offset of each key of the dirty part |
//! | `filter`, `transactions`, `rewrite` | what of a batch stays, and how it is written anew |
//! | `group`, `pieces`, `output`, `swap` | segments: which become one, read, written, swapped in |
//! | `throttle`, `watch`, `settings`, `stats` | pace, the word to give up, settings, numbers |

pub mod choice;
#[allow(clippy::module_inception)]
mod cleaner;
mod facts;
pub mod filter;
pub mod group;
pub mod key_hash;
pub mod map_build;
pub mod offset_map;
mod output;
mod pass;
mod pieces;
mod rewrite;
mod settings;
mod stats;
mod swap;
mod throttle;
pub mod transactions;
mod watch;

pub use cleaner::Cleaner;
pub use pass::PassReport;
pub use settings::CleanerSettings;
pub use stats::CleanerStats;

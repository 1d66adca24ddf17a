//! The trace of one record through a cluster of three brokers: every hop with its offsets and its
//! time. The brokers tell of the hops themselves ([`crate::observe::hop`]); this room runs them,
//! sends the record, reads it, commits, and puts the hops together into a story that must hold:
//! one that lacks a hop, or has one too early, is refused.

mod collect;
mod journey;
mod nodes;
mod page;
mod scenario;
mod story;
#[cfg(test)]
mod test_kit;

pub use collect::{Hops, collect_here, follow_file};
pub use nodes::{BROKERS, start_nodes};
pub use page::page;
pub use scenario::{Facts, Play, play};
pub use story::{Flaw, Lane, Step, Story};

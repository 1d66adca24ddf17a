//! Highwater: an Apache Kafka-protocol broker for Linux in which every pinned core owns a shard
//! of partitions with its own io_uring ring, timing wheel, purgatory and sockets.
//!
//! The rooms, in the order in which a record passes them:
//!
//! | room | owns |
//! |---|---|
//! | [`wire`] | frames and messages as bytes: the codec, record batches, versions |

pub mod types;

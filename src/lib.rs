//! Highwater: an Apache Kafka-protocol broker for Linux in which every pinned core owns a shard
//! of partitions with its own io_uring ring, timing wheel, purgatory and sockets, and talks to the
//! other cores by messages only.
//!
//! The rooms, in the order in which a record passes them:
//!
//! | room | owns |
//! |---|---|
//! | [`net`] | connections: frames in, replies out in order |
//! | [`wire`] | messages and record batches as bytes, versions |
//! | [`broker`] | how each request is answered with the rooms below |
//! | [`shard`] | one core: its partitions, what waits for them, its lanes to the other cores |
//! | [`replica`] | leader and follower: in-sync set, high watermark, delayed operations, fetch sessions |
//! | [`log`] | a partition's log on disk |
//! | [`purgatory`] | the timing wheel and the operations that wait in it |
//! | [`rt`] | executors, files, sockets, clock: the ring, or the simulator |
//!
//! Beside the path: [`config`] every setting once; [`cluster`] the metadata log, the quorum that
//! agrees on it, and the controller's decisions; [`coordinator`] consumer groups; [`observe`] logs
//! and metrics; [`server`] a process from start to end; [`client`] our own producer, consumer and
//! admin; [`lab`] experiments on real brokers; [`tune`] the host and its disks; [`commands`] the
//! binary's commands. `simulation` (tests) runs whole clusters in simulated worlds.

pub mod broker;
pub mod client;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod coordinator;
pub mod lab;
pub mod log;
pub mod net;
pub mod observe;
pub mod purgatory;
pub mod replica;
pub mod rt;
pub mod server;
pub mod shard;
#[cfg(test)]
mod simulation;
pub mod tune;
pub mod types;
pub mod wire;

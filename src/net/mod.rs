//! Connections: frames in, replies out in order. Runs on every shard; a connection lives and
//! dies on the shard that accepted it. Never decides what a request means.
//!
//! * [`frame`] cuts the byte stream into request frames, under the size limit and the
//!   shard's memory budget;
//! * [`admission`] counts connections against `max.connections` and `max.connections.per.ip`;
//! * [`connection`] runs one connection: read, hand over, answer in order, close;
//! * [`listener`] accepts and spawns connections, and drains them at shutdown;
//! * [`controllers`] the listeners of an embedded controller, on the control executor.

pub mod admission;
pub mod connection;
pub mod controllers;
pub mod frame;
pub mod listener;

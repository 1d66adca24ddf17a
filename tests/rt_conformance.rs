//! One suite for both bodies of the runtime: what the rooms above rely on must hold on the ring
//! and in the simulator alike. Every case is written once and runs under each.
//!
//! Ring cases use real files in a temporary directory and loopback sockets on port 0.

// A failed unwrap is how these cases fail.
#![allow(clippy::unwrap_used)]

#[path = "rt_conformance/files.rs"]
mod files;
#[path = "rt_conformance/lanes.rs"]
mod lanes;
#[path = "rt_conformance/ring_only.rs"]
mod ring_only;
#[path = "rt_conformance/sockets.rs"]
mod sockets;
#[path = "rt_conformance/support.rs"]
mod support;
#[path = "rt_conformance/sync.rs"]
mod sync;
#[path = "rt_conformance/tasks.rs"]
mod tasks;

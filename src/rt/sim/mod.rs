//! The simulated body: any number of processes with any number of executors in one thread, on
//! virtual time, from one seed.
//!
//! A run is a function of its seed and of the program: task order, delays, failures and random
//! numbers all come from one generator. What breaks that is randomness from outside, for example
//! walking a hash map whose hasher is seeded by the process; [`World::trace_hash`] tells.
//!
//! | part | simulates |
//! |---|---|
//! | [`World`] | nodes (processes with a disk and an address), their life, time |
//! | [`Network`] | connections with delays, cuts, resets |
//! | [`Disk`] | a volatile and a durable image, power loss, faults |

mod conn;
mod disk;
mod exec;
mod file;
mod image;
mod kernel;
mod names;
pub(crate) mod net;
mod network;
pub(crate) mod path;
#[cfg(test)]
mod tests;
mod tree;
mod world;

pub use disk::{Disk, Fault};
pub(crate) use exec::{Executor, IoDelay, Sleep, YieldNow};
pub(crate) use file::{AlignedVec, File, FileName, Lock};
pub use network::Network;
pub use world::{NodeHandle, World};

/// Node, executor and virtual time of the task that runs, for log lines; `None` outside of a world.
pub fn whereabouts() -> Option<String> {
    match crate::rt::current::try_current() {
        Some(crate::rt::current::Current::Sim(executor)) => Some(executor.whereabouts()),
        _ => None,
    }
}

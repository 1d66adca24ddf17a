//! Starting executors: how many, where, and what an executor is called.
//!
//! The plan and its result; the threads themselves are the ring body's.

use std::future::Future;
use std::io;
use std::time::Duration;

use super::ring;

/// Which executor this is: `0..shards` are shards, `shards` is the control executor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExecutorIndex {
    pub index: usize,
    /// Number of shards of the process.
    pub shards: usize,
}

impl ExecutorIndex {
    /// The unpinned executor beside the shards.
    pub fn is_control(self) -> bool {
        self.index == self.shards
    }

    /// The thread's name: `shard-0`, `shard-1`, ..., `control`.
    pub fn name(self) -> String {
        if self.is_control() {
            "control".to_owned()
        } else {
            format!("shard-{}", self.index)
        }
    }
}

/// How to run a process on real threads.
#[derive(Clone, Debug)]
pub struct RingPlan {
    /// Number of shards, at least 1.
    pub shards: usize,
    /// Pin shard i to core i. Ignored, with a warning, when there are more shards than cores.
    pub pin: bool,
    /// How long a pinned shard polls its rings before it sleeps. Takes a hop between shards from
    /// 33 to 12 microseconds at 50 microseconds of spinning, and a whole core; `None` sleeps at
    /// once.
    pub spin: Option<Duration>,
}

impl Default for RingPlan {
    fn default() -> Self {
        RingPlan {
            shards: 1,
            pin: false,
            spin: None,
        }
    }
}

/// Why [`run_ring`] did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("executor {name} could not start: {source}")]
    Start { name: String, source: io::Error },
    #[error("executor {name} panicked: {message}")]
    Panicked { name: String, message: String },
}

/// Runs `plan.shards` shards and the control executor, each on a thread of its own, until all
/// their main futures have ended. `main` is called once on each thread to make its main future;
/// what it spawned and left behind is cancelled when that future ends.
///
/// # Errors
/// [`RunError`]; when one executor cannot start or panics the others are cancelled too.
pub fn run_ring<M, F>(plan: RingPlan, main: M) -> Result<(), RunError>
where
    M: Fn(ExecutorIndex) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    ring::run::run(plan, main)
}

//! Building one glommio executor: its settings, and the locked memory it needs.
//!
//! Settings that keep glommio from stalling. When an event of its preempt timer lands between
//! arming it and the first task, the executor parks although tasks are ready, until the next
//! event: measured in 8 of 27 runs with a 50 microsecond timer, in none of 45 from 1 ms up. So the
//! timer stays at 100 ms, everything runs in the one default queue without a latency class, and a
//! guard tick of 5 ms (while the executor is active) bounds what is left of it.
//!
//! Locked memory. The kernel counts registered buffers and (since 6.14) the rings themselves
//! against RLIMIT_MEMLOCK of the user, over all processes of that user, and gives it back some
//! time after a ring is closed. An executor takes about 100 KiB for its rings and three times its
//! I/O memory; under a limit that memory is kept at the minimum, so that several brokers of one
//! user fit into the usual 8 MiB, and a start that finds it used up tries again for a while.

use std::io;
use std::time::Duration;

use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};

use super::{io_error, sys};

const PREEMPT_TIMER: Duration = Duration::from_millis(100);
/// Submission entries per ring; glommio makes three rings and keeps what does not fit queued.
const RING_DEPTH: usize = 256;
/// For a host with little locked memory left.
const RING_DEPTH_MIN: usize = 32;
/// Registered memory per executor, in bytes: the least glommio takes, and where more brings
/// nothing.
const IO_MEMORY_MIN: u64 = 64 << 10;
const IO_MEMORY_MAX: u64 = 4 << 20;
/// glommio registers the same memory with each of its rings, and each counts.
const RINGS: u64 = 3;
/// The part of the limit that one process's buffers may take.
const LIMIT_SHARE: u64 = 8;
/// What glommio insists on, in bytes, and what we ask for if we may.
const LIMIT_MIN: u64 = 512 << 10;
const LIMIT_WANTED: u64 = 8 << 20;
/// How long a start waits for locked memory that others are giving back.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const RETRIES_MAX: u32 = 60;

/// How one executor is to be built, on its own thread.
pub(super) struct Build {
    pub(super) name: String,
    /// Pinned to this core.
    pub(super) core: Option<usize>,
    /// Spinning before sleep, for pinned executors.
    pub(super) spin: Option<Duration>,
    pub(super) io_memory: u64,
    /// Where the kernel's threads for its rings may run; `None`: where its own thread may.
    pub(super) workers: Option<sys::Cores>,
}

impl Build {
    /// # Errors
    /// `OutOfMemory` with the reason if the locked memory does not suffice, otherwise the
    /// system's.
    pub(super) fn make(&self) -> io::Result<LocalExecutor> {
        let (limit, _) = sys::memlock_limits();
        if limit < LIMIT_MIN {
            let text = format!(
                "the limit of locked memory is {limit} bytes, io_uring needs {LIMIT_MIN} at least: \
                 raise RLIMIT_MEMLOCK (ulimit -l)"
            );
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
        }
        let mut retries = 0;
        loop {
            // Deep rings first; for the second half of the patience shallow ones.
            let depth = if retries < RETRIES_MAX / 2 {
                RING_DEPTH
            } else {
                RING_DEPTH_MIN
            };
            match self.builder(depth).make().map_err(io_error) {
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                    if retries == RETRIES_MAX {
                        let text = "the limit of locked memory of this user is used up: raise \
                                    RLIMIT_MEMLOCK (ulimit -l), or grant CAP_IPC_LOCK";
                        return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
                    }
                    retries += 1;
                    std::thread::sleep(RETRY_PAUSE);
                }
                Ok(executor) => {
                    self.free_workers();
                    if depth < RING_DEPTH {
                        tracing::warn!(
                            executor = self.name,
                            depth,
                            "little locked memory left: the rings are shallow"
                        );
                    }
                    return Ok(executor);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A flush is work of a thread of the kernel, which inherits the one core of a pinned shard. There
    /// it waits for the shard at every step, milliseconds while the shard is busy: even where it may
    /// use all cores the scheduler leaves it there. So it gets others (`benches/README.md`).
    fn free_workers(&self) {
        if let Some(cores) = &self.workers
            && let Err(error) = sys::let_ring_workers_use(cores)
        {
            tracing::info!(%error, executor = self.name, "flushes run on the shard's core");
        }
    }

    fn builder(&self, depth: usize) -> LocalExecutorBuilder {
        let builder = match (self.core, self.spin) {
            (Some(core), Some(spin)) => {
                LocalExecutorBuilder::new(Placement::Fixed(core)).spin_before_park(spin)
            }
            (Some(core), None) => LocalExecutorBuilder::new(Placement::Fixed(core)),
            (None, _) => LocalExecutorBuilder::new(Placement::Unbound),
        };
        builder
            .name(&self.name)
            .io_memory(self.io_memory as usize)
            .ring_depth(depth)
            .preempt_timer(PREEMPT_TIMER)
    }
}

/// How many bytes each of `executors` may register.
pub(super) fn io_memory(executors: usize) -> u64 {
    let (soft, hard) = sys::memlock_limits();
    // glommio looks at the soft limit only, also where privileges make it void.
    if soft < LIMIT_WANTED {
        sys::raise_memlock(LIMIT_WANTED, hard);
    }
    let (limit, _) = sys::memlock_limits();
    if limit == u64::MAX || sys::may_lock_memory() {
        return IO_MEMORY_MAX;
    }
    let share = limit / LIMIT_SHARE / (RINGS * executors as u64);
    if share < IO_MEMORY_MIN / 2 {
        tracing::warn!(
            limit_bytes = limit,
            executors,
            "the limit of locked memory is low for so many shards: direct I/O may take the slower \
             path"
        );
    }
    (share & !4095).clamp(IO_MEMORY_MIN, IO_MEMORY_MAX)
}

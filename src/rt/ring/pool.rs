//! Three pools of plain threads for the process: for file system calls, for cold reads, and for
//! computations.
//!
//! They share nothing but the shape: a computation of a second must not delay an fsync, readers of
//! old data must not delay the next segment, and a hanging disk must not stop decompression. Threads
//! start once and stay; they must be started from an unpinned thread, because affinity is inherited.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// File system calls at once. They sleep in the kernel most of the time; more of them only queue
/// up at the device.
const DISK_THREADS: usize = 4;
/// Cold reads at once, of all shards. They keep the device busy from two on (1 MiB each: 0.9 GB/s
/// one at a time, 1.6 GB/s two, no more with four); what is queued here is not in the way of a
/// flush at the device, and never in the way of the other file system calls.
const COLD_THREADS: usize = 4;
/// Computations at once at most: the cores of the machine, but not more than this.
const COMPUTE_THREADS_MAX: usize = 16;
/// How much less computations weigh than the shards where both want a core: a pass of the cleaner
/// or the check of an index must not take it from an append.
const COMPUTE_NICENESS: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pool {
    Disk,
    Cold,
    Compute,
}

#[derive(Default)]
struct Jobs {
    // Bounded by the tasks that wait for the results.
    queue: Mutex<VecDeque<Job>>,
    ready: Condvar,
}

struct Pools {
    disk: Arc<Jobs>,
    cold: Arc<Jobs>,
    compute: Arc<Jobs>,
}

static POOLS: OnceLock<Pools> = OnceLock::new();

/// Starts the threads if they do not run yet.
pub(crate) fn start() {
    POOLS.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Pools {
            disk: threads("disk", DISK_THREADS, 0),
            cold: threads("cold-read", COLD_THREADS, 0),
            compute: threads("compute", cores.min(COMPUTE_THREADS_MAX), COMPUTE_NICENESS),
        }
    });
}

fn threads(name: &str, count: usize, niceness: i32) -> Arc<Jobs> {
    let jobs = Arc::new(Jobs::default());
    let mut started = 0;
    for index in 0..count {
        let jobs = jobs.clone();
        let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
        let run = move || {
            if niceness > 0 {
                super::sys::lower_thread_priority(niceness);
            }
            work(&jobs);
        };
        match thread.spawn(run) {
            Ok(_) => started += 1,
            Err(error) => tracing::warn!(%error, name, index, "a pool thread could not start"),
        }
    }
    assert!(started > 0, "no {name} thread could be started");
    jobs
}

fn work(jobs: &Jobs) {
    loop {
        let job = {
            let mut queue = jobs.queue.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match queue.pop_front() {
                    Some(job) => break job,
                    None => {
                        queue = jobs
                            .ready
                            .wait(queue)
                            .unwrap_or_else(PoisonError::into_inner)
                    }
                }
            }
        };
        job();
    }
}

/// Queues a job. Jobs catch their own panics.
pub(crate) fn submit(pool: Pool, job: Job) {
    start();
    let Some(pools) = POOLS.get() else { return };
    let jobs = match pool {
        Pool::Disk => &pools.disk,
        Pool::Cold => &pools.cold,
        Pool::Compute => &pools.compute,
    };
    jobs.queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push_back(job);
    jobs.ready.notify_one();
}

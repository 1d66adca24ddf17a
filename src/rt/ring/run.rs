//! Threads and executors: how the shards and the control executor start and end.
//!
//! Settings that keep glommio from stalling. When an event of its preempt timer lands between
//! arming it and the first task, the executor parks although tasks are ready, until the next
//! event: measured in 8 of 27 runs with a 50 microsecond timer, in none of 45 from 1 ms up. So the
//! timer stays at 100 ms, everything runs in the one default queue without a latency class, and a
//! guard tick of 5 ms (while the executor is active) bounds what is left of it.

use std::any::Any;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use glommio::{LocalExecutorBuilder, Placement};

use super::{Executor, io_error, pool, schedule, sys};
use crate::rt::current::{Current, enter};
use crate::rt::executor::{ExecutorIndex, RingPlan, RunError};
use crate::rt::task::{Register, prepare};

const PREEMPT_TIMER: Duration = Duration::from_millis(100);
/// Bounds a stall while the executor is in use.
const GUARD_BUSY: Duration = Duration::from_millis(5);
/// An idle executor's tick: ten wakes a second, about 0.05% of a core.
const GUARD_IDLE: Duration = Duration::from_millis(100);
/// Submission entries per ring; glommio makes three rings and keeps what does not fit queued.
const RING_DEPTH: usize = 256;
/// Registered memory per executor: the least glommio takes, and where more brings nothing.
const IO_MEMORY_MIN: u64 = 64 << 10;
const IO_MEMORY_MAX: u64 = 4 << 20;
/// glommio registers the same memory with each of its rings, and each counts.
const RINGS: u64 = 3;
/// Futures of whole connections live on the heap, but unoptimised builds are greedy.
const STACK_BYTES: usize = 8 << 20;
/// Rounds of cancelling at the end; each may bring up new tasks from destructors.
const END_ROUNDS_MAX: usize = 64;

pub(crate) fn run<M, F>(plan: RingPlan, main: M) -> Result<(), RunError>
where
    M: Fn(ExecutorIndex) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    let shards = plan.shards.max(1);
    // Before any thread is pinned: pool threads inherit the affinity of their maker.
    pool::start();
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let pin = plan.pin && shards <= cores.len();
    if plan.pin && !pin {
        tracing::warn!(
            shards,
            cores = cores.len(),
            "more shards than cores: shards are not pinned"
        );
    }
    let io_memory = io_memory(shards as u64 + 1);
    let end = Arc::new(End::new(shards + 1));

    let mut threads = Vec::new();
    let mut failure = None;
    for index in 0..=shards {
        let index = ExecutorIndex { index, shards };
        let name = index.name();
        let builder = if pin && !index.is_control() {
            let builder = LocalExecutorBuilder::new(Placement::Fixed(cores[index.index].id));
            match plan.spin {
                Some(spin) => builder.spin_before_park(spin),
                None => builder,
            }
        } else {
            LocalExecutorBuilder::new(Placement::Unbound)
        };
        let builder = builder
            .name(&name)
            .io_memory(io_memory as usize)
            .ring_depth(RING_DEPTH)
            .preempt_timer(PREEMPT_TIMER);
        let (main, end_here) = (main.clone(), end.clone());
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let _ended = EndOnPanic(&end_here);
                let executor = builder.make().map_err(|error| {
                    end_here.cancel();
                    io_error(error)
                })?;
                executor.run(root(index, main, end_here.clone()));
                Ok(())
            });
        match thread {
            Ok(thread) => threads.push((name, thread)),
            Err(source) => {
                end.cancel();
                failure = Some(RunError::Start { name, source });
                break;
            }
        }
    }
    for (name, thread) in threads {
        let result: Result<io::Result<()>, _> = thread.join();
        let error = match result {
            Ok(Ok(())) => continue,
            Ok(Err(source)) => RunError::Start { name, source },
            Err(panic) => RunError::Panicked {
                name,
                message: message(&*panic),
            },
        };
        end.cancel();
        tracing::error!(%error, "an executor ended");
        failure.get_or_insert(error);
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// How much memory each of `executors` may register so that all fit into half of the limit of
/// locked memory; the other half is left to other processes of the user.
fn io_memory(executors: u64) -> u64 {
    let Some(limit) = sys::memlock_limit() else {
        return IO_MEMORY_MAX;
    };
    let share = limit / 2 / (RINGS * executors);
    if share < IO_MEMORY_MIN {
        tracing::warn!(
            limit_bytes = limit,
            executors,
            "the limit of locked memory is too low to register I/O buffers with every ring: \
             direct I/O takes the slower path for some of them"
        );
    }
    (share & !4095).clamp(IO_MEMORY_MIN, IO_MEMORY_MAX)
}

/// The future that an executor runs: the main future, and what has to happen around it.
async fn root<M, F>(index: ExecutorIndex, main: M, end: Arc<End>)
where
    M: Fn(ExecutorIndex) -> F,
    F: Future<Output = ()> + 'static,
{
    let register = Rc::new(Register::default());
    let executor = Rc::new(Executor {
        register: register.clone(),
    });
    // Stays in place for the life of the thread: destructors that run late still need it.
    std::mem::forget(enter(Some(Current::Ring(executor))));
    schedule(guard_tick(register.clone()));

    let (task, body) = prepare(&register, main(index));
    schedule(body);
    {
        let mut task = pin!(task);
        std::future::poll_fn(|cx| {
            end.bells[index.index].register(cx.waker());
            if end.cancelled.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            task.as_mut().poll(cx)
        })
        .await;
    }
    for _ in 0..END_ROUNDS_MAX {
        if register.alive() == 0 {
            return;
        }
        register.cancel_all();
        super::yield_now().await;
    }
    tracing::warn!(
        tasks = register.alive(),
        "tasks left behind at the end of an executor"
    );
}

/// A timer that always pends, so that a park with runnable tasks ends soon.
async fn guard_tick(register: Rc<Register>) {
    let mut seen = register.polls();
    loop {
        let polls = register.polls();
        let pause = if polls == seen {
            GUARD_IDLE
        } else {
            GUARD_BUSY
        };
        seen = polls;
        super::sleep(pause).await;
    }
}

/// One executor's failure ends the others: half a broker serves nobody.
struct End {
    cancelled: AtomicBool,
    /// Wakes the root of each executor.
    bells: Vec<AtomicWaker>,
}

impl End {
    fn new(executors: usize) -> End {
        End {
            cancelled: AtomicBool::new(false),
            bells: (0..executors).map(|_| AtomicWaker::new()).collect(),
        }
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        for bell in &self.bells {
            bell.wake();
        }
    }
}

struct EndOnPanic<'a>(&'a End);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}

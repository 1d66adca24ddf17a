//! Threads and executors: how the shards and the control executor start and end.
//!
//! An executor ends with its main future; what that left behind is dropped then. A failure of one
//! ends the others.

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

use super::build::{self, Build};
use super::{Executor, pool, schedule, sys};
use crate::rt::current::{Current, enter};
use crate::rt::executor::{ExecutorIndex, RingPlan, RunError};
use crate::rt::sync::Semaphore;
use crate::rt::task::{Register, prepare};

/// Bounds a stall of the scheduler (see `build`) while the executor is in use.
const GUARD_BUSY: Duration = Duration::from_millis(5);
/// An idle executor's tick: ten wakes a second, about 0.05% of a core.
const GUARD_IDLE: Duration = Duration::from_millis(100);
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
    let io_memory = build::io_memory(shards + 1);
    let all_cores = sys::allowed_cores().ok();
    // The cores that no shard has, if there are any.
    let free_cores = all_cores.and_then(|all| {
        let mut shards = cores.iter().take(shards);
        shards.try_fold(all, |left, core| left.without(core.id))
    });
    let end = Arc::new(End::new(shards + 1));

    let mut threads = Vec::new();
    let mut failure = None;
    for index in 0..=shards {
        let index = ExecutorIndex { index, shards };
        let name = index.name();
        let core = (pin && !index.is_control()).then(|| cores[index.index].id);
        let build = Build {
            name: name.clone(),
            core,
            spin: plan.spin,
            io_memory,
            workers: core.and_then(|own| free_cores.or_else(|| all_cores?.without(own))),
        };
        let (main, end_here) = (main.clone(), end.clone());
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let _ended = EndOnPanic(&end_here);
                let executor = build.make().inspect_err(|_| end_here.cancel())?;
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

/// The future that an executor runs: the main future, and what has to happen around it.
async fn root<M, F>(index: ExecutorIndex, main: M, end: Arc<End>)
where
    M: Fn(ExecutorIndex) -> F,
    F: Future<Output = ()> + 'static,
{
    let register = Rc::new(Register::default());
    let executor = Rc::new(Executor {
        register: register.clone(),
        turns: Semaphore::new(1),
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

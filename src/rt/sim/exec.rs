//! One simulated executor and its futures: sleeping, yielding, waiting for a device.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::kernel::{Fire, Kernel, ReadyQueue, START_NS, TimerKey, nanos};
use super::world::{NodeState, Shared};
use crate::rt::task::Register;
use crate::rt::{ExecutorIndex, Instant};

/// An executor of one life of a node.
pub(crate) struct Executor {
    pub(crate) register: Rc<Register>,
    pub(super) index: ExecutorIndex,
    pub(super) node: Rc<NodeState>,
    pub(super) world: Weak<Shared>,
    pub(super) kernel: Rc<Kernel>,
    pub(super) ready: Arc<ReadyQueue>,
    yielded: RefCell<Vec<Waker>>,
    /// Set when its process dies: what destructors still do has no effect on the world.
    pub(super) dead: Cell<bool>,
    /// Which life of the node.
    pub(super) life: u64,
    /// The main future has ended.
    pub(super) finished: Cell<bool>,
}

impl Executor {
    pub(super) fn new(
        world: &Rc<Shared>,
        node: &Rc<NodeState>,
        index: ExecutorIndex,
    ) -> Rc<Executor> {
        Rc::new(Executor {
            register: Rc::new(Register::default()),
            index,
            node: node.clone(),
            world: Rc::downgrade(world),
            kernel: world.kernel.clone(),
            ready: Arc::default(),
            yielded: RefCell::default(),
            dead: Cell::new(false),
            life: node.life.get(),
            finished: Cell::new(false),
        })
    }

    pub(super) fn has_work(&self) -> bool {
        !self.yielded.borrow().is_empty() || !self.ready.is_empty()
    }

    pub(super) fn wake_yielded(&self) {
        let yielded = std::mem::take(&mut *self.yielded.borrow_mut());
        for waker in yielded {
            waker.wake();
        }
    }

    pub(super) fn world(&self) -> Rc<Shared> {
        self.world
            .upgrade()
            .expect("tasks run only while their world exists")
    }

    /// Queues a task; a dead process starts nothing.
    pub(crate) fn schedule(self: &Rc<Self>, body: impl Future<Output = ()> + 'static) {
        if !self.dead.get() {
            self.kernel.spawn(self, body);
        }
    }

    pub(super) fn whereabouts(&self) -> String {
        let at = Duration::from_nanos(self.kernel.now() - START_NS);
        format!(
            "{:.6} {}/{}",
            at.as_secs_f64(),
            self.node.name,
            self.index.index
        )
    }

    pub(crate) fn now(&self) -> Instant {
        Instant(self.node.clock.local(self.kernel.now()))
    }

    pub(crate) fn wall_ms(&self) -> i64 {
        self.node.clock.wall_ms(self.kernel.now())
    }

    pub(crate) fn random(&self) -> u64 {
        self.kernel.random()
    }

    pub(crate) fn fill_random(&self, bytes: &mut [u8]) {
        self.kernel.fill(bytes);
    }
}

/// A node's clocks: how they run against the world's time.
pub(super) struct Clock {
    /// Parts per million by which the node's time runs fast (or slow).
    pub(super) drift_ppm: Cell<i64>,
    /// Local monotonic time at the world's start.
    pub(super) origin: u64,
    pub(super) wall_skew_ms: Cell<i64>,
}

/// The world's wall time at its start: the autumn of 2023.
const WALL_START_MS: i64 = 1_700_000_000_000;
const MILLION: i128 = 1_000_000;

impl Clock {
    pub(super) fn local(&self, world_now: u64) -> u64 {
        let elapsed = i128::from(world_now - START_NS);
        let local = elapsed + elapsed * i128::from(self.drift_ppm.get()) / MILLION;
        self.origin
            .saturating_add(u64::try_from(local).unwrap_or(0))
    }

    /// World nanoseconds in which the local clock certainly passes `local_ns`.
    fn world_span(&self, local_ns: u64) -> u64 {
        let span = i128::from(local_ns) * MILLION / (MILLION + i128::from(self.drift_ppm.get()));
        u64::try_from(span).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn wall_ms(&self, world_now: u64) -> i64 {
        let local_ms = (self.local(world_now) - self.origin) / 1_000_000;
        WALL_START_MS + local_ms as i64 + self.wall_skew_ms.get()
    }
}

/// Sleep by the node's own clock.
pub(crate) struct Sleep {
    executor: Rc<Executor>,
    deadline: u64,
    armed: Option<TimerKey>,
}

impl Sleep {
    pub(crate) fn new(executor: Rc<Executor>, duration: Duration) -> Sleep {
        let deadline = executor.now().0.saturating_add(nanos(duration));
        Sleep {
            executor,
            deadline,
            armed: None,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if let Some(key) = this.armed.take() {
            this.executor.kernel.disarm(key);
        }
        let now = this.executor.now().0;
        if now >= this.deadline {
            return Poll::Ready(());
        }
        let span = this.executor.node.clock.world_span(this.deadline - now);
        let at = this.executor.kernel.now().saturating_add(span);
        this.armed = Some(this.executor.kernel.arm(at, Fire::Wake(cx.waker().clone())));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.armed.take() {
            self.executor.kernel.disarm(key);
        }
    }
}

/// The time a device or another thread takes, in world time.
pub(crate) struct IoDelay {
    kernel: Rc<Kernel>,
    deadline: u64,
    armed: Option<TimerKey>,
}

impl IoDelay {
    pub(super) fn new(kernel: &Rc<Kernel>, delay_ns: u64) -> IoDelay {
        let deadline = kernel.now().saturating_add(delay_ns);
        IoDelay {
            kernel: kernel.clone(),
            deadline,
            armed: None,
        }
    }

    /// What handing work to a thread and back takes.
    pub(crate) fn of_thread(executor: &Executor) -> IoDelay {
        let delay = executor.kernel.between(20_000, 400_000);
        IoDelay::new(&executor.kernel, delay)
    }
}

impl Future for IoDelay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if let Some(key) = this.armed.take() {
            this.kernel.disarm(key);
        }
        if this.kernel.now() >= this.deadline {
            return Poll::Ready(());
        }
        this.armed = Some(
            this.kernel
                .arm(this.deadline, Fire::Wake(cx.waker().clone())),
        );
        Poll::Pending
    }
}

impl Drop for IoDelay {
    fn drop(&mut self) {
        if let Some(key) = self.armed.take() {
            self.kernel.disarm(key);
        }
    }
}

/// Waits until everything ready on the executor has run.
pub(crate) struct YieldNow {
    executor: Rc<Executor>,
    waiting: bool,
}

impl YieldNow {
    pub(crate) fn new(executor: Rc<Executor>) -> YieldNow {
        YieldNow {
            executor,
            waiting: false,
        }
    }
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.waiting {
            return Poll::Ready(());
        }
        self.waiting = true;
        self.executor.yielded.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }
}

//! A simulated world: its nodes, their life and death, and the passing of time.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use super::disk::{Disk, DiskState};
use super::exec::{Clock, Executor};
use super::kernel::{Kernel, START_NS, nanos};
use super::network::{NetState, Network};
use crate::rt::task::prepare;
use crate::rt::{ExecutorIndex, Instant};

type Main = Rc<dyn Fn(ExecutorIndex) -> Pin<Box<dyn Future<Output = ()>>>>;
type Hook = Box<dyn FnMut(&World)>;

/// Clocks of nodes run wrong by up to so much unless a test says otherwise: what cheap crystals
/// and a working time service leave.
const DRIFT_PPM_MAX: u64 = 100;
const WALL_SKEW_MS_MAX: u64 = 50;

pub(super) struct Shared {
    seed: u64,
    pub(super) kernel: Rc<Kernel>,
    pub(super) network: Rc<NetState>,
    pub(super) nodes: RefCell<Vec<Rc<NodeState>>>,
    hooks: RefCell<Vec<Hook>>,
}

/// A host and the process on it.
pub(super) struct NodeState {
    pub(super) id: usize,
    pub(super) name: String,
    pub(super) ip: Ipv4Addr,
    pub(super) disk: Rc<DiskState>,
    pub(super) clock: Clock,
    /// Counts the lives of the process.
    pub(super) life: Cell<u64>,
    pub(super) powered: Cell<bool>,
    running: Cell<bool>,
    start: RefCell<Option<(usize, Main)>>,
    executors: RefCell<Vec<Rc<Executor>>>,
}

/// A simulated world. Clones are the same one. Not usable from within its own tasks, except for
/// looking.
#[derive(Clone)]
pub struct World {
    pub(super) shared: Rc<Shared>,
}

impl World {
    pub fn new(seed: u64) -> World {
        let kernel = Rc::new(Kernel::new(seed));
        let network = Rc::new(NetState::new(&kernel));
        let shared = Rc::new(Shared {
            seed,
            kernel,
            network,
            nodes: RefCell::default(),
            hooks: RefCell::default(),
        });
        World { shared }
    }

    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// Adds a host, powered and without a process. Nodes are numbered from 0; the name resolves to
    /// the address.
    pub fn add_node(&self, name: &str) -> NodeHandle {
        let kernel = &self.shared.kernel;
        let mut nodes = self.shared.nodes.borrow_mut();
        let id = nodes.len();
        assert!(id < 250, "addresses are 10.0.0.1 to 10.0.0.250");
        let drift = kernel.between(0, 2 * DRIFT_PPM_MAX) as i64 - DRIFT_PPM_MAX as i64;
        let skew = kernel.between(0, 2 * WALL_SKEW_MS_MAX) as i64 - WALL_SKEW_MS_MAX as i64;
        let clock = Clock {
            drift_ppm: Cell::new(drift),
            origin: kernel.between(3_600_000_000_000, 7_200_000_000_000),
            wall_skew_ms: Cell::new(skew),
        };
        let node = Rc::new(NodeState {
            id,
            name: name.to_owned(),
            ip: Ipv4Addr::new(10, 0, 0, id as u8 + 1),
            disk: Rc::new(DiskState::new(kernel)),
            clock,
            life: Cell::new(0),
            powered: Cell::new(true),
            running: Cell::new(false),
            start: RefCell::default(),
            executors: RefCell::default(),
        });
        self.shared.network.add_node(&node);
        nodes.push(node.clone());
        NodeHandle {
            world: self.shared.clone(),
            node,
        }
    }

    /// # Panics
    /// If there is no such node.
    pub fn node(&self, id: usize) -> NodeHandle {
        let node = self.shared.nodes.borrow()[id].clone();
        NodeHandle {
            world: self.shared.clone(),
            node,
        }
    }

    pub fn network(&self) -> Network {
        Network(self.shared.network.clone())
    }

    /// The world's own clock, which no node's clock quite follows.
    pub fn now(&self) -> Instant {
        Instant(self.shared.kernel.now())
    }

    /// Virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.shared.kernel.now() - START_NS)
    }

    /// Polls of tasks so far.
    pub fn steps(&self) -> u64 {
        self.shared.kernel.steps()
    }

    /// A digest of every decision and effect so far: equal for equal seeds and programs.
    pub fn trace_hash(&self) -> u64 {
        self.shared.kernel.trace_hash()
    }

    /// Keeps every state of the trace from here on, for [`World::expect_trace`].
    pub fn keep_trace(&self) {
        self.shared.kernel.keep_trace();
    }

    pub fn kept_trace(&self) -> Vec<u64> {
        self.shared.kernel.kept_trace()
    }

    /// Panics at the first decision that differs from another run's, there where it is made: the
    /// stack leads to what comes from outside the seed.
    pub fn expect_trace(&self, trace: Vec<u64>) {
        self.shared.kernel.expect_trace(trace);
    }

    /// A number from the world's generator: for a test's own choices.
    pub fn random_below(&self, bound: u64) -> u64 {
        self.shared.kernel.below(bound)
    }

    /// Calls `hook` after every step: the place for invariants.
    pub fn on_step(&self, hook: impl FnMut(&World) + 'static) {
        self.shared.hooks.borrow_mut().push(Box::new(hook));
    }

    /// Runs for so much virtual time.
    pub fn run_for(&self, duration: Duration) {
        self.run_until(duration, || false);
    }

    /// Runs until `done` holds, for at most `limit` of virtual time; true if it held. Time passes
    /// to the end of the limit even if nothing happens.
    pub fn run_until(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let kernel = &self.shared.kernel;
        let until = kernel.now().saturating_add(nanos(limit));
        loop {
            if done() {
                return true;
            }
            if kernel.now() >= until {
                return false;
            }
            if !kernel.step(until) {
                kernel.advance_to(until);
                return done();
            }
            self.run_hooks();
        }
    }

    /// Runs until every started process has ended; false if that takes longer than `limit`.
    pub fn run_to_end(&self, limit: Duration) -> bool {
        self.run_until(limit, || {
            self.shared
                .nodes
                .borrow()
                .iter()
                .all(|node| !node.is_busy())
        })
    }

    fn run_hooks(&self) {
        let mut hooks = std::mem::take(&mut *self.shared.hooks.borrow_mut());
        for hook in &mut hooks {
            hook(self);
        }
        let mut slot = self.shared.hooks.borrow_mut();
        // Hooks may have added hooks.
        hooks.append(&mut slot);
        *slot = hooks;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("simulated world failed with seed {}", self.seed);
        }
        for node in self.nodes.borrow().iter() {
            node.end();
        }
        self.network.clear();
        self.kernel.clear();
    }
}

impl NodeState {
    /// A process that has not ended by itself.
    fn is_busy(&self) -> bool {
        self.running.get() && self.executors.borrow().iter().any(|e| !e.finished.get())
    }

    /// Marks the process dead: from now on nothing it does has an effect.
    fn end(&self) {
        self.running.set(false);
        for executor in self.executors.borrow_mut().drain(..) {
            executor.dead.set(true);
        }
        self.life.set(self.life.get() + 1);
    }
}

/// Its tasks refer to the world and the world to them: without this every world would stay in memory
/// for good, and a run over many seeds would end for lack of it.
impl Drop for World {
    fn drop(&mut self) {
        if Rc::strong_count(&self.shared) > 1 {
            return;
        }
        let nodes = self.shared.nodes.borrow().clone();
        for node in nodes {
            node.end();
            node.start.take();
        }
        self.shared.kernel.remove_executors(|_| true);
        self.shared.hooks.take();
    }
}

/// A node as a test sees it.
#[derive(Clone)]
pub struct NodeHandle {
    world: Rc<Shared>,
    node: Rc<NodeState>,
}

impl NodeHandle {
    pub fn id(&self) -> usize {
        self.node.id
    }

    pub fn ip(&self) -> Ipv4Addr {
        self.node.ip
    }

    pub fn disk(&self) -> Disk {
        Disk(self.node.disk.clone())
    }

    /// Sets how the node's clocks run: drift in parts per million, skew of the wall clock in
    /// milliseconds. A new drift counts from the world's start, so local time may jump; it never
    /// goes back if set before the node starts.
    pub fn set_clock(&self, drift_ppm: i64, wall_skew_ms: i64) {
        self.node
            .clock
            .drift_ppm
            .set(drift_ppm.clamp(-900_000, 900_000));
        self.node.clock.wall_skew_ms.set(wall_skew_ms);
    }

    /// Starts the process: `shards` shards and the control executor, each with the future `main`
    /// makes for it, as `run_ring` would.
    ///
    /// # Panics
    /// If it runs already.
    pub fn start<M, F>(&self, shards: usize, main: M)
    where
        M: Fn(ExecutorIndex) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let main: Main = Rc::new(move |index| Box::pin(main(index)));
        *self.node.start.borrow_mut() = Some((shards, main));
        self.restart();
    }

    /// Starts the process again as it was started before, after a kill, a power loss or its end.
    ///
    /// # Panics
    /// If it runs, or was never started.
    pub fn restart(&self) {
        assert!(!self.node.is_busy(), "{} runs already", self.node.name);
        if self.node.running.get() {
            self.stop(false);
        }
        let (shards, main) = self.node.start.borrow().clone().expect("never started");
        self.node.powered.set(true);
        self.node.running.set(true);
        for index in 0..=shards {
            let index = ExecutorIndex { index, shards };
            let executor = Executor::new(&self.world, &self.node, index);
            self.node.executors.borrow_mut().push(executor.clone());
            self.world.kernel.add_executor(executor.clone());
            let main = main.clone();
            self.world
                .kernel
                .spawn(&executor.clone(), root(executor, main));
        }
    }

    /// Kills the process (SIGKILL): everything written stays, its sockets close.
    pub fn kill(&self) {
        self.stop(false);
    }

    /// Cuts the power: the disk keeps what was synced and, by the seed, parts of the rest; peers
    /// hear nothing.
    pub fn lose_power(&self) {
        self.stop(true);
    }

    fn stop(&self, power_lost: bool) {
        let life = self.node.life.get();
        self.world
            .kernel
            .note(40, (self.node.id as u64) << 1 | u64::from(power_lost));
        self.node.end();
        self.world
            .kernel
            .remove_executors(|executor| executor.dead.get());
        self.world.network.node_died(self.node.id, life, power_lost);
        if power_lost {
            self.node.powered.set(false);
            self.node.disk.lose_power();
        } else {
            self.node.disk.end_process();
        }
    }

    /// Whether a process runs whose main futures have not all ended.
    pub fn is_running(&self) -> bool {
        self.node.is_busy()
    }
}

/// What an executor runs: its main future, then the end of all it left behind.
async fn root(executor: Rc<Executor>, main: Main) {
    let (task, body) = prepare(&executor.register, main(executor.index));
    executor.schedule(body);
    task.await;
    executor.finished.set(true);
    executor.register.cancel_all();
}

//! What waits on this shard: the produce and fetch purgatories, and the one timer that drives
//! them. Completed operations are answered here, outside any borrow. Never polls.

use super::Shard;
use super::read::WatchToken;
use crate::purgatory::{OpId, Purgatory};
use crate::replica::delayed::{DelayedFetch, DelayedProduce};
use crate::rt::sync::Notify;
use crate::rt::{self, Instant};
use crate::types::PartitionId;
use ahash::AHashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// A client may ask for any time-out; none is kept longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// A parked fetch with the name its connection's shard gave it.
struct Watch {
    token: WatchToken,
    fetch: DelayedFetch,
}

/// The operations of one shard that wait.
pub struct Waiting {
    produces: RefCell<Purgatory<PartitionId, DelayedProduce>>,
    fetches: RefCell<Purgatory<PartitionId, Watch>>,
    watches: RefCell<AHashMap<WatchToken, OpId>>,
    /// The deadline the timer task sleeps for; it is woken when an earlier one comes.
    armed: Cell<Option<Instant>>,
    rearm: Notify,
}

impl Waiting {
    pub fn new(now: Instant) -> Waiting {
        Waiting {
            produces: RefCell::new(Purgatory::new(now)),
            fetches: RefCell::new(Purgatory::new(now)),
            watches: RefCell::new(AHashMap::new()),
            armed: Cell::new(None),
            rearm: Notify::new(),
        }
    }

    /// Waiting produces and fetches.
    pub fn len(&self) -> (usize, usize) {
        (self.produces.borrow().len(), self.fetches.borrow().len())
    }

    fn arm(&self, deadline: Instant) {
        if self.armed.get().is_none_or(|armed| deadline < armed) {
            self.armed.set(Some(deadline));
            self.rearm.notify_one();
        }
    }
}

impl Shard {
    /// Waiting produces and fetches.
    pub fn waits(&self) -> (usize, usize) {
        self.waiting.len()
    }

    /// Parks a produce until its partitions have what they need or `timeout` passes.
    pub fn park_produce(&self, operation: DelayedProduce, timeout: Duration) {
        let deadline = rt::now() + timeout.min(LONGEST_WAIT);
        let keys: Vec<PartitionId> = operation
            .parts
            .iter()
            .filter(|part| part.outcome.is_none())
            .map(|part| part.partition.id)
            .collect();
        let parked = self
            .waiting
            .produces
            .borrow_mut()
            .watch(operation, &keys, deadline);
        match parked {
            Ok(_) => self.waiting.arm(deadline),
            // Full: answered as if its time were up; the records are appended.
            Err(operation) => operation.answer(),
        }
    }

    /// Parks a fetch until enough is readable or `timeout` passes.
    pub fn park_fetch(&self, token: WatchToken, fetch: DelayedFetch, timeout: Duration) {
        let deadline = rt::now() + timeout.min(LONGEST_WAIT);
        let keys: Vec<PartitionId> = fetch.parts.iter().map(|part| part.partition.id).collect();
        let parked =
            self.waiting
                .fetches
                .borrow_mut()
                .watch(Watch { token, fetch }, &keys, deadline);
        match parked {
            Ok(id) => {
                self.waiting.watches.borrow_mut().insert(token, id);
                self.waiting.arm(deadline);
            }
            Err(watch) => watch.fetch.answer(),
        }
    }

    /// Ends a parked fetch that is not needed any more.
    pub fn unpark_fetch(&self, token: WatchToken) {
        let id = self.waiting.watches.borrow_mut().remove(&token);
        if let Some(id) = id {
            let watch = self.waiting.fetches.borrow_mut().cancel(id);
            drop(watch);
        }
    }

    /// The partition has changed: its waiting operations look again. `committed` says whether the
    /// high watermark moved; without that only readers of the log end can have got more.
    pub(super) fn check_waiting(&self, partition: PartitionId, _committed: bool) {
        let produced = self
            .waiting
            .produces
            .borrow_mut()
            .check(&partition, |operation| operation.is_satisfied());
        for operation in produced {
            operation.answer();
        }
        let fetched = self
            .waiting
            .fetches
            .borrow_mut()
            .check(&partition, |watch| watch.fetch.is_satisfied());
        self.answer_watches(fetched);
    }

    fn answer_watches(&self, watches: impl IntoIterator<Item = Watch>) {
        for watch in watches {
            self.waiting.watches.borrow_mut().remove(&watch.token);
            watch.fetch.answer();
        }
    }

    fn expire_waiting(&self, now: Instant) {
        let produced = self.waiting.produces.borrow_mut().expire(now);
        for operation in produced {
            operation.answer();
        }
        let fetched = self.waiting.fetches.borrow_mut().expire(now);
        self.answer_watches(fetched);
    }

    /// Answers everything that waits, at shutdown.
    pub fn flush_waiting(&self) {
        self.expire_waiting(rt::now() + LONGEST_WAIT + LONGEST_WAIT);
    }

    /// Runs the shard's timer: sleeps until the next deadline or until an earlier one comes.
    pub async fn run_timer(self: Rc<Self>) {
        loop {
            let next = {
                let produces = self.waiting.produces.borrow().next_deadline();
                let fetches = self.waiting.fetches.borrow().next_deadline();
                [produces, fetches].into_iter().flatten().min()
            };
            self.waiting.armed.set(next);
            let rearmed = std::pin::pin!(self.waiting.rearm.notified());
            rt::select2(rt::sleep_until_opt(next), rearmed).await;
            self.expire_waiting(rt::now());
        }
    }
}

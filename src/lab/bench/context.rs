//! What the threads of one run share: the plan, the stages of its beginning, and how far the
//! records have come.
//!
//! Any thread; atomics only on the way of records. The stages are polled: they are few and come
//! before the load.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::error::BenchError;
use super::plan::Plan;
use super::samples::Told;
use crate::rt;

/// How often a stage is looked at.
const LOOK: Duration = Duration::from_millis(2);

pub(super) struct Context {
    pub(super) plan: Arc<Plan>,
    /// The run's number, by which consumers know its records.
    pub(super) run: u64,
    pub(super) gatherer: Sender<Told>,
    topic_is_there: AtomicBool,
    ready: AtomicUsize,
    /// Nanoseconds of the monotonic clock; 0 before it is known.
    start: AtomicU64,
    /// The tool's cost has been read: threads may end.
    accounted: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<BenchError>>,
    producers_left: AtomicUsize,
    /// Measured records.
    acknowledged: AtomicU64,
    received: AtomicU64,
}

impl Context {
    pub(super) fn new(plan: Arc<Plan>, run: u64, gatherer: Sender<Told>) -> Context {
        Context {
            run,
            gatherer,
            topic_is_there: AtomicBool::new(false),
            ready: AtomicUsize::new(0),
            start: AtomicU64::new(0),
            accounted: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            producers_left: AtomicUsize::new(plan.producers),
            acknowledged: AtomicU64::new(0),
            received: AtomicU64::new(0),
            plan,
        }
    }

    /// The run does not take place. The first reason stays.
    pub(super) fn fail(&self, error: BenchError) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
        drop(failure);
        self.failed.store(true, Ordering::Release);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn take_failure(&self) -> Option<BenchError> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }

    pub(super) fn topic_is_there(&self) {
        self.topic_is_there.store(true, Ordering::Release);
    }

    /// Waits for the topic; false if the run has failed.
    pub(super) async fn wait_for_topic(&self) -> bool {
        self.wait(|| self.topic_is_there.load(Ordering::Acquire))
            .await
    }

    /// A thread is connected.
    pub(super) fn is_ready(&self) {
        self.ready.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits for all threads; false if the run has failed.
    pub(super) async fn wait_for_threads(&self) -> bool {
        let threads = self.plan.threads;
        self.wait(|| self.ready.load(Ordering::Acquire) >= threads)
            .await
    }

    pub(super) fn begin(&self, start: u64) {
        self.start.store(start, Ordering::Release);
    }

    /// Waits for the start and tells it; `None` if the run has failed.
    pub(super) async fn wait_for_start(&self) -> Option<u64> {
        let started = self.wait(|| self.start.load(Ordering::Acquire) > 0).await;
        started.then(|| self.start.load(Ordering::Acquire))
    }

    pub(super) fn is_accounted(&self) {
        self.accounted.store(true, Ordering::Release);
    }

    /// Keeps a thread alive until its cost has been read.
    pub(super) async fn wait_for_account(&self) {
        self.wait(|| self.accounted.load(Ordering::Acquire)).await;
    }

    async fn wait(&self, done: impl Fn() -> bool) -> bool {
        loop {
            if self.has_failed() {
                return false;
            }
            if done() {
                return true;
            }
            rt::sleep(LOOK).await;
        }
    }

    pub(super) fn producer_ended(&self) {
        self.producers_left.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn acknowledged(&self, measured: u64) {
        if measured > 0 {
            self.acknowledged.fetch_add(measured, Ordering::AcqRel);
        }
    }

    pub(super) fn received(&self, measured: u64) {
        if measured > 0 {
            self.received.fetch_add(measured, Ordering::AcqRel);
        }
    }

    /// Whether consumers have all that producers will ever have had acknowledged.
    pub(super) fn all_received(&self) -> bool {
        self.producers_left.load(Ordering::Acquire) == 0
            && self.received.load(Ordering::Acquire) >= self.acknowledged.load(Ordering::Acquire)
    }
}

//! The producer: records in, a future of their fate out.
//!
//! One executor. Owns the choice of partition and the waiting for room; batches, retries and
//! sequences are behind it, and transactions beside it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ahash::AHashMap;

use super::accumulator::Appended;
use super::cluster::Cluster;
use super::config::{Acks, ProducerConfig};
use super::delivery::Delivery;
use super::error::ClientError;
use super::metadata::{ClusterView, TopicView};
use super::outbox::Settled;
use super::partitioner::{StickyPartitioner, partition_for_key};
use super::producer_record::ProducerRecord;
use super::sender::{self, Shared};
use super::topic_partition::TopicPartition;
use crate::rt;
use crate::wire::{ErrorCode, Str};

/// A handle; clones share the producer. Dropping the last does not wait for what is under way:
/// see [`Producer::close`].
#[derive(Clone)]
pub struct Producer {
    inner: Rc<Inner>,
}

struct Inner {
    shared: Rc<Shared>,
    topics: RefCell<AHashMap<Str, TopicState>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What is queued still goes out; then the sender ends.
        self.shared.closing.set(true);
        self.shared.bell.notify_one();
    }
}

/// What the choice of a partition needs, kept per topic until the view changes.
struct TopicState {
    view: Rc<ClusterView>,
    /// Partitions of the topic, with or without leader.
    count: usize,
    /// Those with a leader; all if none has one.
    available: Vec<i32>,
    sticky: StickyPartitioner,
}

impl Producer {
    /// Connects and starts the sender.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] for settings that contradict each other; else as
    /// [`Cluster::connect`].
    pub async fn connect(config: ProducerConfig) -> Result<Producer, ClientError> {
        validate(&config)?;
        let cluster = Cluster::connect(config.client.clone()).await?;
        let shared = Shared::new(config, cluster);
        drop(rt::spawn(sender::run(shared.clone())));
        Ok(Producer {
            inner: Rc::new(Inner {
                shared,
                topics: RefCell::default(),
            }),
        })
    }

    pub fn cluster(&self) -> &Cluster {
        &self.inner.shared.cluster
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// Whether records are taken at all, with `transactional.id` only within a transaction.
    fn check_open(&self) -> Result<(), ClientError> {
        let shared = &self.inner.shared;
        if let Some(fatal) = &*shared.fatal.borrow() {
            return Err(fatal.clone());
        }
        if shared.closing.get() {
            return Err(ClientError::Closed);
        }
        let transactions = shared.transactions.as_ref();
        transactions.map_or(Ok(()), |one| one.with(|state| state.check_open()))
    }

    /// Puts a record into a batch. Waits, at most `max.block.ms`, while the topic is not known or
    /// `buffer.memory` is used up. The record's fate is the returned future's.
    ///
    /// # Errors
    /// The record was not taken: it is too large, there is no such topic or partition, or there
    /// was no room in time.
    pub async fn send(&self, record: ProducerRecord) -> Result<Delivery, ClientError> {
        let shared = &self.inner.shared;
        self.check_open()?;
        let size = record.payload();
        if size > shared.config.request_size_max {
            let code = ErrorCode::MESSAGE_TOO_LARGE;
            let text = format!(
                "{size} bytes with max.request.size {}",
                shared.config.request_size_max
            );
            return Err(ClientError::broker("record", code, &text));
        }
        let timestamp = record.timestamp.unwrap_or_else(rt::wall_ms);
        let deadline = rt::now() + shared.config.block_max;
        let partition = match self.choose(&record, size) {
            Some(partition) => partition?,
            None => {
                let topics = [record.topic.clone()];
                shared.cluster.with_topics(&topics, deadline).await?;
                self.choose(&record, size).unwrap_or_else(|| {
                    Err(unknown(
                        &record.topic,
                        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
                    ))
                })?
            }
        };
        if let Some(delivery) = self.append(&record, partition, timestamp)? {
            return Ok(delivery);
        }
        // A batch takes its whole size from the budget at once, a larger record its own.
        let wanted = shared.config.batch_size.max(size + 128) as u64;
        let memory = match shared.memory.try_acquire(wanted) {
            Some(memory) => memory,
            None => {
                let _hurry = Hurry::new(shared);
                let left = deadline.since(rt::now());
                rt::timeout(left, shared.memory.acquire(wanted))
                    .await
                    .map_err(|_| ClientError::TimedOut {
                        peer: "buffer.memory".to_owned(),
                        api: "PRODUCE",
                    })?
            }
        };
        // Another task may have opened a batch meanwhile.
        if let Some(delivery) = self.append(&record, partition, timestamp)? {
            return Ok(delivery);
        }
        let key = TopicPartition::new(self.own_name(&record.topic), partition);
        let delivery = shared
            .outbox
            .borrow_mut()
            .accumulator
            .append_new(key, &record, timestamp, rt::now(), Some(memory))
            .map_err(|error| ClientError::Invalid(error.to_string()))?;
        // It has a linger to be timed, and the batch before it is full now.
        shared.bell.notify_one();
        Ok(delivery)
    }

    fn append(
        &self,
        record: &ProducerRecord,
        partition: i32,
        timestamp: i64,
    ) -> Result<Option<Delivery>, ClientError> {
        // The caller may have waited since it last looked.
        self.check_open()?;
        let shared = &self.inner.shared;
        let appended = shared.outbox.borrow_mut().accumulator.append(
            &record.topic,
            partition,
            record,
            timestamp,
        );
        match appended.map_err(|error| ClientError::Invalid(error.to_string()))? {
            Appended::Done { delivery, full } => {
                if full {
                    shared.bell.notify_one();
                }
                Ok(Some(delivery))
            }
            Appended::NoRoom => Ok(None),
        }
    }

    /// The partition for a record; `None` while the topic is not known.
    fn choose(&self, record: &ProducerRecord, size: usize) -> Option<Result<i32, ClientError>> {
        let view = self.inner.shared.cluster.view();
        let mut topics = self.inner.topics.borrow_mut();
        let state = match topics.get_mut(&record.topic) {
            Some(state) if Rc::ptr_eq(&state.view, &view) => state,
            Some(state) => {
                let topic = view.topic(&record.topic)?;
                (state.count, state.available) = partitions_of(topic);
                state.view = view;
                state
            }
            None => {
                let topic = view.topic(&record.topic)?;
                let (count, available) = partitions_of(topic);
                let name = topic.name.clone();
                let sticky = StickyPartitioner::default();
                let state = TopicState {
                    view: view.clone(),
                    count,
                    available,
                    sticky,
                };
                topics.entry(name).or_insert(state)
            }
        };
        if state.count == 0 {
            return None;
        }
        let chosen = match (record.partition, &record.key) {
            (Some(partition), _) if (0..state.count as i64).contains(&i64::from(partition)) => {
                partition
            }
            (Some(partition), _) => {
                let what = format!("{}-{partition}", record.topic);
                return Some(Err(unknown(&what, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)));
            }
            (None, Some(key)) => partition_for_key(key, state.count),
            (None, None) => {
                let batch_size = self.inner.shared.config.batch_size;
                state
                    .sticky
                    .next(&state.available, size, batch_size, rt::random_u64())?
            }
        };
        Some(Ok(chosen))
    }

    /// The topic's name as a copy that does not keep the caller's memory.
    fn own_name(&self, topic: &Str) -> Str {
        let topics = self.inner.topics.borrow();
        topics
            .get_key_value(topic)
            .map_or_else(|| topic.detached(), |(name, _)| name.clone())
    }

    /// Sends everything that was given to [`Producer::send`] before and waits until it is settled.
    pub async fn flush(&self) {
        let shared = &self.inner.shared;
        let _hurry = Hurry::new(shared);
        let before = shared.outbox.borrow().accumulator.next_id();
        loop {
            let settled = shared.settled.wait();
            if !shared
                .outbox
                .borrow()
                .accumulator
                .has_unsettled_before(before)
            {
                return;
            }
            settled.await;
        }
    }

    /// Refuses new records, aborts an open transaction, flushes, and ends the connections. What is
    /// not settled after `limit` fails with [`ClientError::Closed`].
    pub async fn close(self, limit: Duration) {
        let shared = &self.inner.shared;
        let transactions = shared.transactions.as_ref();
        let is_open = transactions.is_some_and(|one| one.with(|state| state.is_under_way()));
        let ending = async {
            if is_open {
                // The coordinator aborts it after transaction.timeout.ms if this does not.
                let _ = self.abort_transaction().await;
            }
            shared.closing.set(true);
            self.flush().await;
        };
        // Whatever is left is failed below.
        let _ = rt::timeout(limit, ending).await;
        shared.closing.set(true);
        let left = shared.outbox.borrow_mut().give_up_all(&ClientError::Closed);
        left.into_iter().for_each(Settled::tell);
        shared.cluster.close();
        shared.bell.notify_one();
    }

    /// Records and batches under way.
    pub fn batches_in_flight(&self) -> usize {
        self.inner.shared.outbox.borrow().accumulator.unsettled()
    }
}

/// While it lives no batch lingers.
struct Hurry<'a>(&'a Shared);

impl Hurry<'_> {
    fn new(shared: &Shared) -> Hurry<'_> {
        shared.hurried.set(shared.hurried.get() + 1);
        shared.bell.notify_one();
        Hurry(shared)
    }
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurried.set(self.0.hurried.get() - 1);
    }
}

fn partitions_of(topic: &TopicView) -> (usize, Vec<i32>) {
    let all = || {
        topic
            .partitions
            .iter()
            .map(|partition| partition.index)
            .collect()
    };
    let led: Vec<i32> = topic
        .partitions
        .iter()
        .filter(|partition| partition.leader.is_some())
        .map(|partition| partition.index)
        .collect();
    (
        topic.partitions.len(),
        if led.is_empty() { all() } else { led },
    )
}

fn unknown(what: &str, code: ErrorCode) -> ClientError {
    ClientError::broker(what, code, "")
}

fn validate(config: &ProducerConfig) -> Result<(), ClientError> {
    let invalid = |text: &str| Err(ClientError::Invalid(text.to_owned()));
    if config.idempotence && config.acks != Acks::All {
        return invalid("enable.idempotence needs acks=all");
    }
    if config.idempotence && config.in_flight_max > super::sequences::BATCHES_IN_FLIGHT_MAX {
        return invalid(
            "enable.idempotence allows at most 5 max.in.flight.requests.per.connection",
        );
    }
    if config.transactional_id.is_some() && !config.idempotence {
        return invalid("transactional.id needs enable.idempotence");
    }
    if config
        .transactional_id
        .as_ref()
        .is_some_and(String::is_empty)
    {
        return invalid("transactional.id is empty");
    }
    if config.in_flight_max == 0 || config.batch_size == 0 || config.buffer_memory == 0 {
        return invalid("a size or count of zero");
    }
    if config.delivery_timeout < config.linger + config.client.request_timeout {
        return invalid("delivery.timeout.ms is below linger.ms + request.timeout.ms");
    }
    Ok(())
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.shared.fmt(f)
    }
}

//! Records on their way into batches, and batches on their way out, per partition.
//!
//! Pure: takes the time, sends nothing. Owns the queues and decides which batch may leave now and
//! when to look again. The order within a partition is the order of appending; a batch that comes
//! back takes its old place.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use ahash::AHashMap;

use super::config::ProducerConfig;
use super::delivery::{BatchOutcome, Delivery};
use super::pending_batch::PendingBatch;
use super::producer_record::ProducerRecord;
use super::sequences::Sequences;
use super::topic_partition::TopicPartition;
use crate::rt::Instant;
use crate::rt::sync::Permit;
use crate::types::NodeId;
use crate::wire::Str;
use crate::wire::batch_builder::{BatchBuilder, BuildError};

#[derive(Default)]
struct Queue {
    batches: VecDeque<PendingBatch>,
    on_wire: usize,
}

/// What [`Accumulator::append`] did.
pub(super) enum Appended {
    /// `full`: the sender should look.
    Done { delivery: Delivery, full: bool },
    /// No open batch has room; the record comes back to be put into a new one.
    NoRoom,
}

/// What can be sent now, and when to look again.
#[derive(Default, Debug)]
pub(super) struct Ready {
    /// Nodes with something to send, each once.
    pub(super) nodes: Vec<NodeId>,
    /// Topics whose batches wait for a leader.
    pub(super) leaderless: Vec<Str>,
    pub(super) look_again: Option<Instant>,
}

/// See the module's words.
pub(super) struct Accumulator {
    batch_size: usize,
    linger: Duration,
    delivery_timeout: Duration,
    request_size_max: usize,
    /// Without sequences order holds only if a partition has one batch on the wire.
    one_on_wire: bool,
    template: BatchBuilder,
    topics: AHashMap<Str, Vec<Queue>>,
    /// Partitions with batches in their queues.
    active: BTreeSet<TopicPartition>,
    next_id: u64,
    unsettled: BTreeSet<u64>,
}

impl Accumulator {
    pub(super) fn new(config: &ProducerConfig) -> Accumulator {
        let mut template =
            BatchBuilder::new().with_codec(config.compression, config.compression_level);
        template.transactional = config.transactional_id.is_some();
        Accumulator {
            batch_size: config.batch_size,
            linger: config.linger,
            delivery_timeout: config.delivery_timeout,
            request_size_max: config.request_size_max,
            one_on_wire: !config.idempotence && config.in_flight_max == 1,
            template,
            topics: AHashMap::new(),
            active: BTreeSet::new(),
            next_id: 0,
            unsettled: BTreeSet::new(),
        }
    }

    /// The id that the next batch gets.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Whether a batch with an id below `id` is not settled.
    pub(super) fn has_unsettled_before(&self, id: u64) -> bool {
        self.unsettled.first().is_some_and(|first| *first < id)
    }

    /// Partitions with batches in their queues.
    pub(super) fn active(&self) -> impl Iterator<Item = &TopicPartition> {
        self.active.iter()
    }

    /// Batches that are queued or on the wire.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// Adds a record to the partition's open batch.
    pub(super) fn append(
        &mut self,
        topic: &Str,
        partition: i32,
        record: &ProducerRecord,
        timestamp: i64,
    ) -> Result<Appended, BuildError> {
        let batch_size = self.batch_size;
        let open = usize::try_from(partition)
            .ok()
            .and_then(|index| {
                self.topics
                    .get_mut(topic)?
                    .get_mut(index)?
                    .batches
                    .back_mut()
            })
            .and_then(|batch| Some((batch.builder.as_ref()?.len(), batch)));
        let Some((_, batch)) = open else {
            return Ok(Appended::NoRoom);
        };
        let headers = record.wire_headers();
        let size = batch.size_with(record, &headers);
        if size > batch_size {
            return Ok(Appended::NoRoom);
        }
        let delivery = batch.push(record, &headers, timestamp)?;
        Ok(Appended::Done {
            delivery,
            full: size >= batch_size,
        })
    }

    /// Opens a batch with `record` as its first, whatever its size. A batch before it counts as
    /// full from now on.
    pub(super) fn append_new(
        &mut self,
        key: TopicPartition,
        record: &ProducerRecord,
        timestamp: i64,
        now: Instant,
        memory: Option<Permit>,
    ) -> Result<Delivery, BuildError> {
        let headers = record.wire_headers();
        let first =
            self.template
                .size_with(record.key.as_deref(), record.value.as_deref(), &headers);
        let id = self.next_id;
        let mut batch = PendingBatch {
            id,
            builder: Some(
                self.template
                    .clone()
                    .with_capacity(first.max(self.batch_size)),
            ),
            built: None,
            sequence: None,
            size: 0,
            outcome: BatchOutcome::new(key.topic.clone(), key.partition),
            created: now,
            attempts: 0,
            retry_at: now,
            in_doubt: None,
            records: 0,
            _memory: memory,
            key,
        };
        let delivery = batch.push(record, &headers, timestamp)?;
        self.next_id += 1;
        self.unsettled.insert(id);
        self.active.insert(batch.key.clone());
        let key = batch.key.clone();
        self.queue(&key).batches.push_back(batch);
        Ok(delivery)
    }

    /// Which nodes have a batch that may leave now. `leader` knows the cluster; `hurry` makes
    /// every batch ready (flush, close, memory used up).
    pub(super) fn ready(
        &self,
        now: Instant,
        hurry: bool,
        sequences: Option<&Sequences>,
        leader: impl Fn(&TopicPartition) -> Option<NodeId>,
    ) -> Ready {
        let mut ready = Ready::default();
        let look_at = |again: &mut Option<Instant>, at: Instant| {
            *again = Some(again.map_or(at, |other| other.min(at)));
        };
        for key in &self.active {
            let Some(queue) = self.find(key) else {
                continue;
            };
            let Some(batch) = queue.batches.front() else {
                continue;
            };
            look_at(&mut ready.look_again, batch.created + self.delivery_timeout);
            let due = self.due(queue, batch, hurry);
            if due > now {
                look_at(&mut ready.look_again, due);
                continue;
            }
            if !self.may_leave(queue, batch, sequences) {
                continue;
            }
            match leader(key) {
                Some(node) if !ready.nodes.contains(&node) => ready.nodes.push(node),
                Some(_) => {}
                None if ready.leaderless.last() != Some(&key.topic) => {
                    ready.leaderless.push(key.topic.clone());
                }
                None => {}
            }
        }
        ready
    }

    /// When a batch at the head of its queue may leave at the earliest.
    fn due(&self, queue: &Queue, batch: &PendingBatch, hurry: bool) -> Instant {
        if batch.attempts > 0 {
            return batch.retry_at;
        }
        let full = queue.batches.len() > 1 || batch.size >= self.batch_size;
        if full || hurry {
            batch.created
        } else {
            batch.created + self.linger
        }
    }

    fn may_leave(
        &self,
        queue: &Queue,
        batch: &PendingBatch,
        sequences: Option<&Sequences>,
    ) -> bool {
        match sequences {
            Some(sequences) => sequences.may_send(&batch.key, batch.sequence),
            None => !(self.one_on_wire && queue.on_wire > 0),
        }
    }

    /// Takes the batches for one request to `node`: at most one a partition, together at most
    /// `max.request.size` (but at least one batch). They count as on the wire until
    /// [`Accumulator::came_back`].
    pub(super) fn drain(
        &mut self,
        node: NodeId,
        now: Instant,
        hurry: bool,
        mut sequences: Option<&mut Sequences>,
        leader: impl Fn(&TopicPartition) -> Option<NodeId>,
    ) -> Vec<PendingBatch> {
        let mut taken: Vec<PendingBatch> = Vec::new();
        let mut size = 0;
        let keys: Vec<TopicPartition> = self
            .active
            .iter()
            .filter(|key| leader(key) == Some(node))
            .cloned()
            .collect();
        // Begins elsewhere each time, so that a full request does not starve the last partitions.
        let start = if keys.is_empty() {
            0
        } else {
            self.next_id as usize % keys.len()
        };
        for key in keys[start..].iter().chain(&keys[..start]) {
            let Some(queue) = self.find(key) else {
                continue;
            };
            let Some(batch) = queue.batches.front() else {
                continue;
            };
            if self.due(queue, batch, hurry) > now
                || !self.may_leave(queue, batch, sequences.as_deref())
            {
                continue;
            }
            size += batch.size;
            if !taken.is_empty() && size > self.request_size_max {
                break;
            }
            let queue = self.queue(key);
            let Some(mut batch) = queue.batches.pop_front() else {
                continue;
            };
            queue.on_wire += 1;
            if queue.batches.is_empty() {
                self.active.remove(key);
            }
            if let (Some(sequences), None) = (sequences.as_deref_mut(), batch.sequence) {
                batch.sequence = sequences.assign(key, batch.records);
            }
            batch.attempts += 1;
            taken.push(batch);
        }
        taken
    }

    /// A batch is off the wire and settled.
    pub(super) fn settled(&mut self, batch: &PendingBatch) {
        self.unsettled.remove(&batch.id);
    }

    /// A batch is off the wire. Returns true if it was the partition's last one there.
    pub(super) fn came_back(&mut self, key: &TopicPartition) -> bool {
        let queue = self.queue(key);
        queue.on_wire -= 1;
        queue.on_wire == 0
    }

    /// Puts a batch back where it was in its queue.
    pub(super) fn put_back(&mut self, batch: PendingBatch) {
        self.active.insert(batch.key.clone());
        let key = batch.key.clone();
        let batches = &mut self.queue(&key).batches;
        let at = batches.partition_point(|other| other.id < batch.id);
        batches.insert(at, batch);
    }

    pub(super) fn on_wire(&self, key: &TopicPartition) -> usize {
        self.find(key).map_or(0, |queue| queue.on_wire)
    }

    /// Makes the queued batches of a partition forget their numbers, and takes out those that may
    /// be in the log under the old ones.
    pub(super) fn renumber(&mut self, key: &TopicPartition) -> VecDeque<PendingBatch> {
        let queue = self.queue(key);
        let all = std::mem::take(&mut queue.batches);
        let (doubtful, mut rest): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|batch| batch.in_doubt.is_some());
        rest.iter_mut().for_each(|batch| batch.sequence = None);
        queue.batches = rest;
        if queue.batches.is_empty() {
            self.active.remove(key);
        }
        doubtful
    }

    /// Takes the queued batches whose `delivery.timeout.ms` is over.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<PendingBatch> {
        let limit = self.delivery_timeout;
        self.take_while(|batch| batch.created + limit <= now)
    }

    /// Takes all queued batches.
    pub(super) fn take_all(&mut self) -> Vec<PendingBatch> {
        self.take_while(|_| true)
    }

    fn take_while(&mut self, which: impl Fn(&PendingBatch) -> bool) -> Vec<PendingBatch> {
        let mut taken = Vec::new();
        let keys: Vec<TopicPartition> = self.active.iter().cloned().collect();
        for key in keys {
            let batches = &mut self.queue(&key).batches;
            while batches.front().is_some_and(&which) {
                taken.extend(batches.pop_front());
            }
            if batches.is_empty() {
                self.active.remove(&key);
            }
        }
        for batch in &taken {
            self.unsettled.remove(&batch.id);
        }
        taken
    }

    fn find(&self, key: &TopicPartition) -> Option<&Queue> {
        self.topics
            .get(&key.topic)?
            .get(usize::try_from(key.partition).ok()?)
    }

    /// The queue of a partition that the cluster has described, so its index is a small number.
    fn queue(&mut self, key: &TopicPartition) -> &mut Queue {
        let queues = self.topics.entry(key.topic.clone()).or_default();
        let index = key.partition.max(0) as usize;
        if queues.len() <= index {
            queues.resize_with(index + 1, Queue::default);
        }
        &mut queues[index]
    }
}

impl std::fmt::Debug for Accumulator {
    /// The queues that are not empty: batches waiting, on the wire, and the first one's state.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queues = self.topics.iter().flat_map(|(topic, queues)| {
            queues
                .iter()
                .enumerate()
                .map(move |(index, queue)| (topic, index, queue))
        });
        let busy = queues.filter(|(.., queue)| queue.on_wire + queue.batches.len() > 0);
        f.debug_list()
            .entries(busy.map(|(topic, index, queue)| {
                let first = queue.batches.front();
                let first = first.map(|b| (b.id, b.attempts, b.retry_at, b.sequence, b.records));
                (topic, index, queue.batches.len(), queue.on_wire, first)
            }))
            .finish()
    }
}

//! The task that carries a producer's batches to the brokers and settles them.
//!
//! One executor; one task a producer, and one short task per request on its way. All decisions are
//! the outbox's; this does what it says. Never holds a
//! borrow while it waits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ahash::{AHashMap, AHashSet};

use super::cluster::Cluster;
use super::config::{Acks, ProducerConfig};
use super::connection::{Connection, Sent};
use super::error::{ClientError, check};
use super::metadata::ClusterView;
use super::outbox::{Answer, Outbox, Settled};
use super::pending_batch::PendingBatch;
use super::producer_transactions::admit;
use super::sequences::Identity;
use super::topic_partition::TopicPartition;
use super::transactions::Transactions;
use crate::observe::hop::{self, Hop, What};
use crate::rt::sync::{Event, Notify, Semaphore};
use crate::rt::{self, Instant};
use crate::types::{NodeId, Offset};
use crate::wire::messages::init_producer_id_request::InitProducerIdRequest;
use crate::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use crate::wire::messages::produce_response::{PartitionProduceResponse, ProduceResponse};
use crate::wire::{ErrorCode, Records, Str};

/// The last version that names topics instead of using their ids.
const PRODUCE_BY_NAME_LAST: i16 = 12;
/// From this version on the leader adds its partition to the transaction by itself.
const PRODUCE_ADDS_FIRST: i16 = 12;
/// The first version whose request is exactly what is built here.
const PRODUCE_FIRST: i16 = 3;

/// What the sender and the producer's callers share.
pub(super) struct Shared {
    pub(super) config: ProducerConfig,
    pub(super) cluster: Cluster,
    /// With `transactional.id`.
    pub(super) transactions: Option<Transactions>,
    pub(super) outbox: RefCell<Outbox>,
    /// Wakes the sender: a batch is full, an answer came, a flush began.
    pub(super) bell: Notify,
    /// `buffer.memory`.
    pub(super) memory: Semaphore,
    /// Callers who wait for memory or for a flush: no batch lingers then.
    pub(super) hurried: Cell<usize>,
    pub(super) closing: Cell<bool>,
    /// A batch was settled.
    pub(super) settled: Event,
    /// Requests on their way, by broker.
    in_flight: RefCell<AHashMap<NodeId, usize>>,
    connecting: RefCell<AHashSet<NodeId>>,
    refreshing: Cell<bool>,
    /// Why nothing can be sent any more.
    pub(super) fatal: RefCell<Option<ClientError>>,
}

impl Shared {
    pub(super) fn new(config: ProducerConfig, cluster: Cluster) -> Rc<Shared> {
        let transactions = config.transactional_id.as_ref().map(|id| {
            let timeout = config.transaction_timeout;
            Transactions::new(cluster.clone(), id, timeout)
        });
        Rc::new(Shared {
            transactions,
            outbox: RefCell::new(Outbox::new(&config)),
            bell: Notify::new(),
            memory: Semaphore::new(config.buffer_memory as u64),
            hurried: Cell::new(0),
            closing: Cell::new(false),
            settled: Event::new(),
            in_flight: RefCell::default(),
            connecting: RefCell::default(),
            refreshing: Cell::new(false),
            fatal: RefCell::new(None),
            config,
            cluster,
        })
    }

    fn hurry(&self) -> bool {
        self.closing.get() || self.hurried.get() > 0
    }

    fn has_room(&self, node: NodeId) -> bool {
        self.in_flight.borrow().get(&node).copied().unwrap_or(0) < self.config.in_flight_max
    }

    fn count(&self, node: NodeId, change: isize) {
        let mut in_flight = self.in_flight.borrow_mut();
        let count = in_flight.entry(node).or_default();
        *count = count.saturating_add_signed(change);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer")
            .field("outbox", &self.outbox.borrow())
            .field("in_flight", &self.in_flight.borrow())
            .field("connecting", &self.connecting.borrow())
            .field("refreshing", &self.refreshing.get())
            .field("hurried", &self.hurried.get())
            .field("memory_free", &self.memory.available())
            .finish()
    }
}

/// Runs until the producer is closed and everything is settled.
pub(super) async fn run(shared: Rc<Shared>) {
    loop {
        let now = rt::now();
        let late = ClientError::TimedOut {
            peer: "the cluster".to_owned(),
            api: "PRODUCE",
        };
        let expired = shared.outbox.borrow_mut().expire(now, &late);
        tell(&shared, expired);
        if shared.closing.get() && shared.outbox.borrow().accumulator.unsettled() == 0 {
            return;
        }
        let needs_identity = shared.outbox.borrow().needs_identity();
        if needs_identity {
            get_identity(&shared).await;
            continue;
        }
        admit(&shared).await;
        let look_again = send_ready(&shared, rt::now());
        rt::select2(shared.bell.notified(), rt::sleep_until_opt(look_again)).await;
    }
}

/// Sends all that may leave; returns when to look again.
fn send_ready(shared: &Rc<Shared>, now: Instant) -> Option<Instant> {
    let view = shared.cluster.view();
    let leader = |key: &TopicPartition| view.leader_of(&key.topic, key.partition);
    let hurry = shared.hurry();
    let ready = shared.outbox.borrow().ready(now, hurry, leader);
    if !ready.leaderless.is_empty() {
        refresh(shared);
    }
    for node in ready.nodes {
        let Some(connection) = shared.cluster.open_node(node) else {
            connect(shared, node);
            continue;
        };
        while shared.has_room(node) {
            let batches = shared.outbox.borrow_mut().drain(node, now, hurry, leader);
            if batches.is_empty() {
                break;
            }
            send(shared, node, &connection, &view, batches);
        }
    }
    ready.look_again
}

/// Opens a connection beside the sender, once at a time per broker.
fn connect(shared: &Rc<Shared>, node: NodeId) {
    if !shared.connecting.borrow_mut().insert(node) {
        return;
    }
    let shared = shared.clone();
    drop(rt::spawn(async move {
        if shared.cluster.node(node).await.is_err() {
            // The leaders may be elsewhere by now. A failure shows in the next attempt.
            let _ = shared.cluster.refresh().await;
        }
        shared.connecting.borrow_mut().remove(&node);
        shared.bell.notify_one();
    }));
}

/// Refreshes the view beside the sender, once at a time, with the retry back-off behind it.
fn refresh(shared: &Rc<Shared>) {
    if shared.refreshing.replace(true) {
        return;
    }
    let shared = shared.clone();
    drop(rt::spawn(async move {
        // A failure shows in the next attempt.
        let _ = shared.cluster.refresh().await;
        shared.bell.notify_one();
        rt::sleep(
            shared
                .config
                .client
                .retry_backoff
                .delay(1, rt::random_u64()),
        )
        .await;
        shared.refreshing.set(false);
        shared.bell.notify_one();
    }));
}

/// Asks for a producer id. A final refusal ends the producer.
async fn get_identity(shared: &Rc<Shared>) {
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: i32::MAX,
        ..InitProducerIdRequest::default()
    };
    let cluster = &shared.cluster;
    let deadline = rt::now() + shared.config.delivery_timeout;
    let answer = cluster
        .retry_until(deadline, async || {
            let answer = cluster.call_any(&request, Duration::ZERO).await?;
            check(answer.error_code, || "INIT_PRODUCER_ID".to_owned())?;
            Ok(Identity {
                id: answer.producer_id,
                epoch: answer.producer_epoch,
            })
        })
        .await;
    match answer {
        Ok(identity) => {
            shared.outbox.borrow_mut().set_identity(identity);
        }
        Err(error) if error.is_retriable() => {}
        Err(error) => {
            *shared.fatal.borrow_mut() = Some(error.clone());
            let settled = shared.outbox.borrow_mut().give_up_all(&error);
            tell(shared, settled);
        }
    }
}

/// Builds one request and queues it; a task of its own waits for the answer.
fn send(
    shared: &Rc<Shared>,
    node: NodeId,
    connection: &Connection,
    view: &ClusterView,
    mut batches: Vec<PendingBatch>,
) {
    let started = start(shared, connection, view, &mut batches);
    shared.count(node, 1);
    match started {
        Ok(Some(sent)) => {
            for key in batches.iter().map(|batch| &batch.key) {
                hop::record(|| Hop::new(What::BatchSent, &key.topic, key.partition));
            }
            let shared = shared.clone();
            drop(rt::spawn(async move {
                let limit = shared.config.client.request_timeout;
                let answer = sent.answer::<ProduceRequest>(limit).await;
                shared.count(node, -1);
                match answer {
                    Ok(answer) => settle_all(&shared, batches, &answer),
                    Err(error) => fail_all(&shared, batches, &error),
                }
            }));
        }
        Ok(None) => {
            shared.count(node, -1);
            // There is no answer and no retry: handed to the socket is delivered.
            for batch in batches {
                settle(
                    shared,
                    batch,
                    Answer::failed(ErrorCode::NONE, String::new()),
                );
            }
        }
        Err(error) => {
            shared.count(node, -1);
            fail_all(shared, batches, &error);
        }
    }
}

/// `None` with `acks=0`: there will be no answer.
fn start(
    shared: &Shared,
    connection: &Connection,
    view: &ClusterView,
    batches: &mut [PendingBatch],
) -> Result<Option<Sent>, ClientError> {
    let id = |batch: &PendingBatch| {
        view.topic(&batch.key.topic)
            .map(|topic| topic.id)
            .unwrap_or_default()
    };
    let by_id = batches.iter().all(|batch| !id(batch).is_zero());
    let mut range = match by_id {
        true => (PRODUCE_FIRST, i16::MAX),
        false => (PRODUCE_FIRST, PRODUCE_BY_NAME_LAST),
    };
    if let Some(transactions) = &shared.transactions {
        match transactions.with(|state| state.is_implicit()) {
            true => range.0 = PRODUCE_ADDS_FIRST,
            false => range.1 = PRODUCE_ADDS_FIRST - 1,
        }
    }
    let version = connection
        .versions()
        .choose::<ProduceRequest>(range.0, range.1)?;
    let mut topics: Vec<TopicProduceData> = Vec::new();
    for batch in batches {
        let records = batch
            .build()
            .map_err(|error| ClientError::Invalid(error.to_string()))?;
        if topics
            .last()
            .is_none_or(|topic| topic.name != batch.key.topic)
        {
            topics.push(TopicProduceData {
                name: batch.key.topic.clone(),
                topic_id: id(batch),
                ..TopicProduceData::default()
            });
        }
        if let Some(topic) = topics.last_mut() {
            topic.partition_data.push(PartitionProduceData {
                index: batch.key.partition,
                records: Some(Records::from(records)),
                ..PartitionProduceData::default()
            });
        }
    }
    let timeout = shared.config.client.request_timeout.as_millis();
    let request = ProduceRequest {
        transactional_id: shared.transactions.as_ref().map(|t| t.id().clone()),
        acks: shared.config.acks.wire(),
        timeout_ms: i32::try_from(timeout).unwrap_or(i32::MAX),
        topic_data: topics,
        ..ProduceRequest::default()
    };
    if shared.config.acks == Acks::None {
        return connection
            .start_unanswered(&request, version)
            .map(|()| None);
    }
    connection.start(&request, version).map(Some)
}

fn settle_all(shared: &Rc<Shared>, batches: Vec<PendingBatch>, response: &ProduceResponse) {
    let view = shared.cluster.view();
    let mut parts: AHashMap<(&str, i32), &PartitionProduceResponse> = AHashMap::new();
    for topic in &response.responses {
        let name = match topic.topic_id.is_zero() {
            true => Some(&topic.name),
            false => view.name_of(topic.topic_id),
        };
        let Some(name) = name else { continue };
        for part in &topic.partition_responses {
            parts.insert((name.as_str(), part.index), part);
        }
    }
    for batch in batches {
        let answer = match parts.get(&(batch.key.topic.as_str(), batch.key.partition)) {
            Some(part) => read_answer(part),
            // Removed and made anew meanwhile, or left out: as if the topic were not known.
            None => Answer::failed(ErrorCode::UNKNOWN_TOPIC_ID, String::new()),
        };
        settle(shared, batch, answer);
    }
    shared.bell.notify_one();
}

fn read_answer(part: &PartitionProduceResponse) -> Answer {
    let text = |text: &Option<Str>| {
        text.as_ref()
            .map(|t| t.as_str().to_owned())
            .unwrap_or_default()
    };
    Answer {
        code: ErrorCode(part.error_code),
        base_offset: Some(Offset(part.base_offset)).filter(|offset| offset.0 >= 0),
        append_time: Some(part.log_append_time_ms).filter(|time| *time >= 0),
        message: text(&part.error_message),
        record_errors: part
            .record_errors
            .iter()
            .map(|record| (record.batch_index, text(&record.batch_index_error_message)))
            .collect(),
    }
}

/// The request got no answer.
fn fail_all(shared: &Rc<Shared>, batches: Vec<PendingBatch>, error: &ClientError) {
    for batch in batches {
        settle(
            shared,
            batch,
            Answer::failed(error.code(), error.to_string()),
        );
    }
    shared.bell.notify_one();
}

fn settle(shared: &Rc<Shared>, batch: PendingBatch, answer: Answer) {
    let judged = shared
        .outbox
        .borrow_mut()
        .judge(batch, answer, rt::now(), rt::random_u64());
    if judged.refresh {
        refresh(shared);
    }
    tell(shared, judged.settled);
}

/// Wakes those who wait for batches, once the transaction knows what was not delivered.
pub(super) fn tell(shared: &Shared, settled: Vec<Settled>) {
    if let Some(transactions) = &shared.transactions {
        for (error, numbered) in settled.iter().filter_map(Settled::failure) {
            transactions.with(|state| state.batch_failed(error, numbered));
        }
    }
    settled.into_iter().for_each(Settled::tell);
    shared.settled.notify_all();
}

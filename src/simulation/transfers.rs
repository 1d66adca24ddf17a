//! Transactions in a world: producers that commit and abort, a reader of committed records, and
//! the judgement that each transaction is all or nothing.
//!
//! A transaction spans partitions of one topic and an offset of a group. What its producer knows of
//! it is noted before it acts, so that a producer that vanishes leaves nothing out.

use super::load::{Load, insist};
use crate::client::{
    Admin, ClientError, CommittedOffset, Consumer, ConsumerConfig, ConsumerRecord, GroupMetadata,
    Isolation, OffsetReset, OffsetSpec, Producer, ProducerConfig, ProducerRecord, TopicPartition,
};
use crate::rt;
use crate::types::Offset;
use crate::wire::Str;
use crate::wire::messages::update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

pub(super) const TOPIC: &str = "transfers";
pub(super) const PARTITIONS: i32 = 3;
const GROUP: &str = "tally";
/// Short, so that what a producer left open is aborted while the world lasts.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a transactional id may not be usable in such a world.
const USE_LIMIT: Duration = Duration::from_secs(60);
/// How long the last stable offset may stay behind in a world that is whole.
const STABLE_LIMIT: Duration = Duration::from_secs(60);

/// A transaction's producer, and which of its transactions it is; numbers go on over the lives of
/// a producer.
type Id = (u32, u32);

/// What is known of how a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nobody has asked for its commit: it must not be seen, whatever happens.
    Open,
    /// Its commit was asked for and not acknowledged.
    Committing,
    Committed,
    Aborted,
}

#[derive(Debug)]
struct Entry {
    fate: Fate,
    /// The partition of each record, in the order in which they were sent.
    records: Vec<i32>,
    /// Where each was seen.
    seen: BTreeMap<u32, (i32, i64)>,
    with_offset: bool,
}

/// See the module's words.
#[derive(Default)]
pub(super) struct Transfers {
    entries: RefCell<BTreeMap<Id, Entry>>,
    violations: RefCell<Vec<String>>,
    pub(super) committed: Cell<u64>,
    pub(super) aborted: Cell<u64>,
}

impl Transfers {
    pub(super) fn violations(&self) -> Vec<String> {
        self.violations.borrow().clone()
    }

    fn violated(&self, what: String) {
        self.violations.borrow_mut().push(what);
    }

    /// The number of a producer's next transaction.
    fn begin(&self, producer: u32) -> Id {
        let mut entries = self.entries.borrow_mut();
        let mut own = entries.range((producer, 0)..=(producer, u32::MAX));
        let number = own.next_back().map_or(0, |((_, number), _)| number + 1);
        let entry = Entry {
            fate: Fate::Open,
            records: Vec::new(),
            seen: BTreeMap::new(),
            with_offset: false,
        };
        entries.insert((producer, number), entry);
        (producer, number)
    }

    fn with<R>(&self, id: Id, run: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        self.entries.borrow_mut().get_mut(&id).map(run)
    }

    /// Notes a record about to be sent; its place in the transaction.
    fn sending(&self, id: Id, partition: i32) -> u32 {
        let place = self.with(id, |entry| {
            entry.records.push(partition);
            entry.records.len() as u32 - 1
        });
        place.unwrap_or_default()
    }

    fn ends(&self, id: Id, fate: Fate) {
        self.with(id, |entry| entry.fate = fate);
        let count = match fate {
            Fate::Committed => &self.committed,
            Fate::Aborted => &self.aborted,
            Fate::Open | Fate::Committing => return,
        };
        count.set(count.get() + 1);
    }

    /// A reader of committed records was given this one.
    fn saw(&self, record: &ConsumerRecord) {
        let at = (record.partition, record.offset.0);
        let Some((id, place)) = id_of(record) else {
            return self.violated(format!("{TOPIC} {at:?} is no record of ours"));
        };
        let wrong = self.with(id, |entry| {
            let before = entry.seen.insert(place, at);
            if entry.records.get(place as usize) != Some(&record.partition) {
                Some("was not sent".to_owned())
            } else if before.is_some_and(|before| before != at) {
                Some(format!("was also seen at {before:?}"))
            } else if matches!(entry.fate, Fate::Open | Fate::Aborted) {
                Some(format!("is of a transaction that is {:?}", entry.fate))
            } else {
                None
            }
        });
        match wrong {
            Some(None) => {}
            Some(Some(what)) => {
                self.violated(format!("{TOPIC} {at:?}: {place} of {id:?} {what}"));
            }
            None => self.violated(format!("{TOPIC} {at:?} is of {id:?}, which never was")),
        }
    }

    /// Everything that can be read has been read: each transaction is there or not.
    fn judge(&self, offsets: &BTreeMap<u32, i64>) {
        let mut last: BTreeMap<u32, i64> = BTreeMap::new();
        let mut wrong = Vec::new();
        for (id, entry) in &*self.entries.borrow() {
            let (seen, sent) = (entry.seen.len(), entry.records.len());
            let is_right = match entry.fate {
                Fate::Committed => seen == sent,
                Fate::Open | Fate::Aborted => seen == 0,
                Fate::Committing => seen == 0 || seen == sent,
            };
            if !is_right {
                let fate = entry.fate;
                wrong.push(format!("{id:?} is {fate:?}: {seen} of {sent} records seen"));
            }
            if entry.with_offset && sent > 0 && seen == sent {
                last.insert(id.0, i64::from(id.1) + 1);
            }
        }
        for (producer, last) in last {
            let told = offsets.get(&producer).copied();
            if told != Some(last) {
                wrong.push(format!(
                    "producer {producer}'s last committed offset is {last}, told is {told:?}"
                ));
            }
        }
        self.violations.borrow_mut().extend(wrong);
    }
}

fn producer_config(load: &Load, producer: u32) -> ProducerConfig {
    ProducerConfig {
        client: load.client(&format!("transfer-{producer}")),
        transactional_id: Some(format!("transfer-{producer}")),
        transaction_timeout: TRANSACTION_TIMEOUT,
        batch_size: 1000,
        linger: Duration::from_millis(rt::random_below(6)),
        block_max: Duration::from_secs(10),
        delivery_timeout: Duration::from_secs(30),
        ..ProducerConfig::default()
    }
}

/// Has the cluster's transactions follow the protocol of before KIP-890, in which a producer's
/// transactions share an epoch and it names their partitions itself.
pub(super) async fn use_older_protocol(load: Rc<Load>) -> Result<(), ClientError> {
    let admin = Admin::connect(load.client("admin")).await?;
    let update = FeatureUpdateKey {
        feature: Str::from_static("transaction.version"),
        max_version_level: 1,
        // A safe downgrade.
        upgrade_type: 2,
        ..FeatureUpdateKey::default()
    };
    let request = UpdateFeaturesRequest {
        timeout_ms: 30_000,
        feature_updates: vec![update],
        ..UpdateFeaturesRequest::default()
    };
    // Refused until every node has said which levels it supports.
    while admin
        .cluster()
        .call_any(&request, Duration::ZERO)
        .await?
        .error_code
        != 0
    {
        rt::sleep(Duration::from_millis(200)).await;
    }
    admin.close();
    Ok(())
}

/// Sends in transactions until the load ends. One that comes back after a crash takes its
/// transactional id over.
pub(super) async fn transfer(load: Rc<Load>, producer: u32) {
    let config = producer_config(&load, producer);
    let ending = || load.ending.get();
    while !load.ending.get() {
        let Some(client) = insist(ending, || Producer::connect(config.clone())).await else {
            return;
        };
        if client.init_transactions().await.is_ok() {
            while !load.ending.get() {
                if run_one(&load, &client, producer).await.is_err() {
                    break;
                }
                let pause = rt::random_below(load.pause_us);
                rt::sleep(Duration::from_micros(pause)).await;
            }
        }
        client.close(Duration::from_secs(1)).await;
        rt::sleep(Duration::from_millis(100)).await;
    }
}

/// One transaction from its begin to its end.
///
/// # Errors
/// The producer is of no use any more; or it goes in mid-transaction, as some do.
async fn run_one(load: &Load, client: &Producer, producer: u32) -> Result<(), ClientError> {
    let book = &load.transfers;
    client.begin_transaction()?;
    let id = book.begin(producer);
    for _ in 0..1 + rt::random_below(6) {
        let partition = rt::random_below(PARTITIONS as u64) as i32;
        let place = book.sending(id, partition);
        // A record that is not taken keeps the transaction from being committed.
        if client.send(record_of(id, place, partition)).await.is_err() {
            return abort(load, client, id).await;
        }
        if rt::random_below(4) == 0 {
            rt::sleep(Duration::from_micros(rt::random_below(load.pause_us))).await;
        }
    }
    match rt::random_below(24) {
        // It goes and leaves everything open.
        0 => return Err(ClientError::Closed),
        // It is silent for so long that its transaction is aborted, or nearly so.
        1 => rt::sleep(TRANSACTION_TIMEOUT + Duration::from_millis(rt::random_below(1500))).await,
        _ => {}
    }
    if rt::random_below(3) == 0 {
        return abort(load, client, id).await;
    }
    if rt::random_below(2) == 0 {
        book.with(id, |entry| entry.with_offset = true);
        let offset = CommittedOffset::new(Offset(i64::from(id.1) + 1));
        let offsets = [(tally_of(producer), offset)];
        let group = GroupMetadata::new(GROUP);
        let sent = client.send_offsets_to_transaction(&offsets, &group).await;
        if sent.is_err() {
            return abort(load, client, id).await;
        }
    }
    book.ends(id, Fate::Committing);
    for _ in 0..8 {
        match client.commit_transaction().await {
            Ok(()) => {
                book.ends(id, Fate::Committed);
                return Ok(());
            }
            Err(error) if error.is_retriable() => {}
            // Only the broker knows whether it is committed; if it can be aborted it is not.
            Err(_) => return abort(load, client, id).await,
        }
    }
    Err(ClientError::Closed)
}

async fn abort(load: &Load, client: &Producer, id: Id) -> Result<(), ClientError> {
    client.abort_transaction().await?;
    load.transfers.ends(id, Fate::Aborted);
    Ok(())
}

/// Where the group keeps the number of a producer's last transaction with an offset.
fn tally_of(producer: u32) -> TopicPartition {
    TopicPartition::new(Str::from_static(TOPIC), producer as i32 % PARTITIONS)
}

fn record_of((producer, number): Id, place: u32, partition: i32) -> ProducerRecord {
    let mut value = Vec::with_capacity(300);
    for part in [producer, number, place] {
        value.extend_from_slice(&part.to_be_bytes());
    }
    value.resize(12 + rt::random_below(300) as usize, 0);
    ProducerRecord::new(Str::from_static(TOPIC), value).with_partition(partition)
}

fn id_of(record: &ConsumerRecord) -> Option<(Id, u32)> {
    let value = record.value.as_ref()?;
    let part = |at: usize| Some(u32::from_be_bytes(value.get(at..at + 4)?.try_into().ok()?));
    Some(((part(0)?, part(4)?), part(8)?))
}

fn keys() -> Vec<TopicPartition> {
    let topic = Str::from_static(TOPIC);
    (0..PARTITIONS)
        .map(|partition| TopicPartition::new(topic.clone(), partition))
        .collect()
}

fn reader_config(load: &Load, id: &str) -> ConsumerConfig {
    ConsumerConfig {
        client: load.client(id),
        group_id: Some(GROUP.to_owned()),
        offset_reset: OffsetReset::Earliest,
        auto_commit: None,
        isolation: Isolation::ReadCommitted,
        fetch_max_wait: Duration::from_millis(300),
        partition_fetch_bytes: 3000,
        ..ConsumerConfig::default()
    }
}

/// Reads what is committed, from the beginning on, until the load ends.
pub(super) async fn read(load: Rc<Load>) {
    let config = reader_config(&load, "transfer-reader");
    let ending = || load.ending.get();
    let Some(mut consumer) = insist(ending, || Consumer::connect(config.clone())).await else {
        return;
    };
    if consumer.assign(&keys()).await.is_err() {
        return;
    }
    while !load.ending.get() {
        match consumer.poll(Duration::from_millis(500)).await {
            Ok(records) => records.iter().for_each(|record| load.transfers.saw(record)),
            Err(_) => rt::sleep(Duration::from_millis(100)).await,
        }
    }
    let _ = consumer.close().await;
}

/// Where the partitions end, for this isolation level; nothing if not all are known.
async fn ends(consumer: &Consumer) -> Option<BTreeMap<TopicPartition, i64>> {
    let latest: Vec<_> = keys()
        .into_iter()
        .map(|key| (key, OffsetSpec::Latest))
        .collect();
    let listed = consumer.offsets(&latest).await.ok()?;
    let known: BTreeMap<_, _> = listed
        .iter()
        .filter_map(|(key, listed)| {
            let offset = listed.as_ref().ok()?.offset;
            Some((key.clone(), offset.map_or(0, |offset| offset.0)))
        })
        .collect();
    (known.len() == PARTITIONS as usize).then_some(known)
}

/// In a world that is whole every transactional id can be taken over and used: none is left in a
/// state that it never leaves.
async fn use_every_id(load: &Load) {
    for producer in 0..load.transfer_producers {
        let deadline = rt::now() + USE_LIMIT;
        let mut last = None;
        while rt::now() < deadline {
            match use_id(load, producer).await {
                Ok(()) => {
                    last = None;
                    break;
                }
                Err(error) => last = Some(error),
            }
            rt::sleep(Duration::from_millis(300)).await;
        }
        if let Some(error) = last {
            let told = format!("producer {producer} cannot use its transactional id: {error}");
            load.transfers.violated(told);
        }
    }
}

async fn use_id(load: &Load, producer: u32) -> Result<(), ClientError> {
    let client = Producer::connect(producer_config(load, producer)).await?;
    client.init_transactions().await?;
    client.begin_transaction()?;
    let book = &load.transfers;
    let id = book.begin(producer);
    let place = book.sending(id, 0);
    client.send(record_of(id, place, 0)).await?;
    book.ends(id, Fate::Committing);
    client.commit_transaction().await?;
    book.ends(id, Fate::Committed);
    client.close(Duration::from_secs(1)).await;
    Ok(())
}

/// Uses every transactional id once more, waits until no transaction is open, reads every partition
/// from its beginning to its end, and judges.
pub(super) async fn audit(load: Rc<Load>) -> Result<(), ClientError> {
    use_every_id(&load).await;
    let committed = reader_config(&load, "transfer-auditor");
    let uncommitted = ConsumerConfig {
        isolation: Isolation::ReadUncommitted,
        ..committed.clone()
    };
    let mut consumer = Consumer::connect(committed).await?;
    let all = Consumer::connect(uncommitted).await?;
    let deadline = rt::now() + STABLE_LIMIT;
    let stable = loop {
        let (stable, end) = (ends(&consumer).await, ends(&all).await);
        match (stable, end) {
            (Some(stable), Some(end)) if stable == end => break stable,
            (stable, end) if rt::now() > deadline => {
                load.transfers.violated(format!(
                    "transactions are left open: stable up to {stable:?} of {end:?}"
                ));
                return Ok(());
            }
            _ => rt::sleep(Duration::from_millis(300)).await,
        }
        consumer.cluster().refresh().await?;
    };
    consumer.assign(&keys()).await?;
    for key in keys() {
        consumer.seek(&key, Offset(0))?;
    }
    // Markers are read and not given out: the position says how far it is.
    let is_read = |consumer: &Consumer| {
        let mut all = stable.iter();
        all.all(|(key, end)| consumer.position(key).is_some_and(|at| at.0 >= *end))
    };
    while !is_read(&consumer) && rt::now() < deadline + STABLE_LIMIT {
        for record in consumer.poll(Duration::from_millis(500)).await? {
            load.transfers.saw(&record);
        }
    }
    let told = consumer.committed(&keys()).await?;
    let mut offsets = BTreeMap::new();
    for producer in 0..load.transfer_producers {
        let told = told.iter().find(|(key, _)| *key == tally_of(producer));
        offsets.extend(told.map(|(_, committed)| (producer, committed.offset.0)));
    }
    load.transfers.judge(&offsets);
    let _ = consumer.close().await;
    let _ = all.close().await;
    Ok(())
}

//! The clients of a world: producers, readers, and members of groups, each on a host of its own.
//! What they learn goes into the ledger.

use super::ledger::{Ledger, RecordId};
use super::probes::Probes;
use super::transfers::{self, Transfers};
use crate::client::{
    Acks, Admin, ClientConfig, ClientError, CommittedOffset, Consumer, ConsumerConfig,
    ConsumerRecord, Election, NewTopic, OffsetReset, Producer, ProducerConfig, ProducerRecord,
    TopicPartition,
};
use crate::rt;
use crate::types::{LeaderEpoch, NodeId, Offset};
use crate::wire::Str;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// A topic of the load.
#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub(super) name: String,
    pub(super) partitions: i32,
    pub(super) replication: i16,
    pub(super) configs: Vec<(String, String)>,
}

/// What a producer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    Idempotent,
    All,
    Leader,
    None,
}

/// What all clients share.
pub(super) struct Load {
    pub(super) servers: String,
    pub(super) topics: Vec<Topic>,
    pub(super) ledger: Ledger,
    pub(super) probes: Rc<Probes>,
    /// Producers wait so many microseconds at most between sends.
    pub(super) pause_us: u64,
    /// Producers send nothing new, then readers and members end too.
    pub(super) ending: Cell<bool>,
    /// Clients that have not ended.
    pub(super) running: Cell<usize>,
    /// Lives of producers so far: each numbers its records by itself.
    pub(super) lives: Cell<u32>,
    pub(super) transfers: Transfers,
    /// So many producers send in transactions.
    pub(super) transfer_producers: u32,
}

impl Load {
    /// The partitions of everybody but those with transactions.
    pub(super) fn partitions(&self) -> Vec<TopicPartition> {
        let of = |topic: &Topic| {
            let name = Str::from(&topic.name);
            (0..topic.partitions).map(move |partition| TopicPartition::new(name.clone(), partition))
        };
        let own = self
            .topics
            .iter()
            .filter(|topic| topic.name != transfers::TOPIC);
        own.flat_map(of).collect()
    }

    /// A client was told that there is a record at this offset: it must be below a high watermark.
    fn committed(&self, key: &TopicPartition, offset: Option<i64>, how: &str) {
        let is_committed = |at: &i64| self.probes.is_committed(&key.topic, key.partition, *at);
        if let Some(offset) = offset.filter(|offset| !is_committed(offset)) {
            self.ledger.violated(format!(
                "{key} offset {offset}: {how}, with no high watermark above it"
            ));
        }
    }

    pub(super) fn client(&self, id: &str) -> ClientConfig {
        ClientConfig {
            client_id: id.to_owned(),
            request_timeout: Duration::from_secs(5),
            connection_setup_timeout: Duration::from_secs(2),
            api_timeout: Duration::from_secs(10),
            metadata_max_age: Duration::from_secs(10),
            allow_auto_create_topics: false,
            ..ClientConfig::new(&self.servers)
        }
    }
}

/// Tries until it works or `give_up` holds.
pub(super) async fn insist<T, F: Future<Output = Result<T, ClientError>>>(
    give_up: impl Fn() -> bool,
    mut attempt: impl FnMut() -> F,
) -> Option<T> {
    loop {
        match attempt().await {
            Ok(value) => return Some(value),
            Err(_) if give_up() => return None,
            Err(_) => rt::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Makes the topics of the load.
pub(super) async fn make_topics(load: Rc<Load>) -> Result<(), ClientError> {
    let admin = Admin::connect(load.client("admin")).await?;
    for topic in &load.topics {
        let topic = NewTopic {
            configs: topic.configs.clone(),
            ..NewTopic::new(&topic.name, topic.partitions, topic.replication)
        };
        admin.create_topic(&topic, false).await?;
    }
    admin.close();
    Ok(())
}

/// Sends until the load ends; returns when the fate of every record is known. One that comes back
/// after a crash has its name and nothing else.
pub(super) async fn produce(load: Rc<Load>, id: u32, row: Row) {
    let life = load.lives.get();
    load.lives.set(life + 1);
    let config = ProducerConfig {
        client: load.client(&format!("producer-{id}")),
        acks: match row {
            Row::Idempotent | Row::All => Acks::All,
            Row::Leader => Acks::Leader,
            Row::None => Acks::None,
        },
        idempotence: row == Row::Idempotent,
        // Without idempotence only one request in flight keeps the order.
        in_flight_max: if row == Row::Idempotent { 5 } else { 1 },
        batch_size: 2000,
        linger: Duration::from_millis(rt::random_below(6)),
        block_max: Duration::from_secs(10),
        delivery_timeout: Duration::from_secs(30),
        ..ProducerConfig::default()
    };
    if row == Row::Idempotent {
        load.ledger.is_idempotent(life);
    }
    let ending = || load.ending.get();
    let connect = || Producer::connect(config.clone());
    let Some(producer) = insist(ending, connect).await else {
        return;
    };
    let partitions = load.partitions();
    let mut numbers = vec![0; partitions.len()];
    let unanswered = Rc::new(Cell::new(0_u64));
    while !load.ending.get() {
        for _ in 0..1 + rt::random_below(4) {
            let at = rt::random_below(partitions.len() as u64) as usize;
            let key = &partitions[at];
            let record = RecordId {
                producer: life,
                number: numbers[at],
            };
            numbers[at] += 1;
            load.ledger.sent(key, record);
            let since = load.ledger.losses();
            match producer.send(record_of(key, record)).await {
                Ok(delivery) => {
                    let (load, key) = (load.clone(), key.clone());
                    let unanswered = unanswered.clone();
                    unanswered.set(unanswered.get() + 1);
                    drop(rt::spawn(async move {
                        let done = delivery.await;
                        unanswered.set(unanswered.get() - 1);
                        match done {
                            // There is no promise with acks=0.
                            Ok(_) if row == Row::None => {}
                            Ok(done) => {
                                let offset = done.offset.map(|offset| offset.0);
                                if row != Row::Leader {
                                    load.committed(&key, offset, "acknowledged");
                                }
                                load.ledger.acked(&key, record, offset, since);
                            }
                            Err(_) => load.ledger.failed(),
                        }
                    }));
                }
                Err(_) => load.ledger.failed(),
            }
        }
        rt::sleep(Duration::from_micros(rt::random_below(load.pause_us))).await;
    }
    producer.flush().await;
    producer.close(Duration::from_secs(1)).await;
    // Those who wait for the outcomes hear of them.
    rt::sleep(Duration::from_millis(1)).await;
    if unanswered.get() > 0 {
        let count = unanswered.get();
        load.ledger
            .violated(format!("producer {id} never heard of {count} records"));
    }
}

fn record_of(key: &TopicPartition, id: RecordId) -> ProducerRecord {
    let mut value = Vec::with_capacity(64);
    value.extend_from_slice(&id.producer.to_be_bytes());
    value.extend_from_slice(&id.number.to_be_bytes());
    let padding = if rt::random_below(20) == 0 { 3000 } else { 200 };
    value.resize(8 + rt::random_below(padding) as usize, id.number as u8);
    ProducerRecord::new(key.topic.clone(), value).with_partition(key.partition)
}

/// Which record this is; `None` if it is none of ours.
fn id_of(record: &ConsumerRecord) -> Option<RecordId> {
    let value = record.value.as_ref()?;
    let part = |at: usize| Some(u32::from_be_bytes(value.get(at..at + 4)?.try_into().ok()?));
    let id = RecordId {
        producer: part(0)?,
        number: part(4)?,
    };
    let padding = &value[8..];
    padding
        .iter()
        .all(|byte| *byte == id.number as u8)
        .then_some(id)
}

fn consumer_config(load: &Load, id: &str, group: Option<&str>) -> ConsumerConfig {
    ConsumerConfig {
        client: load.client(id),
        group_id: group.map(str::to_owned),
        offset_reset: OffsetReset::Earliest,
        auto_commit: None,
        // A static member takes the place of the one that vanished, the others come beside it.
        group_instance_id: (id == "member-1").then(|| id.to_owned()),
        fetch_max_wait: Duration::from_millis(300),
        partition_fetch_bytes: 8000,
        session_timeout: Duration::from_secs(6),
        heartbeat_interval: Duration::from_secs(1),
        ..ConsumerConfig::default()
    }
}

fn saw(load: &Load, record: &ConsumerRecord, since: u64) {
    let key = TopicPartition::new(record.topic.clone(), record.partition);
    match id_of(record) {
        Some(id) => {
            load.committed(&key, Some(record.offset.0), "seen");
            load.ledger.saw(&key, record.offset.0, id, since);
        }
        None => {
            let offset = record.offset;
            load.ledger
                .violated(format!("{key} offset {offset} is no record of ours"));
        }
    }
}

/// Reads everything, from the beginning on, again and again from where it is.
pub(super) async fn read(load: Rc<Load>, id: u32) {
    let config = consumer_config(&load, &format!("reader-{id}"), None);
    let ending = || load.ending.get();
    let Some(mut consumer) = insist(ending, || Consumer::connect(config.clone())).await else {
        return;
    };
    if consumer.assign(&load.partitions()).await.is_err() {
        return;
    }
    while !load.ending.get() {
        let since = load.ledger.settled_losses();
        match consumer.poll(Duration::from_millis(500)).await {
            Ok(records) => records.iter().for_each(|record| saw(&load, record, since)),
            Err(_) => rt::sleep(Duration::from_millis(100)).await,
        }
    }
    let _ = consumer.close().await;
}

/// Reads as a member of a group and commits what it has read.
pub(super) async fn belong(load: Rc<Load>, id: u32, group: &'static str) {
    let config = consumer_config(&load, &format!("member-{id}"), Some(group));
    let ending = || load.ending.get();
    let Some(mut consumer) = insist(ending, || Consumer::connect(config.clone())).await else {
        return;
    };
    let own = load
        .topics
        .iter()
        .filter(|topic| topic.name != transfers::TOPIC);
    let topics: Vec<&str> = own.map(|topic| topic.name.as_str()).collect();
    if consumer.subscribe(&topics).await.is_err() {
        return;
    }
    let mut rebalances = 0;
    let mut ends: BTreeMap<TopicPartition, i64> = BTreeMap::new();
    while !load.ending.get() {
        let since = load.ledger.settled_losses();
        let Ok(records) = consumer.poll(Duration::from_millis(500)).await else {
            rt::sleep(Duration::from_millis(100)).await;
            continue;
        };
        records.iter().for_each(|record| saw(&load, record, since));
        if consumer.rebalances() != rebalances {
            rebalances = consumer.rebalances();
            // What it has left to others is not its to commit.
            ends.clear();
            ask_commits(&load, &consumer, group).await;
        }
        for record in &records {
            let key = TopicPartition::new(record.topic.clone(), record.partition);
            ends.insert(key, record.offset.0 + 1);
        }
        if rt::random_below(3) > 0 {
            continue;
        }
        let offsets: Vec<(TopicPartition, CommittedOffset)> = std::mem::take(&mut ends)
            .into_iter()
            .map(|(key, offset)| {
                let committed = CommittedOffset {
                    offset: Offset(offset),
                    leader_epoch: LeaderEpoch::UNKNOWN,
                    metadata: String::new(),
                };
                (key, committed)
            })
            .collect();
        let since = load.ledger.losses();
        if !offsets.is_empty() && consumer.commit_offsets(&offsets).await.is_ok() {
            for (key, committed) in offsets {
                load.ledger
                    .committed(group, &key, committed.offset.0, since);
            }
        }
    }
    let _ = consumer.close().await;
}

/// Moves partitions to other brokers, and leaderships back to whom they belong to.
pub(super) async fn shuffle(load: Rc<Load>, brokers: i32) {
    let ending = || load.ending.get();
    let connect = || Admin::connect(load.client("mover"));
    let Some(admin) = insist(ending, connect).await else {
        return;
    };
    let partitions = load.partitions();
    while !load.ending.get() {
        rt::sleep(Duration::from_millis(500 + rt::random_below(4000))).await;
        let key = partitions[rt::random_below(partitions.len() as u64) as usize].clone();
        // What is refused, or not answered in time, is tried with the next.
        if rt::random_below(3) == 0 {
            let _ = admin.elect_leaders(Election::Preferred, Some(&[key])).await;
            continue;
        }
        let mut replicas: Vec<NodeId> = (1..=brokers).map(NodeId).collect();
        while replicas.len() > 3 {
            replicas.remove(rt::random_below(replicas.len() as u64) as usize);
        }
        replicas.rotate_left(rt::random_below(3) as usize);
        let _ = admin
            .alter_reassignments(&[(key, Some(replicas))], false)
            .await;
    }
    admin.close();
}

/// Moves replicas of the only broker between its log directories, and back before they are there.
pub(super) async fn move_about(load: Rc<Load>, dirs: &'static [&'static str]) {
    let ending = || load.ending.get();
    let connect = || Admin::connect(load.client("mover"));
    let Some(admin) = insist(ending, connect).await else {
        return;
    };
    let partitions = load.partitions();
    while !load.ending.get() {
        rt::sleep(Duration::from_millis(20 + rt::random_below(1500))).await;
        let mut wanted = Vec::new();
        for key in &partitions {
            let dir = dirs[rt::random_below(dirs.len() as u64) as usize];
            wanted.push((key.clone(), dir.to_owned()));
        }
        // What is refused, or not answered in time, is tried with the next.
        let _ = admin.alter_log_dirs(NodeId(1), &wanted).await;
    }
    admin.close();
}

/// What the group is told of its offsets must be what was committed last, or later.
async fn ask_commits(load: &Load, consumer: &Consumer, group: &str) {
    let keys = consumer.assignment();
    let known: Vec<_> = keys
        .iter()
        .map(|key| load.ledger.last_commit(group, key))
        .collect();
    let Ok(told) = consumer.committed(&keys).await else {
        return;
    };
    for (key, known) in keys.iter().zip(known) {
        let found = told.iter().find(|(of, _)| of == key);
        let told = found.map(|(_, committed)| committed.offset.0);
        load.ledger.told_commit(group, key, told, known);
    }
}

/// Reads every partition from its beginning to its end and has the ledger judge it.
pub(super) async fn audit(load: Rc<Load>) -> Result<(), ClientError> {
    let mut consumer =
        Consumer::connect(consumer_config(&load, "auditor", Some("workers"))).await?;
    let keys = load.partitions();
    let latest: Vec<_> = keys
        .iter()
        .map(|key| (key.clone(), crate::client::OffsetSpec::Latest))
        .collect();
    // Leaders may be about to change still: then it is asked again.
    let ends = loop {
        let listed = consumer.offsets(&latest).await?;
        let known = listed.iter().filter_map(|(key, listed)| {
            let offset = listed.as_ref().ok()?.offset;
            Some((key.clone(), offset.map_or(0, |offset| offset.0)))
        });
        let known: BTreeMap<TopicPartition, i64> = known.collect();
        if known.len() == keys.len() {
            break known;
        }
        rt::sleep(Duration::from_millis(300)).await;
        consumer.cluster().refresh().await?;
    };
    consumer.assign(&keys).await?;
    for key in &keys {
        consumer.seek(key, Offset(0))?;
    }
    let logs: RefCell<BTreeMap<TopicPartition, Vec<(i64, RecordId)>>> = RefCell::default();
    let mut open: BTreeSet<TopicPartition> = ends
        .iter()
        .filter(|(_, end)| **end > 0)
        .map(|(key, _)| key.clone())
        .collect();
    while !open.is_empty() {
        for record in consumer.poll(Duration::from_secs(1)).await? {
            let key = TopicPartition::new(record.topic.clone(), record.partition);
            let Some(id) = id_of(&record) else {
                let offset = record.offset;
                load.ledger
                    .violated(format!("{key} offset {offset} is no record of ours"));
                continue;
            };
            if record.offset.0 + 1 >= ends[&key] {
                open.remove(&key);
            }
            let mut logs = logs.borrow_mut();
            logs.entry(key).or_default().push((record.offset.0, id));
        }
    }
    for key in &keys {
        let log = logs.borrow_mut().remove(key).unwrap_or_default();
        load.ledger.audit(key, &log);
    }
    ask_commits(&load, &consumer, "workers").await;
    let _ = consumer.close().await;
    Ok(())
}

//! kill -9, again and again, under the load of idempotent producers, in each row of the
//! durability table: every record that was sent is there exactly once, in order, and where its
//! acknowledgement said.
//!
//! `HIGHWATER_KILLS` says how often each row is killed (10).
#![allow(clippy::unwrap_used)]

mod support;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::Broker;

const PARTITIONS: i32 = 4;
const PRODUCERS: usize = 2;
/// Records a producer has on their way at most: what has to be sent after the last restart.
const ON_THE_WAY_MAX: u64 = 2000;
const VALUE_BYTES: usize = 900;
const PATIENCE: Duration = Duration::from_secs(120);

/// What the broker said about the records of one producer.
#[derive(Default)]
struct Told {
    /// By record: partition, and offset where it was told.
    acknowledged: Mutex<BTreeMap<u64, (i32, Option<i64>)>>,
    failed: Mutex<Vec<String>>,
    done: AtomicU64,
}

#[derive(Clone, Default)]
struct Context(Arc<Told>);

impl ClientContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(message) => {
                let number = number_of(message.payload().unwrap_or_default()).1;
                // A batch that the broker already had may come back without its offset.
                let offset = (message.offset() >= 0).then(|| message.offset());
                let mut told = self.0.acknowledged.lock().unwrap();
                let twice = told.insert(number, (message.partition(), offset));
                assert!(twice.is_none(), "record {number} acknowledged twice");
            }
            Err((error, _)) => self.0.failed.lock().unwrap().push(error.to_string()),
        }
        self.0.done.fetch_add(1, Ordering::SeqCst);
    }
}

fn value(producer: usize, number: u64) -> Vec<u8> {
    let mut value = format!("{producer} {number} ").into_bytes();
    value.resize(VALUE_BYTES, b'.');
    value
}

/// Producer and number of a record.
fn number_of(value: &[u8]) -> (usize, u64) {
    let text = std::str::from_utf8(value).unwrap();
    let mut words = text.split(' ');
    let mut word = || words.next().unwrap();
    (word().parse().unwrap(), word().parse().unwrap())
}

fn start_producer(bootstrap: &str) -> (ThreadedProducer<Context>, Arc<Told>) {
    let context = Context::default();
    let producer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("enable.idempotence", "true")
        .set("linger.ms", "2")
        .set("message.timeout.ms", "120000")
        .set("reconnect.backoff.ms", "10")
        .set("reconnect.backoff.max.ms", "50")
        .set("retry.backoff.ms", "10")
        .set("retry.backoff.max.ms", "50")
        .create_with_context(context.clone())
        .unwrap();
    (producer, context.0)
}

/// Sends until told to stop; how many were sent.
fn load(producer: &ThreadedProducer<Context>, told: &Told, id: usize, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !stop.load(Ordering::SeqCst) {
        if sent - told.done.load(Ordering::SeqCst) >= ON_THE_WAY_MAX {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let value = value(id, sent);
        let partition = (sent % PARTITIONS as u64) as i32;
        let record = BaseRecord::<(), _>::to("t")
            .partition(partition)
            .payload(&value);
        match producer.send(record) {
            Ok(()) => sent += 1,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err((error, _)) => panic!("{error}"),
        }
        if sent % 20 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    sent
}

/// A port that the broker keeps over its lives, outside of where connections get theirs.
fn fixed_port() -> u16 {
    loop {
        let port = fastrand::u16(15_000..30_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Everything in the topic, by partition, in order of the offsets.
fn read_all(broker: &Broker, count: usize) -> BTreeMap<i32, Vec<(i64, usize, u64)>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .set("group.id", "reader")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition_offset("t", partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&list).unwrap();
    let mut found: BTreeMap<i32, Vec<(i64, usize, u64)>> = BTreeMap::new();
    let mut read = 0;
    let deadline = Instant::now() + PATIENCE;
    let mut quiet_since = Instant::now();
    // A little longer than it takes: a duplicate would come last.
    while read < count || quiet_since.elapsed() < Duration::from_millis(500) {
        assert!(Instant::now() < deadline, "{read} of {count} records");
        if let Some(message) = consumer.poll(Duration::from_millis(50)) {
            let message = message.unwrap();
            let (producer, number) = number_of(message.payload().unwrap());
            let partition = found.entry(message.partition()).or_default();
            partition.push((message.offset(), producer, number));
            read += 1;
            quiet_since = Instant::now();
        }
    }
    found
}

fn survives(settings: &[&str]) {
    let kills: usize = std::env::var("HIGHWATER_KILLS").map_or(10, |text| text.parse().unwrap());
    let listener = format!("listeners=PLAINTEXT://127.0.0.1:{}", fixed_port());
    let partitions = format!("num.partitions={PARTITIONS}");
    let mut all = vec![
        &*listener,
        &*partitions,
        // Many segments, and recovery points on the way.
        "log.segment.bytes=1048576",
        "log.flush.offset.checkpoint.interval.ms=50",
        "replica.high.watermark.checkpoint.interval.ms=50",
    ];
    all.extend(settings);
    let mut broker = Broker::start(&all);
    let stop = AtomicBool::new(false);
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|_| start_producer(&broker.bootstrap()))
        .collect();
    let mut at_kills = Vec::new();
    let sent: Vec<u64> = std::thread::scope(|scope| {
        let loads: Vec<_> = producers
            .iter()
            .enumerate()
            .map(|(id, (producer, told))| {
                let stop = &stop;
                scope.spawn(move || load(producer, told, id, stop))
            })
            .collect();
        let done = || -> u64 {
            let done = producers.iter().map(|(_, told)| &told.done);
            done.map(|done| done.load(Ordering::SeqCst)).sum()
        };
        for _ in 0..kills {
            // Every kill falls into a load: the producers have found the broker again.
            let before = at_kills.last().copied().unwrap_or(0);
            let deadline = Instant::now() + PATIENCE;
            while done() == before {
                assert!(Instant::now() < deadline, "nothing is acknowledged");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..150)));
            broker.kill();
            at_kills.push(done());
            broker.restart();
        }
        stop.store(true, Ordering::SeqCst);
        loads.into_iter().map(|load| load.join().unwrap()).collect()
    });
    let total: u64 = sent.iter().sum();
    println!("{total} sent, acknowledged at each kill: {at_kills:?}");
    for (producer, told) in &producers {
        producer.flush(PATIENCE).unwrap();
        let failed = told.failed.lock().unwrap();
        assert!(failed.is_empty(), "{} failed: {}", failed.len(), failed[0]);
    }
    let found = read_all(&broker, total as usize);
    let mut places = BTreeMap::new();
    for (partition, records) in &found {
        let mut last = [None; PRODUCERS];
        for (at, (offset, producer, number)) in records.iter().enumerate() {
            assert_eq!(*offset, at as i64, "a hole in partition {partition}");
            assert!(
                last[*producer] < Some(*number),
                "partition {partition}, offset {offset}: record {number} of producer {producer} behind {:?}",
                last[*producer]
            );
            last[*producer] = Some(*number);
            places.insert((*producer, *number), (*partition, *offset));
        }
    }
    assert_eq!(places.len() as u64, total, "records lost or doubled");
    for (id, (_, told)) in producers.iter().enumerate() {
        for (number, (partition, offset)) in told.acknowledged.lock().unwrap().iter() {
            let place = places[&(id, *number)];
            let told = (*partition, offset.unwrap_or(place.1));
            assert_eq!(told, place, "record {number} of producer {id}");
        }
    }
}

#[test]
fn acknowledged_from_the_page_cache() {
    survives(&[]);
}

#[test]
fn acknowledged_after_a_flush() {
    survives(&["log.flush.interval.messages=1"]);
}

#[test]
fn acknowledged_by_direct_writes() {
    survives(&["highwater.segment.io=direct"]);
}

#[test]
fn acknowledged_by_direct_writes_after_a_flush() {
    survives(&[
        "highwater.segment.io=direct",
        "log.flush.interval.messages=1",
    ]);
}

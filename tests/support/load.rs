//! Idempotent librdkafka producers under load, and the check that what they were told is true:
//! every record that was sent is in the topic exactly once, in order, and where its
//! acknowledgement said.

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PRODUCERS: usize = 2;
/// Records a producer has on their way at most: what has to be sent after the last fault.
const ON_THE_WAY_MAX: u64 = 2000;
const VALUE_BYTES: usize = 900;
/// How long anything may take that must come in the end.
pub const PATIENCE: Duration = Duration::from_secs(120);

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
        // A process that stands still keeps its connections open: what was sent to it is not waited
        // for as long as librdkafka would.
        .set("request.timeout.ms", "3000")
        .set("socket.timeout.ms", "5000")
        .set("reconnect.backoff.ms", "10")
        .set("reconnect.backoff.max.ms", "50")
        .set("retry.backoff.ms", "10")
        .set("retry.backoff.max.ms", "50")
        .create_with_context(context.clone())
        .unwrap();
    (producer, context.0)
}

/// Sends until told to stop; how many were sent.
fn send_until(
    producer: &ThreadedProducer<Context>,
    told: &Told,
    id: usize,
    topic: &str,
    partitions: i32,
    pause: Duration,
    stop: &AtomicBool,
) -> u64 {
    let mut sent = 0;
    while !stop.load(Ordering::SeqCst) {
        if sent - told.done.load(Ordering::SeqCst) >= ON_THE_WAY_MAX {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let value = value(id, sent);
        let partition = (sent % partitions as u64) as i32;
        let record = BaseRecord::<(), _>::to(topic)
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
            std::thread::sleep(pause);
        }
    }
    sent
}

/// Producers that send all the time.
pub struct Load {
    bootstrap: String,
    topic: String,
    partitions: i32,
    /// Between twenty records of a producer.
    pause: Duration,
    producers: Vec<(ThreadedProducer<Context>, Arc<Told>)>,
    /// A consumer reads along from the beginning.
    watched: bool,
    /// What it saw: producer and number, by partition and offset.
    seen: Mutex<BTreeMap<(i32, i64), (usize, u64)>>,
}

impl Load {
    /// With a consumer that reads along: what it sees must stay.
    pub fn watched(bootstrap: &str, topic: &str, partitions: i32) -> Load {
        Load {
            watched: true,
            ..Load::new(bootstrap, topic, partitions)
        }
    }

    pub fn new(bootstrap: &str, topic: &str, partitions: i32) -> Load {
        Load {
            bootstrap: bootstrap.to_owned(),
            topic: topic.to_owned(),
            partitions,
            pause: Duration::from_millis(1),
            producers: (0..PRODUCERS).map(|_| start_producer(bootstrap)).collect(),
            watched: false,
            seen: Mutex::default(),
        }
    }

    /// Slow enough for a copy of the log to overtake it, on a busy machine too.
    pub fn slow(bootstrap: &str, topic: &str, partitions: i32) -> Load {
        Load {
            pause: Duration::from_millis(10),
            ..Load::new(bootstrap, topic, partitions)
        }
    }

    /// Records whose outcome is known.
    pub fn done(&self) -> u64 {
        let done = self.producers.iter().map(|(_, told)| &told.done);
        done.map(|done| done.load(Ordering::SeqCst)).sum()
    }

    /// Waits until more than `before` outcomes are known.
    pub fn goes_on(&self, before: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.done() <= before {
            assert!(Instant::now() < deadline, "nothing is acknowledged");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends while `meanwhile` runs; returns how many were sent once all are acknowledged.
    pub fn run(&self, meanwhile: impl FnOnce()) -> u64 {
        let stop = AtomicBool::new(false);
        let sent: Vec<u64> = std::thread::scope(|scope| {
            let producers = self.producers.iter().enumerate();
            let loads: Vec<_> = producers
                .map(|(id, (producer, told))| {
                    let stop = &stop;
                    scope.spawn(move || {
                        let (topic, partitions) = (&self.topic, self.partitions);
                        send_until(producer, told, id, topic, partitions, self.pause, stop)
                    })
                })
                .collect();
            if self.watched {
                scope.spawn(|| self.watch(&stop));
            }
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
            stop.store(true, Ordering::SeqCst);
            let sent = loads.into_iter().map(|load| load.join().unwrap()).collect();
            if let Err(failure) = ended {
                std::panic::resume_unwind(failure);
            }
            sent
        });
        for (producer, told) in &self.producers {
            producer.flush(PATIENCE).unwrap();
            let failed = told.failed.lock().unwrap();
            assert!(failed.is_empty(), "{} failed: {}", failed.len(), failed[0]);
        }
        sent.iter().sum()
    }

    /// Reads along until told to stop.
    fn watch(&self, stop: &AtomicBool) {
        let consumer = start_consumer(&self.bootstrap, &self.topic, self.partitions, "5000");
        while !stop.load(Ordering::SeqCst) {
            // A node that is gone or cut off is an error here; what follows is read from another.
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) else {
                continue;
            };
            let record = number_of(message.payload().unwrap());
            let place = (message.partition(), message.offset());
            let before = self.seen.lock().unwrap().insert(place, record);
            assert!(
                before.is_none_or(|before| before == record),
                "{place:?} was {before:?} and is {record:?}"
            );
        }
    }

    /// Records that the consumer has seen that reads along.
    pub fn seen(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Reads the topic and holds it against what the producers were told.
    pub fn verify(&self, bootstrap: &str, total: u64) {
        let found = read_all(bootstrap, &self.topic, self.partitions, total as usize);
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
        for ((partition, offset), record) in self.seen.lock().unwrap().iter() {
            let place = places[record];
            assert_eq!(place, (*partition, *offset), "{record:?} was seen there");
        }
        for (id, (_, told)) in self.producers.iter().enumerate() {
            for (number, (partition, offset)) in told.acknowledged.lock().unwrap().iter() {
                let place = places[&(id, *number)];
                let told = (*partition, offset.unwrap_or(place.1));
                assert_eq!(told, place, "record {number} of producer {id}");
            }
        }
    }
}

/// A consumer of all partitions, from their beginning on, that waits so many milliseconds for an
/// answer.
fn start_consumer(bootstrap: &str, topic: &str, partitions: i32, answer_ms: &str) -> BaseConsumer {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "reader")
        .set("socket.timeout.ms", answer_ms)
        .set("reconnect.backoff.ms", "10")
        .set("reconnect.backoff.max.ms", "50")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&list).unwrap();
    consumer
}

/// Everything in the topic, by partition, in order of the offsets.
fn read_all(
    bootstrap: &str,
    topic: &str,
    partitions: i32,
    count: usize,
) -> BTreeMap<i32, Vec<(i64, usize, u64)>> {
    let consumer = start_consumer(bootstrap, topic, partitions, "30000");
    let mut found: BTreeMap<i32, Vec<(i64, usize, u64)>> = BTreeMap::new();
    let mut read = 0;
    let deadline = Instant::now() + PATIENCE;
    let mut quiet_since = Instant::now();
    // A little longer than it takes: a duplicate would come last.
    while read < count || quiet_since.elapsed() < Duration::from_millis(500) {
        assert!(Instant::now() < deadline, "{read} of {count} records");
        match consumer.poll(Duration::from_millis(50)) {
            Some(Ok(message)) => {
                let (producer, number) = number_of(message.payload().unwrap());
                let partition = found.entry(message.partition()).or_default();
                partition.push((message.offset(), producer, number));
                read += 1;
                quiet_since = Instant::now();
            }
            // A lost connection or a late answer: librdkafka tries again.
            Some(Err(error)) => eprintln!("{error}"),
            None => {}
        }
    }
    found
}

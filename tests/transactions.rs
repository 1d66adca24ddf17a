//! librdkafka's transactional producers against the real broker: commits, aborts, fencing, offsets
//! in a transaction; and kill -9, again and again, in each row of the durability table: every
//! transaction is there wholly or not at all, and wholly if its commit was acknowledged.
//!
//! `HIGHWATER_KILLS` says how often each row is killed (10).
#![allow(clippy::unwrap_used)]

mod support;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{Broker, fixed_port};

const WAIT: Duration = Duration::from_secs(60);
const TOPIC: &str = "t";
const PARTITIONS: i32 = 3;

type Transactional = ThreadedProducer<DefaultProducerContext>;

/// A broker on a port that it keeps.
fn broker(settings: &[&str]) -> Broker {
    let listener = format!("listeners=PLAINTEXT://127.0.0.1:{}", fixed_port());
    let partitions = format!("num.partitions={PARTITIONS}");
    let mut all = vec![
        &*listener,
        &*partitions,
        "offsets.topic.num.partitions=3",
        "transaction.state.log.num.partitions=3",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "group.initial.rebalance.delay.ms=0",
    ];
    all.extend(settings);
    Broker::start(&all)
}

/// A producer that has taken its transactional id over.
fn transactional(bootstrap: &str, id: &str) -> KafkaResult<Transactional> {
    let producer: Transactional = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("transactional.id", id)
        .set("linger.ms", "2")
        .set("reconnect.backoff.max.ms", "200")
        .create()?;
    producer.init_transactions(WAIT)?;
    Ok(producer)
}

/// One record for each partition.
fn send(producer: &Transactional, value: &str) -> KafkaResult<()> {
    for partition in 0..PARTITIONS {
        let record = BaseRecord::<(), str>::to(TOPIC)
            .partition(partition)
            .payload(value);
        producer.send(record).map_err(|(error, _)| error)?;
    }
    Ok(())
}

fn transaction(producer: &Transactional, value: &str) {
    producer.begin_transaction().unwrap();
    send(producer, value).unwrap();
    producer.commit_transaction(WAIT).unwrap();
}

fn consumer(bootstrap: &str, group: &str, isolation: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", group)
        .set("isolation.level", isolation)
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap()
}

/// The values that a reader sees in each partition, in order.
fn seen(bootstrap: &str, isolation: &str) -> Vec<Vec<String>> {
    let consumer = consumer(bootstrap, "reader", isolation);
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition_offset(TOPIC, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&list).unwrap();
    let mut values = vec![Vec::new(); PARTITIONS as usize];
    let mut ended = std::collections::BTreeSet::new();
    let deadline = Instant::now() + WAIT;
    while ended.len() < PARTITIONS as usize {
        assert!(Instant::now() < deadline, "ends of {ended:?} only");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                let value = String::from_utf8(message.payload().unwrap().to_vec()).unwrap();
                values[message.partition() as usize].push(value);
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ended.insert(partition);
            }
            Some(Err(error)) => eprintln!("{error}"),
            None => {}
        }
    }
    values
}

/// A reader sees these values in each partition. For a moment it may see the first of them only: a
/// commit is answered before the partitions have heard of it. It never sees others.
fn assert_seen(bootstrap: &str, isolation: &str, values: &[&str]) {
    let deadline = Instant::now() + WAIT;
    loop {
        let found = seen(bootstrap, isolation);
        for (partition, seen) in found.iter().enumerate() {
            let due = &values[..values.len().min(seen.len())];
            assert_eq!(seen, due, "{isolation}, partition {partition}");
        }
        if found.iter().all(|seen| seen.len() == values.len()) {
            return;
        }
        assert!(Instant::now() < deadline, "{isolation}: {found:?} only");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn code(result: KafkaResult<()>) -> RDKafkaErrorCode {
    match result.expect_err("it is refused") {
        KafkaError::Transaction(error) => error.code(),
        error => error.rdkafka_error_code().unwrap(),
    }
}

#[test]
fn committed_records_are_seen_aborted_ones_are_not_and_open_ones_hold_readers_back() {
    let broker = broker(&[]);
    let at = broker.bootstrap();
    let first = transactional(&at, "first").unwrap();
    transaction(&first, "one");
    first.begin_transaction().unwrap();
    send(&first, "two").unwrap();
    first.flush(WAIT).unwrap();
    first.abort_transaction(WAIT).unwrap();
    first.begin_transaction().unwrap();
    send(&first, "three").unwrap();
    first.flush(WAIT).unwrap();
    // Committed, but behind what is open.
    transaction(&transactional(&at, "second").unwrap(), "four");
    assert_seen(&at, "read_committed", &["one"]);
    assert_seen(&at, "read_uncommitted", &["one", "two", "three", "four"]);
    first.commit_transaction(WAIT).unwrap();
    assert_seen(&at, "read_committed", &["one", "three", "four"]);
}

#[test]
fn whoever_takes_a_transactional_id_over_fences_the_one_before() {
    let broker = broker(&[]);
    let at = broker.bootstrap();
    let first = transactional(&at, "id").unwrap();
    transaction(&first, "one");
    first.begin_transaction().unwrap();
    send(&first, "two").unwrap();
    first.flush(WAIT).unwrap();
    let second = transactional(&at, "id").unwrap();
    assert_seen(&at, "read_committed", &["one"]);
    let refused = code(first.commit_transaction(WAIT));
    assert_eq!(refused, RDKafkaErrorCode::Fenced);
    transaction(&second, "three");
    assert_seen(&at, "read_committed", &["one", "three"]);
    assert_seen(&at, "read_uncommitted", &["one", "two", "three"]);
}

#[test]
fn offsets_move_with_their_transaction_only() {
    let mut broker = broker(&[]);
    let at = broker.bootstrap();
    let producer = transactional(&at, "id").unwrap();
    for value in ["one", "two", "three"] {
        transaction(&producer, value);
    }
    let member = consumer(&at, "group", "read_committed");
    member.subscribe(&[TOPIC]).unwrap();
    let mut next = BTreeMap::new();
    let deadline = Instant::now() + WAIT;
    while next.len() < PARTITIONS as usize {
        assert!(Instant::now() < deadline, "read {next:?} only");
        if let Some(Ok(message)) = member.poll(Duration::from_millis(100)) {
            next.insert(message.partition(), message.offset() + 1);
        }
    }
    let committed = |at: &str| -> Vec<Offset> {
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(TOPIC, 0, PARTITIONS - 1);
        let asker = consumer(at, "group", "read_committed");
        let answer = asker.committed_offsets(asked, WAIT).unwrap();
        answer.elements().iter().map(|e| e.offset()).collect()
    };
    let mut offsets = TopicPartitionList::new();
    for (partition, offset) in &next {
        offsets
            .add_partition_offset(TOPIC, *partition, Offset::Offset(*offset))
            .unwrap();
    }
    let take = || {
        producer.begin_transaction().unwrap();
        let group = member.group_metadata().unwrap();
        producer
            .send_offsets_to_transaction(&offsets, &group, WAIT)
            .unwrap();
    };
    take();
    producer.abort_transaction(WAIT).unwrap();
    assert_eq!(committed(&at), [Offset::Invalid; PARTITIONS as usize]);
    take();
    producer.commit_transaction(WAIT).unwrap();
    let moved: Vec<Offset> = next
        .values()
        .map(|offset| Offset::Offset(*offset))
        .collect();
    assert_eq!(committed(&at), moved);
    broker.kill();
    broker.restart();
    assert_eq!(committed(&at), moved, "after a crash");
    // Other commits of the group go on where the transaction left it.
    member.commit(&offsets, CommitMode::Sync).unwrap();
    assert_eq!(committed(&at), moved);
}

/// What a writer was told of a transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Committed,
    Aborted,
    /// The commit was asked for, and no answer came.
    Nothing,
}

/// Transactions one after the other, some aborted, until `enough`; what was told of each.
fn write(bootstrap: &str, id: &str, enough: &AtomicBool, done: &AtomicUsize) -> Vec<Told> {
    let mut told = Vec::new();
    let mut producer = None;
    while !enough.load(Ordering::SeqCst) {
        let Some(current) = &producer else {
            // Takes its id over again, which ends what the producer before left open.
            producer = transactional(bootstrap, id)
                .inspect_err(|error| eprintln!("{id}: {error}"))
                .ok();
            continue;
        };
        let value = format!("{id} {}", told.len());
        let sent = current.begin_transaction().and_then(|()| {
            send(current, &value)?;
            current.flush(WAIT)
        });
        let (end, ended) = match sent {
            Err(error) => (Told::Aborted, Err(error)),
            Ok(()) if fastrand::u8(..) < 64 => (Told::Aborted, current.abort_transaction(WAIT)),
            Ok(()) => match current.commit_transaction(WAIT) {
                Ok(()) => (Told::Committed, Ok(())),
                Err(error) => (Told::Nothing, Err(error)),
            },
        };
        told.push(end);
        done.fetch_add(1, Ordering::SeqCst);
        if let Err(error) = ended {
            eprintln!("{value}: {error}");
            producer = None;
        }
    }
    // Nothing is left open that would hold the readers back.
    let last = transactional(bootstrap, id);
    drop(producer);
    drop(last.unwrap());
    told
}

fn all_or_nothing(settings: &[&str]) {
    const WRITERS: usize = 3;
    let kills: usize = std::env::var("HIGHWATER_KILLS").map_or(10, |text| text.parse().unwrap());
    let mut all = vec![
        // Segments of both logs roll, and are recovered from.
        "log.segment.bytes=1048576",
        "transaction.state.log.segment.bytes=1048576",
        "log.flush.offset.checkpoint.interval.ms=50",
        "replica.high.watermark.checkpoint.interval.ms=50",
    ];
    all.extend(settings);
    let mut broker = broker(&all);
    let at = broker.bootstrap();
    let (enough, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut at_kills = Vec::new();
    let told: Vec<Vec<Told>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (at, enough, done) = (&at, &enough, &done);
                scope.spawn(move || write(at, &format!("writer-{number}"), enough, done))
            })
            .collect();
        let goes_on = |from: usize| {
            let deadline = Instant::now() + 2 * WAIT;
            while done.load(Ordering::SeqCst) < from + 5 * WRITERS {
                if Instant::now() > deadline {
                    enough.store(true, Ordering::SeqCst);
                    panic!("no more transactions after {from}");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        for _ in 0..kills {
            // Every kill falls into a load: the writers have found the broker again.
            goes_on(at_kills.last().copied().unwrap_or(0));
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..150)));
            broker.kill();
            at_kills.push(done.load(Ordering::SeqCst));
            broker.restart();
        }
        goes_on(at_kills.last().copied().unwrap_or(0));
        enough.store(true, Ordering::SeqCst);
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    println!("transactions ended at each kill: {at_kills:?}");
    verify(&told, &seen(&at, "read_committed"));
}

/// Holds what is read in each partition against what the writers were told.
fn verify(told: &[Vec<Told>], seen: &[Vec<String>]) {
    for (writer, told) in told.iter().enumerate() {
        let prefix = format!("writer-{writer} ");
        let mut parts = vec![0; told.len()];
        for (partition, values) in seen.iter().enumerate() {
            let numbers: Vec<usize> = values
                .iter()
                .filter_map(|value| value.strip_prefix(&prefix))
                .map(|number| number.parse().unwrap())
                .collect();
            assert!(
                numbers.is_sorted_by(|before, after| before < after),
                "writer {writer}, partition {partition}: doubled or out of order in {numbers:?}"
            );
            numbers.iter().for_each(|number| parts[*number] += 1);
        }
        for (number, (told, parts)) in told.iter().zip(parts).enumerate() {
            let whole = parts == PARTITIONS;
            let right = match told {
                Told::Committed => whole,
                Told::Aborted => parts == 0,
                Told::Nothing => whole || parts == 0,
            };
            assert!(
                right,
                "writer {writer}: transaction {number} ({told:?}) is in {parts} partitions"
            );
        }
    }
}

#[test]
fn all_or_nothing_from_the_page_cache() {
    all_or_nothing(&[]);
}

#[test]
fn all_or_nothing_after_a_flush() {
    all_or_nothing(&["log.flush.interval.messages=1"]);
}

#[test]
fn all_or_nothing_by_direct_writes() {
    all_or_nothing(&["highwater.segment.io=direct"]);
}

#[test]
fn all_or_nothing_by_direct_writes_after_a_flush() {
    all_or_nothing(&[
        "highwater.segment.io=direct",
        "log.flush.interval.messages=1",
    ]);
}

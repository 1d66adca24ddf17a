//! Real librdkafka against the real broker: every codec, keys, headers, timestamps, idempotence,
//! groups with a rebalance, and restarts. What kill -9 must not cost is in `kill_nine.rs`.
#![allow(clippy::unwrap_used)]

mod support;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, Message as _, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::Broker;

const WAIT: Duration = Duration::from_secs(60);

/// Remembers the offset of every acknowledged record by its value.
#[derive(Clone, Default)]
struct Acks(Arc<Mutex<Outcome>>);

#[derive(Default)]
struct Outcome {
    acknowledged: BTreeMap<String, (i32, i64)>,
    failed: usize,
}

impl ClientContext for Acks {}

impl ProducerContext for Acks {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let mut outcome = self.0.lock().unwrap();
        match result {
            Ok(message) => {
                let value =
                    String::from_utf8(message.payload().unwrap_or_default().to_vec()).unwrap();
                outcome
                    .acknowledged
                    .insert(value, (message.partition(), message.offset()));
            }
            Err(_) => outcome.failed += 1,
        }
    }
}

fn producer(broker: &Broker, settings: &[(&str, &str)]) -> (ThreadedProducer<Acks>, Acks) {
    let acks = Acks::default();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker.bootstrap());
    for (key, value) in settings {
        config.set(*key, *value);
    }
    (config.create_with_context(acks.clone()).unwrap(), acks)
}

fn send(producer: &ThreadedProducer<Acks>, topic: &str, key: &str, value: &str) {
    let mut record = BaseRecord::to(topic).key(key).payload(value);
    loop {
        match producer.send(record) {
            Ok(()) => return,
            Err((
                KafkaError::MessageProduction(rdkafka::types::RDKafkaErrorCode::QueueFull),
                back,
            )) => {
                record = back;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err((error, _)) => panic!("{error}"),
        }
    }
}

fn consumer(broker: &Broker, group: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("session.timeout.ms", "6000")
        .set("heartbeat.interval.ms", "500")
        .create()
        .unwrap()
}

/// Reads everything from the start of each partition, `count` records at least.
fn read_all(broker: &Broker, topic: &str, partitions: i32, count: usize) -> Vec<OwnedMessage> {
    let consumer = consumer(broker, "reader");
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&list).unwrap();
    let deadline = Instant::now() + WAIT;
    let mut read = Vec::new();
    let mut quiet_since = Instant::now();
    while Instant::now() < deadline
        && (read.len() < count || quiet_since.elapsed() < Duration::from_secs(1))
    {
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            match message {
                Ok(message) => {
                    read.push(message.detach());
                    quiet_since = Instant::now();
                }
                Err(error) => eprintln!("{error}"),
            }
        }
    }
    assert!(read.len() >= count, "{} of {count} records", read.len());
    read
}

fn text(message: &OwnedMessage) -> String {
    String::from_utf8(message.payload().unwrap_or_default().to_vec()).unwrap()
}

#[test]
fn every_codec_comes_back_as_it_was_sent() {
    let broker = Broker::start(&[]);
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let (producer, acks) = producer(
            &broker,
            &[("compression.codec", codec), ("linger.ms", "20")],
        );
        let topic = format!("codec-{codec}");
        let sent: Vec<String> = (0..500)
            .map(|n| format!("{codec}-{n}-{}", "x".repeat(n % 100)))
            .collect();
        for value in &sent {
            send(&producer, &topic, "k", value);
        }
        producer.flush(WAIT).unwrap();
        assert_eq!(acks.0.lock().unwrap().acknowledged.len(), 500, "{codec}");
        let read: Vec<String> = read_all(&broker, &topic, 1, 500).iter().map(text).collect();
        assert_eq!(read, sent, "{codec}");
    }
}

#[test]
fn keys_headers_nulls_and_timestamps_are_kept() {
    let broker = Broker::start(&[]);
    let (producer, _) = producer(&broker, &[]);
    let headers = OwnedHeaders::new()
        .insert(Header {
            key: "twice",
            value: Some("one"),
        })
        .insert(Header {
            key: "twice",
            value: Some("two"),
        })
        .insert(Header {
            key: "null",
            value: None::<&str>,
        });
    producer
        .send(
            BaseRecord::to("t")
                .key("key")
                .payload("value")
                .headers(headers)
                .timestamp(1_700_000_000_123),
        )
        .map_err(|(error, _)| error)
        .unwrap();
    producer
        .send(BaseRecord::<str, str>::to("t").key("tombstone"))
        .map_err(|(error, _)| error)
        .unwrap();
    producer.flush(WAIT).unwrap();
    let read = read_all(&broker, "t", 1, 2);
    assert_eq!(read[0].key(), Some(&b"key"[..]));
    assert_eq!(read[0].timestamp().to_millis(), Some(1_700_000_000_123));
    let headers: Vec<(String, Option<Vec<u8>>)> = read[0]
        .headers()
        .unwrap()
        .iter()
        .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
        .collect();
    let expected = [
        ("twice", Some("one")),
        ("twice", Some("two")),
        ("null", None),
    ]
    .map(|(key, value)| (key.to_owned(), value.map(|value| value.as_bytes().to_vec())));
    assert_eq!(headers, expected);
    assert_eq!(
        (read[1].key(), read[1].payload()),
        (Some(&b"tombstone"[..]), None)
    );
}

#[test]
fn a_restart_in_the_middle_loses_and_doubles_nothing() {
    let mut broker = Broker::start(&["num.partitions=3"]);
    let (first, acks) = producer(
        &broker,
        &[("enable.idempotence", "true"), ("linger.ms", "5")],
    );
    for n in 0..1000 {
        send(&first, "t", &n.to_string(), &format!("before-{n}"));
    }
    first.flush(WAIT).unwrap();
    assert_eq!(acks.0.lock().unwrap().acknowledged.len(), 1000);
    broker.stop();
    broker.restart();
    let (second, acks) = producer(
        &broker,
        &[("enable.idempotence", "true"), ("linger.ms", "5")],
    );
    for n in 0..1000 {
        send(&second, "t", &n.to_string(), &format!("after-{n}"));
    }
    second.flush(WAIT).unwrap();
    assert_eq!(acks.0.lock().unwrap().acknowledged.len(), 1000);
    let mut read: Vec<String> = read_all(&broker, "t", 3, 2000).iter().map(text).collect();
    read.sort();
    let mut sent: Vec<String> = (0..1000)
        .flat_map(|n| [format!("before-{n}"), format!("after-{n}")])
        .collect();
    sent.sort();
    assert_eq!(read, sent);
}

#[test]
fn two_members_share_the_partitions_and_the_survivor_takes_over() {
    let broker = Broker::start(&["num.partitions=4", "group.initial.rebalance.delay.ms=200"]);
    let (producer, _) = producer(&broker, &[]);
    for n in 0..400 {
        send(&producer, "t", &n.to_string(), &n.to_string());
    }
    producer.flush(WAIT).unwrap();
    let (first, second) = (consumer(&broker, "pair"), consumer(&broker, "pair"));
    first.subscribe(&["t"]).unwrap();
    second.subscribe(&["t"]).unwrap();
    let owned = |consumer: &BaseConsumer| consumer.assignment().unwrap().count();
    let mut seen = std::collections::BTreeSet::new();
    let mut poll = |consumer: &BaseConsumer| {
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(20)) {
            seen.insert(text(&message.detach()));
        }
        seen.len()
    };
    let deadline = Instant::now() + WAIT;
    loop {
        poll(&first);
        let all = poll(&second) == 400;
        if all && owned(&first) == 2 && owned(&second) == 2 {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "{} and {} partitions",
            owned(&first),
            owned(&second)
        );
    }
    drop(second);
    while owned(&first) != 4 {
        assert!(
            Instant::now() < deadline,
            "{} partitions after the other left",
            owned(&first)
        );
        poll(&first);
    }
}

#[test]
fn committed_offsets_survive_a_crash() {
    let mut broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    let (producer, _) = producer(&broker, &[]);
    for n in 0..10 {
        send(&producer, "t", "k", &n.to_string());
    }
    producer.flush(WAIT).unwrap();
    let consumer = consumer(&broker, "keeper");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset("t", 0, Offset::Offset(7))
        .unwrap();
    consumer
        .commit(&list, rdkafka::consumer::CommitMode::Sync)
        .unwrap();
    broker.kill();
    broker.restart();
    let consumer = self::consumer(&broker, "keeper");
    let mut asked = TopicPartitionList::new();
    asked.add_partition("t", 0);
    let committed = consumer.committed_offsets(asked, WAIT).unwrap();
    assert_eq!(committed.elements()[0].offset(), Offset::Offset(7));
}

#[test]
fn an_idempotent_producers_repeated_batch_gets_its_first_offset_again_even_after_a_restart() {
    use bytes::Bytes;
    use highwater::wire::batch_builder::BatchBuilder;
    use highwater::wire::messages::init_producer_id_request::InitProducerIdRequest;
    use highwater::wire::messages::init_producer_id_response::InitProducerIdResponse;
    use highwater::wire::messages::produce_request::{
        PartitionProduceData, ProduceRequest, TopicProduceData,
    };
    use highwater::wire::messages::produce_response::ProduceResponse;
    use highwater::wire::{ErrorCode, Records};
    use support::raw::Raw;

    fn batch(id: i64, epoch: i16, sequence: i32) -> Bytes {
        let mut batch = BatchBuilder::new().with_producer(id, epoch, sequence);
        // Of now: a producer that has been silent for a day is forgotten at the next start.
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        batch
            .append(now.as_millis() as i64, None, Some(b"again"), &[])
            .unwrap();
        batch.build().unwrap()
    }
    fn produce(raw: &mut Raw, records: Bytes) -> (ErrorCode, i64) {
        let request = ProduceRequest {
            acks: -1,
            timeout_ms: 5000,
            topic_data: vec![TopicProduceData {
                name: "t".into(),
                partition_data: vec![PartitionProduceData {
                    records: Some(Records::from(records)),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer: ProduceResponse = raw.call(&request, 9);
        let partition = &answer.responses[0].partition_responses[0];
        (ErrorCode(partition.error_code), partition.base_offset)
    }

    let mut broker = Broker::start(&[]);
    let (maker, _) = producer(&broker, &[]);
    send(&maker, "t", "k", "makes the topic");
    maker.flush(WAIT).unwrap();
    let mut raw = Raw::connect(broker.address);
    let ids: InitProducerIdResponse = raw.call(
        &InitProducerIdRequest {
            transactional_id: None,
            ..Default::default()
        },
        4,
    );
    assert_eq!(ids.error_code, 0);
    let (id, epoch) = (ids.producer_id, ids.producer_epoch);
    for sequence in 0..7 {
        assert_eq!(
            produce(&mut raw, batch(id, epoch, sequence)),
            (ErrorCode::NONE, i64::from(sequence) + 1)
        );
    }
    // The last five are remembered, older ones are not, and gaps are refused.
    assert_eq!(produce(&mut raw, batch(id, epoch, 3)), (ErrorCode::NONE, 4));
    assert_eq!(
        produce(&mut raw, batch(id, epoch, 0)).0,
        ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER
    );
    assert_eq!(
        produce(&mut raw, batch(id, epoch, 9)).0,
        ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER
    );
    broker.kill();
    broker.restart();
    let mut raw = Raw::connect(broker.address);
    assert_eq!(
        produce(&mut raw, batch(id, epoch, 6)),
        (ErrorCode::NONE, 7),
        "after a crash"
    );
    broker.stop();
    broker.restart();
    let mut raw = Raw::connect(broker.address);
    assert_eq!(
        produce(&mut raw, batch(id, epoch, 6)),
        (ErrorCode::NONE, 7),
        "after a clean stop"
    );
    assert_eq!(produce(&mut raw, batch(id, epoch, 7)), (ErrorCode::NONE, 8));
}

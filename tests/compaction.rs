//! Compaction by the real broker, under a real client: a compacted topic keeps the last value of
//! every key, and committed offsets survive the compaction of the topic they lie in.
#![allow(clippy::unwrap_used)]

mod support;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::Broker;

const WAIT: Duration = Duration::from_secs(60);

/// The sum over all shards of one metric.
fn metric(port: u16, name: &str) -> i64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let start = format!("{name}{{");
    let values = page.lines().filter(|line| line.starts_with(&start));
    values
        .map(|line| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap())
        .sum()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn client(broker: &Broker) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker.bootstrap());
    config
}

fn consumer(broker: &Broker, group: &str) -> BaseConsumer {
    client(broker)
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap()
}

/// Every record of partition 0: offset, key, value.
fn read_all(broker: &Broker, topic: &str) -> Vec<(i64, String, Option<String>)> {
    let consumer = consumer(broker, "reader");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning)
        .unwrap();
    consumer.assign(&list).unwrap();
    let mut read = Vec::new();
    let deadline = Instant::now() + WAIT;
    while Instant::now() < deadline {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let key = text(message.key().unwrap());
                read.push((message.offset(), key, message.payload().map(text)));
            }
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => return read,
            // A lost connection or a late answer: librdkafka tries again.
            Some(Err(error)) => eprintln!("{error}"),
            None => {}
        }
    }
    panic!("no end after {} records", read.len());
}

fn create(broker: &Broker, topic: &str, settings: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> = client(broker).create().unwrap();
    let mut new = NewTopic::new(topic, 1, TopicReplication::Fixed(1));
    for (name, value) in settings {
        new = new.set(name, value);
    }
    let made = futures_lite::future::block_on(admin.create_topics([&new], &AdminOptions::new()));
    made.unwrap().pop().unwrap().unwrap();
}

#[test]
fn a_compacted_topic_keeps_the_last_value_of_every_key() {
    let port = support::fixed_port();
    let metrics = format!("highwater.metrics.listener=127.0.0.1:{port}");
    let mut broker = Broker::start(&[
        &metrics,
        "log.cleaner.backoff.ms=100",
        "offsets.topic.num.partitions=1",
    ]);
    create(
        &broker,
        "state",
        &[
            ("cleanup.policy", "compact"),
            ("segment.bytes", "1048576"),
            ("min.cleanable.dirty.ratio", "0.01"),
            ("delete.retention.ms", "0"),
        ],
    );
    let mut last: BTreeMap<String, Option<String>> = BTreeMap::new();
    // Noise, so that compressed batches fill segments as well.
    let mut rng = fastrand::Rng::with_seed(1);
    let mut padding = || -> String { (0..2000).map(|_| rng.alphanumeric()).collect() };
    let mut count = 0;
    for codec in ["none", "lz4", "zstd"] {
        let producer: BaseProducer = client(&broker)
            .set("compression.type", codec)
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .create()
            .unwrap();
        for version in 0..100 {
            for key in 0..20 {
                let key = format!("key-{key}");
                // Every fifth key ends with a tombstone.
                let gone = version == 99 && count % 5 == 0;
                let value = (!gone).then(|| format!("{codec} {version} {count} {}", padding()));
                let mut record = BaseRecord::<str, str>::to("state").key(&key);
                record.payload = value.as_deref();
                while let Err((_, back)) = producer.send(record) {
                    record = back;
                    producer.poll(Duration::from_millis(10));
                }
                last.insert(key, value);
                count += 1;
            }
        }
        producer.flush(WAIT).unwrap();
    }
    wait_for("a compaction", || {
        read_all(&broker, "state").len() < count as usize / 3
    });
    let passes = metric(port, "highwater_log_cleaner_passes_total");
    assert!(passes > 0);
    let values = |read: Vec<(i64, String, Option<String>)>| {
        let mut values = BTreeMap::new();
        let mut before = -1;
        for (offset, key, value) in read {
            assert!(offset > before, "offsets only grow");
            before = offset;
            values.insert(key, value);
        }
        values
    };
    let kept = |values: &BTreeMap<String, Option<String>>| -> BTreeMap<String, String> {
        let kept = values
            .iter()
            .filter_map(|(k, v)| Some((k.clone(), v.clone()?)));
        kept.collect()
    };
    assert_eq!(kept(&values(read_all(&broker, "state"))), kept(&last));
    assert_eq!(
        metric(port, "highwater_log_cleaner_uncleanable_partitions_count"),
        0
    );
    assert!(metric(port, "highwater_log_cleaner_read_bytes_total") > 1 << 20);
    broker.kill();
    broker.restart();
    assert_eq!(kept(&values(read_all(&broker, "state"))), kept(&last));
    broker.stop();
    let checkpoint = std::fs::read_to_string(broker.data.join("cleaner-offset-checkpoint"));
    assert!(checkpoint.unwrap().contains("state 0 "));
    broker.restart();
    assert_eq!(kept(&values(read_all(&broker, "state"))), kept(&last));
}

#[test]
fn committed_offsets_survive_the_compaction_of_their_topic() {
    let port = support::fixed_port();
    let metrics = format!("highwater.metrics.listener=127.0.0.1:{port}");
    let mut broker = Broker::start(&[
        &metrics,
        "log.cleaner.backoff.ms=100",
        "log.cleaner.min.cleanable.ratio=0.01",
        "log.roll.ms=200",
        "offsets.topic.num.partitions=1",
    ]);
    create(&broker, "orders", &[]);
    let groups = ["one", "two", "three"];
    let commit = |broker: &Broker, group: &str, offset: i64| {
        let consumer = consumer(broker, group);
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("orders", 0, Offset::Offset(offset))
            .unwrap();
        consumer.commit(&list, CommitMode::Sync).unwrap();
    };
    let mut offset = 0;
    let passes = || metric(port, "highwater_log_cleaner_passes_total");
    let deadline = Instant::now() + WAIT;
    while passes() < 2 {
        assert!(Instant::now() < deadline, "no compaction");
        offset += 1;
        for group in groups {
            commit(&broker, group, offset);
        }
    }
    let size = |broker: &Broker| {
        let dir = broker.partition_dir("__consumer_offsets", 0);
        let files = std::fs::read_dir(dir).unwrap();
        let logs = files.filter(|file| {
            let path = file.as_ref().unwrap().path();
            path.extension().is_some_and(|kind| kind == "log")
        });
        logs.map(|file| file.unwrap().metadata().unwrap().len())
            .sum::<u64>()
    };
    assert!(size(&broker) > 0);
    for end in ["kill", "stop"] {
        match end {
            "kill" => broker.kill(),
            _ => broker.stop(),
        }
        broker.restart();
        for group in groups {
            let consumer = consumer(&broker, group);
            let mut list = TopicPartitionList::new();
            list.add_partition("orders", 0);
            let found = consumer.committed_offsets(list, WAIT).unwrap();
            let found = found.elements()[0].offset();
            assert_eq!(found, Offset::Offset(offset), "group {group} after {end}");
        }
    }
}

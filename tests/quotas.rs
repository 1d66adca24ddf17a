//! Client quotas on a real broker under librdkafka: the answers say for how long a client waits, and
//! the bytes a second come down to the quota.
#![allow(clippy::unwrap_used)]

mod support;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use std::process::Command;
use std::time::{Duration, Instant};
use support::Broker;
use support::client::Client;

const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes a second. Ten seconds of it may be used up at once, as in Kafka.
const QUOTA: usize = 100_000;
const AT_ONCE: usize = 10 * QUOTA;
/// What is sent beyond that takes at least so long.
const SECONDS: usize = 5;
const VALUE: usize = 10_000;
const RECORDS: usize = (AT_ONCE + SECONDS * QUOTA) / VALUE + 10;

fn configs(broker: &Broker, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_highwater"))
        .arg("configs")
        .args(arguments)
        .args(["--bootstrap-server", &broker.bootstrap()])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

fn send(broker: &Broker, client: &str) -> Duration {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .set("client.id", client)
        .set("batch.num.messages", "5")
        .create()
        .unwrap();
    let begun = Instant::now();
    let value = [b'.'; VALUE];
    for at in 0..RECORDS {
        let record = BaseRecord::<(), _>::to("t")
            .partition(at as i32 % 4)
            .payload(&value[..]);
        producer.send(record).unwrap();
        producer.poll(Duration::ZERO);
    }
    producer.flush(PATIENCE).unwrap();
    begun.elapsed()
}

fn receive(broker: &Broker, client: &str) -> Duration {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .set("group.id", "g")
        .set("client.id", client)
        .set("fetch.message.max.bytes", "20000")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..4 {
        list.add_partition_offset("t", partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&list).unwrap();
    let begun = Instant::now();
    let mut read = 0;
    while read < RECORDS {
        assert!(begun.elapsed() < PATIENCE, "{read} of {RECORDS}");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                assert_eq!(message.payload().unwrap().len(), VALUE);
                read += 1;
            }
            // A lost connection or a late answer: librdkafka tries again.
            Some(Err(error)) => eprintln!("{error}"),
            None => {}
        }
    }
    begun.elapsed()
}

#[test]
fn clients_are_held_to_their_quotas_and_told_so() {
    let broker = Broker::start(&[
        "highwater.shards=2",
        "highwater.request.log=true",
        "offsets.topic.num.partitions=1",
    ]);
    Client::connect(broker.address).create_topic("t", 4, &[]);
    let rate = |name: &str| format!("{name}={QUOTA}");
    let produced = rate("producer_byte_rate");
    let consumed = rate("consumer_byte_rate");
    configs(
        &broker,
        &[
            "alter",
            "--entity-type",
            "clients",
            "--entity-name",
            "held",
            "--add-config",
            &produced,
        ],
    );
    configs(
        &broker,
        &[
            "alter",
            "--user-defaults",
            "--client",
            "held",
            "--add-config",
            &consumed,
        ],
    );
    assert_eq!(
        configs(&broker, &["describe", "--entity-type", "clients"]),
        "Quota configs for client-id 'held' are producer_byte_rate=100000.0\n"
    );
    assert_eq!(
        configs(
            &broker,
            &["describe", "--user-defaults", "--client", "held"]
        ),
        "Quota configs for the default user-principal, client-id 'held' are \
         consumer_byte_rate=100000.0\n"
    );
    // Nobody waits who has no quota; only that the others do is told apart by the clock.
    send(&broker, "free");
    let throttled = |api: &str, client: &str| {
        let lines = broker.request_log(api);
        let of_client = lines
            .iter()
            .filter(|l| l["requestHeader"]["clientId"] == client);
        of_client
            .filter(|line| line["response"]["throttleTimeMs"].as_i64().unwrap_or(0) > 0)
            .count()
    };
    assert_eq!(throttled("PRODUCE", "free"), 0);
    let took = send(&broker, "held");
    // A slow host only makes it longer.
    assert!(took >= Duration::from_secs(SECONDS as u64 - 1), "{took:?}");
    assert!(throttled("PRODUCE", "held") > 0);
    receive(&broker, "free");
    assert_eq!(throttled("FETCH", "free"), 0);
    let took = receive(&broker, "held");
    assert!(took >= Duration::from_secs(SECONDS as u64 - 1), "{took:?}");
    assert!(throttled("FETCH", "held") > 0);
    // A quota that is gone holds nobody.
    for entity in [
        &["--entity-type", "clients", "--entity-name", "held"][..],
        &["--user-defaults", "--client", "held"],
    ] {
        let gone = [
            "alter",
            "--delete-config",
            "producer_byte_rate,consumer_byte_rate",
        ];
        configs(&broker, &[&gone[..], entity].concat());
    }
    let before = throttled("PRODUCE", "held");
    send(&broker, "held");
    assert_eq!(throttled("PRODUCE", "held"), before);
}

//! Transactions of our own client against a broker as a child process: what a consumer with
//! `read_committed` sees is what was committed.
#![allow(clippy::unwrap_used)]

mod support;

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use highwater::client::{
    Admin, CommittedOffset, Consumer, ConsumerConfig, GroupMetadata, Isolation, NewTopic,
    OffsetReset, Producer, ProducerConfig, ProducerRecord, TopicPartition,
};
use highwater::rt::{self, RingPlan, run_ring};
use highwater::types::Offset;
use highwater::wire::ErrorCode;
use support::Broker;

/// How long records are waited for that must come.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long nothing must come before nothing is believed to come.
const SILENCE: Duration = Duration::from_secs(1);

/// A broker, and where it is. Its port is fixed, for one that comes again is looked for there.
fn broker() -> (String, Broker) {
    let listener = format!("listeners=PLAINTEXT://127.0.0.1:{}", support::fixed_port());
    let broker = Broker::start(&[&listener, "offsets.topic.num.partitions=4"]);
    (broker.bootstrap(), broker)
}

/// Runs `main` on an executor to its end.
fn on_executor<F: Future<Output = ()> + 'static>(main: impl FnOnce() -> F + Send + 'static) {
    let main = Arc::new(Mutex::new(Some(main)));
    let ended = Arc::new(Mutex::new(false));
    run_ring(RingPlan::default(), {
        let ended = ended.clone();
        move |executor| {
            let main = executor.is_control().then(|| main.lock().unwrap().take());
            let ended = ended.clone();
            async move {
                if let Some(main) = main.flatten() {
                    main().await;
                    *ended.lock().unwrap() = true;
                }
            }
        }
    })
    .unwrap();
    assert!(*ended.lock().unwrap(), "the test did not come to its end");
}

/// A topic of its own for each test and run.
async fn topic(bootstrap: &str, name: &str, partitions: i32) -> String {
    let name = format!("{name}-{:016x}", rt::random_u64());
    let config = ProducerConfig::new(bootstrap).client;
    let admin = Admin::connect(config).await.unwrap();
    let topic = NewTopic::new(&name, partitions, 1);
    admin.create_topic(&topic, false).await.unwrap();
    name
}

async fn producer(bootstrap: &str, id: &str) -> Producer {
    let config = ProducerConfig {
        transactional_id: Some(id.to_owned()),
        ..ProducerConfig::new(bootstrap)
    };
    Producer::connect(config).await.unwrap()
}

fn record(topic: &str, partition: i32, value: &str) -> ProducerRecord {
    let mut record = ProducerRecord::new(topic, value.to_owned());
    record.partition = Some(partition);
    record
}

/// What a consumer sees of the topic until `wanted` records came, and a while after.
async fn seen(bootstrap: &str, topic: &str, isolation: Isolation, wanted: usize) -> Vec<String> {
    let config = ConsumerConfig {
        isolation,
        offset_reset: OffsetReset::Earliest,
        ..ConsumerConfig::new(bootstrap)
    };
    let mut consumer = Consumer::connect(config).await.unwrap();
    let partitions = [0, 1].map(|partition| TopicPartition::new(topic.into(), partition));
    consumer.assign(&partitions).await.unwrap();
    let mut values = Vec::new();
    let deadline = rt::now() + PATIENCE;
    while values.len() < wanted && rt::now() < deadline {
        let records = consumer.poll(SILENCE).await.unwrap();
        values.extend(records.into_iter().filter_map(|record| record.value));
    }
    let more = consumer.poll(SILENCE).await.unwrap();
    values.extend(more.into_iter().filter_map(|record| record.value));
    let text = |value: &bytes::Bytes| String::from_utf8(value.to_vec()).unwrap();
    let mut values: Vec<String> = values.iter().map(text).collect();
    values.sort();
    values
}

#[test]
fn only_what_was_committed_is_seen() {
    let (bootstrap, _broker) = broker();
    on_executor(move || async move {
        let topic = topic(&bootstrap, "visible", 2).await;
        let producer = producer(&bootstrap, &topic).await;
        assert!(producer.begin_transaction().is_err(), "not initialised");
        producer.init_transactions().await.unwrap();
        assert!(producer.send(record(&topic, 0, "outside")).await.is_err());
        let mut committed = Vec::new();
        let mut all = Vec::new();
        for round in 0..12 {
            producer.begin_transaction().unwrap();
            let mut deliveries = Vec::new();
            for partition in 0..2 {
                for number in 0..20 {
                    let value = format!("{round:02}-{partition}-{number:02}");
                    let sent = producer.send(record(&topic, partition, &value)).await;
                    deliveries.push(sent.unwrap());
                    all.push(value.clone());
                    if round % 3 != 2 {
                        committed.push(value);
                    }
                }
            }
            if round % 3 == 2 {
                // So that there is something in the log to be hidden.
                producer.flush().await;
                producer.abort_transaction().await.unwrap();
            } else {
                producer.commit_transaction().await.unwrap();
            }
            for delivery in deliveries {
                delivery.await.unwrap();
            }
            assert!(producer.commit_transaction().await.is_err(), "none is open");
        }
        // An empty one either way.
        producer.begin_transaction().unwrap();
        producer.commit_transaction().await.unwrap();
        producer.begin_transaction().unwrap();
        producer.abort_transaction().await.unwrap();
        committed.sort();
        all.sort();
        let wanted = committed.len();
        let visible = seen(&bootstrap, &topic, Isolation::ReadCommitted, wanted).await;
        assert_eq!(visible, committed);
        let visible = seen(&bootstrap, &topic, Isolation::ReadUncommitted, all.len()).await;
        assert_eq!(visible, all);
        producer.close(PATIENCE).await;
    });
}

#[test]
fn an_abort_drops_what_was_not_sent_and_a_failed_record_leaves_only_the_abort() {
    let (bootstrap, _broker) = broker();
    on_executor(move || async move {
        let topic = topic(&bootstrap, "dropped", 2).await;
        let config = ProducerConfig {
            transactional_id: Some(topic.clone()),
            // Nothing leaves before the abort.
            linger: Duration::from_secs(60),
            delivery_timeout: Duration::from_secs(120),
            request_size_max: 8 << 20,
            ..ProducerConfig::new(&bootstrap)
        };
        let producer = Producer::connect(config).await.unwrap();
        producer.init_transactions().await.unwrap();
        producer.begin_transaction().unwrap();
        let unsent = producer.send(record(&topic, 0, "unsent")).await.unwrap();
        producer.abort_transaction().await.unwrap();
        assert!(unsent.await.is_err());
        // Larger than the topic takes.
        producer.begin_transaction().unwrap();
        let large = "x".repeat(2 << 20);
        let sent = producer.send(record(&topic, 0, "beside")).await.unwrap();
        let refused = producer.send(record(&topic, 1, &large)).await.unwrap();
        producer.flush().await;
        sent.await.unwrap();
        let code = refused.await.unwrap_err().code();
        assert_eq!(code, ErrorCode::MESSAGE_TOO_LARGE);
        let late = producer.send(record(&topic, 0, "late")).await;
        assert_eq!(late.unwrap_err().code(), ErrorCode::MESSAGE_TOO_LARGE);
        let error = producer.commit_transaction().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::MESSAGE_TOO_LARGE);
        producer.abort_transaction().await.unwrap();
        // And the next one is as good as ever, on both partitions.
        producer.begin_transaction().unwrap();
        for partition in 0..2 {
            let value = format!("good {partition}");
            drop(producer.send(record(&topic, partition, &value)).await);
        }
        producer.commit_transaction().await.unwrap();
        let visible = seen(&bootstrap, &topic, Isolation::ReadCommitted, 2).await;
        assert_eq!(visible, ["good 0", "good 1"]);
        producer.close(PATIENCE).await;
    });
}

#[test]
fn a_newer_producer_of_the_same_id_fences_the_older_one() {
    let (bootstrap, _broker) = broker();
    on_executor(move || async move {
        let topic = topic(&bootstrap, "fenced", 2).await;
        let older = producer(&bootstrap, &topic).await;
        older.init_transactions().await.unwrap();
        older.begin_transaction().unwrap();
        let lost = older.send(record(&topic, 0, "lost")).await.unwrap();
        older.flush().await;
        lost.await.unwrap();
        // Aborts what the older one left open.
        let newer = producer(&bootstrap, &topic).await;
        newer.init_transactions().await.unwrap();
        newer.begin_transaction().unwrap();
        drop(newer.send(record(&topic, 0, "kept")).await);
        newer.commit_transaction().await.unwrap();
        assert!(older.commit_transaction().await.is_err());
        // For good.
        assert!(older.abort_transaction().await.is_err());
        assert!(older.begin_transaction().is_err());
        let visible = seen(&bootstrap, &topic, Isolation::ReadCommitted, 1).await;
        assert_eq!(visible, ["kept"]);
        newer.close(PATIENCE).await;
        older.close(PATIENCE).await;
    });
}

/// How a transaction that may be interrupted ended: committed, or not.
async fn commit_or_abort(producer: &Producer) -> bool {
    loop {
        match producer.commit_transaction().await {
            Ok(()) => return true,
            // The outcome is open: asking again tells it.
            Err(error) if error.is_retriable() && error.code() != ErrorCode::REQUEST_TIMED_OUT => {}
            Err(_) => break,
        }
    }
    producer.abort_transaction().await.unwrap();
    false
}

#[test]
fn a_broker_that_is_killed_takes_no_transaction_apart() {
    let (bootstrap, mut broker) = broker();
    let commits = Arc::new(AtomicUsize::new(0));
    let killed = Arc::new(AtomicBool::new(false));
    let killing = std::thread::spawn({
        let (commits, killed) = (commits.clone(), killed.clone());
        move || {
            for _ in 0..2 {
                // In the middle of transactions, however long it took to begin with them.
                let before = commits.load(Ordering::SeqCst);
                let deadline = Instant::now() + PATIENCE;
                while commits.load(Ordering::SeqCst) == before {
                    assert!(Instant::now() < deadline, "nothing is committed");
                    std::thread::sleep(Duration::from_millis(10));
                }
                std::thread::sleep(Duration::from_secs(1));
                broker.kill();
                broker.restart();
            }
            killed.store(true, Ordering::SeqCst);
            broker
        }
    });
    on_executor(move || async move {
        let topic = topic(&bootstrap, "killed", 2).await;
        let producer = producer(&bootstrap, &topic).await;
        producer.init_transactions().await.unwrap();
        let mut committed = Vec::new();
        let begun = rt::now();
        let mut round = 0;
        loop {
            // Goes on a while after the last kill; not for ever where there was none.
            let past = rt::now().since(begun);
            let enough = past >= Duration::from_secs(8) && killed.load(Ordering::SeqCst);
            if enough || past >= 2 * PATIENCE {
                break;
            }
            producer.begin_transaction().unwrap();
            let mut values = Vec::new();
            for number in 0..10 {
                let value = format!("{round:06}-{number}");
                let sent = producer.send(record(&topic, number % 2, &value)).await;
                drop(sent.unwrap());
                values.push(value);
            }
            if commit_or_abort(&producer).await {
                committed.extend(values);
                commits.fetch_add(1, Ordering::SeqCst);
            }
            round += 1;
        }
        committed.sort();
        let wanted = committed.len();
        assert!(wanted > 0);
        let visible = seen(&bootstrap, &topic, Isolation::ReadCommitted, wanted).await;
        assert_eq!(visible, committed);
        producer.close(PATIENCE).await;
    });
    killing.join().unwrap();
}

#[test]
fn offsets_are_the_groups_when_their_transaction_is_committed() {
    let (bootstrap, _broker) = broker();
    on_executor(move || async move {
        let topic = topic(&bootstrap, "offsets", 2).await;
        let producer = producer(&bootstrap, &topic).await;
        producer.init_transactions().await.unwrap();
        let group = GroupMetadata::new(&topic);
        let key = TopicPartition::new(topic.as_str().into(), 0);
        let config = ConsumerConfig {
            group_id: Some(topic.clone()),
            auto_commit: None,
            ..ConsumerConfig::new(&bootstrap)
        };
        let mut consumer = Consumer::connect(config).await.unwrap();
        consumer.assign(std::slice::from_ref(&key)).await.unwrap();
        for (at, committed) in [(5, false), (7, true), (9, false)] {
            producer.begin_transaction().unwrap();
            drop(producer.send(record(&topic, 0, "record")).await);
            let offsets = [(key.clone(), CommittedOffset::new(Offset(at)))];
            producer
                .send_offsets_to_transaction(&offsets, &group)
                .await
                .unwrap();
            match committed {
                true => producer.commit_transaction().await.unwrap(),
                false => producer.abort_transaction().await.unwrap(),
            }
        }
        // The marker reaches the group a moment after the answer.
        let deadline = rt::now() + PATIENCE;
        let committed = loop {
            let committed = consumer
                .committed(std::slice::from_ref(&key))
                .await
                .unwrap();
            if !committed.is_empty() || rt::now() > deadline {
                break committed;
            }
            rt::sleep(Duration::from_millis(50)).await;
        };
        let offsets: Vec<i64> = committed.iter().map(|(_, one)| one.offset.0).collect();
        assert_eq!(offsets, [7]);
        consumer.close().await.unwrap();
        producer.close(PATIENCE).await;
    });
}

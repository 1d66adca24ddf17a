//! The outbox against a model of a broker: whatever is lost, refused or answered late, an
//! idempotent producer's acknowledged records are in the log once and in their order. A failing
//! history prints its seed.

use std::collections::HashMap;
use std::time::Duration;

use super::accumulator::Appended;
use super::config::{Acks, ProducerConfig};
use super::delivery::Delivery;
use super::error::ClientError;
use super::outbox::{Answer, Outbox, Settled};
use super::pending_batch::PendingBatch;
use super::producer_record::ProducerRecord;
use super::sequences::Identity;
use super::topic_partition::TopicPartition;
use crate::rt::Instant;
use crate::types::{NodeId, Offset};
use crate::wire::batch::{Batch, increment_sequence};
use crate::wire::{ErrorCode, Str};

const NODE: NodeId = NodeId(1);
const PARTITIONS: i32 = 3;

fn at(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

fn led(_: &TopicPartition) -> Option<NodeId> {
    Some(NODE)
}

fn append(outbox: &mut Outbox, partition: i32, value: &str, now: Instant) -> Delivery {
    let topic = Str::from_static("t");
    let record = ProducerRecord::new("t", value.to_owned());
    let appended = outbox
        .accumulator
        .append(&topic, partition, &record, 0)
        .unwrap();
    match appended {
        Appended::Done { delivery, .. } => delivery,
        Appended::NoRoom => {
            let key = TopicPartition::new(topic, partition);
            outbox
                .accumulator
                .append_new(key, &record, 0, now, None)
                .unwrap()
        }
    }
}

/// A partition as a broker keeps it: the log, and per producer its epoch and last five batches.
#[derive(Default)]
struct Log {
    values: Vec<String>,
    producers: HashMap<i64, (i16, Vec<Remembered>)>,
}

/// First and last sequence of a batch, and where it went.
type Remembered = (i32, i32, i64);

impl Log {
    fn append(&mut self, bytes: &bytes::Bytes) -> Answer {
        let (batch, rest) = Batch::parse(bytes).unwrap();
        assert!(rest.is_empty());
        batch.check_crc().unwrap();
        let answer = |code, offset: i64| Answer {
            base_offset: Some(Offset(offset)),
            ..Answer::failed(code, String::new())
        };
        let (base, last) = (batch.base_sequence(), batch.last_sequence());
        if batch.has_producer_id() {
            let epoch = batch.producer_epoch();
            let known = self.producers.get(&batch.producer_id());
            match known {
                Some((current, _)) if epoch < *current => {
                    return answer(ErrorCode::INVALID_PRODUCER_EPOCH, -1);
                }
                Some((current, _)) if epoch > *current && base != 0 => {
                    return answer(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, -1);
                }
                Some((current, batches)) if epoch == *current => {
                    if let Some(same) = batches.iter().find(|b| (b.0, b.1) == (base, last)) {
                        return answer(ErrorCode::NONE, same.2);
                    }
                    let expected = batches.last().map(|b| increment_sequence(b.1, 1));
                    if expected.is_some_and(|expected| expected != base) {
                        return answer(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, -1);
                    }
                }
                _ => {}
            }
            let entry = self.producers.entry(batch.producer_id()).or_default();
            if entry.0 != epoch {
                *entry = (epoch, Vec::new());
            }
            entry.1.push((base, last, self.values.len() as i64));
            if entry.1.len() > 5 {
                entry.1.remove(0);
            }
        }
        let offset = self.values.len() as i64;
        for record in batch.records(1 << 20).unwrap() {
            let value = record.unwrap().value.unwrap();
            self.values.push(String::from_utf8(value.to_vec()).unwrap());
        }
        answer(ErrorCode::NONE, offset)
    }
}

struct World {
    outbox: Outbox,
    logs: Vec<Log>,
    now: u64,
    sent: Vec<Vec<(String, Delivery)>>,
    /// Requests on the wire in the order of one connection, with the answers of those executed.
    wire: Vec<(Vec<PendingBatch>, Option<Vec<Answer>>)>,
    random: fastrand::Rng,
    next_producer: i64,
}

impl World {
    fn new(seed: u64, config: &ProducerConfig) -> World {
        World {
            outbox: Outbox::new(config),
            logs: (0..PARTITIONS).map(|_| Log::default()).collect(),
            now: 0,
            sent: (0..PARTITIONS).map(|_| Vec::new()).collect(),
            wire: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
            next_producer: 100,
        }
    }

    fn tell(&mut self, settled: impl IntoIterator<Item = Settled>) {
        settled.into_iter().for_each(Settled::tell);
    }

    fn send(&mut self, hurry: bool) {
        if self.outbox.needs_identity() {
            self.next_producer += 1;
            self.outbox.set_identity(Identity {
                id: self.next_producer,
                epoch: 0,
            });
        }
        while self.wire.len() < 5 && self.outbox.ready(at(self.now), hurry, led).nodes == [NODE] {
            let mut batches = self.outbox.drain(NODE, at(self.now), hurry, led);
            assert!(!batches.is_empty(), "ready promised a batch");
            for batch in &mut batches {
                batch.build().unwrap();
            }
            self.wire.push((batches, None));
        }
    }

    /// The broker works off the first request it has not executed. `faulty`: it may refuse.
    fn execute(&mut self, faulty: bool) {
        let Some((batches, answers)) = self.wire.iter_mut().find(|(_, a)| a.is_none()) else {
            return;
        };
        let mut all = Vec::new();
        for batch in batches {
            let refused = match self.random.u8(..12) {
                0 if faulty => Some(ErrorCode::NOT_LEADER_OR_FOLLOWER),
                1 if faulty => Some(ErrorCode::NOT_ENOUGH_REPLICAS),
                2 if faulty && self.random.u8(..8) == 0 => Some(ErrorCode::INVALID_RECORD),
                _ => None,
            };
            let log = &mut self.logs[batch.key.partition as usize];
            all.push(match refused {
                Some(code) => Answer::failed(code, String::new()),
                None => log.append(&batch.build().unwrap()),
            });
        }
        *answers = Some(all);
    }

    fn answer_first(&mut self) {
        if self
            .wire
            .first()
            .is_none_or(|(_, answers)| answers.is_none())
        {
            return;
        }
        let (batches, answers) = self.wire.remove(0);
        for (batch, answer) in batches.into_iter().zip(answers.unwrap()) {
            self.judge(batch, answer);
        }
    }

    /// The connection ends: nobody learns what became of the requests on it.
    fn disconnect(&mut self) {
        for (batches, _) in std::mem::take(&mut self.wire) {
            for batch in batches {
                self.judge(
                    batch,
                    Answer::failed(ErrorCode::NETWORK_EXCEPTION, String::new()),
                );
            }
        }
    }

    fn judge(&mut self, batch: PendingBatch, answer: Answer) {
        let judged = self
            .outbox
            .judge(batch, answer, at(self.now), self.random.u64(..));
        self.tell(judged.settled);
    }

    fn expire(&mut self) {
        let late = ClientError::TimedOut {
            peer: String::new(),
            api: "PRODUCE",
        };
        let expired = self.outbox.expire(at(self.now), &late);
        self.tell(expired);
    }

    fn finish(&mut self, seed: u64) {
        for _ in 0..10_000 {
            self.now += 50;
            self.expire();
            self.send(true);
            self.execute(false);
            self.answer_first();
        }
        assert_eq!(
            self.outbox.accumulator.unsettled(),
            0,
            "seed {seed}: {:?}",
            self.outbox
        );
        assert!(!self.outbox.accumulator.has_unsettled_before(u64::MAX));
    }
}

fn config() -> ProducerConfig {
    let mut config = ProducerConfig {
        batch_size: 200,
        ..ProducerConfig::default()
    };
    config.linger = Duration::from_millis(10);
    config
}

fn history(seed: u64, config: &ProducerConfig) -> World {
    let mut world = World::new(seed, config);
    for n in 0..600 {
        world.now += world.random.u64(..30);
        world.expire();
        match world.random.u8(..12) {
            0..=4 => {
                let partition = world.random.i32(0..PARTITIONS);
                let value = format!("{n}");
                let delivery = append(&mut world.outbox, partition, &value, at(world.now));
                world.sent[partition as usize].push((value, delivery));
            }
            5..=6 => world.send(false),
            7..=8 => world.execute(true),
            9..=10 => world.answer_first(),
            _ => {
                if world.random.u8(..6) == 0 {
                    world.disconnect();
                }
            }
        }
    }
    world.finish(seed);
    world
}

#[test]
fn acknowledged_records_are_in_the_log_once_and_in_order_whatever_fails() {
    let first = fastrand::u64(..);
    for seed in (0..300).map(|n| first.wrapping_add(n)) {
        let world = history(seed, &config());
        let mut delivered = 0;
        for (log, sent) in world.logs.iter().zip(&world.sent) {
            let places: HashMap<&str, usize> = log
                .values
                .iter()
                .enumerate()
                .map(|(at, value)| (value.as_str(), at))
                .collect();
            assert_eq!(
                places.len(),
                log.values.len(),
                "seed {seed}: a record is there twice"
            );
            let mut last = None;
            for (value, delivery) in sent {
                let fate = delivery.try_get().expect("everything is settled");
                if let Ok(metadata) = fate {
                    delivered += 1;
                    let place = places.get(value.as_str()).copied();
                    assert!(
                        place.is_some(),
                        "seed {seed}: acknowledged {value} is not there"
                    );
                    let told = metadata.offset.map(|offset| offset.0 as usize);
                    assert!(
                        told.is_none() || told == place,
                        "seed {seed}: {value} is elsewhere"
                    );
                    assert!(
                        last < place,
                        "seed {seed}: {value} overtook its predecessor"
                    );
                    last = place;
                }
            }
        }
        assert!(
            delivered > 50,
            "seed {seed}: a history in which nothing happens"
        );
    }
}

#[test]
fn without_idempotence_nothing_acknowledged_is_missing_and_all_is_settled() {
    let first = fastrand::u64(..);
    let config = ProducerConfig {
        idempotence: false,
        acks: Acks::Leader,
        ..config()
    };
    for seed in (0..100).map(|n| first.wrapping_add(n)) {
        let world = history(seed, &config);
        for (log, sent) in world.logs.iter().zip(&world.sent) {
            for (value, delivery) in sent {
                if delivery.try_get().expect("everything is settled").is_ok() {
                    assert!(
                        log.values.contains(value),
                        "seed {seed}: {value} is not there"
                    );
                }
            }
        }
    }
}

#[test]
fn one_request_in_flight_keeps_the_order_without_idempotence() {
    let first = fastrand::u64(..);
    let config = ProducerConfig {
        idempotence: false,
        acks: Acks::Leader,
        in_flight_max: 1,
        ..config()
    };
    for seed in (0..100).map(|n| first.wrapping_add(n)) {
        let world = history(seed, &config);
        for (log, sent) in world.logs.iter().zip(&world.sent) {
            // Duplicates may be there; the last occurrences are in order.
            let last_place = |value: &String| log.values.iter().rposition(|v| v == value);
            let acked = sent
                .iter()
                .filter(|(_, d)| d.try_get().is_some_and(|fate| fate.is_ok()));
            let places: Vec<_> = acked.map(|(value, _)| last_place(value)).collect();
            assert!(
                places.windows(2).all(|w| w[0] < w[1]),
                "seed {seed}: {places:?}"
            );
        }
    }
}

#[test]
fn a_batch_leaves_when_it_is_full_or_has_lingered_or_is_hurried() {
    let config = ProducerConfig {
        idempotence: false,
        ..config()
    };
    let mut outbox = Outbox::new(&config);
    append(&mut outbox, 0, "a", at(100));
    let ready = outbox.ready(at(100), false, led);
    assert_eq!((ready.nodes.len(), ready.look_again), (0, Some(at(110))));
    assert_eq!(outbox.ready(at(110), false, led).nodes, [NODE]);
    assert_eq!(outbox.ready(at(100), true, led).nodes, [NODE]);
    // The second does not fit beside the first, so the first is full.
    append(&mut outbox, 0, &"x".repeat(110), at(101));
    assert_eq!(outbox.ready(at(101), false, led).nodes, [NODE]);
    let batches = outbox.drain(NODE, at(101), false, led);
    assert_eq!(
        batches
            .iter()
            .map(|batch| batch.records)
            .collect::<Vec<_>>(),
        [1]
    );
    assert_eq!(outbox.ready(at(101), false, led).nodes, []);
}

#[test]
fn within_a_transaction_no_number_is_given_twice() {
    let config = ProducerConfig {
        transactional_id: Some("id".to_owned()),
        ..config()
    };
    let mut outbox = Outbox::new(&config);
    append(&mut outbox, 0, "a", at(0));
    assert!(!outbox.needs_identity(), "it comes with the transaction");
    assert!(outbox.drain(NODE, at(0), true, led).is_empty());
    let identity = Identity { id: 9, epoch: 3 };
    outbox.renew_identity(identity);
    let mut batch = outbox.drain(NODE, at(0), true, led).remove(0);
    let bytes = batch.build().unwrap();
    let (sent, _) = Batch::parse(&bytes).unwrap();
    assert!(sent.is_transactional());
    assert_eq!((sent.producer_epoch(), sent.base_sequence()), (3, 0));
    append(&mut outbox, 0, "b", at(0));
    // Without a transaction it would be sent again under a higher epoch.
    let answer = Answer::failed(ErrorCode::UNKNOWN_PRODUCER_ID, String::new());
    let judged = outbox.judge(batch, answer, at(1), 0);
    let (error, numbered) = judged.settled[0].failure().unwrap();
    assert_eq!(
        (error.code(), numbered),
        (ErrorCode::UNKNOWN_PRODUCER_ID, true)
    );
    let error = error.clone();
    let given_up = outbox.give_up_all(&error);
    assert_eq!(
        given_up[0].failure().map(|(_, numbered)| numbered),
        Some(false)
    );
    assert!(!outbox.accumulator.has_unsettled_before(u64::MAX));
    // The next transaction begins to count anew.
    outbox.renew_identity(Identity { id: 9, epoch: 4 });
    append(&mut outbox, 0, "c", at(2));
    let batch = outbox.drain(NODE, at(2), true, led).remove(0);
    assert_eq!(
        batch.sequence.map(|s| (s.identity.epoch, s.base)),
        Some((4, 0))
    );
}

#[test]
fn a_batch_without_a_leader_waits_and_says_so() {
    let config = ProducerConfig {
        idempotence: false,
        ..config()
    };
    let mut outbox = Outbox::new(&config);
    let delivery = append(&mut outbox, 0, "a", at(0));
    let ready = outbox.ready(at(50), false, |_| None);
    assert_eq!(
        (ready.nodes.len(), ready.leaderless),
        (0, vec![Str::from("t")])
    );
    let late = ClientError::TimedOut {
        peer: String::new(),
        api: "PRODUCE",
    };
    assert_eq!(outbox.expire(at(119_999), &late).len(), 0);
    outbox
        .expire(at(120_000), &late)
        .into_iter()
        .for_each(Settled::tell);
    assert!(matches!(
        delivery.try_get(),
        Some(Err(ClientError::TimedOut { .. }))
    ));
}

#[test]
fn a_request_takes_one_batch_a_partition_and_no_more_than_fits() {
    let mut config = ProducerConfig {
        idempotence: false,
        ..config()
    };
    config.request_size_max = 350;
    let mut outbox = Outbox::new(&config);
    for partition in 0..3 {
        append(&mut outbox, partition, &"x".repeat(100), at(0));
        append(&mut outbox, partition, &"y".repeat(100), at(0));
    }
    let mut taken = Vec::new();
    loop {
        let batches = outbox.drain(NODE, at(0), true, led);
        if batches.is_empty() {
            break;
        }
        let mut partitions: Vec<i32> = batches.iter().map(|batch| batch.key.partition).collect();
        assert!(partitions.len() <= 2, "{partitions:?}");
        partitions.dedup();
        assert_eq!(partitions.len(), batches.len());
        taken.extend(batches);
    }
    assert_eq!(taken.len(), 6);
}

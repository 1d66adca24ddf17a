//! Tests of what a producer decides: order, numbers, retries, and that no record gets lost from
//! the counts.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::lab::bench::keys::Keys;
use crate::lab::bench::plan::Load;
use crate::lab::bench::samples::{Sums, Told};
use crate::lab::bench::schedule::{Arrivals, Window};
use crate::lab::bench::sizes::Sizes;
use crate::lab::bench::transaction::{Ending, TransactionPlan};
use crate::types::Uuid;
use crate::wire::messages::metadata_response::{
    MetadataResponse, MetadataResponsePartition, MetadataResponseTopic,
};

const MS: u64 = 1_000_000;
const WINDOW: Window = Window {
    start: 0,
    from: 0,
    to: 1_000 * MS,
    until: 5_000 * MS,
};
const IDENTITY: Identity = Identity { id: 9, epoch: 0 };

/// A view in which partition i is led by `leaders[i]`.
fn view(leaders: &[i32]) -> ClusterView {
    let partitions = (0..)
        .zip(leaders)
        .map(|(index, leader)| MetadataResponsePartition {
            partition_index: index,
            leader_id: *leader,
            ..Default::default()
        });
    ClusterView::default().updated(
        &MetadataResponse {
            topics: vec![MetadataResponseTopic {
                name: Some("bench".into()),
                topic_id: Uuid::from_halves(0, 1),
                partitions: partitions.collect(),
                ..Default::default()
            }],
            ..Default::default()
        },
        false,
    )
}

struct Rig {
    outgoing: Outgoing,
    samples: Samples,
    told: Receiver<Told>,
}

impl Rig {
    fn new(plan: Plan, leaders: &[i32]) -> Rig {
        let (sender, told) = channel();
        let samples = Samples::new(sender);
        samples.begin(WINDOW);
        let schedule = plan
            .rate()
            .map(|rate| Schedule::new(WINDOW.start, rate, Arrivals::Fixed, (0, 1), plan.seed));
        let mut outgoing = Outgoing::new(Arc::new(plan), &view(leaders), None, 1);
        outgoing.begin(schedule);
        if outgoing.plan.idempotence {
            outgoing.identify(IDENTITY);
        }
        outgoing
            .brokers
            .iter_mut()
            .for_each(|broker| broker.up = true);
        Rig {
            outgoing,
            samples,
            told,
        }
    }

    fn make(&mut self, now: u64) {
        self.outgoing.make(now, 0, &self.samples);
    }

    /// Partition, records and base sequence of each batch of the next request.
    fn send(&mut self, now: u64) -> Option<Vec<(usize, usize, Option<i32>)>> {
        let request = self.outgoing.next_request(0, now)?;
        let batches = request.batches.iter_mut().map(|(at, batch)| {
            batch.seal().unwrap();
            (*at, batch.records(), batch.sequence.map(|(_, base)| base))
        });
        Some(batches.collect())
    }

    fn answer(&mut self, now: u64, code: ErrorCode) {
        let settled = self.outgoing.settle(0, None, now, &self.samples, |_| code);
        assert!(settled.is_some(), "nothing was in flight");
    }

    fn end(mut self, now: u64) -> Sums {
        self.outgoing.give_up(now, &self.samples);
        self.samples.end(now);
        let end = self.told.try_iter().find_map(|told| match told {
            Told::End(sums) => Some(*sums),
            Told::Second(_) => None,
        });
        end.unwrap()
    }
}

fn open(rate: f64) -> Plan {
    Plan {
        load: Load::Open {
            records_per_second: rate,
            arrivals: Arrivals::Fixed,
        },
        sizes: Sizes::Fixed(100),
        ..Plan::default()
    }
}

#[test]
fn the_closed_loop_makes_what_can_be_sent_and_no_more() {
    let mut rig = Rig::new(Plan::default(), &[1, 1, 1]);
    rig.make(0);
    let mut seen = Vec::new();
    while let Some(batches) = rig.send(0) {
        assert_eq!(batches.len(), 1);
        seen.push(batches[0]);
    }
    // 15 records of 1 KiB fill a batch of 16 KiB.
    assert_eq!(seen.len(), 5);
    assert!(
        seen.iter().all(|(_, records, _)| *records == 15),
        "{seen:?}"
    );
    let partitions: std::collections::BTreeSet<usize> = seen.iter().map(|one| one.0).collect();
    assert_eq!(partitions.len(), 3);
    assert_eq!(rig.outgoing.buffered, 5 * 15 * 1024);
    rig.make(MS);
    assert_eq!(rig.send(MS), None);
    rig.answer(2 * MS, ErrorCode::NONE);
    rig.make(2 * MS);
    assert!(rig.send(2 * MS).is_some());
}

#[test]
fn with_keys_a_request_takes_one_batchs_worth_over_several_partitions() {
    let plan = Plan {
        keys: Keys::Uniform(100),
        batches_per_request: 4,
        in_flight: 1,
        ..Plan::default()
    };
    let mut rig = Rig::new(plan, &[1, 1, 1, 1]);
    rig.make(0);
    let batches = rig.send(0).unwrap();
    let records: usize = batches.iter().map(|(_, records, _)| *records).sum();
    assert!(batches.len() > 1 && records >= 15, "{batches:?}");
    assert_eq!(rig.send(0), None);
}

#[test]
fn records_that_cannot_leave_are_collected_in_batches() {
    let plan = Plan {
        in_flight: 1,
        ..open(1_000.0)
    };
    let mut rig = Rig::new(plan, &[1]);
    rig.make(0);
    assert_eq!(rig.send(0), Some(vec![(0, 1, None)]));
    for now in 1..=20 {
        rig.make(now * MS);
        assert_eq!(rig.send(now * MS), None);
    }
    rig.answer(20 * MS, ErrorCode::NONE);
    assert_eq!(rig.send(20 * MS), Some(vec![(0, 20, None)]));
}

#[test]
fn linger_holds_a_batch_back_until_its_time_or_until_it_is_full() {
    let plan = Plan {
        linger: Duration::from_millis(5),
        batch_records: Some(8),
        ..open(1_000.0)
    };
    let mut rig = Rig::new(plan, &[1, 1]);
    rig.make(0);
    assert_eq!(rig.send(0), None);
    assert_eq!(rig.outgoing.next_look(0, WINDOW.to), Some(MS));
    rig.make(5 * MS);
    let sent = rig.send(5 * MS).unwrap();
    assert_eq!(sent[0].1, 6);
    // Eight come due at once: full, and the other partition is next.
    rig.make(14 * MS);
    let next = rig.send(14 * MS).unwrap();
    assert_eq!((next[0].1, next[0].0 != sent[0].0), (8, true));
}

#[test]
fn what_came_back_leaves_again_in_order_and_under_its_numbers() {
    let plan = Plan {
        idempotence: true,
        batch_records: Some(2),
        ..open(1_000.0)
    };
    let mut rig = Rig::new(plan, &[1]);
    rig.make(5 * MS);
    for base in [0, 2, 4] {
        assert_eq!(rig.send(5 * MS), Some(vec![(0, 2, Some(base))]));
    }
    rig.answer(6 * MS, ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert!(rig.outgoing.wishes().refresh);
    // Refused because of the gap before it; and nothing overtakes.
    rig.answer(6 * MS, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(rig.send(300 * MS), None);
    rig.answer(7 * MS, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(rig.send(8 * MS), None);
    for base in [0, 2, 4] {
        assert_eq!(rig.send(200 * MS), Some(vec![(0, 2, Some(base))]));
    }
    rig.answer(201 * MS, ErrorCode::DUPLICATE_SEQUENCE_NUMBER);
    rig.answer(201 * MS, ErrorCode::NONE);
    rig.answer(201 * MS, ErrorCode::NONE);
    let sums = rig.end(202 * MS);
    assert_eq!((sums.acknowledged.records, sums.failed), (6, 0));
    assert_eq!(sums.resent, 6);
}

#[test]
fn after_a_refusal_the_numbers_begin_anew_under_another_identity() {
    let plan = Plan {
        idempotence: true,
        batch_records: Some(1),
        ..open(1_000.0)
    };
    let mut rig = Rig::new(plan, &[1]);
    rig.make(2 * MS);
    for base in [0, 1, 2] {
        assert_eq!(rig.send(2 * MS), Some(vec![(0, 1, Some(base))]));
    }
    rig.answer(3 * MS, ErrorCode::MESSAGE_TOO_LARGE);
    // The next one is refused for the gap, but it can still be delivered.
    rig.answer(3 * MS, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert!(!rig.outgoing.wishes().identity, "one is still in flight");
    rig.answer(3 * MS, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert!(rig.outgoing.wishes().identity);
    assert_eq!(rig.send(200 * MS), None);
    rig.outgoing.identify(Identity { id: 10, epoch: 0 });
    assert_eq!(rig.send(200 * MS), Some(vec![(0, 1, Some(0))]));
    assert_eq!(rig.send(200 * MS), Some(vec![(0, 1, Some(1))]));
    let sums = rig.end(200 * MS);
    assert_eq!(sums.troubles.get("failed with MESSAGE_TOO_LARGE"), Some(&1));
}

#[test]
fn a_lost_connection_sends_everything_again_to_the_new_leader() {
    let mut rig = Rig::new(open(1_000.0), &[1]);
    rig.make(0);
    assert!(rig.send(0).is_some());
    rig.outgoing.lose(0, MS, &rig.samples);
    assert!(rig.outgoing.wishes().refresh);
    rig.outgoing.lead(&view(&[2]));
    assert_eq!(rig.outgoing.unconnected().collect::<Vec<_>>(), [1]);
    rig.outgoing.brokers[1].up = true;
    let request = rig.outgoing.next_request(1, 200 * MS).unwrap();
    assert_eq!(request.batches[0].1.attempts, 2);
}

#[test]
fn what_is_older_than_its_timeouts_is_given_up() {
    let plan = Plan {
        delivery_timeout: Duration::from_millis(300),
        request_timeout: Duration::from_millis(400),
        in_flight: 1,
        batch_records: Some(1),
        ..open(1_000.0)
    };
    let mut rig = Rig::new(plan, &[1]);
    rig.make(0);
    assert!(rig.send(0).is_some());
    rig.make(MS);
    assert_eq!(
        rig.outgoing.expire(350 * MS, &rig.samples),
        Vec::<usize>::new()
    );
    assert_eq!(rig.outgoing.expire(600 * MS, &rig.samples), [0]);
    let sums = rig.end(600 * MS);
    assert_eq!(sums.troubles.get("not delivered in time"), Some(&1));
    assert_eq!(
        sums.troubles.get("not settled when the run ended"),
        Some(&1)
    );
}

#[test]
fn an_answer_to_another_request_is_refused() {
    let mut rig = Rig::new(open(1_000.0), &[1]);
    rig.make(0);
    assert!(rig.send(0).is_some());
    let code = |_| ErrorCode::NONE;
    assert_eq!(
        rig.outgoing.settle(0, Some(1), MS, &rig.samples, code),
        None
    );
    assert_eq!(
        rig.outgoing.settle(0, Some(0), MS, &rig.samples, code),
        Some(1)
    );
    assert_eq!(
        rig.outgoing.settle(0, Some(1), MS, &rig.samples, code),
        None
    );
}

fn transactional(records: u64) -> Plan {
    Plan {
        idempotence: true,
        transactions: Some(TransactionPlan {
            id_prefix: "bench".to_owned(),
            records: Some(records),
            duration: None,
            abort_percent: 0.0,
            timeout: Duration::from_secs(60),
        }),
        ..open(1_000.0)
    }
}

impl Rig {
    fn end_transaction(&mut self, now: u64) -> Option<Ending> {
        let end = WINDOW.to;
        self.outgoing.end_transaction(now, end, &self.samples)
    }

    fn ended(&mut self, identity: Identity) {
        self.outgoing.cycle.as_mut().unwrap().ended();
        self.outgoing.renew(identity);
    }
}

#[test]
fn a_transaction_takes_its_records_and_ends_when_all_are_settled() {
    let plan = Plan {
        linger: Duration::from_secs(1),
        ..transactional(4)
    };
    let mut rig = Rig::new(plan, &[1]);
    rig.make(2 * MS);
    assert_eq!(rig.end_transaction(2 * MS), None);
    assert_eq!(rig.send(2 * MS), None, "it lingers");
    // More are due than it takes, and its end does not linger.
    rig.make(9 * MS);
    assert_eq!(rig.end_transaction(9 * MS), None);
    assert_eq!(rig.send(9 * MS), Some(vec![(0, 4, Some(0))]));
    let look = rig.outgoing.next_look(9 * MS, WINDOW.to).unwrap();
    assert!(look > 100 * MS, "what is due waits for the end: {look}");
    rig.make(10 * MS);
    assert_eq!(rig.send(10 * MS), None);
    rig.answer(11 * MS, ErrorCode::NONE);
    let ending = rig.end_transaction(11 * MS).unwrap();
    assert!(ending.committed && ending.due == 0 && ending.decided == 9 * MS);
    assert!(!rig.outgoing.is_finished(11 * MS, 0));
    // By the older protocol the numbers go on, by the newer they begin anew.
    for (identity, base) in [(IDENTITY, 4), (Identity { id: 9, epoch: 1 }, 0)] {
        rig.ended(identity);
        rig.make(12 * MS);
        assert_eq!(rig.end_transaction(12 * MS), None);
        assert_eq!(rig.send(12 * MS), Some(vec![(0, 4, Some(base))]));
        rig.answer(13 * MS, ErrorCode::NONE);
        assert!(rig.end_transaction(13 * MS).is_some());
    }
}

#[test]
fn a_refused_batch_drops_what_has_not_left_and_aborts() {
    let plan = Plan {
        batch_records: Some(1),
        in_flight: 2,
        ..transactional(10)
    };
    let mut rig = Rig::new(plan, &[1]);
    rig.make(5 * MS);
    assert_eq!(rig.end_transaction(5 * MS), None);
    assert!(rig.send(5 * MS).is_some() && rig.send(5 * MS).is_some());
    rig.answer(6 * MS, ErrorCode::MESSAGE_TOO_LARGE);
    assert_eq!(rig.end_transaction(6 * MS), None, "one is on its way");
    assert_eq!(rig.send(6 * MS), None);
    rig.answer(7 * MS, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    let ending = rig.end_transaction(7 * MS).unwrap();
    assert!(!ending.committed);
    assert!(!rig.outgoing.wishes().identity, "it comes with the end");
    rig.ended(Identity { id: 9, epoch: 1 });
    rig.make(8 * MS);
    assert_eq!(rig.send(8 * MS), Some(vec![(0, 1, Some(0))]));
    let sums = rig.end(9 * MS);
    let dropped = sums.troubles.get("its transaction is aborted").copied();
    assert_eq!((sums.failed, dropped), (6 + 3, Some(4)));
}

#[test]
fn the_last_transaction_ends_with_the_load() {
    let mut rig = Rig::new(transactional(1_000_000), &[1]);
    rig.make(WINDOW.to);
    assert_eq!(rig.end_transaction(WINDOW.to), None);
    while rig.send(WINDOW.to).is_some() {}
    for _ in 0..rig.outgoing.brokers[0].in_flight.len() {
        rig.answer(WINDOW.to, ErrorCode::NONE);
    }
    while rig.send(WINDOW.to).is_some() {
        rig.answer(WINDOW.to, ErrorCode::NONE);
    }
    let now = WINDOW.to + MS;
    assert!(!rig.outgoing.is_finished(now, WINDOW.to));
    assert!(rig.end_transaction(now).is_some_and(|one| one.committed));
    rig.ended(IDENTITY);
    assert!(rig.outgoing.is_finished(now, WINDOW.to));
}

#[derive(Clone, Debug)]
enum Event {
    Pass(u64),
    Send(usize),
    Answer(usize, u8),
    Lose(usize),
    Move(Vec<i32>),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0u64..20).prop_map(Event::Pass),
        6 => (0usize..2).prop_map(Event::Send),
        6 => (0usize..2, 0u8..8).prop_map(|(broker, code)| Event::Answer(broker, code)),
        1 => (0usize..2).prop_map(Event::Lose),
        1 => prop::collection::vec(-1i32..3, 4).prop_map(Event::Move),
    ]
}

proptest! {
    /// Whatever brokers answer: every record that was due is acknowledged, failed or unsent, and
    /// what a partition is sent under one identity has no gaps and no changed numbers.
    #[test]
    fn no_record_is_lost_from_the_counts(
        events in prop::collection::vec(event(), 1..200),
        keyed in any::<bool>(), idempotence in any::<bool>(), linger in 0u64..5,
        records in prop::option::of(1u64..20),
    ) {
        let transactions = records.and_then(|records| transactional(records).transactions);
        let idempotence = idempotence || transactions.is_some();
        let plan = Plan {
            keys: if keyed { Keys::Uniform(50) } else { Keys::None },
            idempotence,
            transactions,
            linger: Duration::from_millis(linger),
            batch_records: Some(3),
            batches_per_request: 2,
            buffer_bytes: 8_000,
            ..open(1_000.0)
        };
        let mut rig = Rig::new(plan, &[1, 2, 1, 2]);
        let mut now = 0;
        let mut identities = 0;
        for event in events {
            match event {
                Event::Pass(ms) => now += ms * MS,
                Event::Send(broker) => {
                    rig.make(now);
                    if rig.end_transaction(now).is_some() {
                        prop_assert!(rig.outgoing.brokers.iter().all(|one| one.in_flight.is_empty()));
                        identities += 1;
                        rig.ended(Identity { id: 10, epoch: identities as i16 });
                    }
                    if let Some(request) = rig.outgoing.next_request(broker, now) {
                        for (_, batch) in &mut request.batches {
                            let bytes = batch.seal().unwrap();
                            let (seen, _) = crate::wire::batch::BatchView::parse(&bytes).unwrap();
                            prop_assert!(seen.check_crc().is_ok());
                            prop_assert_eq!(seen.has_producer_id(), idempotence);
                            prop_assert_eq!(seen.record_count() as usize, batch.records());
                        }
                    }
                }
                Event::Answer(broker, code) => {
                    let code = [
                        ErrorCode::NONE,
                        ErrorCode::NONE,
                        ErrorCode::NONE,
                        ErrorCode::NONE,
                        ErrorCode::NOT_LEADER_OR_FOLLOWER,
                        ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
                        ErrorCode::MESSAGE_TOO_LARGE,
                        ErrorCode::NOT_ENOUGH_REPLICAS,
                    ][code as usize];
                    rig.outgoing.settle(broker, None, now, &rig.samples, |_| code);
                }
                Event::Lose(broker) => {
                    rig.outgoing.lose(broker, now, &rig.samples);
                    rig.outgoing.brokers[broker].up = true;
                }
                Event::Move(leaders) => {
                    rig.outgoing.lead(&view(&leaders));
                    rig.outgoing.brokers.iter_mut().for_each(|broker| broker.up = true);
                }
            }
            if rig.outgoing.wishes().identity {
                identities += 1;
                rig.outgoing.identify(Identity { id: 10 + identities, epoch: 0 });
            }
        }
        let end = now.max(WINDOW.to);
        let sums = rig.end(end);
        let due = sums.acknowledged.records + sums.failed + sums.unsent;
        prop_assert_eq!(due, 1_000);
    }
}

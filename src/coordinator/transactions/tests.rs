//! The transaction coordinator's decisions, step by step, with a log that stores what it is told
//! to and loses it on command.

use std::collections::BTreeMap;

use super::*;
use crate::coordinator::{CoordinatorRecord, ReplyToken};
use crate::wire::batch::{Batch, Batches};
use crate::wire::batch_builder::BatchBuilder;
use crate::wire::{ErrorCode, Str};

const ID: Str = Str::from_static("payments");
const TIMEOUT_MS: i32 = 60_000;
const NOW: i64 = 1_000_000;

/// A coordinator with everything around it: its log, its clients, and the partitions.
struct Desk {
    shard: TransactionCoordinatorShard,
    /// What is stored.
    log: Vec<CoordinatorRecord>,
    appends: Vec<(AppendId, CoordinatorRecord)>,
    answers: BTreeMap<ReplyToken, Answer>,
    markers: Vec<Markers>,
    tokens: u64,
    ids: i64,
    now_ms: i64,
}

impl Desk {
    fn new() -> Desk {
        let mut desk = Desk::loading();
        let effects = desk.shard.finish_loading(NOW);
        desk.take(effects);
        desk
    }

    fn loading() -> Desk {
        let (settings, limits) = (TransactionSettings::default(), TransactionLimits::default());
        let mut shard = TransactionCoordinatorShard::new(settings, limits);
        shard.set_flexible_records(true);
        Desk {
            shard,
            log: Vec::new(),
            appends: Vec::new(),
            answers: BTreeMap::new(),
            markers: Vec::new(),
            tokens: 0,
            ids: 100,
            now_ms: NOW,
        }
    }

    /// Another coordinator that reads what this one has stored.
    fn failover(&self) -> Desk {
        let mut next = Desk::loading();
        for record in &self.log {
            next.shard.replay_batch(&batch_of(record)).unwrap();
        }
        (next.log, next.ids, next.now_ms) = (self.log.clone(), self.ids + 100, self.now_ms);
        let effects = next.shard.finish_loading(self.now_ms);
        next.take(effects);
        next
    }

    fn take(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Reply(token, answer) => {
                    let before = self.answers.insert(token, answer);
                    assert_eq!(before, None, "a request was answered twice");
                }
                Effect::Append { record, then } | Effect::AppendLater { record, then, .. } => {
                    self.appends.push((then, record));
                }
                Effect::WriteMarkers(markers) => self.markers.push(markers),
            }
        }
    }

    /// Everything under way is stored.
    fn store(&mut self) {
        while !self.appends.is_empty() {
            let (then, record) = self.appends.remove(0);
            self.log.push(record);
            let effects = self.shard.append_done(then, Ok(()), self.now_ms);
            self.take(effects);
        }
    }

    fn lose(&mut self, error: ErrorCode) {
        for (then, _) in std::mem::take(&mut self.appends) {
            let effects = self.shard.append_done(then, Err(error), self.now_ms);
            self.take(effects);
        }
    }

    fn token(&mut self) -> ReplyToken {
        self.tokens += 1;
        ReplyToken(self.tokens)
    }

    fn start_init(&mut self, expected: Option<Producer>) -> ReplyToken {
        let (token, now) = (self.token(), self.now_ms);
        let shard = &mut self.shard;
        let effects = shard
            .init_producer_id(&ID, TIMEOUT_MS, expected, None, now, token)
            .or_else(|NeedsProducerId| {
                self.ids += 1;
                shard.init_producer_id(&ID, TIMEOUT_MS, expected, Some(self.ids), now, token)
            });
        self.take(effects.unwrap());
        token
    }

    fn start_add(&mut self, producer: Producer, indexes: &[i32], v2: bool) -> ReplyToken {
        let (token, now) = (self.token(), self.now_ms);
        let partitions = partitions(indexes);
        let version = version(v2);
        let effects = self
            .shard
            .add_partitions(&ID, producer, &partitions, version, now, token);
        self.take(effects);
        token
    }

    fn start_end(&mut self, producer: Producer, commit: bool, v2: bool) -> ReplyToken {
        let (token, now, version) = (self.token(), self.now_ms, version(v2));
        let shard = &mut self.shard;
        let effects = shard
            .end(&ID, producer, commit, version, None, now, token)
            .or_else(|NeedsProducerId| {
                self.ids += 1;
                shard.end(&ID, producer, commit, version, Some(self.ids), now, token)
            });
        self.take(effects.unwrap());
        token
    }

    fn answer(&mut self, token: ReplyToken) -> Answer {
        self.answers
            .remove(&token)
            .expect("the request is answered")
    }

    fn init(&mut self) -> Producer {
        let token = self.start_init(None);
        self.store();
        let answer = self.answer(token);
        assert_eq!(answer.error, ErrorCode::NONE);
        answer.producer
    }

    fn add(&mut self, producer: Producer, indexes: &[i32], v2: bool) -> ErrorCode {
        let token = self.start_add(producer, indexes, v2);
        self.store();
        self.answer(token).error
    }

    fn end(&mut self, producer: Producer, commit: bool, v2: bool) -> Answer {
        let token = self.start_end(producer, commit, v2);
        self.store();
        self.answer(token)
    }

    /// The partitions write their markers.
    fn write_markers(&mut self) -> Vec<(i16, bool, Vec<i32>)> {
        let mut written = Vec::new();
        for markers in std::mem::take(&mut self.markers) {
            let indexes = markers.partitions.iter().map(|(_, index)| index).collect();
            written.push((markers.producer.epoch, markers.commit, indexes));
            let effects =
                self.shard
                    .markers_written(&ID, markers.producer, &markers.partitions, self.now_ms);
            self.take(effects);
        }
        self.store();
        written
    }

    /// Whether there was something to abort.
    fn abort_timed_out(&mut self) -> bool {
        let (effects, _) = self.shard.abort_timed_out(0, self.now_ms);
        let some = !effects.is_empty();
        self.take(effects);
        some
    }

    /// Whether there was something to remove.
    fn remove_expired(&mut self) -> bool {
        let (effects, _) = self.shard.remove_expired(0, self.now_ms);
        let some = !effects.is_empty();
        self.take(effects);
        some
    }

    fn state(&self) -> State {
        self.shard.describe(&ID).unwrap().state
    }
}

fn version(v2: bool) -> TransactionVersion {
    match v2 {
        true => TransactionVersion::V2,
        false => TransactionVersion::V0,
    }
}

fn partitions(indexes: &[i32]) -> Partitions {
    let topic = Str::from_static("orders");
    indexes.iter().map(|index| (&topic, *index)).collect()
}

fn batch_of(record: &CoordinatorRecord) -> Batch {
    let mut batch = BatchBuilder::new();
    batch
        .append(NOW, Some(&record.key), record.value.as_deref(), &[])
        .unwrap();
    Batches::new(batch.build().unwrap())
        .next()
        .unwrap()
        .unwrap()
}

fn refused(error: ErrorCode) -> Answer {
    Answer {
        error,
        producer: Producer { id: -1, epoch: -1 },
    }
}

#[test]
fn a_commit_is_told_only_when_it_is_stored_and_written_to_every_partition_it_touched() {
    let mut desk = Desk::new();
    let producer = desk.init();
    assert_eq!(producer.epoch, 0);
    assert_eq!(desk.add(producer, &[0, 1], false), ErrorCode::NONE);
    assert_eq!(desk.add(producer, &[1, 2], false), ErrorCode::NONE);
    let token = desk.start_end(producer, true, false);
    assert!(desk.answers.is_empty(), "told before it was stored");
    assert!(desk.markers.is_empty(), "written before it was stored");
    assert_eq!(desk.state(), State::Ongoing);
    assert_eq!(desk.shard.counts(), (1, 1, 0));
    desk.store();
    assert_eq!(desk.answer(token).error, ErrorCode::NONE);
    assert_eq!(desk.state(), State::PrepareCommit);
    assert_eq!(desk.shard.counts(), (1, 0, 1));
    assert_eq!(desk.failover().shard.counts(), (1, 0, 1));
    assert_eq!(desk.write_markers(), [(0, true, vec![0, 1, 2])]);
    assert_eq!(desk.state(), State::CompleteCommit);
    assert_eq!(desk.shard.counts(), (1, 0, 0));
}

#[test]
fn a_step_under_way_keeps_every_other_one_out() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0], false);
    desk.start_end(producer, true, false);
    let concurrent = refused(ErrorCode::CONCURRENT_TRANSACTIONS);
    let asked = [
        desk.start_end(producer, false, false),
        desk.start_add(producer, &[1], false),
        desk.start_init(None),
    ];
    for token in asked {
        assert_eq!(desk.answer(token), concurrent);
    }
    desk.store();
    // The markers are not written yet: a new transaction would be mixed up with this one.
    let asked = [desk.start_add(producer, &[1], false), desk.start_init(None)];
    for token in asked {
        assert_eq!(desk.answer(token), concurrent);
    }
    desk.write_markers();
    assert_eq!(desk.add(producer, &[1], false), ErrorCode::NONE);
}

#[test]
fn a_second_producer_shuts_the_first_one_out_and_aborts_its_transaction() {
    let mut desk = Desk::new();
    let first = desk.init();
    desk.add(first, &[0], false);
    let second = desk.start_init(None);
    desk.store();
    let answer = desk.answer(second);
    assert_eq!(answer, refused(ErrorCode::CONCURRENT_TRANSACTIONS));
    // Under an epoch of nobody's, so that a late batch of the first one is behind the marker.
    assert_eq!(desk.write_markers(), [(1, false, vec![0])]);
    let second = desk.init();
    assert_eq!((second.id, second.epoch), (first.id, 2));
    for late in [
        desk.end(first, true, false).error,
        desk.end(first, false, false).error,
        desk.add(first, &[0], false),
    ] {
        assert_eq!(late, ErrorCode::PRODUCER_FENCED);
    }
}

#[test]
fn a_decided_transaction_is_finished_by_the_next_coordinator() {
    for commit in [true, false] {
        let mut desk = Desk::new();
        let producer = desk.init();
        desk.add(producer, &[0, 3], false);
        desk.end(producer, commit, false);
        let mut next = desk.failover();
        assert_eq!(next.write_markers(), [(0, commit, vec![0, 3])]);
        let complete = next.failover();
        assert!(complete.markers.is_empty(), "nothing is left to write");
        assert_eq!(
            complete.state(),
            match commit {
                true => State::CompleteCommit,
                false => State::CompleteAbort,
            }
        );
    }
}

#[test]
fn markers_of_a_part_of_the_partitions_do_not_complete_a_transaction() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0, 1], false);
    desk.end(producer, true, false);
    let effects = desk
        .shard
        .markers_written(&ID, producer, &partitions(&[0]), NOW);
    desk.take(effects);
    desk.store();
    assert_eq!(desk.state(), State::PrepareCommit);
    let other = Producer {
        epoch: 7,
        ..producer
    };
    let effects = desk
        .shard
        .markers_written(&ID, other, &partitions(&[1]), NOW);
    assert!(effects.is_empty(), "of another transaction");
    let effects = desk
        .shard
        .markers_written(&ID, producer, &partitions(&[1]), NOW);
    desk.take(effects);
    desk.store();
    assert_eq!(desk.state(), State::CompleteCommit);
}

#[test]
fn a_silent_producer_is_fenced_and_aborted_after_its_timeout() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0], false);
    desk.now_ms += i64::from(TIMEOUT_MS);
    assert!(!desk.abort_timed_out(), "not a moment early");
    desk.now_ms += 1;
    assert!(desk.abort_timed_out());
    desk.store();
    assert_eq!(desk.write_markers(), [(1, false, vec![0])]);
    let late = desk.end(producer, true, false).error;
    assert_eq!(late, ErrorCode::PRODUCER_FENCED);
}

#[test]
fn with_v2_each_end_gives_a_new_epoch_and_a_repeated_end_the_same_answer() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0], true);
    let first = desk.end(producer, true, true);
    assert_eq!((first.error, first.producer.epoch), (ErrorCode::NONE, 1));
    let again = desk.end(producer, true, true).error;
    assert_eq!(again, ErrorCode::CONCURRENT_TRANSACTIONS);
    assert_eq!(desk.write_markers(), [(1, true, vec![0])]);
    assert_eq!(desk.end(producer, true, true), first);
    let other_way = desk.end(producer, false, true).error;
    assert_eq!(other_way, ErrorCode::INVALID_TXN_STATE);
    // The next transaction, which has touched nothing, may be aborted but not committed.
    let next = first.producer;
    let commit = desk.end(next, true, true).error;
    assert_eq!(commit, ErrorCode::INVALID_TXN_STATE);
    let aborted = desk.end(next, false, true);
    assert_eq!(
        (aborted.error, aborted.producer.epoch),
        (ErrorCode::NONE, 2)
    );
    assert!(desk.markers.is_empty());
    assert_eq!(desk.state(), State::CompleteAbort);
}

#[test]
fn with_v2_a_producer_that_was_timed_out_goes_on_with_the_epoch_that_aborted_it() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0], true);
    desk.now_ms += i64::from(TIMEOUT_MS) + 1;
    assert!(desk.abort_timed_out());
    desk.store();
    assert_eq!(desk.write_markers(), [(1, false, vec![0])]);
    let commit = desk.end(producer, true, true).error;
    assert_eq!(commit, ErrorCode::INVALID_TXN_STATE);
    let abort = desk.end(producer, false, true);
    assert_eq!((abort.error, abort.producer.epoch), (ErrorCode::NONE, 1));
    assert_eq!(desk.add(abort.producer, &[0], true), ErrorCode::NONE);
}

#[test]
fn a_used_up_epoch_gives_the_producer_another_id() {
    let mut desk = Desk::new();
    let mut producer = desk.init();
    while producer.epoch < i16::MAX - 1 {
        producer = desk.init();
    }
    // v1: with the next InitProducerId.
    let rotated = desk.init();
    assert_ne!(rotated.id, producer.id);
    assert_eq!(rotated.epoch, 0);
    // v2: with the end of the transaction that uses the last epoch.
    let mut producer = rotated;
    while producer.epoch < i16::MAX - 1 {
        producer = desk.init();
    }
    desk.add(producer, &[0], true);
    let end = desk.end(producer, true, true);
    assert_ne!(end.producer.id, producer.id);
    assert_eq!((end.error, end.producer.epoch), (ErrorCode::NONE, 0));
    assert_eq!(desk.write_markers(), [(i16::MAX, true, vec![0])]);
    assert_eq!(desk.end(producer, true, true), end, "the answer was lost");
    assert_eq!(desk.add(end.producer, &[0], true), ErrorCode::NONE);
    // Whoever has the old id is another.
    assert_eq!(
        desk.add(producer, &[0], true),
        ErrorCode::INVALID_PRODUCER_ID_MAPPING
    );
}

#[test]
fn fencing_at_the_last_epoch_leaves_no_epoch_that_overflows() {
    let mut desk = Desk::new();
    let mut producer = desk.init();
    while producer.epoch < i16::MAX - 1 {
        producer = desk.init();
    }
    desk.add(producer, &[0], true);
    desk.start_init(None);
    desk.store();
    assert_eq!(desk.write_markers(), [(i16::MAX, false, vec![0])]);
    let late = desk.end(producer, false, true).error;
    assert_eq!(late, ErrorCode::PRODUCER_FENCED);
    // One that takes an epoch which it was never given.
    let taken = Producer {
        epoch: i16::MAX,
        ..producer
    };
    for v2 in [false, true] {
        assert_eq!(desk.add(taken, &[0], v2), ErrorCode::PRODUCER_FENCED);
        let end = desk.end(taken, false, v2).error;
        assert_eq!(end, ErrorCode::PRODUCER_FENCED);
    }
    let next = desk.init();
    assert_ne!(next.id, producer.id);
    assert_eq!(next.epoch, 0);
}

#[test]
fn a_producer_goes_on_after_an_error_and_one_that_was_replaced_does_not() {
    let mut desk = Desk::new();
    let producer = desk.init();
    let token = desk.start_init(Some(producer));
    desk.store();
    let bumped = desk.answer(token).producer;
    assert_eq!((bumped.id, bumped.epoch), (producer.id, 1));
    // The answer was lost, and the same is asked again.
    let token = desk.start_init(Some(producer));
    desk.store();
    assert_eq!(desk.answer(token).producer, bumped);
    let replaced = desk.init();
    assert_eq!(replaced.epoch, 2);
    for old in [producer, bumped, Producer { id: 9, epoch: 0 }] {
        let token = desk.start_init(Some(old));
        let answer = desk.answer(token);
        assert_eq!(answer, refused(ErrorCode::PRODUCER_FENCED), "{old:?}");
    }
}

#[test]
fn a_record_that_is_not_stored_changes_nothing_and_is_told_as_retriable() {
    let mut desk = Desk::new();
    let token = desk.start_init(None);
    desk.lose(ErrorCode::NOT_ENOUGH_REPLICAS);
    let unavailable = refused(ErrorCode::COORDINATOR_NOT_AVAILABLE);
    assert_eq!(desk.answer(token), unavailable);
    assert!(desk.shard.describe(&ID).is_err(), "it never was");
    let producer = desk.init();
    desk.add(producer, &[0], false);
    let token = desk.start_end(producer, true, false);
    desk.lose(ErrorCode::NOT_ENOUGH_REPLICAS);
    assert_eq!(desk.answer(token), unavailable);
    assert_eq!(desk.state(), State::Ongoing);
    assert_eq!(desk.end(producer, true, false).error, ErrorCode::NONE);
}

#[test]
fn a_fence_that_was_not_stored_does_not_use_up_another_epoch() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0], false);
    for _ in 0..3 {
        desk.start_init(None);
        desk.lose(ErrorCode::NOT_ENOUGH_REPLICAS);
    }
    // The first producer is shut out all the same: its end could be stored after the fence.
    let late = desk.end(producer, true, false).error;
    assert_eq!(late, ErrorCode::PRODUCER_FENCED);
    desk.start_init(None);
    desk.store();
    assert_eq!(desk.write_markers(), [(1, false, vec![0])]);
}

#[test]
fn a_slow_record_is_told_as_unavailable_and_still_counts() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0], false);
    let token = desk.start_end(producer, true, false);
    let append = desk.appends[0].0;
    let effects = desk.shard.append_timed_out(append);
    desk.take(effects);
    let unavailable = refused(ErrorCode::COORDINATOR_NOT_AVAILABLE);
    assert_eq!(desk.answer(token), unavailable);
    // What the producer asks for now must not contradict what may be stored already.
    let token = desk.start_end(producer, false, false);
    let concurrent = refused(ErrorCode::CONCURRENT_TRANSACTIONS);
    assert_eq!(desk.answer(token), concurrent);
    desk.store();
    assert_eq!(desk.write_markers(), [(0, true, vec![0])]);
}

#[test]
fn the_completion_is_stored_again_until_it_is() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0], false);
    desk.end(producer, true, false);
    let markers = desk.markers.remove(0);
    let effects = desk
        .shard
        .markers_written(&ID, producer, &markers.partitions, NOW);
    desk.take(effects);
    // Whatever the reason is: nobody else would ever ask for it.
    for error in [
        ErrorCode::NOT_ENOUGH_REPLICAS,
        ErrorCode::KAFKA_STORAGE_ERROR,
        ErrorCode::NOT_LEADER_OR_FOLLOWER,
    ] {
        desk.lose(error);
        assert_eq!(desk.appends.len(), 1, "asked for again");
    }
    desk.store();
    assert_eq!(desk.state(), State::CompleteCommit);
}

#[test]
fn partitions_leaders_are_told_whether_a_transaction_has_their_partition() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0], false);
    let ask = |desk: &Desk, producer| -> Vec<ErrorCode> {
        desk.shard
            .verify_partitions(&ID, producer, &partitions(&[0, 1]))
            .into_iter()
            .map(|(_, _, error)| error)
            .collect()
    };
    assert_eq!(
        ask(&desk, producer),
        [ErrorCode::NONE, ErrorCode::TRANSACTION_ABORTABLE]
    );
    let other_epoch = Producer {
        epoch: 3,
        ..producer
    };
    assert_eq!(ask(&desk, other_epoch), [ErrorCode::PRODUCER_FENCED; 2]);
    let other_id = Producer { id: 9, ..producer };
    assert_eq!(
        ask(&desk, other_id),
        [ErrorCode::INVALID_PRODUCER_ID_MAPPING; 2]
    );
    desk.end(producer, true, false);
    assert_eq!(
        ask(&desk, producer),
        [ErrorCode::CONCURRENT_TRANSACTIONS; 2]
    );
}

#[test]
fn unused_ids_expire_and_open_transactions_never_do() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.now_ms += TransactionSettings::default().id_expiration_ms;
    desk.now_ms -= 1;
    assert!(!desk.remove_expired(), "not a moment early");
    desk.now_ms += 1;
    assert!(desk.remove_expired());
    desk.store();
    assert_eq!(
        desk.shard.describe(&ID),
        Err(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND)
    );
    assert!(desk.failover().shard.describe(&ID).is_err());
    assert_eq!(
        desk.add(producer, &[0], false),
        ErrorCode::INVALID_PRODUCER_ID_MAPPING
    );
    let producer = desk.init();
    desk.add(producer, &[0], false);
    desk.now_ms += 2 * TransactionSettings::default().id_expiration_ms;
    assert!(!desk.remove_expired());
}

#[test]
fn a_look_at_many_ids_goes_in_steps_and_leaves_none_out() {
    let limits = TransactionLimits {
        ids_per_step: 4,
        due_per_step: 3,
        ..Default::default()
    };
    let mut desk = Desk::new();
    desk.shard.limits = limits;
    for at in 0..10 {
        let (id, token) = (Str::from(format!("id-{at}")), desk.token());
        let shard = &mut desk.shard;
        let effects = shard.init_producer_id(&id, TIMEOUT_MS, None, Some(at), NOW, token);
        desk.take(effects.unwrap());
    }
    desk.store();
    desk.now_ms += TransactionSettings::default().id_expiration_ms;
    let (mut from, mut steps) = (Some(0), 0);
    while let Some(at) = from {
        let (effects, next) = desk.shard.remove_expired(at, desk.now_ms);
        desk.take(effects);
        (from, steps) = (next, steps + 1);
    }
    assert_eq!((steps, desk.appends.len()), (4, 10));
    desk.store();
    assert_eq!(desk.shard.counts(), (0, 0, 0));
}

#[test]
fn nothing_is_answered_while_loading_or_after_leadership_is_gone() {
    let mut desk = Desk::loading();
    let token = desk.start_init(None);
    let loading = refused(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
    assert_eq!(desk.answer(token), loading);
    let mut desk = Desk::new();
    let producer = desk.init();
    let token = desk.start_add(producer, &[0], false);
    let effects = desk.shard.unload();
    desk.take(effects);
    let gone = refused(ErrorCode::NOT_COORDINATOR);
    assert_eq!(desk.answer(token), gone);
    let token = desk.start_end(producer, true, false);
    assert_eq!(desk.answer(token), gone);
}

#[test]
fn timeouts_and_ids_out_of_bounds_are_refused() {
    let mut desk = Desk::new();
    for timeout_ms in [0, -1, 900_001] {
        let token = desk.token();
        let effects = desk
            .shard
            .init_producer_id(&ID, timeout_ms, None, None, NOW, token);
        desk.take(effects.unwrap());
        let answer = desk.answer(token);
        assert_eq!(answer, refused(ErrorCode::INVALID_TRANSACTION_TIMEOUT));
    }
    let token = desk.token();
    let empty = Str::default();
    let effects = desk
        .shard
        .init_producer_id(&empty, TIMEOUT_MS, None, None, NOW, token);
    desk.take(effects.unwrap());
    assert_eq!(desk.answer(token), refused(ErrorCode::INVALID_REQUEST));
}

#[test]
fn lists_are_filtered_by_state_producer_duration_and_pattern() {
    let mut desk = Desk::new();
    let producer = desk.init();
    desk.add(producer, &[0], false);
    let ids = |filter: ListFilter, now_ms: i64| -> usize {
        desk.shard.list(&filter, 0, now_ms).unwrap().0.len()
    };
    let all = ListFilter {
        duration_ms: -1,
        ..Default::default()
    };
    assert_eq!(ids(all.clone(), NOW), 1);
    for (states, count) in [(vec![State::Ongoing], 1), (vec![State::Empty], 0)] {
        let filter = ListFilter {
            states,
            ..all.clone()
        };
        assert_eq!(ids(filter, NOW), count);
    }
    let filter = ListFilter {
        producer_ids: vec![producer.id + 1],
        ..all.clone()
    };
    assert_eq!(ids(filter, NOW), 0);
    let filter = ListFilter {
        duration_ms: 500,
        ..all.clone()
    };
    assert_eq!(ids(filter.clone(), NOW + 500), 0);
    assert_eq!(ids(filter, NOW + 501), 1);
    let filter = ListFilter {
        pattern: Some(regex::Regex::new("^(?:pay)$").unwrap()),
        ..all
    };
    assert_eq!(ids(filter, NOW), 0);
}

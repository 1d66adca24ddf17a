//! The producer state: sequences, duplicates, epochs, transactions, snapshots, against a model that
//! remembers everything.

use super::*;
use crate::wire::ErrorCode;
use crate::wire::batch::increment_sequence;
use crate::wire::batch_builder::{BatchBuilder, control_batch, end_txn_marker};

const NONE: VerificationGuard = VerificationGuard::NONE;
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

fn data(id: i64, epoch: i16, sequence: i32, offset: i64, count: i32) -> BatchFacts {
    BatchFacts {
        producer_id: id,
        producer_epoch: epoch,
        base_sequence: sequence,
        last_sequence: increment_sequence(sequence, count - 1),
        base_offset: Offset(offset),
        last_offset: Offset(offset + i64::from(count) - 1),
        max_timestamp: offset,
        transactional: false,
        content: BatchContent::Data,
    }
}

fn txn(id: i64, epoch: i16, sequence: i32, offset: i64) -> BatchFacts {
    BatchFacts {
        transactional: true,
        ..data(id, epoch, sequence, offset, 1)
    }
}

fn marker(id: i64, epoch: i16, offset: i64, commit: bool, coordinator_epoch: i32) -> BatchFacts {
    let end = EndTxn {
        commit,
        coordinator_epoch,
        timestamp: offset,
    };
    BatchFacts {
        base_sequence: -1,
        last_sequence: -1,
        content: BatchContent::Marker(end),
        ..txn(id, epoch, 0, offset)
    }
}

fn unverified() -> Producers {
    Producers::with_limits(ProducerLimits {
        verify_transactions: false,
        ..ProducerLimits::default()
    })
}

fn client(producers: &Producers, facts: &BatchFacts) -> Result<Verdict, ErrorCode> {
    let verdict = producers.check(facts, Origin::Client, NONE, 0);
    verdict.map_err(|error| error.code())
}

fn ended(producers: &Producers, facts: &BatchFacts, version: i16) -> Result<Verdict, ErrorCode> {
    let verdict = producers.check(facts, Origin::Coordinator, NONE, version);
    verdict.map_err(|error| error.code())
}

const SEQUENCE: Result<Verdict, ErrorCode> = Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
const EPOCH: Result<Verdict, ErrorCode> = Err(ErrorCode::INVALID_PRODUCER_EPOCH);
const TXN_STATE: Result<Verdict, ErrorCode> = Err(ErrorCode::INVALID_TXN_STATE);
const NEW: Result<Verdict, ErrorCode> = Ok(Verdict::New);

#[test]
fn a_repeated_batch_is_answered_with_its_first_offsets() {
    let mut producers = unverified();
    for at in 0..7 {
        producers.apply(&data(1, 0, 10 * at, 100 * i64::from(at), 10));
    }
    let repeat = |sequence, count| client(&producers, &data(1, 0, sequence, 900, count));
    for at in 2..7 {
        let first_offset = Offset(100 * i64::from(at));
        let last_offset = Offset(first_offset.0 + 9);
        let timestamp = first_offset.0;
        let duplicate = Verdict::Duplicate {
            first_offset,
            last_offset,
            timestamp,
        };
        assert_eq!(repeat(10 * at, 10), Ok(duplicate));
    }
    assert_eq!(repeat(10, 10), SEQUENCE, "older than the five remembered");
    assert_eq!(repeat(60, 9), SEQUENCE, "same start, other end");
    assert_eq!(repeat(70, 1), NEW);
    assert_eq!(repeat(71, 1), SEQUENCE, "a gap");
    // An equal range of another epoch is no duplicate.
    assert_eq!(client(&producers, &data(1, 1, 60, 900, 10)), SEQUENCE);
    assert_eq!(client(&producers, &data(1, 1, 0, 900, 10)), NEW);
}

#[test]
fn sequences_go_on_at_zero_behind_the_largest() {
    let mut producers = unverified();
    producers.apply(&data(1, 0, i32::MAX - 1, 0, 2));
    assert_eq!(client(&producers, &data(1, 0, 0, 2, 1)), NEW);
    assert_eq!(client(&producers, &data(1, 0, 1, 2, 1)), SEQUENCE);
    producers.apply(&data(1, 0, 0, 2, 1));
    let wrapping = data(2, 0, i32::MAX, 3, 3);
    assert_eq!(wrapping.last_sequence, 1);
    producers.apply(&wrapping);
    assert!(matches!(
        client(&producers, &wrapping),
        Ok(Verdict::Duplicate { .. })
    ));
    assert_eq!(client(&producers, &data(2, 0, 2, 6, 1)), NEW);
}

#[test]
fn a_fenced_producer_is_refused_and_an_unknown_one_may_start_anywhere() {
    let mut producers = unverified();
    assert_eq!(client(&producers, &data(1, 3, 77, 0, 1)), NEW);
    producers.apply(&data(1, 3, 77, 0, 1));
    assert_eq!(client(&producers, &data(1, 2, 78, 1, 1)), EPOCH);
    // Only clients have sequences to check; epochs hold for all but followers.
    let odd = data(1, 3, 99, 1, 1);
    assert_eq!(
        producers.check(&odd, Origin::Coordinator, NONE, 0),
        Ok(Verdict::New)
    );
    let stale = data(1, 2, 78, 1, 1);
    assert!(
        producers
            .check(&stale, Origin::Coordinator, NONE, 0)
            .is_err()
    );
    assert_eq!(
        producers.check(&stale, Origin::Replication, NONE, 0),
        Ok(Verdict::New)
    );
}

#[test]
fn a_transaction_needs_the_coordinators_word_of_this_very_time() {
    let mut producers = Producers::new(DAY_MS);
    let first = txn(1, 0, 0, 0);
    let check = |producers: &Producers, facts: &BatchFacts, guard| {
        let verdict = producers.check(facts, Origin::Client, guard, 0);
        verdict.map_err(|error| error.code())
    };
    assert_eq!(check(&producers, &first, NONE), TXN_STATE);
    let guard = producers.start_verification(1, 0, 0, false, 0).unwrap();
    assert!(!guard.is_none());
    assert_eq!(
        producers.start_verification(1, 0, 0, false, 5),
        Ok(guard),
        "one at a time"
    );
    assert_eq!(check(&producers, &first, NONE), TXN_STATE);
    assert_eq!(check(&producers, &first, guard), NEW);
    producers.apply(&first);
    // Open here now: nobody is asked, and no guard is needed.
    assert_eq!(producers.start_verification(1, 0, 1, false, 0), Ok(NONE));
    assert_eq!(check(&producers, &txn(1, 0, 1, 1), NONE), NEW);
    // Aborted meanwhile: the old answer is worth nothing.
    producers.apply(&marker(1, 0, 1, false, 0));
    assert_eq!(check(&producers, &txn(1, 0, 1, 2), guard), TXN_STATE);
    let again = producers.start_verification(1, 0, 1, false, 0).unwrap();
    assert_ne!(again, guard);
    assert_eq!(check(&producers, &txn(1, 0, 1, 2), guard), TXN_STATE);
    assert_eq!(check(&producers, &txn(1, 0, 1, 2), again), NEW);
    // A marker that comes while the coordinator is asked ends the verification.
    producers.apply(&marker(1, 0, 2, false, 0));
    assert_eq!(check(&producers, &txn(1, 0, 1, 3), again), TXN_STATE);
}

#[test]
fn an_epoch_is_judged_before_a_transaction() {
    let mut producers = Producers::new(DAY_MS);
    producers.apply(&txn(1, 4, 0, 0));
    assert_eq!(client(&producers, &txn(1, 3, 1, 1)), EPOCH);
    let stale = producers.start_verification(1, 3, 1, false, 0);
    assert_eq!(
        stale.map_err(|error| error.code()),
        Err(ErrorCode::INVALID_PRODUCER_EPOCH)
    );
    assert_eq!(
        client(&producers, &txn(1, 5, 0, 1)),
        TXN_STATE,
        "a new epoch is a new transaction"
    );
}

#[test]
fn a_batch_outside_of_the_open_transaction_is_refused() {
    let mut producers = unverified();
    producers.apply(&txn(1, 0, 0, 0));
    assert_eq!(client(&producers, &data(1, 0, 1, 1, 1)), TXN_STATE);
    assert_eq!(client(&producers, &txn(1, 0, 1, 1)), NEW);
    producers.apply(&marker(1, 0, 1, true, 0));
    assert_eq!(client(&producers, &data(1, 0, 1, 2, 1)), NEW);
}

#[test]
fn a_higher_sequence_may_not_overtake_the_one_being_verified() {
    let mut producers = Producers::new(DAY_MS);
    let guard = producers.start_verification(1, 0, 3, false, 0).unwrap();
    assert_eq!(producers.start_verification(1, 0, 2, false, 0), Ok(guard));
    assert_eq!(producers.start_verification(1, 0, 9, false, 0), Ok(guard));
    let check = |sequence| {
        let verdict = producers.check(&txn(1, 0, sequence, 0), Origin::Client, guard, 0);
        verdict.map_err(|error| error.code())
    };
    assert_eq!(check(3), SEQUENCE);
    assert_eq!(check(2), NEW);
    // A new epoch starts counting anew.
    producers.start_verification(1, 1, 5, false, 0).unwrap();
    let verdict = producers.check(&txn(1, 1, 5, 0), Origin::Client, guard, 0);
    assert_eq!(verdict, Ok(Verdict::New));
}

#[test]
fn a_transactions_v2_producer_without_state_starts_at_zero() {
    let mut producers = Producers::new(DAY_MS);
    let guard = producers.start_verification(1, 0, 7, true, 0).unwrap();
    let check = |producers: &Producers, sequence| {
        let verdict = producers.check(&txn(1, 0, sequence, 0), Origin::Client, guard, 0);
        verdict.map_err(|error| error.code())
    };
    assert_eq!(check(&producers, 7), SEQUENCE);
    assert_eq!(check(&producers, 0), NEW);
    // With transactions v1 it may have lost its state to retention.
    let mut producers = Producers::new(DAY_MS);
    let guard = producers.start_verification(1, 0, 7, false, 0).unwrap();
    let verdict = producers.check(&txn(1, 0, 7, 0), Origin::Client, guard, 0);
    assert_eq!(verdict, Ok(Verdict::New));
}

#[test]
fn a_late_marker_ends_no_transaction_but_its_own() {
    let mut producers = unverified();
    producers.apply(&txn(1, 5, 0, 0));
    assert_eq!(ended(&producers, &marker(1, 4, 1, true, 0), 0), EPOCH);
    assert_eq!(
        ended(&producers, &marker(1, 5, 1, true, 0), 0),
        NEW,
        "before v2 the same epoch"
    );
    assert_eq!(
        ended(&producers, &marker(1, 5, 1, true, 0), 2),
        EPOCH,
        "with v2 a higher one"
    );
    let end = marker(1, 6, 1, true, 3);
    assert_eq!(ended(&producers, &end, 2), NEW);
    producers.apply(&end);
    // Sent again, with nothing open: harmless. Of an older coordinator: fenced.
    assert_eq!(ended(&producers, &marker(1, 6, 2, true, 3), 2), NEW);
    let zombie = ended(&producers, &marker(1, 6, 2, true, 2), 2);
    assert_eq!(zombie, Err(ErrorCode::TRANSACTION_COORDINATOR_FENCED));
    // The next transaction of the new epoch starts at sequence 0.
    assert_eq!(client(&producers, &txn(1, 6, 1, 2)), SEQUENCE);
    assert_eq!(client(&producers, &txn(1, 6, 0, 2)), NEW);
    // An epoch that cannot grow any more has no higher marker.
    producers.apply(&txn(2, i16::MAX, 0, 2));
    assert_eq!(ended(&producers, &marker(2, i16::MAX, 3, true, 0), 2), NEW);
}

#[test]
fn the_first_unstable_offset_waits_for_decision_and_for_replication() {
    let mut producers = unverified();
    assert_eq!(producers.first_unstable_offset(), None);
    producers.apply(&txn(1, 0, 0, 10));
    producers.apply(&txn(2, 0, 0, 11));
    producers.apply(&txn(1, 0, 1, 12));
    assert_eq!(producers.first_unstable_offset(), Some(Offset(10)));
    let aborted = producers.apply(&marker(1, 0, 13, false, 0)).unwrap();
    let row = AbortedTxn {
        producer_id: 1,
        first_offset: Offset(10),
        last_offset: Offset(13),
        last_stable_offset: Offset(11),
    };
    assert_eq!(aborted.aborted_row(), Some(row));
    assert_eq!(
        producers.first_unstable_offset(),
        Some(Offset(10)),
        "the marker may be lost yet"
    );
    assert_eq!(producers.first_undecided_offset(), Some(Offset(11)));
    producers.on_high_watermark(Offset(13));
    assert_eq!(producers.first_unstable_offset(), Some(Offset(10)));
    producers.on_high_watermark(Offset(14));
    assert_eq!(producers.first_unstable_offset(), Some(Offset(11)));
    let committed = producers.apply(&marker(2, 0, 14, true, 0)).unwrap();
    assert_eq!(committed.last_stable_offset, Offset(15));
    assert_eq!(committed.aborted_row(), None);
    producers.on_high_watermark(Offset(15));
    assert_eq!(producers.first_unstable_offset(), None);
    // A marker without a transaction ends nothing.
    assert_eq!(producers.apply(&marker(2, 0, 15, true, 0)), None);
}

#[test]
fn a_producer_expires_when_silent_but_never_with_a_transaction_open() {
    let mut producers = Producers::new(100);
    producers.apply(&data(1, 0, 0, 50, 1));
    producers.apply(&txn(2, 0, 0, 51));
    let guard = producers.start_verification(3, 0, 0, false, 60).unwrap();
    producers.expire(149);
    assert_eq!(producers.len(), 2);
    assert_eq!(producers.start_verification(3, 0, 0, false, 149), Ok(guard));
    producers.expire(160);
    assert_eq!(producers.len(), 1);
    assert!(producers.has_open_txn(2, 0));
    assert_ne!(producers.start_verification(3, 0, 0, false, 160), Ok(guard));
    assert!(!producers.has_late_txn(51 + LATE_TXN_MS + 900, 900));
    assert!(producers.has_late_txn(52 + LATE_TXN_MS + 900, 900));
}

#[test]
fn at_the_limit_the_longest_silent_are_forgotten_and_transactions_are_not() {
    let mut producers = Producers::with_limits(ProducerLimits {
        producers_max: 64,
        verify_transactions: false,
        ..ProducerLimits::default()
    });
    producers.apply(&txn(1000, 0, 0, 0));
    for id in 0..500 {
        assert_eq!(client(&producers, &data(id, 0, 0, id + 1, 1)), NEW);
        producers.apply(&data(id, 0, 0, id + 1, 1));
        assert!(producers.len() <= 64);
    }
    assert!(producers.has_open_txn(1000, 0));
    assert!(producers.entry(499).is_some() && producers.entry(460).is_some());
    assert!(producers.entry(300).is_none());
    // Where nothing can be forgotten, a new producer waits.
    let mut full = Producers::with_limits(ProducerLimits {
        producers_max: 2,
        ..producers.limits
    });
    full.apply(&txn(1, 0, 0, 0));
    full.apply(&txn(2, 0, 0, 1));
    let refused = Err(ErrorCode::THROTTLING_QUOTA_EXCEEDED);
    assert_eq!(client(&full, &data(3, 0, 0, 2, 1)), refused);
    assert_eq!(client(&full, &txn(1, 0, 1, 2)), NEW);
}

#[test]
fn a_snapshot_is_kafkas_bytes_and_reads_back() {
    let mut producers = unverified();
    producers.apply(&data(7, 2, 30, 100, 10));
    producers.apply(&txn(3, 0, 0, 110));
    producers.apply(&marker(5, 1, 111, true, 9));
    let bytes = producers.encode_snapshot();
    assert_eq!(bytes.len(), 10 + 3 * 46);
    assert_eq!(bytes[..2], [0, 1]);
    assert_eq!(bytes[2..6], crc32c::crc32c(&bytes[6..]).to_be_bytes());
    assert_eq!(bytes[6..10], 3i32.to_be_bytes());
    let mut seven = Vec::new();
    seven.extend(7i64.to_be_bytes());
    seven.extend(2i16.to_be_bytes());
    seven.extend(39i32.to_be_bytes());
    seven.extend(109i64.to_be_bytes());
    seven.extend(9i32.to_be_bytes());
    seven.extend(100i64.to_be_bytes());
    seven.extend((-1i32).to_be_bytes());
    seven.extend((-1i64).to_be_bytes());
    assert_eq!(bytes[102..], seven[..], "ids in order, so 7 is the last");
    let read = Producers::from_snapshot(&bytes, Offset(112), DAY_MS, 200).unwrap();
    assert_eq!(read.describe(), producers.describe());
    assert_eq!(read.end_offset(), Offset(112));
    assert!(!read.needs_snapshot());
    assert_eq!(read.first_unstable_offset(), Some(Offset(110)));
    assert_eq!(read.encode_snapshot(), bytes);
    // Expired ones stay out, open transactions do not expire.
    let later = Producers::from_snapshot(&bytes, Offset(112), DAY_MS, 200 + DAY_MS).unwrap();
    assert_eq!(later.len(), 1);
}

#[test]
fn a_damaged_snapshot_is_named_and_never_a_panic() {
    let mut producers = unverified();
    producers.apply(&data(7, 2, 30, 100, 10));
    let good = producers.encode_snapshot();
    let read = |bytes: &[u8]| Producers::from_snapshot(bytes, Offset(0), DAY_MS, 0).map(|_| ());
    for cut in 0..good.len() {
        assert!(read(&good[..cut]).is_err());
    }
    for at in 0..good.len() {
        let mut garbled = good.to_vec();
        garbled[at] ^= 0x40;
        assert!(read(&garbled).is_err(), "byte {at}");
    }
    let mut count = good.to_vec();
    count[6..10].copy_from_slice(&i32::MAX.to_be_bytes());
    let crc = crc32c::crc32c(&count[6..]);
    count[2..6].copy_from_slice(&crc.to_be_bytes());
    assert!(matches!(
        read(&count),
        Err(SnapshotError::Length {
            declared: i32::MAX,
            ..
        })
    ));
    assert_eq!(read(&[0; 10]), Err(SnapshotError::Version(0)));
}

#[test]
fn replay_reads_batches_as_they_lie_in_the_log() {
    let mut producers = Producers::new(DAY_MS);
    let batch = |bytes: Bytes, offset: i64| {
        let mut split = Batch::parse(&bytes).unwrap().0.split();
        split.set_base_offset(Offset(offset));
        let batch = split.to_batch();
        assert_eq!(
            BatchFacts::of(&batch).unwrap(),
            BatchFacts::of_split(&split).unwrap()
        );
        batch
    };
    let mut builder = BatchBuilder::new().with_producer(8, 1, 0);
    builder.transactional = true;
    builder.append(77, None, Some(b"v"), &[]).unwrap();
    assert_eq!(producers.replay(&batch(builder.build().unwrap(), 40)), None);
    assert_eq!(producers.first_unstable_offset(), Some(Offset(40)));
    let end = end_txn_marker(8, 1, false, 6, 88).unwrap();
    let row = producers.replay(&batch(end, 41)).unwrap();
    assert_eq!(
        (row.first_offset, row.last_offset),
        (Offset(40), Offset(41))
    );
    let entry = producers.entry(8).unwrap();
    assert_eq!((entry.coordinator_epoch, entry.last_timestamp), (6, 88));
    // Control batches of no producer and plain batches only move the end.
    let change = (
        crate::wire::batch_builder::ControlType::LeaderChange,
        &b"x"[..],
    );
    let control = control_batch(Offset(42), crate::types::LeaderEpoch(1), 1, &[change]).unwrap();
    assert_eq!(producers.replay(&batch(control, 42)), None);
    assert_eq!(producers.end_offset(), Offset(43));
    assert_eq!(producers.len(), 1);
}

/// Answers everything from the whole history of the partition.
#[derive(Default)]
struct Model {
    history: Vec<BatchFacts>,
}

impl Model {
    fn of(&self, id: i64) -> Vec<&BatchFacts> {
        self.history
            .iter()
            .filter(|facts| facts.producer_id == id)
            .collect()
    }

    fn is_marker(facts: &BatchFacts) -> bool {
        matches!(facts.content, BatchContent::Marker(_))
    }

    fn open(&self, id: i64) -> Option<Offset> {
        let all = self.of(id);
        let last_end = all.iter().rposition(|facts| Model::is_marker(facts));
        let since = &all[last_end.map_or(0, |at| at + 1)..];
        since
            .iter()
            .find(|facts| facts.transactional)
            .map(|facts| facts.base_offset)
    }

    fn expect(
        &self,
        facts: &BatchFacts,
        origin: Origin,
        version: i16,
    ) -> Result<Verdict, ErrorCode> {
        let all = self.of(facts.producer_id);
        let epoch = all.last().map(|last| last.producer_epoch);
        // The batches since the epoch last changed.
        let run = all
            .iter()
            .rev()
            .take_while(|other| Some(other.producer_epoch) == epoch);
        let run: Vec<_> = run.filter(|other| !Model::is_marker(other)).collect();
        let open = self.open(facts.producer_id).is_some();
        if epoch.is_some_and(|epoch| facts.producer_epoch < epoch) {
            return EPOCH;
        }
        if let BatchContent::Marker(end) = facts.content {
            if version == 2 && open && Some(facts.producer_epoch) == epoch {
                return EPOCH;
            }
            let fenced = |other: &&BatchFacts| match other.content {
                BatchContent::Marker(other) => other.coordinator_epoch,
                _ => -1,
            };
            let seen = all.iter().rev().map(fenced).find(|epoch| *epoch >= 0);
            return match seen.is_some_and(|seen| end.coordinator_epoch < seen) {
                true => Err(ErrorCode::TRANSACTION_COORDINATOR_FENCED),
                false => NEW,
            };
        }
        if origin == Origin::Client {
            if Some(facts.producer_epoch) == epoch {
                let range = |facts: &BatchFacts| (facts.base_sequence, facts.last_sequence);
                if let Some(first) = run
                    .iter()
                    .take(5)
                    .rev()
                    .find(|other| range(other) == range(facts))
                {
                    return Ok(Verdict::Duplicate {
                        first_offset: first.base_offset,
                        last_offset: first.last_offset,
                        timestamp: first.max_timestamp,
                    });
                }
                let next = run
                    .first()
                    .map_or(0, |last| increment_sequence(last.last_sequence, 1));
                if facts.base_sequence != next {
                    return SEQUENCE;
                }
            } else if epoch.is_some() && facts.base_sequence != 0 {
                return SEQUENCE;
            }
        }
        match open && !facts.transactional {
            true => TXN_STATE,
            false => NEW,
        }
    }
}

#[test]
fn the_state_agrees_with_a_model_that_remembers_all_history() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut counts = [0; 3];
    for _ in 0..300 {
        let (mut producers, mut model) = (unverified(), Model::default());
        let (mut end, mut high_watermark) = (0i64, 0i64);
        for _ in 0..120 {
            let id = rng.i64(1..4);
            let mine = model.of(id);
            let last = mine
                .last()
                .map(|last| (last.producer_epoch, last.last_sequence));
            let (epoch, sequence) = last.unwrap_or((0, i32::MAX - 3));
            let epoch = (epoch + [-1, 0, 0, 0, 0, 0, 0, 1][rng.usize(..8)]).max(0);
            let version = if rng.bool() { 2 } else { 0 };
            let mut facts = if rng.u8(..10) < 2 {
                marker(id, epoch, end, rng.bool(), rng.i32(3..5))
            } else {
                let previous = mine.get(mine.len().saturating_sub(rng.usize(1..9)));
                let (first, count) = match previous {
                    Some(old) if rng.u8(..10) < 3 && !Model::is_marker(old) => (
                        old.base_sequence,
                        (old.last_offset.0 - old.base_offset.0 + 1) as i32,
                    ),
                    _ => match rng.u8(..10) {
                        0 => (0, rng.i32(1..4)),
                        1 => (rng.i32(0..9), rng.i32(1..4)),
                        _ => (increment_sequence(sequence, 1), rng.i32(1..4)),
                    },
                };
                let transactional = rng.bool();
                BatchFacts {
                    transactional,
                    ..data(id, epoch, first, end, count)
                }
            };
            let is_marker = Model::is_marker(&facts);
            let origin = match is_marker || rng.u8(..10) == 0 {
                true => Origin::Coordinator,
                false => Origin::Client,
            };
            if origin == Origin::Coordinator {
                // Coordinators number nothing.
                (facts.base_sequence, facts.last_sequence) = (-1, -1);
            }
            let expected = model.expect(&facts, origin, version);
            let verdict = producers.check(&facts, origin, NONE, version);
            let verdict = verdict.map_err(|error| error.code());
            assert_eq!(
                verdict,
                expected,
                "seed {seed}: {facts:?} after {:?}",
                model.of(id)
            );
            match verdict {
                Ok(Verdict::New) => {
                    let was_open = model.open(id);
                    model.history.push(facts);
                    let completed = producers.apply(&facts);
                    assert_eq!(
                        completed.map(|txn| txn.first_offset),
                        was_open.filter(|_| is_marker)
                    );
                    end = facts.last_offset.0 + 1;
                    counts[0] += 1;
                }
                Ok(Verdict::Duplicate { .. }) => counts[1] += 1,
                Err(_) => counts[2] += 1,
            }
            high_watermark = rng.i64(high_watermark..=end);
            producers.on_high_watermark(Offset(high_watermark));
            let first_open = (1..4).filter_map(|id| model.open(id)).min();
            assert_eq!(
                producers.first_undecided_offset(),
                first_open,
                "seed {seed}"
            );
            let unstable = producers
                .first_unstable_offset()
                .map_or(high_watermark, |offset| offset.0);
            assert_eq!(
                unstable.min(high_watermark),
                last_stable(&model, high_watermark)
            );
            assert_eq!(producers.end_offset(), Offset(end));
        }
        // A restart forgets all but the last batch of each producer and nothing else.
        let bytes = producers.encode_snapshot();
        let read = Producers::from_snapshot(&bytes, Offset(end), DAY_MS, 0).unwrap();
        assert_eq!(read.describe(), producers.describe());
        assert_eq!(
            read.first_undecided_offset(),
            producers.first_undecided_offset()
        );
        for producer in read.describe() {
            let (new, old) = (
                read.entry(producer.producer_id),
                producers.entry(producer.producer_id),
            );
            let (new, old) = (new.unwrap(), old.unwrap());
            assert!(new.batches().len() <= 1);
            if let (Some(new), Some(old)) = (new.last_batch(), old.last_batch()) {
                assert_eq!(new.first_sequence(), old.first_sequence());
                assert_eq!(new.first_offset(), old.first_offset());
            }
        }
        // Followers, who check nothing, arrive at the same state.
        let mut follower = unverified();
        for facts in &model.history {
            follower.apply(facts);
        }
        assert_eq!(follower.encode_snapshot(), bytes);
    }
    println!("appended, duplicate, refused: {counts:?}");
    assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
}

/// The first offset at or below the high watermark that a marker below the high watermark does
/// not cover: what a reader of committed records may see.
fn last_stable(model: &Model, high_watermark: i64) -> i64 {
    let visible = |facts: &&BatchFacts| facts.base_offset.0 < high_watermark;
    let decided = Model {
        history: model.history.iter().filter(visible).copied().collect(),
    };
    let cut = (1..4).filter_map(|id| decided.open(id)).min();
    cut.map_or(high_watermark, |offset| offset.0.min(high_watermark))
}

#[test]
fn made_up_producers_do_not_keep_a_transaction_from_being_verified() {
    let mut producers = Producers::with_limits(ProducerLimits {
        producers_max: 16,
        ..ProducerLimits::default()
    });
    let mut guards = Vec::new();
    for producer_id in 0..40 {
        let guard = producers.start_verification(producer_id, 0, 0, false, 1000);
        guards.push(guard.unwrap());
    }
    let check = |producer_id: i64| {
        let facts = txn(producer_id, 0, 0, 0);
        let guard = guards[producer_id as usize];
        producers.check(&facts, Origin::Client, guard, 0)
    };
    assert_eq!(check(39), Ok(Verdict::New));
    assert_eq!(check(0), Err(ProducerError::NotVerified { producer_id: 0 }));
}

#[test]
fn a_marker_that_comes_twice_does_not_spoil_the_verification_of_the_next_transaction() {
    for (epoch_bump, spoils) in [(true, false), (false, true)] {
        let mut producers = Producers::with_limits(ProducerLimits::default());
        let next = 1;
        // The end of the transaction before, under the epoch of the next one.
        producers.apply(&marker(7, next, 0, true, 0));
        let guard = producers
            .start_verification(7, next, 0, epoch_bump, 1000)
            .unwrap();
        producers.apply(&marker(7, next, 1, true, 0));
        let verdict = producers.check(&txn(7, next, 0, 2), Origin::Client, guard, 0);
        assert_eq!(verdict.is_err(), spoils, "{verdict:?}");
        // The end of the transaction itself, before its first batch: nothing may come after it.
        let guard = producers
            .start_verification(7, next, 0, epoch_bump, 1000)
            .unwrap();
        let end = next + i16::from(epoch_bump);
        producers.apply(&marker(7, end, 3, false, 0));
        let late = producers.check(&txn(7, next, 0, 4), Origin::Client, guard, 0);
        assert!(late.is_err(), "{late:?}");
    }
}

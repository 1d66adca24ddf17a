//! The judge of produced batches: each rule, its error and the order of the rules.

use super::*;
use crate::types::LeaderEpoch;
use crate::wire::batch::{BatchView, LOG_OVERHEAD, seal};
use crate::wire::batch_builder::{Header, end_txn_marker};

const NOW: i64 = 1_700_000_000_000;

fn builder(codec: Codec) -> BatchBuilder {
    let mut builder = BatchBuilder::new().with_codec(codec, None);
    let headers: [Header<'_>; 2] = [(b"h", Some(b"1")), (b"h", None)];
    for (timestamp, key) in [(NOW - 5, "a"), (NOW, "b"), (NOW - 9, "c"), (NOW, "d")] {
        builder
            .append(timestamp, Some(key.as_bytes()), Some(b"value"), &headers)
            .unwrap();
    }
    builder
}

fn parse(bytes: &Bytes) -> Batch {
    Batch::parse(bytes).unwrap().0
}

fn batch(codec: Codec) -> Batch {
    parse(&builder(codec).build().unwrap())
}

/// `batch` with `field` at `at` and a right checksum.
fn with(batch: &Batch, at: usize, field: &[u8]) -> Batch {
    let mut bytes = batch.as_bytes().to_vec();
    bytes[at..at + field.len()].copy_from_slice(field);
    seal(&mut bytes);
    parse(&Bytes::from(bytes))
}

fn judge(batch: &Batch, origin: Origin, rules: &ValidationRules) -> Result<Validated, Rejected> {
    validate(batch, &"topic-0", origin, rules, NOW)
}

fn client(batch: &Batch) -> Result<Validated, Rejected> {
    judge(batch, Origin::Client, &ValidationRules::default())
}

fn assert_rejected(result: Result<Validated, Rejected>, error: ErrorCode, words: &str) -> Rejected {
    let rejected = result.expect_err(words);
    assert_eq!(rejected.error, error, "{}", rejected.message);
    assert!(rejected.message.contains(words), "{}", rejected.message);
    rejected
}

/// Records as (timestamp, key, value, header count).
fn contents(batch: &Batch) -> Vec<(i64, Bytes, Bytes, usize)> {
    batch
        .records(1 << 20)
        .unwrap()
        .map(|record| {
            let record = record.unwrap();
            let headers = record.headers().count();
            (
                record.timestamp,
                record.key.unwrap(),
                record.value.unwrap(),
                headers,
            )
        })
        .collect()
}

#[test]
fn an_acceptable_batch_stays_as_it_is_and_where_it_is() {
    for codec in Codec::ALL {
        let batch = batch(codec);
        let validated = client(&batch).unwrap();
        assert!(!validated.rewritten);
        assert_eq!(validated.batch.to_batch(), batch);
        assert_eq!(
            validated.batch.body().as_ptr(),
            batch.as_bytes()[61..].as_ptr()
        );
        assert_eq!(validated.offsets, 4);
        assert_eq!(validated.max_timestamp, NOW);
        assert_eq!(validated.max_timestamp_delta, 1);
        assert_eq!(validated.append_time, None);
    }
}

#[test]
fn the_wire_takes_exactly_one_batch_of_magic_2() {
    let one = batch(Codec::None).into_bytes();
    let zstd = batch(Codec::Zstd).into_bytes();
    assert!(check_wire(Some(&one), 3).is_ok());
    assert!(check_wire(Some(&zstd), 7).is_ok());
    let fails = |records: Option<&Bytes>, version, error, words| {
        let rejected = check_wire(records, version).expect_err(words);
        assert_eq!(rejected.error, error, "{}", rejected.message);
        assert!(rejected.message.contains(words), "{}", rejected.message);
    };
    let invalid = ErrorCode::INVALID_RECORD;
    fails(None, 9, invalid, "at least one record batch");
    fails(Some(&Bytes::new()), 9, invalid, "at least one record batch");
    fails(
        Some(&one.slice(..60)),
        9,
        invalid,
        "at least one record batch",
    );
    fails(
        Some(&zstd),
        6,
        ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        "ZStandard",
    );
    let two = Bytes::from([&one[..], &one[..]].concat());
    fails(Some(&two), 9, invalid, "exactly one");
    let mut old = one.to_vec();
    old[16] = 1;
    let old = Bytes::from(old);
    fails(Some(&old), 9, invalid, "magic version 2");
    fails(
        Some(&Bytes::from([&one[..], &old[..]].concat())),
        9,
        invalid,
        "exactly one",
    );
    let mut strange = one.to_vec();
    strange[16] = 3;
    fails(
        Some(&Bytes::from(strange)),
        9,
        ErrorCode::CORRUPT_MESSAGE,
        "magic 3",
    );
    let mut short = one.to_vec();
    short[8..12].copy_from_slice(&13i32.to_be_bytes());
    fails(
        Some(&Bytes::from(short)),
        9,
        ErrorCode::CORRUPT_MESSAGE,
        "length 13",
    );
}

#[test]
fn a_partial_batch_behind_the_first_is_dropped() {
    let one = batch(Codec::None).into_bytes();
    for tail in 1..one.len() {
        let records = Bytes::from([&one[..], &one[..tail]].concat());
        assert_eq!(check_wire(Some(&records), 9).unwrap().as_bytes(), &one);
    }
}

#[test]
fn what_a_client_may_not_put_into_a_header_is_refused() {
    let invalid = ErrorCode::INVALID_RECORD;
    let good = batch(Codec::None);
    assert_rejected(
        client(&with(&good, 0, &7i64.to_be_bytes())),
        invalid,
        "should be 0, but it is 7",
    );
    assert_rejected(
        client(&with(&good, 23, &(-1i32).to_be_bytes())),
        invalid,
        "offset range",
    );
    assert_rejected(
        client(&with(&good, 57, &0i32.to_be_bytes())),
        invalid,
        "reported count",
    );
    assert_rejected(
        client(&with(&good, 57, &3i32.to_be_bytes())),
        invalid,
        "Inconsistent",
    );
    assert_rejected(
        client(&with(&good, 21, &0x20i16.to_be_bytes())),
        invalid,
        "control records",
    );
    let with_id = with(&good, 43, &5i64.to_be_bytes());
    assert_rejected(client(&with_id), invalid, "Invalid sequence number -1");
    assert!(client(&with(&with_id, 53, &0i32.to_be_bytes())).is_ok());
    let unknown = with(&good, 21, &5i16.to_be_bytes());
    let unsupported = ErrorCode::UNSUPPORTED_COMPRESSION_TYPE;
    assert_rejected(client(&unknown), unsupported, "compression");
    // Others may do what clients may not.
    let marker = parse(&end_txn_marker(5, 0, true, 1, NOW).unwrap());
    assert_rejected(client(&marker), invalid, "control records");
    let rules = ValidationRules::default();
    assert!(judge(&marker, Origin::Coordinator, &rules).is_ok());
}

#[test]
fn size_is_judged_before_the_checksum_and_the_checksum_before_the_contents() {
    let good = batch(Codec::None);
    let mut garbled = good.as_bytes().to_vec();
    let last = garbled.len() - 1;
    garbled[last] ^= 1;
    garbled[57] = 0x7f;
    let garbled = parse(&Bytes::from(garbled));
    assert_rejected(client(&garbled), ErrorCode::CORRUPT_MESSAGE, "stored crc");
    let max_message_bytes = garbled.total_size() - 1;
    let rules = ValidationRules {
        max_message_bytes,
        ..Default::default()
    };
    let too_large = ErrorCode::MESSAGE_TOO_LARGE;
    assert_rejected(
        judge(&garbled, Origin::Client, &rules),
        too_large,
        "exceeds",
    );
    let moved = with(&garbled, 0, &1i64.to_be_bytes());
    assert_rejected(
        judge(&moved, Origin::Client, &rules),
        ErrorCode::INVALID_RECORD,
        "baseOffset",
    );
}

#[test]
fn malformed_records_under_a_right_checksum_are_invalid_and_not_retriable() {
    let rules = ValidationRules::default();
    for codec in Codec::ALL {
        let good = batch(codec);
        for at in 61..good.total_size() {
            for bit in 0..8 {
                let byte = good.as_bytes()[at] ^ (1 << bit);
                // Accepted or refused, but never a panic and never a code that asks to try again.
                if let Err(rejected) = judge(&with(&good, at, &[byte]), Origin::Client, &rules) {
                    let allowed = [
                        ErrorCode::INVALID_RECORD,
                        ErrorCode::INVALID_TIMESTAMP,
                        ErrorCode::MESSAGE_TOO_LARGE,
                    ];
                    assert!(
                        allowed.contains(&rejected.error),
                        "{codec:?} {at}: {rejected:?}"
                    );
                }
            }
        }
        let mut cut = good.as_bytes()[..good.total_size() - 3].to_vec();
        let length = (cut.len() - LOG_OVERHEAD) as i32;
        cut[8..12].copy_from_slice(&length.to_be_bytes());
        seal(&mut cut);
        let result = client(&parse(&Bytes::from(cut)));
        assert_rejected(result, ErrorCode::INVALID_RECORD, "topic-0");
    }
}

#[test]
fn a_batch_that_inflates_without_end_is_refused_within_the_bound() {
    let mut builder = BatchBuilder::new().with_codec(Codec::Zstd, None);
    builder
        .append(NOW, None, Some(&vec![0; 4 << 20]), &[])
        .unwrap();
    let bomb = parse(&builder.build().unwrap());
    assert!(bomb.total_size() < 2000);
    let rules = ValidationRules {
        inflated_bytes_max: 1 << 20,
        ..Default::default()
    };
    let result = judge(&bomb, Origin::Client, &rules);
    assert_rejected(result, ErrorCode::MESSAGE_TOO_LARGE, "inflate");
    assert!(client(&bomb).is_ok());
}

#[test]
fn a_compacted_topic_names_every_record_without_a_key() {
    let mut builder = BatchBuilder::new();
    for key in [Some(&b"k"[..]), None, Some(b""), None] {
        builder.append(NOW, key, Some(b"v"), &[]).unwrap();
    }
    let batch = parse(&builder.build().unwrap());
    assert!(client(&batch).is_ok());
    let rules = ValidationRules {
        compacted: true,
        ..Default::default()
    };
    let result = judge(&batch, Origin::Client, &rules);
    let rejected = assert_rejected(result, ErrorCode::INVALID_RECORD, "2 record errors");
    let indexes: Vec<i32> = rejected
        .record_errors
        .iter()
        .map(|error| error.batch_index)
        .collect();
    assert_eq!(indexes, [1, 3]);
    assert!(rejected.record_errors[0].message.contains("without key"));
}

#[test]
fn a_million_bad_records_do_not_make_a_million_messages() {
    let mut builder = BatchBuilder::new();
    for _ in 0..1000 {
        builder.append(NOW, None, None, &[]).unwrap();
    }
    let rules = ValidationRules {
        compacted: true,
        ..Default::default()
    };
    let result = judge(&parse(&builder.build().unwrap()), Origin::Client, &rules);
    let rejected = assert_rejected(result, ErrorCode::INVALID_RECORD, "1000 record errors");
    assert_eq!(rejected.record_errors.len(), RECORD_ERRORS_MAX);
}

#[test]
fn timestamps_outside_the_window_name_the_whole_batchs_error() {
    let rules = ValidationRules {
        before_max_ms: 10,
        after_max_ms: 20,
        ..Default::default()
    };
    let stamped = |timestamp| {
        let mut builder = BatchBuilder::new();
        builder.append(NOW, None, None, &[]).unwrap();
        builder.append(timestamp, None, None, &[]).unwrap();
        judge(&parse(&builder.build().unwrap()), Origin::Client, &rules)
    };
    for good in [NOW - 10, NOW, NOW + 20, NO_TIMESTAMP] {
        assert!(stamped(good).is_ok(), "{good}");
    }
    for bad in [NOW - 11, NOW + 21, 0, i64::MAX, i64::MIN] {
        let rejected = assert_rejected(stamped(bad), ErrorCode::INVALID_TIMESTAMP, "timestamp");
        assert_eq!(rejected.record_errors[0].batch_index, 1);
        let window = format!("[{}, {}]", NOW - 10, NOW + 20);
        assert!(rejected.record_errors[0].message.contains(&window));
    }
    // The default window has no lower end, and must not overflow for want of one.
    let mut builder = BatchBuilder::new();
    builder.append(0, None, None, &[]).unwrap();
    assert!(client(&parse(&builder.build().unwrap())).is_ok());
}

#[test]
fn a_producer_may_not_stamp_append_time_itself() {
    let mut builder = builder(Codec::None);
    builder.append_time = Some(NOW - 1);
    let stamped = parse(&builder.build().unwrap());
    let log_append = ValidationRules {
        timestamp_type: TimestampType::LogAppendTime,
        ..Default::default()
    };
    let result = judge(&stamped, Origin::Client, &log_append);
    assert_rejected(result, ErrorCode::INVALID_TIMESTAMP, "timestamp");
    // A CreateTime topic does not look at the bit of a record with a timestamp, and clears it.
    let validated = client(&stamped).unwrap();
    assert_eq!(validated.batch.timestamp_type(), TimestampType::CreateTime);
    assert_eq!(validated.max_timestamp, NOW - 1);
    validated.batch.to_batch().check_crc().unwrap();
    let none = with(&stamped, 35, &NO_TIMESTAMP.to_be_bytes());
    assert_rejected(client(&none), ErrorCode::INVALID_TIMESTAMP, "timestamp");
}

#[test]
fn an_append_time_topic_stamps_the_batch_and_nothing_else() {
    let rules = ValidationRules {
        timestamp_type: TimestampType::LogAppendTime,
        before_max_ms: 0,
        ..Default::default()
    };
    for codec in Codec::ALL {
        let batch = batch(codec);
        let validated = judge(&batch, Origin::Client, &rules).unwrap();
        assert!(!validated.rewritten);
        assert_eq!(validated.append_time, Some(NOW));
        assert_eq!(
            (validated.max_timestamp, validated.max_timestamp_delta),
            (NOW, 0)
        );
        let stamped = validated.batch.to_batch();
        stamped.check_crc().unwrap();
        assert_eq!(stamped.timestamp_type(), TimestampType::LogAppendTime);
        assert_eq!(stamped.base_timestamp(), batch.base_timestamp());
        assert!(contents(&stamped).iter().all(|record| record.0 == NOW));
    }
}

#[test]
fn a_wrong_max_timestamp_is_set_right() {
    let wrong = with(&batch(Codec::Lz4), 35, &(NOW + 999).to_be_bytes());
    let validated = client(&wrong).unwrap();
    assert_eq!(validated.batch.max_timestamp(), NOW);
    validated.batch.to_batch().check_crc().unwrap();
}

#[test]
fn a_topic_with_a_codec_of_its_own_recompresses_and_loses_nothing() {
    for source in Codec::ALL {
        for target in Codec::ALL {
            let original = parse(&builder(source).with_producer(9, 2, 30).build().unwrap());
            let rules = ValidationRules {
                compression: Some(target),
                ..Default::default()
            };
            let validated = judge(&original, Origin::Client, &rules).unwrap();
            assert_eq!(validated.rewritten, source != target);
            let batch = validated.batch.to_batch();
            batch.check_crc().unwrap();
            assert_eq!(batch.codec(), Some(target));
            assert_eq!(contents(&batch), contents(&original));
            assert_eq!((batch.producer_id(), batch.producer_epoch()), (9, 2));
            assert_eq!((batch.base_sequence(), batch.last_sequence()), (30, 33));
            assert_eq!(validated.max_timestamp, NOW);
            assert_eq!(validated.max_timestamp_delta, 1);
        }
    }
}

#[test]
fn a_batch_too_large_once_recompressed_is_refused() {
    let mut builder = BatchBuilder::new().with_codec(Codec::Zstd, None);
    builder.append(NOW, None, Some(&[7; 5000]), &[]).unwrap();
    let small = parse(&builder.build().unwrap());
    let rules = ValidationRules {
        max_message_bytes: 1000,
        compression: Some(Codec::None),
        ..Default::default()
    };
    let result = judge(&small, Origin::Client, &rules);
    assert_rejected(result, ErrorCode::MESSAGE_TOO_LARGE, "exceeds");
}

#[test]
fn a_marker_is_not_compressed_on_its_way_into_a_compressed_topic() {
    let marker = parse(&end_txn_marker(5, 0, false, 1, NOW).unwrap());
    let rules = ValidationRules {
        compression: Some(Codec::Zstd),
        ..Default::default()
    };
    let validated = judge(&marker, Origin::Coordinator, &rules).unwrap();
    assert!(!validated.rewritten);
    assert_eq!(validated.batch.to_batch(), marker);
}

#[test]
fn records_with_offsets_out_of_step_are_numbered_anew() {
    for codec in Codec::ALL {
        let mut builder = BatchBuilder::new().with_codec(codec, None);
        for delta in [1, 5, 6] {
            let none = std::iter::empty();
            builder
                .append_at(delta, NOW, Some(b"k"), Some(b"v"), none)
                .unwrap();
        }
        let odd = parse(&builder.build().unwrap());
        let odd = with(&odd, 23, &2i32.to_be_bytes());
        let validated = client(&odd).unwrap();
        assert!(validated.rewritten);
        let batch = validated.batch.to_batch();
        assert_eq!(batch.codec(), Some(codec));
        let offsets = batch
            .records(1 << 20)
            .unwrap()
            .map(|record| record.unwrap().offset.0);
        assert_eq!(offsets.collect::<Vec<_>>(), [0, 1, 2]);
    }
}

#[test]
fn a_follower_takes_whole_batches_in_order_and_no_others() {
    let at = |offset: i64, epoch: i32| {
        let mut split = batch(Codec::None).split();
        split.set_base_offset(Offset(offset));
        split.set_partition_leader_epoch(LeaderEpoch(epoch));
        split.to_batch().into_bytes()
    };
    let join = |batches: &[Bytes]| Bytes::from(batches.concat());
    let check =
        |records, next, empty| check_replicated(records, Offset(next), empty, LeaderEpoch(5));
    let bases = |replicated: &Replicated| {
        let base = |batch: &Batch| batch.base_offset().0;
        replicated.batches.iter().map(base).collect::<Vec<_>>()
    };
    let (first, second) = (at(10, 4), at(20, 5));
    let both = join(&[first.clone(), second.clone()]);
    assert_eq!(bases(&check(both.clone(), 10, false).unwrap()), [10, 20]);
    assert_eq!(
        bases(&check(both.slice(..both.len() - 1), 10, false).unwrap()),
        [10]
    );
    let newer = check(join(&[first.clone(), at(20, 6), second.clone()]), 10, false).unwrap();
    assert_eq!(bases(&newer), [10]);
    assert!(newer.of_newer_epoch);
    assert!(matches!(
        check(both.clone(), 11, false),
        Err(ReplicatedError::Order { .. })
    ));
    assert_eq!(bases(&check(both.clone(), 11, true).unwrap()), [10, 20]);
    assert!(matches!(
        check(both, 14, true),
        Err(ReplicatedError::Order { .. })
    ));
    let backwards = join(&[second.clone(), first]);
    assert!(matches!(
        check(backwards, 10, false),
        Err(ReplicatedError::Order { .. })
    ));
    let mut garbled = second.to_vec();
    garbled[70] ^= 1;
    let result = check(Bytes::from(garbled), 10, false);
    assert!(matches!(result, Err(ReplicatedError::Broken { .. })));
}

#[test]
fn the_metadata_leaders_batch_keeps_its_offsets() {
    let mut builder = builder(Codec::None);
    builder.base_offset = Offset(77);
    builder.leader_epoch = LeaderEpoch(3);
    let bytes = builder.build().unwrap();
    let rules = ValidationRules {
        compression: Some(Codec::Zstd),
        ..Default::default()
    };
    let validated = judge(&parse(&bytes), Origin::RaftLeader, &rules).unwrap();
    assert_eq!(validated.batch.base_offset(), Offset(77));
    assert_eq!(validated.batch.to_batch().as_bytes(), &bytes);
    assert!(BatchView::parse(&bytes).is_ok());
}

//! Record batches: built and read again, cut and garbled everywhere, and against another
//! implementation.

use super::*;
use crate::wire::batch_builder::{BatchBuilder, BuildError, ControlType, Header};
use crate::wire::batch_builder::{end_txn_coordinator_epoch, end_txn_marker};
use bytes::BytesMut;

const LIMIT: usize = 1 << 24;

/// A record as plain owned values, for comparison.
#[derive(Clone, Debug, PartialEq)]
struct Plain {
    delta: i32,
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn random_bytes(rng: &mut fastrand::Rng, max: usize) -> Vec<u8> {
    let len = rng.usize(..=max);
    let byte = rng.u8(..);
    (0..len)
        .map(|_| if rng.u8(..) < 30 { rng.u8(..) } else { byte })
        .collect()
}

fn random_records(rng: &mut fastrand::Rng) -> Vec<Plain> {
    let count = rng.usize(1..40);
    let mut delta = -1;
    let maybe = |rng: &mut fastrand::Rng, max| rng.bool().then(|| random_bytes(rng, max));
    (0..count)
        .map(|_| {
            delta += rng.i32(1..3);
            let names = ["a", "a", "trace-id", ""];
            Plain {
                delta,
                timestamp: rng.i64(0..2_000_000_000_000),
                key: maybe(rng, 20),
                value: maybe(rng, 400),
                headers: (0..rng.usize(..4))
                    .map(|_| {
                        let name = names[rng.usize(..names.len())];
                        (name.as_bytes().to_vec(), maybe(rng, 9))
                    })
                    .collect(),
            }
        })
        .collect()
}

fn build(mut builder: BatchBuilder, records: &[Plain]) -> Bytes {
    for record in records {
        let headers: Vec<Header<'_>> = record
            .headers
            .iter()
            .map(|(key, value)| (&key[..], value.as_deref()))
            .collect();
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        builder
            .append_at(
                record.delta,
                record.timestamp,
                key,
                value,
                headers.into_iter(),
            )
            .unwrap();
    }
    builder.build().unwrap()
}

fn read(batch: &Batch) -> Result<Vec<Plain>, BatchError> {
    batch
        .records(LIMIT)?
        .map(|record| {
            let record = record?;
            Ok(Plain {
                delta: record.offset_delta,
                timestamp: record.timestamp,
                headers: record
                    .headers()
                    .map(|(key, value)| (key.to_vec(), value.map(|value| value.to_vec())))
                    .collect(),
                key: record.key.map(|key| key.to_vec()),
                value: record.value.map(|value| value.to_vec()),
            })
        })
        .collect()
}

#[test]
fn a_built_batch_reads_back_unchanged() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..400 {
        let records = random_records(&mut rng);
        let codec = Codec::ALL[round % 5];
        let mut builder = BatchBuilder::new().with_codec(codec, None);
        builder = builder.with_producer(rng.i64(0..), rng.i16(0..), rng.i32(0..));
        builder.base_offset = Offset(rng.i64(0..1 << 40));
        builder.leader_epoch = LeaderEpoch(rng.i32(0..));
        builder.transactional = rng.bool();
        let (template, bytes) = (builder.clone(), build(builder, &records));
        let (batch, rest) = Batch::parse(&bytes).unwrap();
        assert!(rest.is_empty());
        batch.check_crc().unwrap();
        assert_eq!(read(&batch).unwrap(), records);
        assert_eq!(batch.total_size(), bytes.len());
        assert_eq!(batch.codec(), Some(codec));
        assert_eq!(batch.base_offset(), template.base_offset);
        assert_eq!(batch.partition_leader_epoch(), template.leader_epoch);
        assert_eq!(batch.producer_id(), template.producer_id);
        assert_eq!(batch.producer_epoch(), template.producer_epoch);
        assert_eq!(batch.base_sequence(), template.base_sequence);
        assert_eq!(batch.is_transactional(), template.transactional);
        assert!(!batch.is_control());
        assert_eq!(batch.record_count(), records.len() as i32);
        assert_eq!(batch.last_offset_delta(), records.last().unwrap().delta);
        assert_eq!(batch.base_timestamp(), records[0].timestamp);
        let latest = records.iter().map(|record| record.timestamp).max();
        assert_eq!(Some(batch.max_timestamp()), latest);
        // The walk that does not allocate sees the same.
        let (mut walked, mut scratch) = (0, Vec::new());
        let view = batch.view();
        view.walk(LIMIT, &mut scratch, |index, record| {
            let plain = &records[index as usize];
            assert_eq!(record.key, plain.key.as_deref());
            assert_eq!(record.value, plain.value.as_deref());
            assert_eq!(record.offset_delta, plain.delta);
            assert_eq!(record.headers().len(), plain.headers.len());
            for (read, written) in record.headers().zip(&plain.headers) {
                assert_eq!(read, (&written.0[..], written.1.as_deref()));
            }
            walked += 1;
        })
        .unwrap();
        assert_eq!(walked, records.len());
    }
}

#[test]
fn another_implementation_reads_our_batches_and_we_read_its() {
    use kafka_protocol::records as oracle;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..100 {
        let mut records = random_records(&mut rng);
        for (at, record) in records.iter_mut().enumerate() {
            // The other implementation keeps one header per key.
            record.headers.sort();
            record.headers.dedup_by(|left, right| left.0 == right.0);
            record.delta = at as i32;
        }
        let codec = Codec::ALL[round % 5];
        let builder = BatchBuilder::new().with_codec(codec, None);
        let bytes = build(builder.with_producer(7, 3, 11), &records);
        let set = oracle::RecordBatchDecoder::decode(&mut bytes.clone()).unwrap();
        assert_eq!(set.records.len(), records.len());
        for (theirs, ours) in set.records.iter().zip(&records) {
            assert_eq!(theirs.key.as_deref(), ours.key.as_deref());
            assert_eq!(theirs.value.as_deref(), ours.value.as_deref());
            assert_eq!(theirs.timestamp, ours.timestamp);
            assert_eq!(theirs.offset, i64::from(ours.delta));
            assert_eq!((theirs.producer_id, theirs.producer_epoch), (7, 3));
            assert_eq!(theirs.headers.len(), ours.headers.len());
        }
        let compression = [
            oracle::Compression::None,
            oracle::Compression::Gzip,
            oracle::Compression::Snappy,
            oracle::Compression::Lz4,
            oracle::Compression::Zstd,
        ][round % 5];
        let options = oracle::RecordEncodeOptions {
            version: 2,
            compression,
        };
        let mut out = BytesMut::new();
        oracle::RecordBatchEncoder::encode(&mut out, &set.records, &options).unwrap();
        let (batch, _) = Batch::parse(&out.freeze()).unwrap();
        batch.check_crc().unwrap();
        assert_eq!(read(&batch).unwrap(), records, "{codec:?}");
    }
}

#[test]
fn bytes_cut_anywhere_are_a_partial_tail_and_never_a_panic() {
    let mut rng = fastrand::Rng::with_seed(1);
    for codec in Codec::ALL {
        let records = random_records(&mut rng);
        let whole = build(BatchBuilder::new().with_codec(codec, None), &records);
        let two = Bytes::from([&whole[..], &whole[..]].concat());
        for cut in 0..two.len() {
            let mut batches = Batches::new(two.slice(..cut));
            let found = batches.by_ref().map(Result::unwrap).count();
            assert_eq!(found, cut / whole.len());
            assert_eq!(batches.rest().len(), cut % whole.len());
        }
        // A batch whose length was changed to fit the cut: no record may be invented.
        for cut in HEADER_BYTES..whole.len() {
            let mut short = whole[..cut].to_vec();
            short[8..12].copy_from_slice(&((cut - LOG_OVERHEAD) as i32).to_be_bytes());
            let (batch, _) = Batch::parse(&Bytes::from(short)).unwrap();
            assert!(batch.check_crc().is_err());
            assert!(read(&batch).is_err(), "{codec:?} cut at {cut}");
        }
    }
}

#[test]
fn bytes_garbled_anywhere_fail_the_checksum_and_never_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for codec in Codec::ALL {
        let records = random_records(&mut rng);
        let whole = build(BatchBuilder::new().with_codec(codec, None), &records);
        let mut scratch = Vec::new();
        for at in 0..whole.len() {
            let mut garbled = whole.to_vec();
            garbled[at] ^= rng.u8(1..);
            let Ok((batch, _)) = Batch::parse(&Bytes::from(garbled)) else {
                continue;
            };
            let outside_crc = at < 8 || (12..16).contains(&at);
            let shortened = batch.total_size() != whole.len();
            if !shortened {
                assert_eq!(batch.check_crc().is_ok(), outside_crc, "byte {at}");
            }
            let _ = read(&batch);
            let _ = batch.view().walk(1 << 20, &mut scratch, |_, record| {
                record.headers().for_each(drop);
            });
            let _ = format!("{batch:?} {:?}", batch.delete_horizon());
        }
    }
}

#[test]
fn lengths_and_magics_that_are_no_batch_are_told_apart() {
    let mut builder = BatchBuilder::new();
    builder.append(5, None, Some(b"v"), &[]).unwrap();
    let whole = builder.build().unwrap();
    let changed = |at: usize, with: &[u8]| {
        let mut bytes = whole.to_vec();
        bytes[at..at + with.len()].copy_from_slice(with);
        BatchView::parse(&bytes).err().unwrap()
    };
    assert!(matches!(
        changed(8, &[0xff; 4]),
        BatchError::TooSmall { length: -1 }
    ));
    assert!(matches!(
        changed(8, &48i32.to_be_bytes()),
        BatchError::TooSmall { length: 48 }
    ));
    let huge = changed(8, &i32::MAX.to_be_bytes());
    assert!(matches!(huge, BatchError::Partial { .. }));
    assert!(matches!(changed(16, &[1]), BatchError::Magic(1)));
    assert!(matches!(changed(16, &[0xff]), BatchError::Magic(-1)));
}

#[test]
fn a_record_count_that_does_not_match_the_records_is_refused() {
    let records = random_records(&mut fastrand::Rng::with_seed(3));
    let whole = build(BatchBuilder::new(), &records);
    for (count, expected) in [(-1, "declares -1"), (0, "left over"), (1000, "ends after")] {
        let mut bytes = whole.to_vec();
        bytes[57..61].copy_from_slice(&i32::to_be_bytes(count));
        let (batch, _) = Batch::parse(&Bytes::from(bytes)).unwrap();
        let error = read(&batch).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let walked = batch.view().walk(LIMIT, &mut Vec::new(), |_, _| {});
        assert!(walked.unwrap_err().to_string().contains(expected));
    }
}

#[test]
fn a_leader_changes_the_header_without_copying_records_or_breaking_the_checksum() {
    let records = random_records(&mut fastrand::Rng::with_seed(4));
    let bytes = build(BatchBuilder::new().with_producer(1, 2, 3), &records);
    let (batch, _) = Batch::parse(&bytes).unwrap();
    let mut split = batch.split();
    split.set_base_offset(Offset(1 << 33));
    split.set_partition_leader_epoch(LeaderEpoch(9));
    assert_eq!(split.crc(), batch.crc());
    split.set_max_timestamp(TimestampType::LogAppendTime, 77);
    assert_ne!(split.crc(), batch.crc());
    let [_, body] = split.parts();
    assert_eq!(body.as_ptr(), bytes[HEADER_BYTES..].as_ptr());
    let mut in_place = bytes.to_vec();
    set_base_offset(&mut in_place, Offset(1 << 33));
    set_partition_leader_epoch(&mut in_place, LeaderEpoch(9));
    set_max_timestamp(&mut in_place, TimestampType::LogAppendTime, 77);
    let whole = split.to_batch();
    assert_eq!(whole.as_bytes()[..], in_place[..]);
    whole.check_crc().unwrap();
    assert_eq!(whole.base_offset(), Offset(1 << 33));
    assert_eq!(
        whole.last_offset().0,
        (1 << 33) + i64::from(whole.last_offset_delta())
    );
    assert_eq!(whole.partition_leader_epoch(), LeaderEpoch(9));
    assert_eq!(whole.timestamp_type(), TimestampType::LogAppendTime);
    for record in whole.records(LIMIT).unwrap() {
        assert_eq!(record.unwrap().timestamp, 77);
    }
    split.set_max_timestamp(TimestampType::CreateTime, batch.max_timestamp());
    assert_eq!(split.crc(), batch.crc());
}

#[test]
fn records_of_an_uncompressed_batch_are_not_copied() {
    let bytes = build(
        BatchBuilder::new(),
        &random_records(&mut fastrand::Rng::with_seed(5)),
    );
    let range = bytes.as_ptr_range();
    let (batch, _) = Batch::parse(&bytes).unwrap();
    for record in batch.records(0).unwrap() {
        let record = record.unwrap();
        for part in [record.key, record.value].into_iter().flatten() {
            assert!(part.is_empty() || range.contains(&part.as_ptr()));
        }
    }
}

#[test]
fn sequences_wrap_behind_the_largest_int() {
    assert_eq!(increment_sequence(i32::MAX, 1), 0);
    assert_eq!(increment_sequence(i32::MAX - 2, 5), 2);
    assert_eq!(increment_sequence(4, 3), 7);
    assert_eq!(decrement_sequence(0, 1), i32::MAX);
    assert_eq!(decrement_sequence(2, 5), i32::MAX - 2);
    let mut builder = BatchBuilder::new().with_producer(1, 0, i32::MAX);
    builder.append(0, None, None, &[]).unwrap();
    builder.append(0, None, None, &[]).unwrap();
    let bytes = builder.build().unwrap();
    assert_eq!(BatchView::parse(&bytes).unwrap().0.last_sequence(), 0);
}

#[test]
fn a_marker_reads_back_as_the_marker_it_is() {
    for commit in [true, false] {
        let bytes = end_txn_marker(40, 2, commit, 17, 1234).unwrap();
        let (batch, _) = Batch::parse(&bytes).unwrap();
        batch.check_crc().unwrap();
        assert!(batch.is_control() && batch.is_transactional());
        assert_eq!((batch.producer_id(), batch.producer_epoch()), (40, 2));
        assert_eq!(batch.base_sequence(), NO_SEQUENCE);
        let record = batch.records(0).unwrap().next().unwrap().unwrap();
        assert_eq!(record.timestamp, 1234);
        let expected = if commit {
            ControlType::Commit
        } else {
            ControlType::Abort
        };
        assert_eq!(ControlType::of_key(&record.key.unwrap()), Some(expected));
        assert_eq!(end_txn_coordinator_epoch(&record.value.unwrap()), Some(17));
    }
    assert_eq!(ControlType::of_key(&[0, 0, 0, 7]), None);
    assert_eq!(ControlType::of_key(&[0, 0, 0xff, 0xff]), None);
    assert_eq!(ControlType::of_key(&[0, 0, 0]), None);
    assert_eq!(end_txn_coordinator_epoch(&[0, 0, 0, 0, 0]), None);
}

#[test]
fn a_builder_refuses_what_would_not_be_a_batch() {
    assert!(matches!(
        BatchBuilder::new().build(),
        Err(BuildError::Empty)
    ));
    let mut builder = BatchBuilder::new();
    builder.append_at(3, 0, None, None, [].into_iter()).unwrap();
    let again = builder.append_at(3, 0, None, None, [].into_iter());
    assert!(matches!(
        again,
        Err(BuildError::OffsetOrder { delta: 3, last: 3 })
    ));
    builder.append(0, None, None, &[]).unwrap();
    let size = builder.estimated_size();
    let bytes = builder.build().unwrap();
    assert_eq!(bytes.len(), size);
    assert_eq!(BatchView::parse(&bytes).unwrap().0.last_offset_delta(), 4);
}

//! What of a batch stays: one test a rule.

use proptest::prelude::*;

use super::super::key_hash::HashSecret;
use super::super::map_build::MapBuild;
use super::*;
use crate::types::LeaderEpoch;
use crate::wire::batch::{BatchView, NO_PRODUCER_ID, TimestampType};
use crate::wire::batch_builder::{BatchBuilder, end_txn_marker};
use crate::wire::codec::Codec;
use bytes::Bytes;

const NOW_MS: i64 = 1_700_000_000_000;
const RETENTION_MS: i64 = 1000;

type Record<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// A log in the making.
#[derive(Default)]
struct Bench {
    log: Vec<u8>,
    next: i64,
    producers: HashMap<i64, LastRecord>,
    rows: Vec<AbortedTxn>,
}

impl Bench {
    fn add(&mut self, mut builder: BatchBuilder, records: &[Record<'_>]) -> i64 {
        let base = self.next;
        builder.base_offset = Offset(base);
        builder.leader_epoch = LeaderEpoch(3);
        for (at, (key, value)) in records.iter().enumerate() {
            let timestamp = NOW_MS + base + at as i64;
            builder.append(timestamp, *key, *value, &[]).unwrap();
        }
        self.add_bytes(&builder.build().unwrap());
        base
    }

    fn add_bytes(&mut self, batch: &Bytes) {
        let (view, _) = BatchView::parse(batch).unwrap();
        self.next = view.last_offset().0 + 1;
        self.log.extend_from_slice(batch);
    }

    fn plain(&mut self, records: &[Record<'_>]) -> i64 {
        self.add(BatchBuilder::new(), records)
    }

    fn by(&mut self, id: i64, sequence: i32, transactional: bool, records: &[Record<'_>]) -> i64 {
        let mut builder = BatchBuilder::new().with_producer(id, 0, sequence);
        builder.transactional = transactional;
        self.add(builder, records)
    }

    fn end(&mut self, id: i64, commit: bool, first: i64) -> i64 {
        let at = self.next;
        let mut marker = end_txn_marker(id, 0, commit, 7, NOW_MS).unwrap().to_vec();
        crate::wire::batch::set_base_offset(&mut marker, Offset(at));
        self.add_bytes(&Bytes::from(marker));
        if !commit {
            self.rows.push(AbortedTxn {
                producer_id: id,
                first_offset: Offset(first),
                last_offset: Offset(at),
                last_stable_offset: Offset(at + 1),
            });
        }
        at
    }

    /// A pass at `now_ms` over the whole log, of which the first `dirty` offsets are dirty.
    fn pass(&mut self, now_ms: i64) -> Kept {
        self.pass_until(self.next, now_ms, false)
    }

    fn pass_until(&mut self, covered: i64, now_ms: i64, last_stays: bool) -> Kept {
        let map = OffsetMap::new(1 << 20, 0.9, 10_000, HashSecret(1, 2));
        let transactions = || CleanedTransactions::new(self.rows.iter().copied());
        let mut build = MapBuild::new(map, transactions(), Offset(0));
        let mut rest = &self.log[..];
        while let Ok((batch, tail)) = BatchView::parse(rest) {
            if batch.last_offset().0 < covered {
                assert!(!build.take(batch.as_bytes()).unwrap());
            }
            rest = tail;
        }
        let mut filter = Filter::new(
            build.map,
            transactions(),
            self.producers.clone(),
            now_ms,
            RETENTION_MS,
        );
        let kept = filter.clean(&self.log, last_stays).unwrap();
        self.log.clone_from(&kept.bytes);
        self.rows.clone_from(&kept.rows);
        kept
    }

    fn batches(&self) -> Vec<BatchView<'_>> {
        let mut rest = &self.log[..];
        let mut batches = Vec::new();
        while !rest.is_empty() {
            let (batch, tail) = BatchView::parse(rest).unwrap();
            batch.check_crc().unwrap();
            batches.push(batch);
            rest = tail;
        }
        batches
    }

    /// Offset, key and value of every data record.
    fn records(&self) -> Vec<(i64, Option<Vec<u8>>, Option<Vec<u8>>)> {
        let mut records = Vec::new();
        for batch in self.batches() {
            let mut scratch = Vec::new();
            let visit = |_, record: RecordRef<'_>| {
                let offset = batch.base_offset().0 + i64::from(record.offset_delta);
                let copy = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
                records.push((offset, copy(record.key), copy(record.value)));
                let timestamp = batch.base_timestamp() + record.timestamp_delta;
                if !batch.is_control() {
                    assert_eq!(timestamp, NOW_MS + offset, "timestamps stay");
                }
            };
            batch.walk(1 << 20, &mut scratch, visit).unwrap();
        }
        records
    }

    fn offsets(&self) -> Vec<i64> {
        self.records().into_iter().map(|record| record.0).collect()
    }
}

fn key(key: &str) -> Record<'_> {
    (Some(key.as_bytes()), Some(b"value"))
}

fn tombstone(key: &str) -> Record<'_> {
    (Some(key.as_bytes()), None)
}

#[test]
fn of_each_key_the_last_record_stays_at_its_offset() {
    let mut bench = Bench::default();
    bench.plain(&[key("a"), key("b"), key("a")]);
    bench.plain(&[key("b"), key("c")]);
    let kept = bench.pass(NOW_MS);
    assert_eq!(bench.offsets(), vec![2, 3, 4]);
    assert_eq!((kept.records_read, kept.records_kept), (5, 3));
    let first = bench.batches()[0];
    assert_eq!(
        (first.base_offset(), first.last_offset()),
        (Offset(0), Offset(2))
    );
    assert_eq!(kept.batches[0].last, Offset(2));
    assert_eq!(kept.batches[0].max_timestamp, NOW_MS + 2);
    assert_eq!(kept.batches[0].size as usize, first.total_size());
}

#[test]
fn a_batch_of_which_everything_stays_is_copied_byte_for_byte() {
    let mut bench = Bench::default();
    bench.plain(&[key("a"), key("b")]);
    let before = bench.log.clone();
    bench.pass(NOW_MS);
    assert_eq!(bench.log, before);
}

#[test]
fn records_without_a_key_go() {
    let mut bench = Bench::default();
    bench.plain(&[(None, Some(b"x")), key("a"), (None, None)]);
    bench.plain(&[(None, Some(b"x"))]);
    bench.pass(NOW_MS);
    assert_eq!(bench.offsets(), vec![1]);
    assert_eq!(bench.batches().len(), 1);
}

#[test]
fn what_lies_past_the_map_stays_as_it_is() {
    let mut bench = Bench::default();
    bench.plain(&[key("a"), key("a")]);
    bench.plain(&[(None, Some(b"x")), key("a"), key("a"), tombstone("a")]);
    bench.pass_until(2, NOW_MS, false);
    assert_eq!(bench.offsets(), vec![1, 2, 3, 4, 5]);
}

#[test]
fn a_tombstone_stays_for_delete_retention_ms_after_it_was_first_cleaned() {
    let mut bench = Bench::default();
    bench.plain(&[key("a")]);
    bench.plain(&[tombstone("a"), key("b")]);
    bench.pass(NOW_MS);
    assert_eq!(bench.offsets(), vec![1, 2], "the value goes at once");
    let horizon = NOW_MS + RETENTION_MS;
    assert_eq!(bench.batches()[0].delete_horizon(), Some(horizon));
    let marked = bench.log.clone();
    bench.pass(horizon - 1);
    assert_eq!(bench.log, marked, "the horizon is set once");
    bench.pass(horizon);
    assert_eq!(bench.offsets(), vec![2]);
}

#[test]
fn a_batch_without_tombstones_gets_no_horizon() {
    let mut bench = Bench::default();
    bench.plain(&[tombstone("a"), key("b"), key("a")]);
    bench.pass(NOW_MS);
    assert_eq!(bench.batches()[0].delete_horizon(), None);
}

#[test]
fn data_of_an_aborted_transaction_goes_and_its_row_and_marker_go_later() {
    let mut bench = Bench::default();
    bench.plain(&[key("a")]);
    let first = bench.by(9, 0, true, &[key("a"), key("z")]);
    let marker = bench.end(9, false, first);
    let kept = bench.pass(NOW_MS);
    assert_eq!(bench.offsets(), vec![0, marker], "the old value holds");
    assert_eq!(kept.rows.len(), 1);
    // No data is left: the marker begins to wait.
    bench.pass(NOW_MS + 5);
    assert!(bench.rows.is_empty());
    let horizon = NOW_MS + 5 + RETENTION_MS;
    assert_eq!(bench.batches()[1].delete_horizon(), Some(horizon));
    bench.pass(horizon - 1);
    assert_eq!(bench.offsets(), vec![0, marker]);
    bench.pass(horizon);
    assert_eq!(bench.offsets(), vec![0]);
}

#[test]
fn a_commit_marker_stays_until_its_data_is_gone_and_the_horizon_has_passed() {
    let mut bench = Bench::default();
    bench.by(9, 0, true, &[key("a")]);
    let marker = bench.end(9, true, 0);
    bench.pass(NOW_MS + 10 * RETENTION_MS);
    assert_eq!(bench.batches()[1].delete_horizon(), None);
    let last = bench.plain(&[key("a")]);
    bench.pass(NOW_MS);
    assert_eq!(bench.offsets(), vec![marker, last]);
    bench.pass(NOW_MS);
    assert_eq!(
        bench.batches()[0].delete_horizon(),
        Some(NOW_MS + RETENTION_MS)
    );
    bench.pass(NOW_MS + RETENTION_MS);
    assert_eq!(bench.offsets(), vec![last]);
}

#[test]
fn the_last_batch_of_a_producer_stays_even_empty() {
    let mut bench = Bench::default();
    bench.by(5, 0, false, &[key("a")]);
    bench.by(5, 1, false, &[key("a"), key("a")]);
    let last = bench.plain(&[key("a")]);
    let data_offset = Some(Offset(2));
    bench.producers.insert(
        5,
        LastRecord {
            epoch: 0,
            data_offset,
        },
    );
    let kept = bench.pass(NOW_MS);
    assert_eq!(bench.offsets(), vec![last]);
    let batches = bench.batches();
    assert_eq!(batches.len(), 2);
    let empty = batches[0];
    assert_eq!((empty.record_count(), empty.total_size()), (0, 61));
    assert_eq!(
        (empty.base_offset(), empty.last_offset()),
        (Offset(1), Offset(2))
    );
    assert_eq!((empty.base_sequence(), empty.last_sequence()), (1, 2));
    assert_eq!(empty.partition_leader_epoch(), LeaderEpoch(3));
    assert_eq!(empty.max_timestamp(), NOW_MS + 2);
    assert_eq!(kept.batches[0].max_timestamp, NOW_MS + 2);
    // Once the producer has written elsewhere it is of no use.
    bench.producers.clear();
    bench.pass(NOW_MS);
    assert_eq!(bench.batches().len(), 1);
}

#[test]
fn the_last_marker_of_a_producer_without_data_stays() {
    let mut bench = Bench::default();
    let marker = bench.end(5, true, 0);
    bench.plain(&[key("a")]);
    let last = |epoch| LastRecord {
        epoch,
        data_offset: None,
    };
    bench.producers.insert(5, last(0));
    bench.pass(NOW_MS);
    bench.pass(NOW_MS + RETENTION_MS);
    let batches = bench.batches();
    assert_eq!(batches[0].base_offset(), Offset(marker));
    assert_eq!(batches[0].record_count(), 0, "it has nothing more to say");
    bench.producers.insert(5, last(1));
    bench.pass(NOW_MS + RETENTION_MS);
    assert_eq!(bench.batches().len(), 1);
}

#[test]
fn the_last_offset_of_what_is_cleaned_is_never_lost() {
    let mut bench = Bench::default();
    bench.plain(&[key("a")]);
    bench.plain(&[(None, Some(b"x")), (None, None)]);
    bench.pass_until(3, NOW_MS, true);
    let batches = bench.batches();
    assert_eq!(batches.len(), 2);
    assert_eq!(batches[1].record_count(), 0);
    assert_eq!(batches[1].last_offset(), Offset(2));
    assert!(!batches[1].has_producer_id());
    bench.pass_until(3, NOW_MS, false);
    assert_eq!(bench.batches().len(), 1);
}

#[test]
fn a_rewritten_batch_keeps_producer_epoch_offsets_time_type_and_codec() {
    for codec in Codec::ALL {
        for append_time in [None, Some(NOW_MS + 77)] {
            let mut bench = Bench::default();
            let mut builder = BatchBuilder::new()
                .with_codec(codec, None)
                .with_producer(4, 2, 90);
            builder.append_time = append_time;
            builder.transactional = true;
            let mut records = vec![key("gone"); 3];
            records.extend([key("b"), tombstone("c")]);
            bench.add(builder, &records);
            let before = Bytes::from(bench.log.clone());
            let (before, _) = BatchView::parse(&before).unwrap();
            bench.plain(&[key("gone")]);
            bench.pass(NOW_MS);
            let after = bench.batches()[0];
            assert_eq!(after.record_count(), 2, "{codec:?}");
            assert_eq!(after.base_offset(), before.base_offset());
            assert_eq!(after.last_offset_delta(), before.last_offset_delta());
            assert_eq!(after.producer_id(), 4);
            assert_eq!(after.producer_epoch(), 2);
            assert_eq!(after.base_sequence(), 90);
            assert_eq!(after.last_sequence(), before.last_sequence());
            assert_eq!(after.partition_leader_epoch(), LeaderEpoch(3));
            assert_eq!(after.timestamp_type(), before.timestamp_type());
            assert_eq!(after.codec(), Some(codec));
            assert!(after.is_transactional());
            let largest = match after.timestamp_type() {
                TimestampType::LogAppendTime => NOW_MS + 77,
                TimestampType::CreateTime => NOW_MS + 4,
            };
            assert_eq!(after.max_timestamp(), largest);
            assert_eq!(after.delete_horizon(), Some(NOW_MS + RETENTION_MS));
            assert_eq!(
                bench.offsets(),
                vec![3, 4, 5],
                "timestamps are checked there"
            );
        }
    }
}

#[test]
fn headers_survive_a_rewrite() {
    let mut bench = Bench::default();
    let mut builder = BatchBuilder::new();
    let headers = [(&b"h"[..], None), (&b"h"[..], Some(&b"v"[..]))];
    builder
        .append(NOW_MS, Some(b"a"), Some(b"old"), &[])
        .unwrap();
    builder
        .append(NOW_MS + 1, Some(b"b"), None, &headers)
        .unwrap();
    bench.add_bytes(&builder.build().unwrap());
    bench.plain(&[key("a")]);
    bench.pass(NOW_MS);
    let batch = bench.batches()[0];
    assert!(batch.delete_horizon().is_some());
    let (record, _) = RecordRef::read(batch.body()).unwrap();
    assert_eq!(record.headers().collect::<Vec<_>>(), headers);
}

#[test]
fn a_damaged_batch_is_an_error_and_never_gets_a_good_checksum() {
    let mut bench = Bench::default();
    bench.plain(&[key("a"), key("a")]);
    let at = bench.log.len() - 3;
    bench.log[at] ^= 1;
    let map = OffsetMap::new(1 << 20, 0.9, 10, HashSecret(1, 2));
    let mut filter = Filter::new(
        map,
        CleanedTransactions::default(),
        HashMap::new(),
        NOW_MS,
        RETENTION_MS,
    );
    assert!(matches!(
        filter.clean(&bench.log, false),
        Err(BatchError::Crc { .. })
    ));
    let map = OffsetMap::new(1 << 20, 0.9, 10, HashSecret(1, 2));
    let mut build = MapBuild::new(map, CleanedTransactions::default(), Offset(0));
    assert!(build.take(&bench.log).is_err());
}

#[test]
fn a_full_map_covers_what_it_says_and_the_pass_goes_on_from_there() {
    let mut bench = Bench::default();
    bench.plain(&[key("a"), key("b"), key("c")]);
    let map = OffsetMap::new(3 * 24, 0.9, 100, HashSecret(1, 2));
    let mut build = MapBuild::new(map, CleanedTransactions::default(), Offset(0));
    assert!(build.take(&bench.log).unwrap());
    assert_eq!(build.map.latest(), Some(Offset(1)));
    let map = OffsetMap::new(3 * 24, 0.9, 100, HashSecret(1, 2));
    let mut next = MapBuild::new(map, CleanedTransactions::default(), Offset(2));
    assert!(!next.take(&bench.log).unwrap());
    assert_eq!(next.map.latest(), Some(Offset(2)));
    assert_eq!(next.map.get(b"a"), None);
}

#[derive(Clone, Debug)]
struct AnyRecord {
    key: Option<u8>,
    value: Option<u8>,
}

fn any_batches() -> impl Strategy<Value = Vec<(Vec<AnyRecord>, i64, u8)>> {
    let record = (
        prop::option::weighted(0.9, 0u8..6),
        prop::option::weighted(0.7, any::<u8>()),
    )
        .prop_map(|(key, value)| AnyRecord { key, value });
    let batch = (prop::collection::vec(record, 1..6), -1i64..3, 0u8..5);
    prop::collection::vec(batch, 1..30)
}

proptest! {
    #[test]
    fn any_log_keeps_the_last_record_of_every_key_and_no_other(batches in any_batches()) {
        let mut bench = Bench::default();
        let mut last: HashMap<Vec<u8>, (i64, bool)> = HashMap::new();
        for (records, id, codec) in &batches {
            let mut builder = BatchBuilder::new().with_codec(Codec::ALL[*codec as usize], None);
            if *id != NO_PRODUCER_ID {
                builder = builder.with_producer(*id, 0, bench.next as i32);
            }
            let keys: Vec<_> = records.iter().map(|r| r.key.map(|key| [key])).collect();
            let values: Vec<_> = records.iter().map(|r| r.value.map(|value| [value])).collect();
            let plain: Vec<Record<'_>> = keys
                .iter()
                .zip(&values)
                .map(|(k, v)| (k.as_ref().map(|k| &k[..]), v.as_ref().map(|v| &v[..])))
                .collect();
            let base = bench.add(builder, &plain);
            for (at, (key, value)) in plain.iter().enumerate() {
                if let Some(key) = key {
                    last.insert(key.to_vec(), (base + at as i64, value.is_none()));
                }
            }
            if *id != NO_PRODUCER_ID {
                let data_offset = Some(Offset(bench.next - 1));
                bench.producers.insert(*id, LastRecord { epoch: 0, data_offset });
            }
        }
        let end = bench.next;
        bench.pass_until(end, NOW_MS, true);
        let mut want: Vec<i64> = last.values().map(|(offset, _)| *offset).collect();
        want.sort();
        prop_assert_eq!(bench.offsets(), want);
        prop_assert_eq!(bench.batches().last().map(|b| b.last_offset()), Some(Offset(end - 1)));
        for (id, record) in bench.producers.clone() {
            let kept = bench.batches().iter().any(|batch| {
                batch.producer_id() == id && Some(batch.last_offset()) == record.data_offset
            });
            prop_assert!(kept, "producer {id}");
        }
        let once = bench.log.clone();
        bench.pass_until(end, NOW_MS, true);
        prop_assert_eq!(&bench.log, &once, "a second pass at once changes nothing");
        bench.pass_until(end, NOW_MS + RETENTION_MS, true);
        let mut want: Vec<i64> = last.values().filter(|l| !l.1).map(|l| l.0).collect();
        want.sort();
        prop_assert_eq!(bench.offsets(), want, "tombstones are gone");
    }
}

//! The records of one partition in one fetch response, decoded as far as they are asked for.
//!
//! Pure. Knows which batches a consumer must not see: control batches, and with `read_committed`
//! those of aborted transactions.

use bytes::Bytes;

use super::aborted::Aborted;
use super::topic_partition::TopicPartition;
use crate::types::{LeaderEpoch, Offset};
use crate::wire::Str;
use crate::wire::batch::{Batch, BatchError, Batches, RecordIter, TimestampType};

/// A batch that inflates to more is refused: a small batch must not fill the memory.
pub const INFLATED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRecord {
    pub topic: Str,
    pub partition: i32,
    pub offset: Offset,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
    pub timestamp_type: TimestampType,
    pub leader_epoch: LeaderEpoch,
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// In order; keys may repeat. A key that is not UTF-8 has its malformed parts replaced.
    pub headers: Vec<(Str, Option<Bytes>)>,
}

/// See the module's words.
pub(super) struct Fetched {
    key: TopicPartition,
    batches: Batches,
    current: Option<(Batch, RecordIter)>,
    check_crcs: bool,
    /// `None` when everything is shown.
    aborted: Option<Aborted>,
    /// The next offset to hand out: what is below was asked for by an earlier fetch.
    position: Offset,
}

impl Fetched {
    /// `aborted` are the response's aborted transactions, `None` with `read_uncommitted`.
    pub(super) fn new(
        key: TopicPartition,
        position: Offset,
        records: Bytes,
        aborted: Option<Vec<(i64, i64)>>,
        check_crcs: bool,
    ) -> Fetched {
        Fetched {
            key,
            batches: Batches::new(records),
            current: None,
            check_crcs,
            aborted: aborted.map(Aborted::new),
            position,
        }
    }

    /// Where the next fetch begins once everything here is taken; until then the offset of the
    /// next record or below it.
    pub(super) fn position(&self) -> Offset {
        self.position
    }

    /// The next record that the consumer may see; `None` when all are taken.
    ///
    /// # Errors
    /// A batch that is damaged; the position stays before it.
    pub(super) fn next(&mut self) -> Result<Option<ConsumerRecord>, BatchError> {
        loop {
            if let Some((batch, records)) = &mut self.current {
                for record in records.by_ref() {
                    let record = record?;
                    // The first batch may begin before the offset that was asked for.
                    if record.offset < self.position {
                        continue;
                    }
                    self.position = record.offset.next();
                    let headers = record
                        .headers()
                        .map(|(key, value)| (Str::from_utf8_lossy(key), value))
                        .collect();
                    return Ok(Some(ConsumerRecord {
                        topic: self.key.topic.clone(),
                        partition: self.key.partition,
                        offset: record.offset,
                        timestamp: record.timestamp,
                        timestamp_type: batch.timestamp_type(),
                        leader_epoch: batch.partition_leader_epoch(),
                        key: record.key,
                        value: record.value,
                        headers,
                    }));
                }
                // Compaction may have taken the batch's last records.
                self.position = self.position.max(batch.last_offset().next());
                self.current = None;
            }
            let Some(batch) = self.batches.next() else {
                return Ok(None);
            };
            let batch = batch?;
            if self.check_crcs {
                batch.check_crc()?;
            }
            let aborted = self.aborted.as_mut();
            let hidden = aborted.is_some_and(|aborted| {
                let last = batch.last_offset();
                let (control, transactional) = (batch.is_control(), batch.is_transactional());
                aborted.hides(last, batch.producer_id(), transactional, control)
            });
            if batch.is_control() || hidden {
                self.position = self.position.max(batch.last_offset().next());
                continue;
            }
            let records = batch.records(INFLATED_BYTES_MAX)?;
            self.current = Some((batch, records));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::batch_builder::BatchBuilder;

    fn batch(base: i64, values: &[&str], producer: Option<i64>, control: bool) -> Bytes {
        let mut builder = BatchBuilder::new();
        builder.base_offset = Offset(base);
        builder.control = control;
        if let Some(producer) = producer {
            builder.transactional = true;
            builder = builder.with_producer(producer, 0, 0);
        }
        for value in values {
            builder
                .append(5, None, Some(value.as_bytes()), &[])
                .unwrap();
        }
        builder.build().unwrap()
    }

    fn fetched(at: i64, batches: &[Bytes], aborted: Option<Vec<(i64, i64)>>) -> Fetched {
        let records = batches.concat().into();
        Fetched::new(
            TopicPartition::new("t".into(), 0),
            Offset(at),
            records,
            aborted,
            true,
        )
    }

    fn values(fetched: &mut Fetched) -> Vec<String> {
        let mut values = Vec::new();
        while let Some(record) = fetched.next().unwrap() {
            let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
            values.push(format!("{}:{value}", record.offset));
        }
        values
    }

    #[test]
    fn records_before_the_position_are_not_seen_again() {
        let mut f = fetched(11, &[batch(10, &["a", "b", "c"], None, false)], None);
        assert_eq!(values(&mut f), ["11:b", "12:c"]);
        assert_eq!(f.position(), Offset(13));
    }

    #[test]
    fn aborted_records_are_hidden_from_read_committed_only_until_their_marker() {
        let batches = [
            batch(0, &["p7 aborted"], Some(7), false),
            batch(1, &["p8 committed"], Some(8), false),
            batch(2, &["plain"], None, false),
            batch(3, &["marker"], Some(7), true),
            batch(4, &["marker"], Some(8), true),
            batch(5, &["p7 committed"], Some(7), false),
            batch(6, &["marker"], Some(7), true),
        ];
        let mut f = fetched(0, &batches, Some(vec![(0, 7)]));
        assert_eq!(
            values(&mut f),
            ["1:p8 committed", "2:plain", "5:p7 committed"]
        );
        assert_eq!(f.position(), Offset(7));
        let mut f = fetched(0, &batches, None);
        assert_eq!(values(&mut f).len(), 4);
    }

    #[test]
    fn the_position_passes_a_batch_that_shows_nothing() {
        let mut f = fetched(3, &[batch(3, &["marker"], Some(7), true)], Some(Vec::new()));
        assert_eq!(values(&mut f), Vec::<String>::new());
        assert_eq!(f.position(), Offset(4));
    }

    #[test]
    fn a_damaged_batch_is_an_error_and_not_skipped() {
        let mut damaged = batch(1, &["abc"], None, false).to_vec();
        *damaged.last_mut().unwrap() ^= 1;
        let mut f = fetched(0, &[batch(0, &["ok"], None, false), damaged.into()], None);
        assert_eq!(f.next().unwrap().unwrap().offset, Offset(0));
        assert!(f.next().is_err());
        assert_eq!(f.position(), Offset(1));
    }

    #[test]
    fn a_torn_tail_is_left_for_the_next_fetch() {
        let second = batch(1, &["b"], None, false);
        let torn = second.slice(..second.len() - 3);
        let mut f = fetched(0, &[batch(0, &["a"], None, false), torn], None);
        assert_eq!(values(&mut f), ["0:a"]);
        assert_eq!(f.position(), Offset(1));
    }
}

//! Owns the questions about offsets: by time, by epoch, the last stable offset, aborted
//! transactions, producers. On the log's shard. Nothing here changes the log, except that markers
//! below the high watermark are settled when it is told.

use std::rc::Rc;

use crate::types::{LeaderEpoch, Offset};
use crate::wire::batch::{Batch, TimestampType};

use super::error::LogError;
use super::log::Log;
use super::producers::{ProducerDescription, ProducerError, VerificationGuard};
use super::scan::{ScanError, Scanner};
use super::segment::Segment;
use super::validator::STORED_INFLATED_BYTES_MAX;

/// A record found by its timestamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimestampOffset {
    pub timestamp: i64,
    pub offset: Offset,
    pub leader_epoch: Option<LeaderEpoch>,
}

impl Log {
    /// The first record with a timestamp of at least `target`, written and not below the log
    /// start; `None` if there is none.
    pub async fn offset_for_timestamp(
        &self,
        target: i64,
    ) -> Result<Option<TimestampOffset>, LogError> {
        self.check_usable()?;
        let log_start = self.log_start();
        let segments: Vec<Rc<Segment>> = self.state().segments.values().cloned().collect();
        for segment in segments {
            if segment.max_timestamp().0 < target {
                continue;
            }
            let found = self.first_in(&segment, target, log_start).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The record with the largest timestamp of the log (ListOffsets -3); the first such one.
    pub async fn max_timestamp_offset(&self) -> Result<Option<TimestampOffset>, LogError> {
        self.check_usable()?;
        let log_start = self.log_start();
        let (mut latest, mut from) = (None::<TimestampOffset>, Offset::ZERO);
        while let Some((timestamp, segment)) = self.latest_segment(from)
            && latest.is_none_or(|latest| timestamp > latest.timestamp)
        {
            let found = self.first_in(&segment, timestamp, log_start).await?;
            if found.is_some() || segment.base() >= log_start {
                return Ok(found.or(latest));
            }
            // It was deleted with the beginning of its segment. Of what is left there no index
            // tells; what lies before is deleted as a whole.
            self.walk(&segment, log_start, |batch| {
                self.each_record(batch, log_start, |record| {
                    if latest.is_none_or(|latest| record.timestamp > latest.timestamp) {
                        latest = Some(record);
                    }
                    true
                })?;
                Ok(true)
            })
            .await?;
            from = segment.base().next();
        }
        Ok(latest)
    }

    /// The first segment from `base` on with the largest timestamp of these.
    fn latest_segment(&self, base: Offset) -> Option<(i64, Rc<Segment>)> {
        let state = self.state();
        let mut latest: Option<(i64, Rc<Segment>)> = None;
        for segment in state.segments.range(base..).map(|(_, segment)| segment) {
            let timestamp = segment.max_timestamp().0;
            if timestamp >= 0 && latest.as_ref().is_none_or(|(best, _)| timestamp > *best) {
                latest = Some((timestamp, segment.clone()));
            }
        }
        latest
    }

    /// The first record of a segment with a timestamp of at least `target`, not below the log start.
    async fn first_in(
        &self,
        segment: &Rc<Segment>,
        target: i64,
        log_start: Offset,
    ) -> Result<Option<TimestampOffset>, LogError> {
        self.load_indexes(segment).await?;
        let floor = segment
            .floor_offset_by_time(target)
            .unwrap_or(segment.base());
        let mut found = None;
        self.walk(segment, floor.max(log_start), |batch| {
            if batch.max_timestamp() >= target && batch.last_offset() >= log_start {
                self.each_record(batch, log_start, |record| {
                    found = (record.timestamp >= target).then_some(record);
                    found.is_none()
                })?;
            }
            Ok(found.is_none())
        })
        .await?;
        Ok(found)
    }

    /// Where the log leaves `epoch`: the largest epoch not above it and the offset where the next
    /// one starts. `None` if that is undefined.
    pub fn end_offset_for_epoch(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        let state = self.state();
        let end = state.epochs.end_offset_for(epoch, state.marks.log_end())?;
        Some((end.epoch, end.end_offset))
    }

    /// A leader was elected: its epoch starts at the log's end. The checkpoint follows behind the
    /// first record of the epoch.
    pub fn start_epoch(&self, epoch: LeaderEpoch) {
        let mut state = self.state_mut();
        let end = state.marks.log_end();
        if state.epochs.assign(epoch, end) {
            state.epochs_unwritten = true;
        }
    }

    /// The epoch that wrote `offset`.
    pub fn epoch_for_offset(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.state().epochs.epoch_for_offset(offset)
    }

    /// Up to where a `read_committed` reader may read under this high watermark: below the first
    /// transaction that is open or not settled yet.
    pub fn last_stable_offset(&self, high_watermark: Offset) -> Offset {
        let mut state = self.state_mut();
        state.producers.on_high_watermark(high_watermark);
        match state.producers.first_unstable_offset() {
            Some(unstable) if unstable < high_watermark => unstable.max(state.marks.log_start()),
            _ => high_watermark,
        }
    }

    /// (producer id, first offset) of every aborted transaction that overlaps `[from, upper)`.
    pub fn aborted_transactions(&self, from: Offset, upper: Offset) -> Vec<(i64, i64)> {
        let state = self.state();
        let mut rows = Vec::new();
        for segment in state
            .segments
            .range(state.floor_base(from)..)
            .map(|(_, s)| s)
        {
            if segment.collect_aborted(from, upper, &mut rows) {
                break;
            }
        }
        rows.into_iter()
            .map(|row| (row.producer_id, row.first_offset.0))
            .collect()
    }

    /// The producers the log remembers (DescribeProducers).
    pub fn describe_producers(&self) -> Vec<ProducerDescription> {
        self.state().producers.describe()
    }

    /// Whether a transaction has been open here for longer than any may be.
    pub fn has_late_transaction(&self, now_ms: i64, max_timeout_ms: i64) -> bool {
        let state = self.state();
        state.producers.has_late_txn(now_ms, max_timeout_ms)
    }

    /// Starts the verification of a producer's transaction (KIP-890); `NONE` if it is open here.
    pub fn start_verification(
        &self,
        producer_id: i64,
        epoch: i16,
        sequence: i32,
        epoch_bump: bool,
        now_ms: i64,
    ) -> Result<VerificationGuard, ProducerError> {
        let mut state = self.state_mut();
        state
            .producers
            .start_verification(producer_id, epoch, sequence, epoch_bump, now_ms)
    }

    /// Whether a transaction of this producer and epoch is open here.
    pub fn has_open_transaction(&self, producer_id: i64, epoch: i16) -> bool {
        self.state().producers.has_open_txn(producer_id, epoch)
    }

    /// Visits the written batches of a segment from the one that holds `from`, until `visit`
    /// answers false.
    async fn walk(
        &self,
        segment: &Rc<Segment>,
        from: Offset,
        mut visit: impl FnMut(&Batch) -> Result<bool, LogError>,
    ) -> Result<(), LogError> {
        let Some(handles) = segment.handles() else {
            return Ok(());
        };
        let mut start = segment.floor_position(from).unwrap_or(0);
        let generation = self.state().generation;
        let scan_from = |start| Scanner::short(handles.reader.clone(), start, segment.written());
        let mut scanner = scan_from(start);
        loop {
            let next = scanner.next().await;
            if self.state().generation != generation {
                // The tail was cut meanwhile; what is left was seen.
                return Ok(());
            }
            match next {
                Ok(Some((_, batch))) if batch.last_offset() < from => {}
                Ok(Some((_, batch))) => {
                    if !visit(&batch)? {
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(ScanError::Io(error)) => return Err(self.storage_error("read", error)),
                Err(ScanError::Damaged { position, error }) => {
                    let led_astray = position == start && start > 0;
                    if led_astray && self.distrust_indexes(segment, from, start).await? {
                        start = segment.floor_position(from).unwrap_or(0);
                        scanner = scan_from(start);
                        continue;
                    }
                    return Err(self.damaged(segment, position, &error.to_string()));
                }
            }
        }
    }

    /// Shows the records of a batch that are not below the log start to `visit`, until that says no.
    fn each_record(
        &self,
        batch: &Batch,
        log_start: Offset,
        mut visit: impl FnMut(TimestampOffset) -> bool,
    ) -> Result<(), LogError> {
        let epoch = batch.partition_leader_epoch();
        let leader_epoch = (epoch != LeaderEpoch::UNKNOWN).then_some(epoch);
        let damaged = |error: &dyn ToString| LogError::Damaged {
            path: self.dir().to_path_buf(),
            position: batch.base_offset().0 as u64,
            what: error.to_string(),
        };
        // One time for all of them; but the first ones may have been compacted away.
        let stamped = batch.timestamp_type() == TimestampType::LogAppendTime;
        let stamp = stamped.then(|| batch.max_timestamp());
        let records = batch
            .records(STORED_INFLATED_BYTES_MAX)
            .map_err(|error| damaged(&error))?;
        for record in records {
            let record = record.map_err(|error| damaged(&error))?;
            let at = TimestampOffset {
                timestamp: stamp.unwrap_or(record.timestamp),
                offset: record.offset,
                leader_epoch,
            };
            if at.offset >= log_start && !visit(at) {
                break;
            }
        }
        Ok(())
    }
}

//! Owns reading a log without reading it: whole batches named as a range of their segment file, for
//! an answer that is sent from the page cache. On the log's shard. It never names what a truncation
//! could cut off (the caller says what is settled), never what is not in memory now, and leaves
//! everything small, recent or out of order to [`Log::read`].
//!
//! A reader that goes through a log in order is known by where its last read ended
//! (`read_ahead`), so the range begins at a batch; it ends at one because the offset index only
//! names beginnings of batches. The only bytes looked at are the header of the batch behind it.

use std::rc::Rc;

use crate::types::Offset;
use crate::wire::Records;
use crate::wire::batch::HEADER_BYTES;

use super::error::LogError;
use super::log::Log;
use super::read::{OffsetPosition, ReadOutcome, base_offset_of};
use super::read_ahead::Source;
use super::segment::Segment;

/// Shorter ranges are read at once: looking for their end costs as much as copying them.
const RANGE_BYTES_MIN: u64 = 64 << 10;
/// Longer ones are cut: asking whether all of a range is in memory takes some microseconds a MiB.
const RANGE_BYTES_MAX: u64 = 16 << 20;

/// Where a range ends.
struct End {
    position: u64,
    /// The first offset behind it.
    next: Offset,
}

impl Log {
    /// Whole batches from `from` on, below `settled` and up to `max_bytes`, if they are worth it:
    /// `None` leaves the read to [`Log::read`]. Nothing below `settled` may ever be cut off.
    ///
    /// # Errors
    /// What loading a sealed segment's indexes gives.
    pub async fn read_in_place(
        &self,
        from: Offset,
        settled: Offset,
        max_bytes: u64,
    ) -> Result<Option<ReadOutcome>, LogError> {
        self.range_of(from, settled, max_bytes, RANGE_BYTES_MIN)
            .await
    }

    pub(super) async fn range_of(
        &self,
        from: Offset,
        settled: Offset,
        max_bytes: u64,
        min_bytes: u64,
    ) -> Result<Option<ReadOutcome>, LogError> {
        if max_bytes < min_bytes || self.shard.recent.position_of(self.key(), from).is_some() {
            return Ok(None);
        }
        let Some((source, position)) = self.where_reader_stands(from, settled) else {
            return Ok(None);
        };
        if !source.segment.has_indexes() {
            self.load_indexes(&source.segment).await?;
            // Whatever happened to the log meanwhile: looked at anew by the next fetch.
            return Ok(None);
        }
        let most = position + max_bytes.min(RANGE_BYTES_MAX);
        let Some(end) = self.end_of_range(&source, settled, most) else {
            return Ok(None);
        };
        if end.next <= from || end.position < position + min_bytes {
            return Ok(None);
        }
        let bytes = (end.position - position) as usize;
        let Some(range) = source.file.cached_range(position, bytes) else {
            return Ok(None);
        };
        let ahead = &self.shard.ahead;
        ahead.note_end(self.key(), end.next, &source, end.position);
        Ok(Some(ReadOutcome {
            records: Records::from(range),
            position: Some(OffsetPosition {
                offset: from,
                segment_base: source.segment.base(),
                position,
            }),
            upper_bound: end.next,
        }))
    }

    /// The segment that holds `from`, and the batch that begins with it if a reader has come there
    /// in order.
    fn where_reader_stands(&self, from: Offset, settled: Offset) -> Option<(Source, u64)> {
        self.check_usable().ok()?;
        let state = self.state();
        if from < state.marks.log_start() || from >= settled.min(state.marks.written()) {
            return None;
        }
        let segment: &Rc<Segment> = state.segments.get(&state.floor_base(from))?;
        let file = segment.handles()?.reader;
        let ahead = &self.shard.ahead;
        let (_, position) = ahead.ended_before(self.key(), from, segment, state.generation);
        let position = match position {
            Some(position) => position,
            None if from == segment.base() => 0,
            None => return None,
        };
        let source = Source {
            segment: segment.clone(),
            generation: state.generation,
            file,
            end: segment.written(),
        };
        Some((source, position))
    }

    /// The last beginning of a batch, or end of the segment, that is not behind `most` and has
    /// nothing at or above `settled` before it.
    fn end_of_range(&self, source: &Source, settled: Offset, most: u64) -> Option<End> {
        let all = {
            let state = self.state();
            let end = state.end_of(source.segment.base());
            let whole = source.segment.is_sealed() || source.segment.size() == source.end;
            (whole && source.end <= most && end <= settled.min(state.marks.written())).then_some(
                End {
                    position: source.end,
                    next: end,
                },
            )
        };
        if all.is_some() {
            return all;
        }
        let position = source.segment.indexed_position(most, settled)?;
        if position + HEADER_BYTES as u64 > source.end {
            return None;
        }
        let head = source.file.try_read_cached(position, HEADER_BYTES)?.ok()?;
        let next = (head.len() == HEADER_BYTES).then(|| base_offset_of(&head))?;
        (next <= settled).then_some(End { position, next })
    }
}

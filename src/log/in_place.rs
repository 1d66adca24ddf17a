//! Owns reading a log without reading it: whole batches named as a range of their segment file, for
//! an answer that is sent from the page cache. On the log's shard. It never names what a truncation
//! could cut off (the caller says what is settled), never what is not in memory now, and leaves
//! everything small or out of order to [`Log::read`]. Only an unclean election cuts what was
//! settled: a client that is being sent such a range then finds a torn batch in it, or loses its
//! connection, and fetches again.
//!
//! The range begins at a batch: that of a recent one is known, and a reader that goes through a log
//! in order by where its last read ended (`read_ahead`). It ends at one because the offset index
//! only names beginnings of batches. The only bytes looked at are the header of the batch behind
//! it. What recent batches follow is answered along with it, from memory.

use std::rc::Rc;

use crate::types::Offset;
use crate::wire::Records;
use crate::wire::batch::HEADER_BYTES;

use super::error::LogError;
use super::log::Log;
use super::read::{OffsetPosition, ReadOutcome, Want, base_offset_of};
use super::read_ahead::Source;
use super::segment::Segment;

/// Longer ones are cut: asking whether all of a range is in memory takes some microseconds a MiB.
const RANGE_BYTES_MAX: u64 = 16 << 20;

/// Where a range ends.
struct End {
    position: u64,
    /// The first offset behind it.
    next: Offset,
}

impl Log {
    /// Whole batches from `from` on, below `upper` and up to `max_bytes`, if a range of them below
    /// `settled` is worth it: `None` leaves the read to [`Log::read`]. Nothing below `settled` may
    /// ever be cut off.
    ///
    /// # Errors
    /// What loading a sealed segment's indexes gives.
    pub async fn read_in_place(
        &self,
        from: Offset,
        upper: Offset,
        settled: Offset,
        max_bytes: u64,
    ) -> Result<Option<ReadOutcome>, LogError> {
        let found = self
            .range_of(
                from,
                upper.min(settled),
                max_bytes,
                self.shard.range_bytes_min,
            )
            .await?;
        Ok(found.map(|outcome| self.and_recent(outcome, upper, max_bytes)))
    }

    /// With the recent batches that follow.
    fn and_recent(&self, mut outcome: ReadOutcome, upper: Offset, max_bytes: u64) -> ReadOutcome {
        let want = Want {
            from: outcome.upper_bound,
            upper: upper.min(self.written()),
            max_bytes: max_bytes.saturating_sub(outcome.records.len() as u64),
            min_one: false,
        };
        if want.from < want.upper
            && let Some(recent) = self.read_recent(&want)
        {
            for part in recent.records.parts() {
                outcome.records.push(part.clone());
            }
            outcome.upper_bound = recent.upper_bound;
        }
        outcome
    }

    pub(super) async fn range_of(
        &self,
        from: Offset,
        settled: Offset,
        max_bytes: u64,
        min_bytes: u64,
    ) -> Result<Option<ReadOutcome>, LogError> {
        if max_bytes < min_bytes {
            return Ok(None);
        }
        let Some((source, position)) = self.where_reader_stands(from, settled) else {
            return Ok(None);
        };
        if !source.segment.indexes_resident() {
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

    /// The segment that holds `from`, and where in it the batch with `from` begins, if that is known.
    fn where_reader_stands(&self, from: Offset, settled: Offset) -> Option<(Source, u64)> {
        self.check_usable().ok()?;
        let state = self.state();
        if from < state.marks.log_start() || from >= settled.min(state.marks.written()) {
            return None;
        }
        let segment: &Rc<Segment> = state.segments.get(&state.floor_base(from))?;
        let file = segment.handles()?.reader;
        let position = match self.shard.recent.position_of(self.key(), from) {
            Some((base, position)) if base == segment.base() => position,
            _ if from == segment.base() => 0,
            _ => {
                let ahead = &self.shard.ahead;
                ahead
                    .ended_before(self.key(), from, segment, state.generation)
                    .1?
            }
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

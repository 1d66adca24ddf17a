//! Owns reading a log by offset: from the shard's recent batches, from the page cache, from the
//! disk, in this order. On the log's shard. It never reads past `written`, never returns part of
//! a batch, and never knows what a client may see: the caller gives the upper bound.

use std::io;
use std::rc::Rc;

use bytes::Bytes;

use crate::rt::fs::File;
use crate::types::Offset;
use crate::wire::Records;
use crate::wire::batch::{BatchError, BatchView, HEADER_BYTES};

use super::error::LogError;
use super::log::Log;
use super::segment::Segment;

/// Read beyond what the caller asked for, because the index leads to a position at most one
/// interval and one batch before the wanted one.
const INDEX_SLACK_BYTES: u64 = 16 << 10;

/// Largest read that is copied out of the page cache on the executor: what a consumer asks for by
/// default, and some 100 us.
const CACHED_READ_BYTES_MAX: usize = (1 << 20) + INDEX_SLACK_BYTES as usize;

/// Where an offset lies: segment base and position in its file. Positions of one segment can be
/// subtracted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffsetPosition {
    pub offset: Offset,
    pub segment_base: Offset,
    pub position: u64,
}

/// What a read found.
#[derive(Clone, Debug)]
pub struct ReadOutcome {
    /// Whole batches; the first one holds the wanted offset. Empty if there is nothing below the
    /// upper bound, or the first batch does not fit and need not be returned.
    pub records: Records,
    /// Where the first batch lies.
    pub position: Option<OffsetPosition>,
    /// One past the last offset returned; the wanted offset if nothing was.
    pub upper_bound: Offset,
}

/// What a caller wants of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub from: Offset,
    pub upper: Offset,
    pub max_bytes: u64,
    pub min_one: bool,
}

/// A range of a segment file to look through.
struct DiskRange {
    segment: Rc<Segment>,
    position: u64,
    end: u64,
    generation: u64,
}

enum Plan {
    Found(ReadOutcome),
    Disk(DiskRange),
    /// The segment's indexes must be read first.
    Index(Rc<Segment>),
}

enum Cut {
    Found(ReadOutcome),
    /// Nothing wanted in these bytes; go on at this position.
    GoOn(u64),
    /// The wanted batch begins here and is this long.
    Exactly(u64, usize),
}

impl ReadOutcome {
    fn empty(from: Offset) -> ReadOutcome {
        ReadOutcome {
            records: Records::default(),
            position: None,
            upper_bound: from,
        }
    }
}

impl Log {
    /// Reads whole batches from the one that holds `from`, below `upper`, up to `max_bytes`; with
    /// `min_one` the first batch is returned whatever its size. At most one segment is read.
    ///
    /// # Errors
    /// `OutOfRange` unless `log_start <= from <= log_end`; `Offline`; `Damaged` bytes.
    pub async fn read(
        &self,
        from: Offset,
        upper: Offset,
        max_bytes: u64,
        min_one: bool,
    ) -> Result<ReadOutcome, LogError> {
        let want = Want {
            from,
            upper,
            max_bytes,
            min_one,
        };
        loop {
            match self.plan_read(&want)? {
                Plan::Found(outcome) => return Ok(outcome),
                Plan::Index(segment) => self.load_indexes(&segment).await?,
                Plan::Disk(range) => {
                    let found = self.read_range(&want, &range).await;
                    if self.state().generation != range.generation {
                        // The tail was cut meanwhile: what was read may be of another history.
                        continue;
                    }
                    match found? {
                        Some(outcome) => return Ok(outcome),
                        None => return self.read_next_segment(&want, &range).await,
                    }
                }
            }
        }
    }

    /// The same without waiting: from recent batches or the page cache. `None` if it would take
    /// the disk.
    pub fn read_cached(
        &self,
        from: Offset,
        upper: Offset,
        max_bytes: u64,
        min_one: bool,
    ) -> Result<Option<ReadOutcome>, LogError> {
        let want = Want {
            from,
            upper,
            max_bytes,
            min_one,
        };
        match self.plan_read(&want)? {
            Plan::Found(outcome) => Ok(Some(outcome)),
            Plan::Index(_) => Ok(None),
            Plan::Disk(range) => {
                let Some(handles) = range.segment.handles() else {
                    return Ok(None);
                };
                let len = first_read_len(&want, &range);
                let Some(bytes) = from_page_cache(&handles.reader, range.position, len) else {
                    return Ok(None);
                };
                let bytes = bytes.map_err(|error| self.storage_error("read", error))?;
                match self.cut(&want, &range, range.position, &bytes)? {
                    Cut::Found(outcome) => Ok(Some(outcome)),
                    Cut::GoOn(_) | Cut::Exactly(..) => Ok(None),
                }
            }
        }
    }

    /// Bytes between two offsets, as a waiting fetch counts them: exact for recent batches and
    /// the log's end, to within an index interval otherwise, never 0 while there is an offset
    /// between.
    pub fn bytes_between(&self, from: Offset, upper: Offset) -> u64 {
        if upper <= from {
            return 0;
        }
        let (first_base, first) = self.estimate_position(from);
        let (last_base, last) = self.estimate_position(upper);
        let state = self.state();
        let mut bytes = 0;
        for (base, segment) in state.segments.range(first_base..=last_base) {
            let end = if *base == last_base {
                last
            } else {
                segment.size()
            };
            let start = if *base == first_base { first } else { 0 };
            bytes += end.saturating_sub(start);
        }
        bytes.max(1)
    }

    fn estimate_position(&self, offset: Offset) -> (Offset, u64) {
        let state = self.state();
        if offset >= state.marks.log_end() {
            let active = state.active();
            return (active.base(), active.size());
        }
        if let Some(found) = self.shard.recent.position_of(self.key(), offset) {
            return found;
        }
        let base = state.floor_base(offset);
        let position = state
            .segments
            .get(&base)
            .and_then(|s| s.floor_position(offset));
        (base, position.unwrap_or(0))
    }

    fn plan_read(&self, want: &Want) -> Result<Plan, LogError> {
        self.check_usable()?;
        let state = self.state();
        let marks = &state.marks;
        if want.from < marks.log_start() || want.from > marks.log_end() {
            drop(state);
            return Err(self.range_error(want.from));
        }
        let want = Want {
            upper: want.upper.min(marks.written()),
            ..*want
        };
        if want.from >= want.upper {
            return Ok(Plan::Found(ReadOutcome::empty(want.from)));
        }
        if let Some(outcome) = self.read_recent(&want) {
            return Ok(Plan::Found(outcome));
        }
        let base = state.floor_base(want.from);
        let Some(segment) = state.segments.get(&base) else {
            return Ok(Plan::Found(ReadOutcome::empty(want.from)));
        };
        let Some(position) = segment.floor_position(want.from) else {
            return Ok(Plan::Index(segment.clone()));
        };
        Ok(Plan::Disk(DiskRange {
            segment: segment.clone(),
            position,
            end: segment.written(),
            generation: state.generation,
        }))
    }

    fn read_recent(&self, want: &Want) -> Option<ReadOutcome> {
        let mut outcome = ReadOutcome::empty(want.from);
        let hit = self.shard.recent.scan(self.key(), want.from, |batch| {
            let other_segment = outcome
                .position
                .is_some_and(|first| first.segment_base != batch.segment);
            let first = outcome.position.is_none();
            let fits = outcome.records.len() as u64 + u64::from(batch.size) <= want.max_bytes
                || (first && want.min_one);
            if other_segment || !fits || batch.last >= want.upper {
                return false;
            }
            outcome.position.get_or_insert(OffsetPosition {
                offset: batch.base,
                segment_base: batch.segment,
                position: batch.position,
            });
            batch
                .parts
                .iter()
                .for_each(|part| outcome.records.push(part.clone()));
            outcome.upper_bound = batch.last.next();
            true
        });
        hit.then_some(outcome)
    }

    /// Looks through a range of a segment file; `None` if nothing wanted is in it.
    async fn read_range(
        &self,
        want: &Want,
        range: &DiskRange,
    ) -> Result<Option<ReadOutcome>, LogError> {
        let Some(handles) = range.segment.handles() else {
            return Ok(None);
        };
        let want = Want {
            upper: want.upper.min(self.written()),
            ..*want
        };
        let (mut position, mut len) = (range.position, first_read_len(&want, range));
        while position < range.end {
            let bytes = match from_page_cache(&handles.reader, position, len) {
                Some(read) => read,
                None => handles.reader.read_at(position, len).await,
            };
            let bytes = bytes.map_err(|error| self.storage_error("read", error))?;
            if bytes.is_empty() {
                return Err(self.damaged(&range.segment, position, "the file ends early"));
            }
            match self.cut(&want, range, position, &bytes)? {
                Cut::Found(outcome) => return Ok(Some(outcome)),
                Cut::GoOn(next) => {
                    position = next;
                    len = (range.end - position).min(first_read_len(&want, range) as u64) as usize;
                }
                Cut::Exactly(at, size) => {
                    position = at;
                    len = size;
                }
            }
        }
        Ok(None)
    }

    /// Every batch of the range ends before the wanted offset: a compacted segment has a hole at
    /// its end, the next one goes on.
    async fn read_next_segment(
        &self,
        want: &Want,
        range: &DiskRange,
    ) -> Result<ReadOutcome, LogError> {
        let mut base = range.segment.base();
        loop {
            let next = self
                .state()
                .segments
                .range(base.next()..)
                .next()
                .map(|(b, s)| (*b, s.clone()));
            let Some((next_base, segment)) = next else {
                return Ok(ReadOutcome::empty(want.from));
            };
            base = next_base;
            let (end, generation) = (segment.written(), self.state().generation);
            let range = DiskRange {
                segment,
                position: 0,
                end,
                generation,
            };
            if let Some(outcome) = self.read_range(want, &range).await? {
                return Ok(outcome);
            }
        }
    }

    /// Finds the wanted batches in bytes read at `start`.
    fn cut(
        &self,
        want: &Want,
        range: &DiskRange,
        start: u64,
        bytes: &Bytes,
    ) -> Result<Cut, LogError> {
        let mut at = 0;
        let mut found: Option<(usize, Offset)> = None;
        let mut outcome = ReadOutcome::empty(want.from);
        loop {
            let here = start + at as u64;
            let (batch, _) = match BatchView::parse(&bytes[at..]) {
                Ok(parsed) => parsed,
                Err(BatchError::Partial { needed, .. }) => {
                    if found.is_some() || here >= range.end {
                        break;
                    }
                    if here + needed as u64 > range.end {
                        return Err(self.damaged(&range.segment, here, "the last batch is cut"));
                    }
                    return Ok(self.partial(want, here, at, bytes, needed));
                }
                Err(error) => {
                    return Err(self.damaged(&range.segment, here, &error.to_string()));
                }
            };
            let (size, last) = (batch.total_size(), batch.last_offset());
            if last < want.from {
                at += size;
                continue;
            }
            let first = found.is_none();
            let begin = found.map_or(at, |(begin, _)| begin);
            let fits = (at + size - begin) as u64 <= want.max_bytes || (first && want.min_one);
            if !fits || last >= want.upper {
                if first {
                    return Ok(Cut::Found(outcome));
                }
                break;
            }
            if first {
                outcome.position = Some(OffsetPosition {
                    offset: batch.base_offset(),
                    segment_base: range.segment.base(),
                    position: here,
                });
            }
            found = Some((begin, last));
            at += size;
        }
        match found {
            Some((begin, last)) => {
                outcome.records.push(bytes.slice(begin..at));
                outcome.upper_bound = last.next();
                Ok(Cut::Found(outcome))
            }
            None => Ok(Cut::GoOn(start + at as u64)),
        }
    }

    /// The bytes end inside a batch that may be the wanted one.
    fn partial(&self, want: &Want, here: u64, at: usize, bytes: &Bytes, needed: usize) -> Cut {
        // Only its length is known when less than a header is there: then read on from here.
        let Some(last) = last_offset_of(&bytes[at..]) else {
            return if at == 0 {
                Cut::Exactly(here, needed)
            } else {
                Cut::GoOn(here)
            };
        };
        if last < want.from {
            return Cut::GoOn(here + needed as u64);
        }
        if needed as u64 > want.max_bytes && !want.min_one {
            return Cut::Found(ReadOutcome::empty(want.from));
        }
        Cut::Exactly(here, needed)
    }

    pub(super) async fn load_indexes(&self, segment: &Rc<Segment>) -> Result<(), LogError> {
        let (dir, config) = {
            let state = self.state();
            (state.dir.clone(), state.config.clone())
        };
        segment
            .load_indexes(&dir, &config, &self.shard.index_budget)
            .await
            .map_err(|error| self.storage_error("read index", error))
    }

    pub(super) fn storage_error(&self, what: &'static str, error: std::io::Error) -> LogError {
        LogError::storage(what, self.dir().as_ref().clone(), error)
    }

    pub(super) fn damaged(&self, segment: &Segment, position: u64, what: &str) -> LogError {
        let name = super::names::segment_file(segment.base(), super::names::FileKind::Log);
        let path = self.dir().join(name);
        tracing::error!(file = %path.display(), position, what, "damaged batch");
        LogError::Damaged {
            path,
            position,
            what: what.to_owned(),
        }
    }
}

/// Bytes that are in the page cache; `None` if the disk is needed, if there are too many to copy
/// on the spot, or if the file system cannot tell.
fn from_page_cache(file: &File, position: u64, len: usize) -> Option<io::Result<Bytes>> {
    if len > CACHED_READ_BYTES_MAX {
        return None;
    }
    let read = file.try_read_cached(position, len)?;
    let untold = read
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::Unsupported);
    (!untold).then_some(read)
}

fn first_read_len(want: &Want, range: &DiskRange) -> usize {
    let len = want.max_bytes.saturating_add(INDEX_SLACK_BYTES);
    (range.end - range.position).min(len) as usize
}

/// The last offset a batch header claims; `None` if the header is not whole.
fn last_offset_of(bytes: &[u8]) -> Option<Offset> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    let base = i64::from_be_bytes(*header.first_chunk()?);
    let delta = i32::from_be_bytes(*header[23..].first_chunk()?);
    Some(Offset(base.saturating_add(i64::from(delta))))
}

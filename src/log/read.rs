//! Owns reading a log by offset: from the shard's recent batches, from pieces read ahead, from the
//! page cache, from the device, in this order. On the log's shard. It never reads past `written`,
//! never returns part of a batch, never waits for the device on the executor, and never knows what
//! a client may see: the caller gives the upper bound.

use std::io;
use std::rc::Rc;

use bytes::Bytes;

use crate::rt;
use crate::rt::fs::File;
use crate::types::Offset;
use crate::wire::Records;
use crate::wire::batch::{BatchError, BatchView, HEADER_BYTES};

use super::error::LogError;
use super::log::Log;
use super::read_ahead::{Look, PIECE_BYTES, Source};
use super::segment::Segment;
use super::window::Window;

/// Read beyond what the caller asked for, because the index leads to a position at most one
/// interval and one batch before the wanted one.
const INDEX_SLACK_BYTES: u64 = 16 << 10;

/// Bytes copied out of the page cache on the executor at a time: some 30 us, for which every other
/// task of the shard waits. The others run before the next step, whoever takes it.
const CACHED_STEP_BYTES: usize = 2 * rt::STEP_BYTES;

/// Most bytes one read returns, but for a single larger batch: a consumer that asks for 50 MiB
/// gets them in several fetches, so that looking through its batches takes the shard some 100 us
/// at a time.
const READ_BYTES_MAX: u64 = 4 << 20;

/// Most bytes one read returns that are not in memory: enough to keep a fast reader busy while the
/// next piece is read, and a small part of the memory for pieces.
const COLD_BYTES_MAX: usize = 2 * PIECE_BYTES;

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
    source: Source,
    position: u64,
    /// Bytes that may lie between `position` and the wanted batch.
    slack: u64,
    /// A read has ended where this one begins: its reader goes through the log in order.
    sequential: bool,
}

enum Plan {
    Found(ReadOutcome),
    Disk(DiskRange),
    /// The segment's indexes must be read first.
    Index(Rc<Segment>),
}

enum Cut {
    /// And the position behind the last batch of it.
    Found(ReadOutcome, u64),
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
                    let source = &range.source;
                    if self.state().generation != source.generation || source.segment.is_replaced()
                    {
                        // The tail was cut meanwhile: what was read may be of another history. Or
                        // compaction has passed: what was not found may lie elsewhere now.
                        continue;
                    }
                    let led_astray =
                        matches!(found, Err(LogError::Damaged { .. })) && range.slack > 0;
                    if led_astray {
                        let led_to = range.position;
                        let distrusted = self.distrust_indexes(&source.segment, want.from, led_to);
                        if distrusted.await? {
                            continue;
                        }
                    }
                    let found = match found? {
                        Some(outcome) => Some(outcome),
                        None => self.read_next_segment(&want, &range).await?,
                    };
                    if let Some(outcome) = found {
                        return Ok(outcome);
                    }
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
        let found = state.segments.get(&base);
        let Some((segment, handles)) = found.and_then(|s| Some((s.clone(), s.handles()?))) else {
            return Ok(Plan::Found(ReadOutcome::empty(want.from)));
        };
        let (sequential, position) =
            self.shard
                .ahead
                .ended_before(self.key(), want.from, &segment, state.generation);
        let (position, slack) = match position {
            Some(position) => (position, 0),
            // Also where a reader comes over from the segment before: no index is needed.
            None if want.from <= base => (0, 0),
            None => match segment.floor_position(want.from) {
                Some(position) => (position, INDEX_SLACK_BYTES),
                None => return Ok(Plan::Index(segment)),
            },
        };
        Ok(Plan::Disk(DiskRange {
            position,
            slack,
            sequential,
            source: Source {
                file: handles.reader,
                end: segment.written(),
                generation: state.generation,
                segment,
            },
        }))
    }

    pub(super) fn read_recent(&self, want: &Want) -> Option<ReadOutcome> {
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
        let source = &range.source;
        let want = Want {
            upper: want.upper.min(self.written()),
            ..*want
        };
        let wanted = (want.max_bytes.min(READ_BYTES_MAX) + range.slack).max(HEADER_BYTES as u64);
        let (mut position, mut need) = (range.position, 1);
        while position < source.end {
            let most = wanted.min(source.end - position) as usize;
            let window = self
                .gather(range, position, need, most.max(need))
                .await
                .map_err(|error| self.storage_error("read", error))?;
            if window.len() < need {
                let end = window.end();
                return Err(self.damaged(&source.segment, end, "the file ends early"));
            }
            (position, need) = match self.cut(&want, source, &window)? {
                Cut::Found(outcome, end) => {
                    let ahead = &self.shard.ahead;
                    ahead.note_end(self.key(), outcome.upper_bound, source, end);
                    return Ok(Some(outcome));
                }
                Cut::GoOn(next) => (next, 1),
                Cut::Exactly(at, size) => (at, size),
            };
        }
        Ok(None)
    }

    /// At least `need` bytes from `position` on, if the file has them, and up to `most` as far as
    /// they are in memory, on their way, or one read away.
    async fn gather(
        &self,
        range: &DiskRange,
        position: u64,
        need: usize,
        most: usize,
    ) -> io::Result<Window> {
        let (source, ahead) = (&range.source, &self.shard.ahead);
        let mut window = Window::new(position);
        let mut cold_bytes = 0;
        // Where a piece was asked for: if it is not there afterwards, it could not be read.
        let mut tried = None;
        while window.len() < most {
            let (at, left) = (window.end(), most - window.len());
            let satisfied = window.len() >= need;
            match ahead.look(source, at) {
                Look::Ready(_) if satisfied && cold_bytes >= COLD_BYTES_MAX => break,
                Look::Ready(mut bytes) => {
                    let piece_end = at + bytes.len() as u64;
                    bytes.truncate(left);
                    cold_bytes += bytes.len();
                    window.push(bytes);
                    if range.sequential && piece_end < source.end {
                        ahead.fetch(source, piece_end);
                    }
                    continue;
                }
                Look::Loading(_) if satisfied && cold_bytes >= COLD_BYTES_MAX => break,
                Look::Loading(loaded) => {
                    loaded.await;
                    continue;
                }
                Look::Missing => {}
            }
            let turn = if most > CACHED_STEP_BYTES {
                Some(rt::turn().await)
            } else {
                None
            };
            let cached = from_page_cache(&source.file, at, left.min(CACHED_STEP_BYTES));
            if let Some(bytes) = cached {
                let bytes = bytes?;
                if let Some(turn) = turn {
                    turn.end().await;
                }
                if bytes.is_empty() {
                    break;
                }
                window.push(bytes);
                continue;
            }
            drop(turn);
            if satisfied {
                break;
            }
            if range.sequential && tried != Some(at) && ahead.fetch(source, at) {
                tried = Some(at);
                continue;
            }
            let bytes = ahead.read_alone(source, at, left).await?;
            if bytes.is_empty() {
                break;
            }
            window.push(bytes);
        }
        Ok(window)
    }

    /// Every batch of the range ends before the wanted offset: a compacted segment has a hole at
    /// its end, the next one goes on. `None` if compaction passed meanwhile: look again.
    async fn read_next_segment(
        &self,
        want: &Want,
        range: &DiskRange,
    ) -> Result<Option<ReadOutcome>, LogError> {
        let mut base = range.source.segment.base();
        loop {
            let next = self
                .state()
                .segments
                .range(base.next()..)
                .next()
                .map(|(b, s)| (*b, s.clone()));
            let Some((next_base, segment)) = next else {
                return Ok(Some(ReadOutcome::empty(want.from)));
            };
            base = next_base;
            let Some(handles) = segment.handles() else {
                return Ok(Some(ReadOutcome::empty(want.from)));
            };
            let range = DiskRange {
                source: Source {
                    file: handles.reader,
                    end: segment.written(),
                    generation: self.state().generation,
                    segment,
                },
                position: 0,
                slack: 0,
                sequential: range.sequential,
            };
            let found = self.read_range(want, &range).await?;
            let replaced = range.source.segment.is_replaced();
            if found.is_some() || replaced {
                return Ok(found.filter(|_| !replaced));
            }
        }
    }

    /// Finds the wanted batches in bytes of a segment.
    fn cut(&self, want: &Want, source: &Source, window: &Window) -> Result<Cut, LogError> {
        let start = window.start();
        let mut heads = window.heads();
        let mut at = 0;
        let mut found: Option<(usize, Offset)> = None;
        let mut outcome = ReadOutcome::empty(want.from);
        loop {
            let here = start + at as u64;
            let head = heads.at(at);
            let (size, last) = match total_size(head) {
                Ok(size) => (size, last_offset_of(head)),
                Err(BatchError::Partial { needed, .. }) => (needed, None),
                Err(error) => {
                    return Err(self.damaged(&source.segment, here, &error.to_string()));
                }
            };
            let last = match last {
                Some(last) if at + size <= window.len() => last,
                _ => {
                    if found.is_some() || here >= source.end {
                        break;
                    }
                    if here + size as u64 > source.end {
                        return Err(self.damaged(&source.segment, here, "the last batch is cut"));
                    }
                    return Ok(partial(want, here, at, last, size));
                }
            };
            if last < want.from {
                at += size;
                continue;
            }
            let first = found.is_none();
            let begin = found.map_or(at, |(begin, _)| begin);
            let fits = (at + size - begin) as u64 <= want.max_bytes || (first && want.min_one);
            if !fits || last >= want.upper {
                if first {
                    return Ok(Cut::Found(outcome, here));
                }
                break;
            }
            if first {
                outcome.position = Some(OffsetPosition {
                    offset: base_offset_of(head),
                    segment_base: source.segment.base(),
                    position: here,
                });
            }
            found = Some((begin, last));
            at += size;
        }
        match found {
            Some((begin, last)) => {
                outcome.records = window.slice(begin, at);
                outcome.upper_bound = last.next();
                Ok(Cut::Found(outcome, start + at as u64))
            }
            None => Ok(Cut::GoOn(start + at as u64)),
        }
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

/// The bytes end inside a batch that may be the wanted one: it needs `needed`, or if its header is
/// not whole, at least as many.
fn partial(want: &Want, here: u64, at: usize, last: Option<Offset>, needed: usize) -> Cut {
    let Some(last) = last else {
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
        return Cut::Found(ReadOutcome::empty(want.from), here);
    }
    Cut::Exactly(here, needed)
}

/// Bytes that are in the page cache; `None` if the disk is needed, or if the file system cannot
/// tell.
fn from_page_cache(file: &File, position: u64, len: usize) -> Option<io::Result<Bytes>> {
    let read = file.try_read_cached(position, len)?;
    let untold = read
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::Unsupported);
    (!untold).then_some(read)
}

/// Bytes of the batch that begins with `head`, which may be all there is of it.
fn total_size(head: &[u8]) -> Result<usize, BatchError> {
    match BatchView::parse(head) {
        Ok((batch, _)) => Ok(batch.total_size()),
        // Lengths are known, and the magic is right, as soon as the header is there.
        Err(BatchError::Partial { needed, .. }) if head.len() == HEADER_BYTES => Ok(needed),
        Err(error) => Err(error),
    }
}

pub(super) fn base_offset_of(head: &[u8]) -> Offset {
    let base = head.first_chunk().copied().unwrap_or_default();
    Offset(i64::from_be_bytes(base))
}

/// The last offset a batch header claims; `None` if the header is not whole.
fn last_offset_of(bytes: &[u8]) -> Option<Offset> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    let base = i64::from_be_bytes(*header.first_chunk()?);
    let delta = i32::from_be_bytes(*header[23..].first_chunk()?);
    Some(Offset(base.saturating_add(i64::from(delta))))
}

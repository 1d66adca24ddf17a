//! Owns the walk over a log's batches when it is opened: producer state is brought up from the
//! latest snapshot, and after an unclean stop every batch from the first doubtful segment on is
//! checked, indexed anew, or cut off. On the log's shard, inside `Log::open`.
//!
//! A bad batch is never skipped: the log ends before it, and what was cut is reported.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use crate::rt;
use crate::types::Offset;
use crate::wire::batch::Batch;

use super::error::about;
use super::log::Log;
use super::names::{self, FileKind};
use super::open::{Loader, remove_segment_files};
use super::rebuild::Rebuild;
use super::scan::{ScanError, Scanner};
use super::segment::{BatchExtent, Segment};

/// Bytes looked at per read when a cut tail is searched for anything but zeros.
const ZERO_CHECK_BYTES: u64 = 1 << 20;

/// Bytes written again at a time.
const REWRITE_BYTES: u64 = 1 << 20;

/// What recovery cut off one segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub segment: Offset,
    pub position: u64,
    pub bytes: u64,
    pub reason: String,
}

/// The walk over one log.
pub(super) struct Recovery<'a> {
    loader: &'a mut Loader,
}

/// Why a batch that parses is still not one of this log.
pub(super) fn implausible(batch: &Batch, segment: &Segment, next: Offset) -> Option<String> {
    let (base, last) = (batch.base_offset(), batch.last_offset());
    if let Err(error) = batch.check_crc() {
        return Some(error.to_string());
    }
    if base < segment.base() || base < next {
        return Some(format!("base offset {base} where {next} or more was due"));
    }
    if last < base || last.since(segment.base()) > i32::MAX as u64 {
        return Some(format!(
            "last offset {last} does not fit base offset {base}"
        ));
    }
    None
}

impl<'a> Recovery<'a> {
    pub(super) fn new(loader: &'a mut Loader) -> Recovery<'a> {
        Recovery { loader }
    }

    /// Afterwards the loader's producers, epochs, indexes and log end are those of the log.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        let bases: Vec<Offset> = self.loader.segments.keys().copied().collect();
        let Some(last) = bases.last().copied() else {
            self.loader.log_end = self.loader.open.log_start.unwrap_or_default();
            return Ok(());
        };
        let check_from = match self.loader.check_from {
            Some(from) => Some(from),
            None => self.find_end_of_clean_log(last).await?,
        };
        self.loader.check_from = check_from;
        let trusted_end = check_from.unwrap_or(self.loader.log_end);
        let segments: Vec<Rc<Segment>> = self.loader.segments.values().cloned().collect();
        let snapshots = self
            .loader
            .live
            .keys()
            .filter(|(_, kind)| *kind == FileKind::Snapshot);
        let rebuild = Rebuild {
            dir: &self.loader.dir,
            snapshots: snapshots.map(|(offset, _)| *offset).collect(),
            segments: &segments,
            end: trusted_end,
            now_ms: self.loader.open.now_ms,
        };
        let removed = rebuild.run(&mut self.loader.producers).await?;
        for offset in removed {
            self.loader.live.remove(&(offset, FileKind::Snapshot));
        }
        if let Some(from) = check_from {
            self.check_segments(from).await?;
        }
        Ok(())
    }

    /// The end of a log that was stopped cleanly: index to its last entry, then batch by batch.
    /// If that walk meets damage after all, the answer is the segment to check.
    async fn find_end_of_clean_log(&mut self, last: Offset) -> io::Result<Option<Offset>> {
        let Some(segment) = self.loader.segments.get(&last).cloned() else {
            return Ok(None);
        };
        let Some(handles) = segment.handles() else {
            return Ok(Some(last));
        };
        let from = segment.floor_position(Offset(i64::MAX)).unwrap_or(0);
        let mut scanner = Scanner::short(handles.reader, from, segment.size());
        let mut end = last;
        loop {
            match scanner.next().await {
                Ok(Some((position, batch))) => {
                    if position == 0 {
                        segment.adopt_first_timestamp(batch.max_timestamp());
                    }
                    end = batch.last_offset().next();
                    segment.observe_tail_batch(&extent_of(&batch));
                }
                Ok(None) => break,
                Err(ScanError::Io(error)) => return Err(about(&self.path_of(&segment))(error)),
                Err(ScanError::Damaged { position, error }) => {
                    tracing::warn!(
                        file = %self.path_of(&segment).display(), position, %error,
                        "log was stopped cleanly but its end is damaged, the segment is checked"
                    );
                    return Ok(Some(last));
                }
            }
        }
        if from > 0 {
            let adopted = segment.find_first_timestamp().await;
            adopted.map_err(about(&self.path_of(&segment)))?;
        }
        self.loader.log_end = end;
        Ok(None)
    }

    fn path_of(&self, segment: &Segment) -> PathBuf {
        let name = names::segment_file(segment.base(), FileKind::Log);
        self.loader.dir.join(name)
    }

    /// Checks every batch of the segments from `from` on.
    async fn check_segments(&mut self, from: Offset) -> io::Result<()> {
        let segments: Vec<Rc<Segment>> = self
            .loader
            .segments
            .range(from..)
            .map(|(_, segment)| segment.clone())
            .collect();
        self.loader.epochs.truncate_from_end(from);
        let mut next = from;
        for (at, segment) in segments.iter().enumerate() {
            let later = segments.get(at + 1..).unwrap_or_default();
            let whole = self.check_segment(segment, &mut next).await?;
            let goes_on = later
                .first()
                .is_none_or(|later| self.goes_on(whole, next, later));
            segment
                .persist_indexes(&self.loader.dir, !later.is_empty() && goes_on)
                .await?;
            if !goes_on {
                self.delete_later(later).await?;
                break;
            }
            if !later.is_empty() {
                segment.seal();
                segment.persist_indexes(&self.loader.dir, true).await?;
            }
        }
        self.loader.log_end = next;
        Ok(())
    }

    /// Whether `later` continues a log that reaches to `next`. A segment may have lost its tail
    /// at the edge of a batch, so a hole before the next one is a loss, and a log never goes on
    /// behind a loss. Our compaction leaves no holes between segments, Kafka's does: below the
    /// recovery point, or where a cleaner has been, which flushes what it leaves, nothing can have
    /// been lost and such a hole is meant.
    fn goes_on(&self, whole: bool, next: Offset, later: &Segment) -> bool {
        if later.base() == next {
            return true;
        }
        let open = &self.loader.open;
        let kept = later.base() <= open.vouched_for() && later.file_len() > 0;
        let meant = open.config.compact && whole && later.base() > next && kept;
        if meant {
            tracing::warn!(
                dir = %self.loader.dir.display(), from = %next, to = %later.base(),
                "no offsets here: compacted away, or lost"
            );
        }
        meant
    }

    /// Walks one segment; true if all of it was good.
    async fn check_segment(&mut self, segment: &Segment, next: &mut Offset) -> io::Result<bool> {
        let Some(handles) = segment.handles() else {
            return Ok(true);
        };
        let file_len = segment.file_len();
        segment.rewind_for_recovery(&self.loader.open.config);
        *next = (*next).max(segment.base());
        let mut scanner = Scanner::new(handles.reader.clone(), 0, file_len);
        let damage = loop {
            match scanner.next().await {
                Ok(Some((position, batch))) => {
                    if let Some(reason) = implausible(&batch, segment, *next) {
                        break Some((position, reason));
                    }
                    self.take(segment, &batch);
                    *next = batch.last_offset().next();
                }
                Ok(None) => break None,
                Err(ScanError::Io(error)) => return Err(about(&self.path_of(segment))(error)),
                Err(ScanError::Damaged { position, error }) => {
                    break Some((position, error.to_string()));
                }
            }
        };
        segment.written_to(segment.size());
        self.loader.report.segments_checked += 1;
        self.loader.report.bytes_checked += segment.size();
        let Some((position, reason)) = damage else {
            return Ok(true);
        };
        let bytes = file_len - position;
        let zeros = only_zeros(&handles.reader, position, file_len).await?;
        handles.reader.set_len(position).await?;
        handles.reader.sync_data().await?;
        segment.file_resized(position);
        let file = self.path_of(segment);
        if zeros && self.loader.open.config.reserves_space() {
            // Space that was reserved ahead and never written: nothing is lost.
            tracing::debug!(file = %file.display(), position, bytes, "reserved space cut");
            return Ok(false);
        }
        let reason = match zeros {
            true => "nothing but zeros to the end of the file".to_owned(),
            false => reason,
        };
        tracing::warn!(file = %file.display(), offset = %*next, position, bytes, reason, "log cut");
        let segment = segment.base();
        self.loader.report.cuts.push(Cut {
            segment,
            position,
            bytes,
            reason,
        });
        Ok(false)
    }

    /// Enters a good batch into everything that is derived from batches.
    fn take(&mut self, segment: &Segment, batch: &Batch) {
        segment.append(
            &extent_of(batch),
            self.loader.open.config.index_interval_bytes,
        );
        let epoch = batch.partition_leader_epoch();
        if self
            .loader
            .epochs
            .latest()
            .is_none_or(|latest| epoch > latest.epoch)
        {
            self.loader.epochs.assign(epoch, batch.base_offset());
        }
        if let Some(aborted) = self.loader.producers.replay(batch) {
            segment.append_aborted(aborted);
        }
    }

    async fn delete_later(&mut self, later: &[Rc<Segment>]) -> io::Result<()> {
        for segment in later {
            let base = segment.base();
            tracing::warn!(
                file = %self.path_of(segment).display(), bytes = segment.file_len(),
                "segment behind a bad batch or a hole deleted"
            );
            self.loader.segments.remove(&base);
            remove_segment_files(&self.loader.dir, base).await?;
            self.loader.report.segments_deleted.push(base);
        }
        // Before anything is appended: a name that comes back after a power loss would put old
        // records behind new ones.
        rt::fs::sync_dir(&self.loader.dir).await
    }
}

impl Log {
    /// Writes what an unclean start found past `durable` into its place once more, before the
    /// first flush that may count it. A failed fdatasync of an earlier life may have left pages
    /// that read well, count as clean and are not on the device: another fdatasync alone would
    /// not bring them there. What is written never changes but by a cut, and a cut waits for the
    /// same permit, so appends may go on beside it.
    pub(super) async fn write_again(&self) -> io::Result<()> {
        let _permit = self.upkeep.acquire(1).await;
        if self.check_usable().is_err() {
            return Ok(());
        }
        let (from, segments) = {
            let state = self.state();
            let from = state.marks.durable();
            let first = state.floor_base(from);
            // Only what was found: what was written since, perhaps past the page cache, needs no
            // second time through it.
            let is_found = |one: &&Rc<Segment>| {
                let mut found = state.unproven.iter();
                found.any(|found| Rc::ptr_eq(found, one))
            };
            let segments = state.segments.range(first..).map(|(_, one)| one);
            (from, segments.filter(is_found).cloned().collect::<Vec<_>>())
        };
        for segment in segments {
            let Some(handles) = segment.handles() else {
                continue;
            };
            let end = segment.written();
            let mut position = segment.floor_position(from).unwrap_or(0);
            while position < end {
                let len = (end - position).min(REWRITE_BYTES) as usize;
                let bytes = handles.reader.read_at(position, len).await?;
                if bytes.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let next = position + bytes.len() as u64;
                handles.reader.write_all_at(position, vec![bytes]).await?;
                position = next;
            }
        }
        self.state_mut().unproven.clear();
        Ok(())
    }
}

/// What a segment needs to know of a batch.
pub(super) fn extent_of(batch: &Batch) -> BatchExtent {
    BatchExtent {
        base: batch.base_offset(),
        last: batch.last_offset(),
        max_timestamp: batch.max_timestamp(),
        size: batch.total_size() as u32,
    }
}

async fn only_zeros(file: &rt::fs::File, from: u64, to: u64) -> io::Result<bool> {
    let mut at = from;
    while at < to {
        let bytes = file
            .read_at(at, (to - at).min(ZERO_CHECK_BYTES) as usize)
            .await?;
        if bytes.is_empty() {
            break;
        }
        if bytes.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += bytes.len() as u64;
    }
    Ok(true)
}

//! Owns one pass over one log: the map over its dirty part, then segment group by segment group
//! read, filtered, written and swapped in. On the log's shard, in a task of its own; the log goes
//! on meanwhile. Whatever computes for long does so on a thread beside the shard. It never holds
//! the log's `upkeep` permit while it reads or writes, and gives up when the log has changed.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use super::super::config::LogConfig;
use super::super::error::LogError;
use super::super::log::Log;
use super::super::names::{FileKind, segment_file};
use super::super::segment::Segment;
use super::super::txn_index::AbortedTxn;
use super::super::write_queue::is_no_space;
use super::choice::Cleanable;
use super::filter::{Filter, LastRecord};
use super::group::{SegmentSizes, group};
use super::key_hash::HashSecret;
use super::map_build::MapBuild;
use super::offset_map::OffsetMap;
use super::output::{self, Output};
use super::pieces::{PieceError, Pieces};
use super::settings::CleanerSettings;
use super::throttle::Throttle;
use super::transactions::CleanedTransactions;
use super::watch::PassWatch;
use crate::rt;
use crate::types::Offset;

/// Work on fewer bytes is done on the shard: it takes some 20 us, as long as the way to a thread.
const INLINE_BYTES_MAX: usize = 8 << 10;

/// Smallest piece that is read at once, whatever the settings say.
const PIECE_BYTES_MIN: usize = 4 << 10;

/// Why a pass ended without having cleaned what it set out to clean.
#[derive(Debug)]
pub enum PassError {
    /// The log was cut, lost segments, was closed, or the cleaner was told to leave it.
    Abandoned,
    /// The disk is full.
    NoSpace(io::Error),
    /// The log cannot be read, or its storage failed.
    Log(LogError),
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassReport {
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub records_read: u64,
    pub records_kept: u64,
    /// Segments before and after.
    pub segments_before: usize,
    pub segments_after: usize,
    /// Where the log is dirty from now on.
    pub first_dirty: Offset,
    /// How full the offset map got, 0 to 1.
    pub map_utilization: f64,
    pub took: Duration,
}

/// What a pass works on, as it was when the pass began.
struct Plan {
    segments: Vec<Rc<Segment>>,
    /// By segment: one past the last offset it may hold.
    ends: Vec<Offset>,
    cleanable: Cleanable,
    generation: u64,
    rows: Vec<AbortedTxn>,
    producers: HashMap<i64, LastRecord>,
    config: Rc<LogConfig>,
    dir: Rc<PathBuf>,
}

/// One pass.
pub struct Pass<'a> {
    log: &'a Log,
    settings: CleanerSettings,
    watch: &'a PassWatch,
    throttle: Throttle,
    report: PassReport,
}

impl<'a> Pass<'a> {
    pub fn new(log: &'a Log, settings: CleanerSettings, watch: &'a PassWatch) -> Pass<'a> {
        Pass {
            log,
            settings,
            watch,
            throttle: Throttle::new(settings.io_bytes_per_second, rt::now()),
            report: PassReport::default(),
        }
    }

    /// Cleans what is `cleanable`, or as much of it as the offset map holds. Afterwards the log
    /// knows from where it is dirty.
    pub async fn run(mut self, cleanable: Cleanable) -> Result<PassReport, PassError> {
        let begun = rt::now();
        let plan = self.log.plan_pass(cleanable);
        let map = self.build_map(&plan).await?;
        let Some(latest) = map.latest() else {
            return Err(PassError::Abandoned);
        };
        let end = latest.next();
        self.report.map_utilization = map.utilization();
        let producers = plan.producers.clone();
        let mut filter = Filter::new(
            map,
            CleanedTransactions::new(plan.rows.iter().copied()),
            producers,
            rt::wall_ms(),
            plan.config.delete_retention_ms,
        );
        let count = plan
            .segments
            .partition_point(|segment| segment.base() < end);
        let sizes = self.sizes(&plan, count).await?;
        let groups = group(
            &sizes,
            u64::from(plan.config.segment_bytes),
            u64::from(plan.config.segment_index_bytes),
        );
        self.report.segments_before = count;
        for range in groups {
            filter = self.clean_group(&plan, range, filter).await?;
        }
        // Some megabytes that were touched: giving them back takes the kernel a while.
        drop(rt::spawn_blocking(move || drop(filter)));
        self.check(&plan)?;
        self.log.set_first_dirty(end);
        self.report.first_dirty = end;
        self.report.took = rt::now().since(begun);
        Ok(self.report)
    }

    async fn build_map(&mut self, plan: &Plan) -> Result<OffsetMap, PassError> {
        let from = plan.cleanable.first_dirty;
        let map = OffsetMap::new(
            self.settings.dedupe_bytes,
            self.settings.load_factor,
            plan.cleanable.end.0.saturating_sub(from.0).max(0) as u64,
            HashSecret(rt::random_u64(), rt::random_u64()),
        );
        let reaching = plan.rows.iter().filter(|row| row.last_offset >= from);
        let transactions = CleanedTransactions::new(reaching.copied());
        let mut build = MapBuild::new(map, transactions, from);
        for (segment, end) in plan.segments.iter().zip(&plan.ends) {
            if *end <= from {
                continue;
            }
            let mut pieces = self.pieces(segment, from).await?;
            while let Some(piece) = self.next_piece(plan, segment, &mut pieces).await? {
                let bytes = piece.len();
                let (back, full) = compute(bytes, move || {
                    let full = build.take(&piece);
                    (build, full)
                })
                .await;
                build = back;
                if full.map_err(|error| self.damaged(plan, segment, &pieces, &error))? {
                    return Ok(build.map);
                }
            }
            build.map.covers(Offset(end.0 - 1));
        }
        Ok(build.map)
    }

    /// What the grouping goes by. A sealed segment's indexes are usually not in memory.
    async fn sizes(&self, plan: &Plan, count: usize) -> Result<Vec<SegmentSizes>, PassError> {
        let mut sizes = Vec::with_capacity(count);
        for (segment, end) in plan.segments.iter().zip(&plan.ends).take(count) {
            let len = async |kind| {
                let path = plan.dir.join(segment_file(segment.base(), kind));
                match rt::fs::file_len(&path).await {
                    Ok(len) => Ok(len),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
                    Err(error) => Err(self.unreadable(plan, error)),
                }
            };
            sizes.push(SegmentSizes {
                base: segment.base(),
                end: *end,
                bytes: segment.size(),
                index_bytes: len(FileKind::OffsetIndex).await?,
                time_index_bytes: len(FileKind::TimeIndex).await?,
            });
        }
        Ok(sizes)
    }

    /// Makes one segment of a group and swaps it in. The filter comes back.
    async fn clean_group(
        &mut self,
        plan: &Plan,
        range: Range<usize>,
        filter: Filter,
    ) -> Result<Filter, PassError> {
        let old = &plan.segments[range];
        let Some(first) = old.first() else {
            return Ok(filter);
        };
        self.check(plan)?;
        let base = first.base();
        let outcome = self.write_group(plan, old, filter).await;
        let swapped = match outcome {
            Ok((filter, Some(new))) => {
                let swapped = self.log.swap_cleaned(old, &new, plan.generation).await;
                swapped.map(|()| filter)
            }
            // No batch in any of them: they stay as they are.
            Ok((filter, None)) => {
                self.discard(plan, base).await?;
                return Ok(filter);
            }
            Err(error) => Err(error),
        };
        match swapped {
            Ok(filter) => {
                self.report.segments_after += 1;
                Ok(filter)
            }
            Err(error) => {
                self.discard(plan, base).await?;
                Err(error)
            }
        }
    }

    /// Removes the output of a group that came to nothing; not from a directory that is not ours
    /// any more.
    async fn discard(&self, plan: &Plan, base: Offset) -> Result<(), PassError> {
        if self.log.check_usable().is_err() {
            return Ok(());
        }
        let discarded = output::discard(&plan.dir, base).await;
        discarded.map_err(|error| PassError::Log(self.log.fail("remove compaction output", error)))
    }

    async fn write_group(
        &mut self,
        plan: &Plan,
        old: &[Rc<Segment>],
        mut filter: Filter,
    ) -> Result<(Filter, Option<Rc<Segment>>), PassError> {
        let base = old[0].base();
        let flusher = self.log.shard.flusher.clone();
        let mut output = Output::create(plan.dir.clone(), base, &plan.config, flusher)
            .await
            .map_err(|error| self.unwritable(plan, error))?;
        let last = old.iter().rposition(|segment| segment.size() > 0);
        for (at, segment) in old.iter().enumerate() {
            let mut pieces = self.pieces(segment, Offset::ZERO).await?;
            while let Some(piece) = self.next_piece(plan, segment, &mut pieces).await? {
                let last_stays = Some(at) == last && pieces.is_at_end();
                let (back, kept) = compute(piece.len(), move || {
                    let kept = filter.clean(&piece, last_stays);
                    (filter, kept)
                })
                .await;
                filter = back;
                let kept = kept.map_err(|error| self.damaged(plan, segment, &pieces, &error))?;
                self.report.records_read += kept.records_read;
                self.report.records_kept += kept.records_kept;
                let written = kept.bytes.len() as u64;
                self.check(plan)?;
                output
                    .append(kept)
                    .await
                    .map_err(|error| self.unwritable(plan, error))?;
                self.report.bytes_written += written;
                self.rest(plan, written).await?;
            }
        }
        if output.size() == 0 {
            return Ok((filter, None));
        }
        self.check(plan)?;
        let changed_ms = old.last().map_or(0, |last| last.retention_timestamp());
        let segment = output
            .finish(&plan.config, changed_ms)
            .await
            .map_err(|error| self.unwritable(plan, error))?;
        Ok((filter, Some(segment)))
    }

    /// The batches of a segment, from the one that holds `from` or an earlier one on.
    async fn pieces(&self, segment: &Rc<Segment>, from: Offset) -> Result<Pieces, PassError> {
        let handles = segment.handles().ok_or(PassError::Abandoned)?;
        let mut position = 0;
        if from > segment.base() {
            self.log.load_indexes(segment).await?;
            position = segment.floor_position(from).unwrap_or(0);
        }
        let piece_bytes = (self.settings.io_buffer_bytes / 2).max(PIECE_BYTES_MIN);
        Ok(Pieces::new(
            handles.reader,
            position,
            segment.size(),
            piece_bytes,
        ))
    }

    async fn next_piece(
        &mut self,
        plan: &Plan,
        segment: &Segment,
        pieces: &mut Pieces,
    ) -> Result<Option<bytes::Bytes>, PassError> {
        self.check(plan)?;
        let piece = match pieces.next().await {
            Ok(piece) => piece,
            Err(PieceError::Io(error)) => return Err(self.unreadable(plan, error)),
            Err(PieceError::Damaged(error)) => {
                return Err(self.damaged(plan, segment, pieces, &error));
            }
        };
        let bytes = piece.as_ref().map_or(0, |piece| piece.len() as u64);
        self.report.bytes_read += bytes;
        self.rest(plan, bytes).await?;
        Ok(piece)
    }

    async fn rest(&mut self, plan: &Plan, bytes: u64) -> Result<(), PassError> {
        let rest = self.throttle.take(bytes, rt::now());
        if !rest.is_zero() {
            self.watch.sleep(rest).await;
        }
        self.check(plan)
    }

    /// The pass goes on only while the log is what it was.
    fn check(&self, plan: &Plan) -> Result<(), PassError> {
        let stands = !self.watch.is_told_to_leave()
            && self.log.is_in_place(&[], plan.generation)
            && self.log.dir() == plan.dir;
        if stands {
            Ok(())
        } else {
            Err(PassError::Abandoned)
        }
    }

    fn unreadable(&self, plan: &Plan, error: io::Error) -> PassError {
        match self.check(plan) {
            Ok(()) => PassError::Log(self.log.storage_error("read", error)),
            Err(abandoned) => abandoned,
        }
    }

    /// A write or flush that failed takes the directory offline, a full disk does not.
    fn unwritable(&self, plan: &Plan, error: io::Error) -> PassError {
        if is_no_space(&error) {
            return PassError::NoSpace(error);
        }
        match self.check(plan) {
            Ok(()) if error.kind() == io::ErrorKind::InvalidData => {
                PassError::Log(self.log.storage_error("compact", error))
            }
            Ok(()) => PassError::Log(self.log.fail("write compacted segment", error)),
            Err(abandoned) => abandoned,
        }
    }

    fn damaged(
        &self,
        plan: &Plan,
        segment: &Segment,
        pieces: &Pieces,
        error: &dyn ToString,
    ) -> PassError {
        // What was cut and written again meanwhile may read as anything.
        match self.check(plan) {
            Ok(()) => {
                let what = error.to_string();
                PassError::Log(self.log.damaged(segment, pieces.position(), &what))
            }
            Err(abandoned) => abandoned,
        }
    }
}

impl Log {
    fn plan_pass(&self, cleanable: Cleanable) -> Plan {
        let state = self.state();
        let segments: Vec<Rc<Segment>> = state
            .segments
            .range(..cleanable.end)
            .map(|(_, segment)| segment.clone())
            .collect();
        let ends = segments
            .iter()
            .map(|segment| state.end_of(segment.base()))
            .collect();
        // The marker of a transaction may lie past the end.
        let mut rows = Vec::new();
        for segment in state.segments.values() {
            segment.collect_aborted(Offset::ZERO, Offset(i64::MAX), &mut rows);
        }
        rows.retain(|row| row.first_offset < cleanable.end);
        Plan {
            segments,
            ends,
            cleanable,
            generation: state.generation,
            rows,
            producers: state.producers.last_records(),
            config: state.config.clone(),
            dir: state.dir.clone(),
        }
    }
}

/// Runs `work` on a thread if it is long, here if it is short; either way others get their turn.
async fn compute<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes > INLINE_BYTES_MAX {
        return rt::blocking(work).await;
    }
    let result = work();
    rt::yield_now().await;
    result
}

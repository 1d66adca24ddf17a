//! Owns how a log comes to life: from nothing, from a clean stop, or from a crash. On the log's
//! shard, once per log. It never serves anybody while it works.
//!
//! After a clean stop sizes, indexes and producer snapshots are believed. Otherwise every batch
//! from the segment of the recovery point on is read and checked, indexes and producer state are
//! built anew, the log is cut at the first bad batch, and every later segment goes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::rt;
use crate::rt::fs::DirEntry;
use crate::types::{Offset, PartitionId, Uuid};

use super::checkpoint;
use super::config::{LogConfig, SegmentIo};
use super::error::{LogError, about};
use super::flush_interval::FlushInterval;
use super::index::{OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES};
use super::index_files::{decode_index_files, read_index_files, read_last_time_entry};
use super::journal::{self, Pending};
use super::leader_epochs::LeaderEpochs;
use super::leftovers::{self, LiveFiles};
use super::log::{Log, LogParts, LogState, Status, partition_path};
use super::names::{self, FileKind, FileState};
use super::producers::{ProducerLimits, Producers};
use super::recover::{Cut, Recovery};
use super::reindex::is_damage;
use super::segment::{Loaded, Segment};
use super::shard::LogShard;
use super::txn_index::TxnIndex;
use super::watermarks::Watermarks;
use super::write_queue::WriteQueue;

/// What must be known to open a log.
#[derive(Clone, Debug)]
pub struct LogOpen {
    /// The log directory; the partition's own directory is made inside it.
    pub log_dir: PathBuf,
    pub topic: String,
    pub partition: i32,
    pub topic_id: Uuid,
    pub config: LogConfig,
    /// The directory carried the clean-shutdown marker.
    pub clean_shutdown: bool,
    /// From the recovery-point checkpoint; zero if it has none.
    pub recovery_point: Offset,
    /// From the cleaner's checkpoint, if it has one: what lies below was compacted.
    pub first_dirty: Option<Offset>,
    /// From the log-start checkpoint, if it has one.
    pub log_start: Option<Offset>,
    pub now_ms: i64,
    pub producer_limits: ProducerLimits,
}

impl LogOpen {
    /// Below this the checkpoints vouch for the log: a recovery believes what it finds there.
    pub fn vouched_for(&self) -> Offset {
        let first_dirty = self.first_dirty.unwrap_or_default();
        self.recovery_point.max(first_dirty)
    }
}

/// What opening found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    pub segments: usize,
    /// Segments whose batches were all read and checked.
    pub segments_checked: usize,
    pub bytes_checked: u64,
    /// What was cut off, oldest first.
    pub cuts: Vec<Cut>,
    /// Segments deleted because they lay behind a bad batch.
    pub segments_deleted: Vec<Offset>,
    /// Bytes of batches that the segments lacked and the journal had.
    pub bytes_taken_back: u64,
    pub took: Duration,
}

impl Log {
    /// Opens the log of a partition, creating its directory and `partition.metadata` where they
    /// are missing (they reach the disk before any data).
    ///
    /// # Errors
    /// `TopicId` if the directory belongs to another topic id; `Storage` if a file cannot be
    /// read, written or made. Damage in the log is repaired and reported, not an error.
    pub async fn open(
        shard: &Rc<LogShard>,
        open: LogOpen,
    ) -> Result<(Rc<Log>, RecoveryReport), LogError> {
        let dir = partition_path(&open.log_dir, &open.topic, open.partition);
        Log::open_at(shard, open, dir).await
    }

    /// Opens, or creates, the copy of a log that is to take its place, in the directory `name`.
    pub async fn open_future(
        shard: &Rc<LogShard>,
        open: LogOpen,
        name: &str,
    ) -> Result<(Rc<Log>, RecoveryReport), LogError> {
        let dir = open.log_dir.join(name);
        let (log, report) = Log::open_at(shard, open, dir).await?;
        log.state_mut().is_future = true;
        Ok((log, report))
    }

    async fn open_at(
        shard: &Rc<LogShard>,
        open: LogOpen,
        dir: PathBuf,
    ) -> Result<(Rc<Log>, RecoveryReport), LogError> {
        let begun = rt::now();
        let storage = |what| {
            let dir = dir.clone();
            move |error| LogError::storage(what, dir, error)
        };
        let mut contents = Contents::look(&dir).await.map_err(storage("list"))?;
        let (topic_id, settled_journals) =
            claim_directory(shard, &open, &dir, &mut contents).await?;
        let live = leftovers::tidy(&dir, contents.entries())
            .await
            .map_err(storage("list"))?;
        let epochs = load_epochs(&dir, &mut contents);
        let mut loader = Loader {
            report: RecoveryReport::default(),
            segments: BTreeMap::new(),
            producers: Producers::with_limits(open.producer_limits),
            epochs_found: epochs.clone().unwrap_or_default(),
            epochs_read: epochs.is_none(),
            epochs: epochs.unwrap_or_default(),
            check_from: None,
            log_end: Offset::ZERO,
            dir: dir.clone(),
            live,
            contents,
            settled_journals,
            open,
        };
        loader.load_segments().await.map_err(storage("load"))?;
        if loader.epochs_read {
            loader.read_epochs().await.map_err(storage("recover"))?;
        }
        loader.load_batches().await.map_err(storage("recover"))?;
        let (log, mut report) = loader
            .finish(shard, topic_id)
            .await
            .map_err(storage("open"))?;
        report.took = rt::now().since(begun);
        Ok((log, report))
    }
}

/// What a partition's directory holds before anything is done with it, with the contents of the
/// small files that every start reads: one hop instead of one for each.
pub(super) struct Contents {
    /// `None` if there is no directory.
    found: Option<Vec<(DirEntry, Option<Vec<u8>>)>>,
}

/// Index files longer than this are read when they are wanted: most of one that was not cut at a
/// clean stop is reserved space.
const INDEX_AT_ONCE_MAX: u64 = 64 << 10;

impl Contents {
    async fn look(dir: &Path) -> io::Result<Contents> {
        match rt::fs::read_dir_with(dir, Contents::pick).await {
            Ok(found) => Ok(Contents { found: Some(found) }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Contents { found: None }),
            Err(error) => Err(error),
        }
    }

    /// The topic id, the epochs, the settled journals, and the indexes of the last segment.
    fn pick(entries: &[DirEntry]) -> Vec<usize> {
        let segment_file = |entry: &DirEntry| names::parse_segment_file(&entry.name);
        let logs = entries.iter().filter_map(segment_file);
        let last = logs
            .filter(|file| file.kind == FileKind::Log && file.state == FileState::Live)
            .map(|file| file.base)
            .max();
        let wanted = |entry: &DirEntry| {
            let named = [
                names::PARTITION_METADATA,
                names::LEADER_EPOCH_CHECKPOINT,
                names::SETTLED_JOURNALS,
            ];
            let index = segment_file(entry).is_some_and(|file| {
                matches!(file.kind, FileKind::OffsetIndex | FileKind::TimeIndex)
                    && file.state == FileState::Live
                    && Some(file.base) == last
                    && entry.len <= INDEX_AT_ONCE_MAX
            });
            !entry.is_dir && (index || named.contains(&entry.name.as_str()))
        };
        let places = entries.iter().enumerate();
        places
            .filter(|(_, entry)| wanted(entry))
            .map(|(at, _)| at)
            .collect()
    }

    fn entries(&self) -> impl Iterator<Item = &DirEntry> {
        self.found.iter().flatten().map(|(entry, _)| entry)
    }

    fn entry(&self, name: &str) -> Option<&DirEntry> {
        // Sorted, as directories are read.
        let found = self.found.as_deref()?;
        let at = found.binary_search_by(|(entry, _)| entry.name.as_str().cmp(name));
        at.ok().map(|at| &found[at].0)
    }

    /// A file's contents as they were found, once.
    pub(super) fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        let mut found = self.found.iter_mut().flatten();
        let (_, contents) = found.find(|(entry, _)| entry.name == name)?;
        contents.take()
    }
}

/// Creates the partition's directory and its topic id, or checks the one it has; with the journals
/// of earlier lives that say nothing of it.
async fn claim_directory(
    shard: &LogShard,
    open: &LogOpen,
    dir: &Path,
    contents: &mut Contents,
) -> Result<(Uuid, BTreeSet<Uuid>), LogError> {
    let storage = |what| move |error| LogError::storage(what, dir.to_owned(), error);
    let exists = contents.found.is_some();
    if !exists {
        rt::fs::create_dir_all(dir)
            .await
            .map_err(storage("create"))?;
    }
    if !exists || !open.clean_shutdown {
        // Also when it exists: the process that made it may have died before this.
        rt::fs::sync_dir(&open.log_dir)
            .await
            .map_err(storage("sync"))?;
    }
    let path = dir.join(names::PARTITION_METADATA);
    match contents.take(names::PARTITION_METADATA) {
        Some(bytes) => {
            let found = checkpoint::decode_partition_metadata(&bytes).map_err(|error| {
                LogError::Damaged {
                    path: path.clone(),
                    position: 0,
                    what: error.to_string(),
                }
            })?;
            if !open.topic_id.is_zero() && found != open.topic_id {
                return Err(LogError::TopicId {
                    expected: open.topic_id,
                    found,
                });
            }
            let note = contents.take(names::SETTLED_JOURNALS);
            let settled = journal::settled::found(shard, dir, note).await;
            Ok((found, settled.map_err(storage("tidy"))?))
        }
        None => {
            let id = PartitionId {
                topic: open.topic_id,
                index: open.partition,
            };
            let settled = journal::settled::of_new(shard, dir, id).await;
            let settled = settled.map_err(storage("write"))?;
            if !open.topic_id.is_zero() {
                let bytes = checkpoint::encode_partition_metadata(open.topic_id);
                checkpoint::write_atomic(&path, bytes)
                    .await
                    .map_err(storage("write"))?;
            }
            Ok((open.topic_id, settled))
        }
    }
}

/// `None` where the checkpoint is damaged: it is read from the batches then.
fn load_epochs(dir: &Path, contents: &mut Contents) -> Option<LeaderEpochs> {
    let Some(bytes) = contents.take(names::LEADER_EPOCH_CHECKPOINT) else {
        return Some(LeaderEpochs::new());
    };
    let decoded = LeaderEpochs::decode(&bytes).inspect_err(|error| {
        let path = dir.join(names::LEADER_EPOCH_CHECKPOINT);
        tracing::warn!(
            file = %path.display(), bytes = bytes.len(), %error,
            "damaged leader epoch checkpoint, it is read from the batches"
        );
    });
    decoded.ok()
}

/// A log on its way into life.
pub(super) struct Loader {
    pub open: LogOpen,
    pub dir: PathBuf,
    pub live: LiveFiles,
    pub contents: Contents,
    pub settled_journals: BTreeSet<Uuid>,
    pub report: RecoveryReport,
    pub segments: BTreeMap<Offset, Rc<Segment>>,
    pub producers: Producers,
    pub epochs: LeaderEpochs,
    /// What the checkpoint says.
    pub epochs_found: LeaderEpochs,
    /// They were read from the batches: the checkpoint is damaged.
    pub epochs_read: bool,
    /// First segment whose batches must all be checked.
    pub check_from: Option<Offset>,
    pub log_end: Offset,
}

impl Loader {
    fn bases(&self) -> Vec<Offset> {
        self.live
            .keys()
            .filter(|(_, kind)| *kind == FileKind::Log)
            .map(|(base, _)| *base)
            .collect()
    }

    /// Opens every segment's file and what its indexes say, as far as they can be believed.
    async fn load_segments(&mut self) -> io::Result<()> {
        let bases = self.bases();
        self.report.segments = bases.len();
        if !self.open.clean_shutdown {
            let point = self.open.recovery_point;
            // The segment that holds the last offset below the point: it was the active one when
            // the point was told, and may have rolled right there since, without its reserved
            // space being cut on the disk.
            let floor = bases.iter().rev().find(|base| **base < point);
            self.check_from = floor.or(bases.first()).copied();
        }
        let last = bases.last().copied();
        let mut damaged = Vec::new();
        for base in bases {
            let len = self.live.get(&(base, FileKind::Log)).copied().unwrap_or(0);
            let segment = Rc::new(Segment::load(Loaded {
                base,
                size: len,
                file_len: len,
                now_ms: if Some(base) == last {
                    self.open.now_ms
                } else {
                    self.written_ms(base)
                },
                jitter_ms: draw_jitter(&self.open.config),
            }));
            let io = if Some(base) == last {
                self.open.config.segment_io
            } else {
                SegmentIo::Buffered
            };
            let path = self.dir.join(names::segment_file(base, FileKind::Log));
            segment
                .open_files(&self.dir, io)
                .await
                .map_err(about(&path))?;
            self.segments.insert(base, segment.clone());
            if self.must_check(base) {
                continue;
            }
            match self.load_sidecars(&segment, Some(base) == last).await {
                Ok(()) => {}
                Err(error) if !is_damage(&error) => return Err(error),
                Err(error) if Some(base) == last => {
                    tracing::warn!(
                        segment = %path.display(), %error,
                        "index not usable, the segment is checked and its indexes are built anew"
                    );
                    self.check_from = Some(base);
                }
                Err(error) => damaged.push((segment, error.to_string())),
            }
        }
        self.index_damaged(damaged).await
    }

    /// When a segment that has rolled was written last: retention counts from then where its records
    /// have no time, so that a restart does not begin to count anew.
    fn written_ms(&self, base: Offset) -> i64 {
        let now_ms = self.open.now_ms;
        let name = names::segment_file(base, FileKind::Log);
        let modified = self
            .contents
            .entry(&name)
            .and_then(|entry| entry.modified_ms);
        modified.map_or(now_ms, |modified| modified.min(now_ms))
    }

    fn must_check(&self, base: Offset) -> bool {
        self.check_from.is_some_and(|from| base >= from)
    }

    async fn load_sidecars(&mut self, segment: &Rc<Segment>, is_last: bool) -> io::Result<()> {
        let base = segment.base();
        if self.live.contains_key(&(base, FileKind::TxnIndex)) {
            let path = self.dir.join(names::segment_file(base, FileKind::TxnIndex));
            let bytes = rt::fs::read(&path).await.map_err(about(&path))?;
            let txns = TxnIndex::decode(&bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
                .map_err(about(&path))?;
            segment.adopt_txns(txns);
        }
        if is_last {
            let mut found = |kind| self.contents.take(&names::segment_file(base, kind));
            let at_hand = (found(FileKind::OffsetIndex), found(FileKind::TimeIndex));
            let (offsets, times) = match at_hand {
                (Some(offsets), Some(times)) => {
                    decode_index_files(base, &self.dir, &offsets, &times)?
                }
                _ => read_index_files(base, &self.dir).await?,
            };
            if offsets
                .entries()
                .any(|(_, position)| u64::from(position) >= segment.size())
            {
                let path = self
                    .dir
                    .join(names::segment_file(base, FileKind::OffsetIndex));
                let reason = format!(
                    "it points past the end of the segment, {} bytes",
                    segment.size()
                );
                let error = io::Error::new(io::ErrorKind::InvalidData, reason);
                return Err(about(&path)(error));
            }
            let len = |kind| self.live.get(&(base, kind)).copied().unwrap_or(u64::MAX);
            let cut = len(FileKind::OffsetIndex) == (offsets.len() * OFFSET_ENTRY_BYTES) as u64
                && len(FileKind::TimeIndex) == (times.len() * TIME_ENTRY_BYTES) as u64;
            segment.adopt_indexes(offsets, times, &self.open.config);
            if cut {
                segment.mark_untouched();
            }
            return Ok(());
        }
        let index_len = self.live.get(&(base, FileKind::OffsetIndex)).copied();
        if index_len.is_none_or(|len| len % OFFSET_ENTRY_BYTES as u64 != 0) {
            let path = self
                .dir
                .join(names::segment_file(base, FileKind::OffsetIndex));
            let reason = match index_len {
                None => "missing".to_owned(),
                Some(len) => format!("{len} bytes are no whole number of entries"),
            };
            let error = io::Error::new(io::ErrorKind::InvalidData, reason);
            return Err(about(&path)(error));
        }
        if let Some((timestamp, offset)) = read_last_time_entry(base, &self.dir).await? {
            segment.adopt_max_timestamp(timestamp, offset);
        }
        segment.seal();
        segment.mark_settled();
        Ok(())
    }

    /// Producer state, leader epochs and the log's end, by way of the batches that must be read.
    async fn load_batches(&mut self) -> io::Result<()> {
        let mut recovery = Recovery::new(self);
        recovery.run().await
    }

    async fn finish(
        mut self,
        shard: &Rc<LogShard>,
        topic_id: Uuid,
    ) -> io::Result<(Rc<Log>, RecoveryReport)> {
        let checkpointed = self.open.log_start.unwrap_or_default();
        if self.log_end < checkpointed {
            self.start_over(checkpointed).await?;
        }
        if self.segments.is_empty() {
            let segment = Segment::create(
                self.log_end,
                self.open.now_ms,
                draw_jitter(&self.open.config),
                &self.open.config,
            );
            segment
                .open_files(&self.dir, self.open.config.segment_io)
                .await?;
            self.segments.insert(self.log_end, Rc::new(segment));
        }
        let first_base = self.segments.keys().next().copied().unwrap_or(self.log_end);
        let log_start = checkpointed.max(first_base);
        // Not a reason to write them: the next start does the same.
        for epochs in [&mut self.epochs, &mut self.epochs_found] {
            epochs.truncate_from_end(self.log_end);
            epochs.truncate_from_start(log_start);
        }
        let epochs_changed = self.epochs != self.epochs_found || !self.report.cuts.is_empty();
        self.remove_stray_snapshots().await?;
        let clean = self.open.clean_shutdown && self.check_from.is_none();
        let durable = if clean {
            self.log_end
        } else {
            self.open.recovery_point
        };
        let unproven = if clean || durable >= self.log_end {
            Vec::new()
        } else {
            self.segments.values().cloned().collect()
        };
        let state = LogState {
            dir: Rc::new(self.dir.clone()),
            rounds: shard.flusher.rounds_of(&self.open.log_dir),
            topic_id,
            config: Rc::new(self.open.config.clone()),
            status: Status::Open,
            marks: Watermarks::recovered(log_start, durable.max(Offset::ZERO), self.log_end),
            segments: self.segments,
            doomed: VecDeque::new(),
            producers: self.producers,
            epochs: self.epochs,
            queue: WriteQueue::new(shard.write_limits, shard.appends.clone()),
            pending: Pending::new(shard.flush_limits.journal_log_bytes_max),
            generation: 0,
            files_made: 1,
            files_synced: 0,
            producer_limits: self.open.producer_limits,
            interval: FlushInterval::from(durable.clamp(Offset::ZERO, self.log_end)),
            unflushed_batches: 0,
            last_flush_ms: self.open.now_ms,
            flush_wanted: Offset::ZERO,
            space_short: false,
            held: false,
            is_future: false,
            epochs_unwritten: self.epochs_read
                || self.report.segments_checked > 0 && epochs_changed,
            synced_below: Cell::new(Offset::ZERO),
            unproven,
            persisting: false,
            first_dirty: None,
            vouch_max: None,
            vouched: Cell::new(self.open.vouched_for()),
        };
        let log = Log::from_parts(LogParts {
            topic: self.open.topic,
            partition: self.open.partition,
            shard: shard.clone(),
            settled_journals: self.settled_journals,
            state,
        });
        match log.complete(clean, self.open.now_ms).await {
            Ok(taken) => self.report.bytes_taken_back = taken,
            Err(error) => {
                log.give_up().await;
                return Err(error.into_io());
            }
        }
        // Past the end it speaks of another log of this name, or of a tail that was lost.
        let first_dirty = self
            .open
            .first_dirty
            .filter(|dirty| *dirty <= log.log_end());
        log.state_mut().first_dirty = first_dirty;
        log.journal_settled();
        Ok((log, self.report))
    }

    /// The log ends before where it is said to start: nothing of it may be served.
    async fn start_over(&mut self, log_start: Offset) -> io::Result<()> {
        tracing::warn!(
            dir = %self.dir.display(), log_end = %self.log_end, log_start = %log_start,
            "log ends before its start, all segments deleted"
        );
        for base in self.segments.keys() {
            remove_segment_files(&self.dir, *base).await?;
            self.report.segments_deleted.push(*base);
        }
        rt::fs::sync_dir(&self.dir).await?;
        self.segments.clear();
        self.producers.reset(log_start);
        self.epochs.clear();
        self.log_end = log_start;
        Ok(())
    }

    /// Only snapshots at a segment's base are of use later, and the latest one.
    async fn remove_stray_snapshots(&mut self) -> io::Result<()> {
        let snapshots: Vec<Offset> = self
            .live
            .keys()
            .filter(|(_, kind)| *kind == FileKind::Snapshot)
            .map(|(base, _)| *base)
            .collect();
        let latest = snapshots
            .iter()
            .rev()
            .find(|offset| **offset <= self.log_end)
            .copied();
        for offset in snapshots {
            let kept = Some(offset) == latest
                || (offset <= self.log_end && self.segments.contains_key(&offset));
            if !kept {
                let name = names::segment_file(offset, FileKind::Snapshot);
                leftovers::remove(&self.dir.join(name)).await?;
            }
        }
        Ok(())
    }
}

impl Log {
    /// Brings a log that was found to the state in which it may be served; the bytes that were taken
    /// back from a journal.
    async fn complete(&self, clean: bool, now_ms: i64) -> Result<u64, LogError> {
        let storage = |error| self.storage_error("open", error);
        self.load_partial_block().await.map_err(storage)?;
        self.write_epochs().await.map_err(storage)?;
        let direct = self.config().segment_io == SegmentIo::Direct;
        let told = self.take_back_journal(now_ms).await?;
        // The flush may write again through the page cache what lies beside their last block.
        self.writer_idle().await;
        if self.durability().waits_for_flush() || direct || told.is_some() {
            // What is served must be what survives where the row counts durable records only. What a
            // journal told must be in the files, whatever the row is now: the journal goes.
            // And nothing may be dirty in the page cache once O_DIRECT writes begin beside it.
            self.flush().await?;
            let handles = self.state().active().handles();
            if !clean && let Some(handles) = handles {
                // Also where nothing was to be flushed: a file that an earlier life cut may grow
                // back with the power.
                handles.writer.sync_data().await.map_err(storage)?;
            }
        }
        self.settle().await?;
        Ok(told.unwrap_or_default())
    }
}

/// Removes every file of a segment but producer snapshots.
pub(super) async fn remove_segment_files(dir: &Path, base: Offset) -> io::Result<()> {
    for kind in [
        FileKind::Log,
        FileKind::OffsetIndex,
        FileKind::TimeIndex,
        FileKind::TxnIndex,
    ] {
        leftovers::remove(&dir.join(names::segment_file(base, kind))).await?;
    }
    Ok(())
}

/// A segment's share of `segment.jitter.ms`, so that partitions do not roll in step.
pub(super) fn draw_jitter(config: &LogConfig) -> i64 {
    let bound = config.segment_jitter_ms.min(config.segment_ms).max(0) as u64;
    if bound == 0 {
        0
    } else {
        (rt::random_u64() % bound) as i64
    }
}

//! Owns how a log comes to a sealed segment's indexes when somebody wants them, and the second making
//! of what follows from batches and is missing or wrong: indexes that a start cannot use, or that turn
//! out to be wrong later (a start looks at a sealed segment's by their sizes only), and leader epochs.
//! On the log's shard. It never changes a segment's batches, and never decides what damage among these
//! means: whoever reads them meets it.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::types::Offset;
use crate::wire::batch::Batch;

use super::config::LogConfig;
use super::error::{LogError, about};
use super::log::Log;
use super::names::{FileKind, segment_file};
use super::open::Loader;
use super::producers::Producers;
use super::rebuild::Rebuild;
use super::recover::{extent_of, implausible};
use super::scan::{ScanError, Scanner};
use super::segment::Segment;

/// Whether an index file is not what it should be, rather than not to be read.
pub(super) fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound
    )
}

impl Log {
    /// Loads a sealed segment's indexes; damaged ones are made again. Where retention has taken the
    /// files away meanwhile there is nothing to load and nothing wrong: whoever asked looks again, or
    /// scans.
    pub(super) async fn load_indexes(&self, segment: &Rc<Segment>) -> Result<(), LogError> {
        match self.read_indexes(segment).await {
            Err(error) if is_damage(&error) => self.mend_indexes(segment).await,
            Err(error) if self.holds(segment) => Err(self.storage_error("read index", error)),
            _ => Ok(()),
        }
    }

    async fn read_indexes(&self, segment: &Rc<Segment>) -> io::Result<()> {
        let (dir, config) = self.dir_and_config();
        segment
            .load_indexes(&dir, &config, &self.shard.index_budget)
            .await
    }

    fn dir_and_config(&self) -> (Rc<PathBuf>, Rc<LogConfig>) {
        let state = self.state();
        (state.dir.clone(), state.config.clone())
    }

    /// The same once nobody else keeps the log's files.
    async fn mend_indexes(&self, segment: &Rc<Segment>) -> Result<(), LogError> {
        let _permit = self.upkeep.acquire(1).await;
        if self.check_usable().is_err() || !self.holds(segment) {
            // Whoever asked looks again.
            return Ok(());
        }
        self.load_or_make_indexes(segment)
            .await
            .map_err(|error| self.storage_error("index", error))
    }

    /// Makes the indexes of a segment again that led from an offset to a position where no batch
    /// begins. Once only: if that was not the reason, the batches are damaged. True if they may lead
    /// elsewhere now.
    pub(super) async fn distrust_indexes(
        &self,
        segment: &Rc<Segment>,
        from: Offset,
        position: u64,
    ) -> Result<bool, LogError> {
        let _permit = self.upkeep.acquire(1).await;
        if self.check_usable().is_err() || !self.holds(segment) {
            return Ok(true);
        }
        if segment.is_reindexed() {
            return Ok(segment.floor_position(from) != Some(position));
        }
        let made = self.make_indexes(segment, "they lead to where no batch begins");
        made.await
            .map_err(|error| self.storage_error("index", error))?;
        Ok(true)
    }

    /// Whether the segment is still one of the log.
    pub(super) fn holds(&self, segment: &Rc<Segment>) -> bool {
        let state = self.state();
        let live = state.segments.get(&segment.base());
        live.is_some_and(|live| Rc::ptr_eq(live, segment))
    }

    /// By who holds the log's upkeep.
    pub(super) async fn load_or_make_indexes(&self, segment: &Rc<Segment>) -> io::Result<()> {
        match self.read_indexes(segment).await {
            Err(error) if is_damage(&error) => self.make_indexes(segment, &error.to_string()).await,
            loaded => loaded,
        }
    }

    /// By who holds the log's upkeep.
    pub(super) async fn make_indexes(&self, segment: &Rc<Segment>, why: &str) -> io::Result<()> {
        let (dir, config) = self.dir_and_config();
        index_again(segment, &dir, &config, why, |_| {}).await?;
        self.shard.index_budget.charge(segment);
        self.tolerate_no_space(segment.persist_indexes(&dir, segment.is_sealed()).await)
    }
}

/// Makes a segment's indexes again from its batches, as far as these are good, and shows each batch
/// to `see`; whether all of them are good. The caller writes the indexes.
async fn index_again(
    segment: &Rc<Segment>,
    dir: &Path,
    config: &LogConfig,
    why: &str,
    mut see: impl FnMut(&Batch),
) -> io::Result<bool> {
    let Some(handles) = segment.handles() else {
        return Ok(true);
    };
    let path = dir.join(segment_file(segment.base(), FileKind::Log));
    tracing::warn!(file = %path.display(), why, "indexes are made again");
    let made = Segment::create(segment.base(), 0, 0, config);
    let mut scanner = Scanner::new(handles.reader, 0, segment.written());
    let mut next = Offset::ZERO;
    let damage = loop {
        match scanner.next().await {
            Ok(Some((position, batch))) => {
                if let Some(reason) = implausible(&batch, &made, next) {
                    break Some((position, reason));
                }
                made.append(&extent_of(&batch), config.index_interval_bytes);
                see(&batch);
                next = batch.last_offset().next();
            }
            Ok(None) => break None,
            Err(ScanError::Io(error)) => return Err(about(&path)(error)),
            Err(ScanError::Damaged { position, error }) => {
                break Some((position, error.to_string()));
            }
        }
    };
    if let Some((position, reason)) = &damage {
        tracing::error!(
            file = %path.display(), position, reason,
            "damaged batch, the indexes lead no further"
        );
    }
    made.seal();
    segment.adopt_made_indexes(&made, damage.is_none());
    Ok(damage.is_none())
}

impl Loader {
    /// Makes the indexes of sealed segments again that a start found missing or damaged, with why.
    /// Nothing but these segments is looked at, as in Kafka: damage elsewhere is not this one's
    /// matter, and costs nothing that is not read.
    pub(super) async fn index_damaged(
        &mut self,
        damaged: Vec<(Rc<Segment>, String)>,
    ) -> io::Result<()> {
        // As of the end of the one before.
        let mut state: Option<(Offset, Producers)> = None;
        for (segment, why) in damaged {
            let base = segment.base();
            let mut producers = match state.take() {
                Some((end, producers)) if end == base => producers,
                _ => self.producers_at(base).await?,
            };
            let mut aborted = Vec::new();
            let see = |batch: &Batch| aborted.extend(producers.replay(batch));
            let whole = index_again(&segment, &self.dir, &self.open.config, &why, see).await?;
            // What was read of their index reaches behind a damaged batch, what was seen does not.
            if whole || !segment.has_aborted() {
                segment.start_txns_over();
                aborted
                    .into_iter()
                    .for_each(|txn| segment.append_aborted(txn));
            }
            segment.seal();
            segment.persist_indexes(&self.dir, true).await?;
            segment.mark_settled();
            segment.unload_indexes();
            self.report.segments_checked += 1;
            self.report.bytes_checked += segment.size();
            let next = self.segments.range(base.next()..).next();
            state = next.map(|(next, _)| (*next, producers));
        }
        Ok(())
    }

    /// The producer state at a segment's first offset.
    async fn producers_at(&self, base: Offset) -> io::Result<Producers> {
        let segments: Vec<Rc<Segment>> = self.segments.values().cloned().collect();
        let snapshots = self.live.keys();
        let snapshots = snapshots.filter(|(at, kind)| *kind == FileKind::Snapshot && *at <= base);
        let rebuild = Rebuild {
            dir: &self.dir,
            snapshots: snapshots.map(|(at, _)| *at).collect(),
            segments: &segments,
            end: base,
            now_ms: self.open.now_ms,
        };
        let mut producers = Producers::with_limits(self.open.producer_limits);
        rebuild.run(&mut producers).await?;
        Ok(producers)
    }

    /// Reads the epochs of all batches, for want of a checkpoint that can be believed.
    pub(super) async fn read_epochs(&mut self) -> io::Result<()> {
        for segment in self.segments.values() {
            let Some(handles) = segment.handles() else {
                continue;
            };
            let path = self.dir.join(segment_file(segment.base(), FileKind::Log));
            let mut scanner = Scanner::new(handles.reader, 0, segment.size());
            loop {
                match scanner.next().await {
                    Ok(Some((_, batch))) => {
                        let epoch = batch.partition_leader_epoch();
                        let latest = self.epochs.latest();
                        if latest.is_none_or(|latest| epoch > latest.epoch) {
                            self.epochs.assign(epoch, batch.base_offset());
                        }
                    }
                    // What damage means is decided by whoever checks, or reads, the segment.
                    Ok(None) | Err(ScanError::Damaged { .. }) => break,
                    Err(ScanError::Io(error)) => return Err(about(&path)(error)),
                }
            }
        }
        Ok(())
    }
}

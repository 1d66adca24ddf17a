//! The log `__cluster_metadata-0` of this node: record batches in Kafka's format, their segments
//! and snapshots. Owned by whoever keeps it up to date on the control executor: the quorum of a
//! controller, the observer of a broker. Never decides what to write, knows no consensus: it is
//! told to append finished batches, to cut a suffix off, to begin again behind a snapshot.
//!
//! The directory carries Kafka's files (`partition.metadata`, `leader-epoch-checkpoint`,
//! snapshots); Kafka's tools read it, and the log of a stopped Kafka controller opens here. A
//! segment ends with each snapshot of this node's own, so that what a snapshot replaces can go.
//!
//! * [`open`] finding what there is, and what a crash cut short;
//! * [`segment`] one file; [`scan`] its batches;
//! * [`snapshots`] writing, installing, serving and removing snapshots.

mod open;
mod scan;
mod segment;
mod snapshots;

#[cfg(test)]
use open::Opened;
pub use open::{Base, Damage};
pub use snapshots::bootstrap;

use super::features::UnsupportedMetadataVersion;
use super::image::ApplyError;
use super::replay::ReplayError;
use super::snapshot::SnapshotId;
use crate::config::BrokerConfig;
use crate::log::names::{FileKind, LEADER_EPOCH_CHECKPOINT, segment_file};
use crate::rt;
use crate::types::{LeaderEpoch, Offset, Uuid};
use crate::wire::EncodeError;
use crate::wire::batch::BatchView;
use crate::wire::batch_builder::BuildError;
use bytes::Bytes;
use segment::Segment;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The topic id of the metadata topic.
pub const METADATA_TOPIC_ID: Uuid = Uuid::from_halves(0, 1);
/// Names the write of several batches that may not have been synced as a whole.
const UNSYNCED: &str = "unsynced-batches";
/// Blocks reserved at once before batches are accepted (256 KiB: thousands of small changes).
const RESERVE_BYTES: u64 = 256 << 10;

/// Why the metadata log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MetadataLogError {
    #[error("{what} {}: {source}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}: {source}", path.display())]
    Replay { path: PathBuf, source: ReplayError },
    #[error("{} begins at offset {begin}, and no snapshot holds what was before", path.display())]
    NoSnapshot { path: PathBuf, begin: Offset },
    #[error("{}: {what}", path.display())]
    State { path: PathBuf, what: String },
    #[error("a metadata batch cannot be built: {0}")]
    Build(#[from] BuildError),
    #[error("a metadata record cannot be encoded: {0}")]
    Encode(#[from] EncodeError),
    #[error("a change contradicts the metadata: {0}")]
    Contradiction(#[from] ApplyError),
    #[error(transparent)]
    Version(#[from] UnsupportedMetadataVersion),
    #[error("the metadata log failed earlier; nothing more is written")]
    Failed,
    #[error("this node is not the active controller")]
    NotLeader,
    #[error("this node ceased to be the active controller: whether the change happened is unknown")]
    LeadershipLost,
    #[error("the metadata logs of the controllers contradict each other: {0}")]
    Divergence(String),
}

impl MetadataLogError {
    /// The file system is full: the log is as it was, and goes on when there is space again.
    pub fn is_no_space(&self) -> bool {
        matches!(self, MetadataLogError::Io { source, .. } if is_no_space(source))
    }

    /// Whether another controller is to be asked.
    pub fn is_not_leader(&self) -> bool {
        matches!(
            self,
            MetadataLogError::NotLeader | MetadataLogError::LeadershipLost
        )
    }
}

/// When segments and snapshots begin and end, by Kafka's settings.
#[derive(Clone, Debug)]
pub struct MetadataLogSettings {
    /// `metadata.log.segment.bytes`, `metadata.log.segment.ms`
    pub segment_bytes: u64,
    pub segment_ms: i64,
    /// `metadata.log.max.record.bytes.between.snapshots`, `metadata.log.max.snapshot.interval.ms`;
    /// an interval of 0 is none.
    pub snapshot_bytes: u64,
    pub snapshot_interval_ms: i64,
    /// `metadata.max.retention.bytes`, `metadata.max.retention.ms`; negative: no limit.
    pub retention_bytes: i64,
    pub retention_ms: i64,
}

impl MetadataLogSettings {
    pub fn of(config: &BrokerConfig) -> MetadataLogSettings {
        let number = |name, default: i64| {
            let text = config.value(name).unwrap_or_default();
            text.trim().parse().unwrap_or(default)
        };
        MetadataLogSettings {
            segment_bytes: number("metadata.log.segment.bytes", 1 << 30).max(1) as u64,
            segment_ms: number("metadata.log.segment.ms", 604_800_000),
            snapshot_bytes: number("metadata.log.max.record.bytes.between.snapshots", 20 << 20)
                .max(1) as u64,
            snapshot_interval_ms: number("metadata.log.max.snapshot.interval.ms", 3_600_000),
            retention_bytes: number("metadata.max.retention.bytes", 104_857_600),
            retention_ms: number("metadata.max.retention.ms", 604_800_000),
        }
    }
}

/// A finished snapshot on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Snapshot {
    bytes: u64,
    /// Batches before its end, where that is known.
    index: Option<u64>,
}

/// See the module's words.
pub struct MetadataLog {
    home: PathBuf,
    settings: MetadataLogSettings,
    /// By base offset, never empty; the last is written to.
    segments: Vec<Segment>,
    next_offset: Offset,
    /// Each leader epoch with the offset at which it began.
    epochs: Vec<(LeaderEpoch, Offset)>,
    /// The one with which the cluster was formatted is not among them.
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    failed: bool,
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MetadataLogError {
    let path = path.to_owned();
    move |source| MetadataLogError::Io { what, path, source }
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl MetadataLog {
    /// The offset of the next record.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// The first offset that is still there.
    pub fn start_offset(&self) -> Offset {
        self.segments
            .first()
            .map_or(Offset::ZERO, |first| first.base)
    }

    /// The epoch of the last record; 0 while there is none.
    pub fn last_epoch(&self) -> LeaderEpoch {
        self.epochs.last().map_or(LeaderEpoch(0), |last| last.0)
    }

    /// Whether nothing can be written any more: what is on disk is not known.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The largest epoch in the log that is not above `epoch`, and the offset behind its last
    /// record; `None` if all are above.
    pub fn end_offset_for_epoch(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        let at = self.epochs.partition_point(|(begun, _)| *begun <= epoch);
        let found = self.epochs.get(at.checked_sub(1)?)?.0;
        let end = self.epochs.get(at).map_or(self.next_offset, |next| next.1);
        Some((found, end))
    }

    /// The epoch of the record at `offset`; `None` if that is before the log.
    pub fn epoch_of(&self, offset: Offset) -> Option<LeaderEpoch> {
        let at = self.epochs.partition_point(|(_, begin)| *begin <= offset);
        self.epochs.get(at.checked_sub(1)?).map(|found| found.0)
    }

    /// Sets blocks aside for `bytes` more, so that what is accepted now finds room.
    ///
    /// # Errors
    /// Without space; the log is as it was.
    pub async fn reserve(&mut self, bytes: u64) -> Result<(), MetadataLogError> {
        if self.failed {
            return Err(MetadataLogError::Failed);
        }
        let Some(segment) = self.segments.last_mut() else {
            return Err(MetadataLogError::Failed);
        };
        let wanted = segment.size + bytes;
        if wanted <= segment.reserved {
            return Ok(());
        }
        for reserve in [wanted + RESERVE_BYTES, wanted] {
            match segment.file.preallocate(reserve, true).await {
                Ok(()) => {
                    segment.reserved = reserve;
                    return Ok(());
                }
                Err(error) if is_no_space(&error) => {
                    if reserve == wanted {
                        let path = self.home.join(segment_file(segment.base, FileKind::Log));
                        return Err(io_error("cannot write", &path)(error));
                    }
                }
                // Not every file system can; then the write tells.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Writes finished batches that follow the last one; with `sync` they are on disk on return.
    ///
    /// # Errors
    /// Without space the log is as it was. After any other failure nothing is written any more.
    pub async fn append(&mut self, batches: &[Bytes], sync: bool) -> Result<(), MetadataLogError> {
        if self.failed {
            return Err(MetadataLogError::Failed);
        }
        let mut next = self.next_offset;
        let mut heads = Vec::with_capacity(batches.len());
        for bytes in batches {
            let (batch, _) =
                BatchView::parse(bytes).map_err(|source| MetadataLogError::Replay {
                    path: self.home.clone(),
                    source: ReplayError::Batch {
                        position: 0,
                        source,
                    },
                })?;
            if batch.base_offset() != next {
                let what = format!("offset {} does not follow {next}", batch.base_offset());
                return Err(MetadataLogError::Divergence(what));
            }
            heads.push((batch.partition_leader_epoch(), next));
            next = batch.last_offset().next();
        }
        if batches.is_empty() {
            return Ok(());
        }
        let length: u64 = batches.iter().map(|bytes| bytes.len() as u64).sum();
        self.roll_if_due(length).await?;
        // Only a single batch is told apart from damage when a crash cuts it.
        if sync && batches.len() > 1 {
            self.announce(self.next_offset, next).await?;
        }
        let path = self.active_path();
        let Some(segment) = self.segments.last_mut() else {
            return Err(MetadataLogError::Failed);
        };
        // Until all has succeeded the state of the file is unknown.
        self.failed = true;
        let written = segment
            .file
            .write_all_at(segment.size, batches.to_vec())
            .await;
        if let Err(error) = written {
            if is_no_space(&error) {
                // Nothing of it counts, and nothing of it may stay before what comes next.
                self.failed = segment.file.set_len(segment.size).await.is_err()
                    || segment.file.sync_data().await.is_err();
                segment.reserved = segment.size;
            }
            return Err(io_error("cannot write", &path)(error));
        }
        if sync {
            let synced = segment.file.sync_data().await;
            synced.map_err(io_error("cannot sync", &path))?;
        }
        self.failed = false;
        for (bytes, (_, base)) in batches.iter().zip(&heads) {
            segment.add(*base, bytes.len() as u64);
        }
        self.next_offset = next;
        let known = self.epochs.len();
        for (epoch, base) in heads {
            if self.epochs.last().is_none_or(|(last, _)| epoch > *last) {
                self.epochs.push((epoch, base));
            }
        }
        if self.epochs.len() > known {
            self.write_epochs().await?;
        }
        Ok(())
    }

    /// Makes durable what was there when the log was opened. The next [`append`](Self::append) does it
    /// too.
    pub async fn sync(&mut self) -> Result<(), MetadataLogError> {
        let path = self.active_path();
        let Some(segment) = self.segments.last().filter(|_| !self.failed) else {
            return Err(MetadataLogError::Failed);
        };
        let synced = segment.file.sync_data().await;
        self.failed = synced.is_err();
        synced.map_err(io_error("cannot sync", &path))
    }

    fn active_path(&self) -> PathBuf {
        let base = self.segments.last().map_or(Offset::ZERO, |last| last.base);
        self.home.join(segment_file(base, FileKind::Log))
    }

    /// Notes durably that a write from one offset to another begins that a crash may tear anywhere.
    async fn announce(&self, from: Offset, to: Offset) -> Result<(), MetadataLogError> {
        let path = self.home.join(UNSYNCED);
        let text = serde_json::json!({ "from": from.0, "to": to.0 }).to_string();
        let written = rt::fs::write_atomic(&path, text.into_bytes()).await;
        written.map_err(io_error("cannot write", &path))
    }

    async fn roll_if_due(&mut self, more: u64) -> Result<(), MetadataLogError> {
        let Some(active) = self.segments.last() else {
            return Err(MetadataLogError::Failed);
        };
        let age = rt::wall_ms() - active.begun_ms;
        let is_full = active.size + more > self.settings.segment_bytes;
        let is_old = self.settings.segment_ms > 0 && age > self.settings.segment_ms;
        if active.size > 0 && (is_full || is_old) {
            self.roll().await?;
        }
        Ok(())
    }

    /// Begins a segment at the next offset.
    async fn roll(&mut self) -> Result<(), MetadataLogError> {
        if let Some(old) = self.segments.last() {
            // What was reserved behind its end goes back; all of it is on disk from here on.
            let path = self.active_path();
            let given_back = old.file.set_len(old.size).await;
            given_back.map_err(io_error("cannot cut", &path))?;
            let synced = old.file.sync_all().await;
            synced.map_err(io_error("cannot sync", &path))?;
        }
        let segment = Segment::create(&self.home, self.next_offset).await?;
        self.segments.push(segment);
        Ok(())
    }

    /// Removes every record from `offset` on, which must be where a batch begins or the end. Durable
    /// on return: what was removed never comes back.
    pub async fn truncate_to(&mut self, offset: Offset) -> Result<(), MetadataLogError> {
        if self.failed {
            return Err(MetadataLogError::Failed);
        }
        if offset >= self.next_offset {
            return Ok(());
        }
        if offset < self.start_offset() {
            let what = format!("{offset} is before the log's begin");
            return Err(MetadataLogError::Divergence(what));
        }
        let at = self
            .segments
            .partition_point(|segment| segment.base <= offset);
        let home = self.home.clone();
        let position = self.segments[at - 1].position_of(&home, offset).await?;
        let Some(position) = position else {
            let what = format!("no batch begins at {offset}");
            return Err(MetadataLogError::Divergence(what));
        };
        self.failed = true;
        // From the end on, so that at any moment what is there follows without a gap.
        while self.segments.len() > at {
            self.remove_last_segment().await?;
        }
        let path = self.active_path();
        let Some(segment) = self.segments.last_mut() else {
            return Err(MetadataLogError::Failed);
        };
        let cut = segment.file.set_len(position).await;
        cut.map_err(io_error("cannot cut", &path))?;
        let synced = segment.file.sync_all().await;
        synced.map_err(io_error("cannot sync", &path))?;
        segment.cut(offset, position);
        self.next_offset = offset;
        self.epochs.retain(|(_, begin)| *begin < offset);
        self.failed = false;
        self.write_epochs().await
    }

    async fn remove_last_segment(&mut self) -> Result<(), MetadataLogError> {
        let path = self.active_path();
        let removed = rt::fs::remove_file(&path).await;
        removed.map_err(io_error("cannot remove", &path))?;
        let synced = rt::fs::sync_dir(&self.home).await;
        synced.map_err(io_error("cannot sync", &self.home))?;
        self.segments.pop();
        Ok(())
    }

    /// Whole batches from the one that holds `offset` on, at most `max_bytes` of them but at least
    /// one, none that begins at or behind `end`.
    pub fn read(&self, offset: Offset, end: Offset, max_bytes: usize) -> Reading {
        let at = self
            .segments
            .partition_point(|segment| segment.base <= offset);
        let segment = at.checked_sub(1).and_then(|at| self.segments.get(at));
        Reading {
            home: self.home.clone(),
            segment: segment.cloned(),
            offset,
            end: end.min(self.next_offset),
            max_bytes,
        }
    }

    async fn write_epochs(&self) -> Result<(), MetadataLogError> {
        let mut text = format!("0\n{}\n", self.epochs.len());
        for (epoch, begin) in &self.epochs {
            text.push_str(&format!("{} {begin}\n", epoch.0));
        }
        let path = self.home.join(LEADER_EPOCH_CHECKPOINT);
        match rt::fs::write_atomic(&path, text.into_bytes()).await {
            // It is made anew from the log at each start.
            Err(error) if is_no_space(&error) => Ok(()),
            written => written.map_err(io_error("cannot write", &path)),
        }
    }
}

/// A read that has been found in the log and may take its time: what is read is committed, so the
/// log may go on meanwhile.
pub struct Reading {
    home: PathBuf,
    segment: Option<Segment>,
    offset: Offset,
    end: Offset,
    max_bytes: usize,
}

impl Reading {
    pub async fn run(self) -> Result<Bytes, MetadataLogError> {
        match self.segment {
            Some(segment) if self.offset < self.end => {
                segment
                    .read(&self.home, self.offset, self.end, self.max_bytes)
                    .await
            }
            _ => Ok(Bytes::new()),
        }
    }
}

#[cfg(test)]
#[path = "metadata_log_tests.rs"]
mod tests;

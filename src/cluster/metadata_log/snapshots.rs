//! Snapshots of the metadata log on disk: writing this node's own, installing a leader's, reading
//! one piece by piece, and removing those that are too old, with the segments that they replace.
//! Runs on the executor of the log.
//!
//! Beside each snapshot lies a sidecar with the number of batches before its end: where the log's
//! begin is gone, it says which index of the consensus the first batch behind it has. It is
//! written first, so a snapshot of this software is never without.

use super::segment::Segment;
use super::{MetadataLog, MetadataLogError, Snapshot, io_error};
use crate::cluster::record::MetadataRecord;
use crate::cluster::replay::Replay;
use crate::cluster::snapshot::{self, SnapshotId};
use crate::log::names::{FileKind, METADATA_TOPIC_DIR, segment_file};
use crate::rt;
use crate::rt::fs::{File, OpenOptions};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};

/// Snapshots kept whatever the limits say: one that is being fetched must not go with the next.
const SNAPSHOTS_MIN: usize = 2;

/// The sidecar's name: not one that Kafka takes for an index or a snapshot.
fn sidecar(home: &Path, id: SnapshotId) -> PathBuf {
    home.join(format!("{}.batches", id.file_name()))
}

/// What the sidecar says.
pub(super) async fn sidecar_index(
    home: &Path,
    id: SnapshotId,
) -> Result<Option<u64>, MetadataLogError> {
    let path = sidecar(home, id);
    match rt::fs::read(&path).await {
        Ok(text) => {
            let text = String::from_utf8_lossy(&text);
            let index = text.trim().parse();
            index.map(Some).map_err(|_| MetadataLogError::State {
                path,
                what: "is not a number of batches".into(),
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("cannot read", &path)(error)),
    }
}

pub(super) async fn write_sidecar(
    home: &Path,
    id: SnapshotId,
    index: u64,
) -> Result<(), MetadataLogError> {
    let path = sidecar(home, id);
    let written = rt::fs::write_atomic(&path, format!("{index}\n").into_bytes()).await;
    written.map_err(io_error("cannot write", &path))
}

pub(super) async fn read_snapshot(home: &Path, id: SnapshotId) -> Result<Bytes, MetadataLogError> {
    let path = home.join(id.file_name());
    let bytes = rt::fs::read(&path).await;
    Ok(bytes.map_err(io_error("cannot read", &path))?.into())
}

impl MetadataLog {
    /// The newest snapshot that can be served.
    pub fn newest_snapshot(&self) -> Option<SnapshotId> {
        self.snapshots.last_key_value().map(|(id, _)| *id)
    }

    pub fn oldest_snapshot(&self) -> Option<SnapshotId> {
        self.snapshots.first_key_value().map(|(id, _)| *id)
    }

    /// The size of a snapshot; `None` if there is no such one.
    pub fn snapshot_bytes(&self, id: SnapshotId) -> Option<u64> {
        self.snapshots.get(&id).map(|found| found.bytes)
    }

    /// Where a snapshot can be read: the file may go meanwhile.
    pub fn snapshot_path(&self, id: SnapshotId) -> PathBuf {
        self.home.join(id.file_name())
    }

    /// Keeps `bytes` as the snapshot of everything before `id.end`, which the log goes on behind;
    /// `index` batches are before, which an observer does not know. Old snapshots and what they replace go, and a segment ends here.
    pub async fn write_snapshot(
        &mut self,
        id: SnapshotId,
        bytes: Bytes,
        index: Option<u64>,
    ) -> Result<(), MetadataLogError> {
        if self.failed {
            return Err(MetadataLogError::Failed);
        }
        self.put(id, bytes, index).await?;
        if self.segments.last().is_some_and(|last| last.size > 0) {
            self.roll().await?;
        }
        self.remove_old().await
    }

    /// Replaces the whole log by a leader's snapshot: the log goes on at its end.
    pub async fn install_snapshot(
        &mut self,
        id: SnapshotId,
        bytes: Bytes,
        index: Option<u64>,
    ) -> Result<(), MetadataLogError> {
        if self.failed {
            return Err(MetadataLogError::Failed);
        }
        self.put(id, bytes, index).await?;
        self.begin_again(id).await
    }

    async fn put(
        &mut self,
        id: SnapshotId,
        bytes: Bytes,
        index: Option<u64>,
    ) -> Result<(), MetadataLogError> {
        if let Some(index) = index {
            write_sidecar(&self.home, id, index).await?;
        }
        let path = self.home.join(id.file_name());
        let length = bytes.len() as u64;
        let written = rt::fs::write_atomic(&path, Vec::from(bytes)).await;
        written.map_err(io_error("cannot write", &path))?;
        let found = Snapshot {
            bytes: length,
            index,
        };
        self.snapshots.insert(id, found);
        Ok(())
    }

    /// Removes every batch: the log is empty at the snapshot's end.
    pub(super) async fn begin_again(&mut self, id: SnapshotId) -> Result<(), MetadataLogError> {
        self.failed = true;
        while !self.segments.is_empty() {
            self.remove_last_segment().await?;
        }
        self.segments
            .push(Segment::create(&self.home, id.end).await?);
        self.next_offset = id.end;
        self.epochs = vec![(id.epoch, id.end)];
        self.failed = false;
        self.write_epochs().await
    }

    /// Whether it is time for a snapshot of this node's own: so many bytes after the newest, or so
    /// long after it was made.
    pub fn is_snapshot_due(&self, bytes_since: u64, made_ms: i64, now_ms: i64) -> bool {
        let interval = self.settings.snapshot_interval_ms;
        bytes_since >= self.settings.snapshot_bytes
            || (interval > 0 && bytes_since > 0 && now_ms - made_ms >= interval)
    }

    /// Removes the oldest snapshot while the limits are exceeded, and the segments before the oldest
    /// that is left.
    async fn remove_old(&mut self) -> Result<(), MetadataLogError> {
        while self.snapshots.len() > SNAPSHOTS_MIN {
            let Some(oldest) = self.oldest_snapshot() else {
                break;
            };
            let held: u64 = self
                .snapshots
                .values()
                .map(|found| found.bytes)
                .sum::<u64>()
                + self
                    .segments
                    .iter()
                    .map(|segment| segment.size)
                    .sum::<u64>();
            let limit = self.settings.retention_bytes;
            let is_large = limit >= 0 && held > limit as u64;
            let is_old = self.settings.retention_ms >= 0
                && self.age_ms(oldest).await? > self.settings.retention_ms;
            if !is_large && !is_old {
                break;
            }
            self.remove_snapshot(oldest).await?;
            self.remove_segments().await?;
        }
        self.remove_segments().await
    }

    /// How long ago the snapshot's last record was written.
    async fn age_ms(&self, id: SnapshotId) -> Result<i64, MetadataLogError> {
        let path = self.home.join(id.file_name());
        let file = File::open(&path, OpenOptions::READ).await;
        let file = file.map_err(io_error("cannot read", &path))?;
        let head = file.read_at(0, 4096).await;
        let head = head.map_err(io_error("cannot read", &path))?;
        let written = crate::wire::batch::BatchView::parse(&head);
        let written = written.map_or(0, |(batch, _)| batch.max_timestamp());
        Ok(rt::wall_ms() - written)
    }

    async fn remove_snapshot(&mut self, id: SnapshotId) -> Result<(), MetadataLogError> {
        self.snapshots.remove(&id);
        for path in [self.home.join(id.file_name()), sidecar(&self.home, id)] {
            match rt::fs::remove_file(&path).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(io_error("cannot remove", &path))?,
            }
        }
        Ok(())
    }

    /// Removes the segments that end before the oldest snapshot does, from the first on.
    async fn remove_segments(&mut self) -> Result<(), MetadataLogError> {
        let Some(oldest) = self.oldest_snapshot() else {
            return Ok(());
        };
        let mut removed = false;
        while let [first, second, ..] = &self.segments[..]
            && second.base <= oldest.end
        {
            // Its snapshot must be there before what it replaces goes.
            if !removed {
                let synced = rt::fs::sync_dir(&self.home).await;
                synced.map_err(io_error("cannot sync", &self.home))?;
            }
            for kind in FileKind::ALL {
                let path = self.home.join(segment_file(first.base, kind));
                match rt::fs::remove_file(&path).await {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    gone => gone.map_err(io_error("cannot remove", &path))?,
                }
            }
            // In order: a gap could not be told from damage.
            let synced = rt::fs::sync_dir(&self.home).await;
            synced.map_err(io_error("cannot sync", &self.home))?;
            self.segments.remove(0);
            removed = true;
        }
        if removed {
            let begin = self.start_offset();
            let kept = self.epochs.partition_point(|(_, from)| *from <= begin);
            self.epochs.drain(..kept.saturating_sub(1));
            if let Some(first) = self.epochs.first_mut() {
                first.1 = first.1.max(begin);
            }
            self.write_epochs().await?;
        }
        Ok(())
    }
}

/// What a new cluster begins with: the records that `dir` was formatted with, by Kafka's formatter
/// or here before; where it was not, it is now, with `records`.
pub async fn bootstrap(
    dir: &Path,
    records: Vec<MetadataRecord>,
) -> Result<Vec<MetadataRecord>, MetadataLogError> {
    let id = SnapshotId::BOOTSTRAP;
    let path = dir.join(METADATA_TOPIC_DIR).join(id.file_name());
    match rt::fs::read(&path).await {
        Ok(bytes) => Replay::records(bytes.into())
            .map_err(|source| MetadataLogError::Replay { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let bytes = snapshot::encode(&records, id, rt::wall_ms())?;
            let written = rt::fs::write_atomic(&path, bytes.to_vec()).await;
            written.map_err(io_error("cannot write", &path))?;
            Ok(records)
        }
        Err(error) => Err(io_error("cannot read", &path)(error)),
    }
}

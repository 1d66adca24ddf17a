//! Opening the metadata log: what segments and snapshots there are, which of them count after a
//! crash, and how many batches were written before the first that is still there. Runs on the
//! executor of the log.

use super::scan::{Scanned, scan};
use super::segment::Segment;
use super::snapshots::{read_snapshot, sidecar_index, write_sidecar};
use super::{MetadataLog, MetadataLogError, MetadataLogSettings, Snapshot, UNSYNCED, io_error};
use crate::cluster::metadata_log::METADATA_TOPIC_ID;
use crate::cluster::replay::{Replay, ReplayError};
use crate::cluster::snapshot::SnapshotId;
use crate::log::checkpoint::encode_partition_metadata;
use crate::log::names::{
    FileKind, FileState, METADATA_TOPIC_DIR, PARTITION_METADATA, parse_segment_file, segment_file,
};
use crate::rt;
use crate::types::{LeaderEpoch, Offset};
use crate::wire::batch::Batch;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// What a broken batch means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A controller has promised what it wrote: only a write that a crash cut short may go.
    Fatal,
    /// An observer fetches again what it lacks: everything from there on goes.
    FetchedAgain,
}

/// Where the part of the log begins that has to be replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// The newest snapshot, or the begin of the log.
    pub end: Offset,
    pub epoch: LeaderEpoch,
    /// Batches before `end`.
    pub index: u64,
}

/// A log with what is in it.
pub struct Opened {
    pub log: MetadataLog,
    pub base: Base,
    /// The image at `base`.
    pub replay: Replay,
    /// The batches behind it.
    pub tail: Vec<Batch>,
}

impl MetadataLog {
    /// Opens the log under `dir`, made if it is missing. A batch that was cut short by a crash is
    /// cut off.
    ///
    /// # Errors
    /// With [`Damage::Fatal`] also if a batch is damaged: what it held cannot be guessed.
    pub async fn open(
        dir: &Path,
        settings: MetadataLogSettings,
        damage: Damage,
    ) -> Result<Opened, MetadataLogError> {
        let home = dir.join(METADATA_TOPIC_DIR);
        let made = rt::fs::create_dir_all(&home).await;
        made.map_err(io_error("cannot create", &home))?;
        let found = rt::fs::read_dir(&home).await;
        let found = found.map_err(io_error("cannot read", &home))?;
        let names: Vec<&str> = found.iter().map(|entry| entry.name.as_str()).collect();
        if !names.contains(&PARTITION_METADATA) {
            let path = home.join(PARTITION_METADATA);
            let text = encode_partition_metadata(METADATA_TOPIC_ID);
            let written = rt::fs::write_atomic(&path, text).await;
            written.map_err(io_error("cannot write", &path))?;
        }
        let mut snapshots = BTreeMap::new();
        let ids = names.iter().filter_map(|name| SnapshotId::of_file(name));
        for id in ids.filter(|id| *id != SnapshotId::BOOTSTRAP) {
            let path = home.join(id.file_name());
            let bytes = rt::fs::file_len(&path).await;
            let bytes = bytes.map_err(io_error("cannot read", &path))?;
            let index = sidecar_index(&home, id).await?;
            snapshots.insert(id, Snapshot { bytes, index });
        }
        let mut bases: Vec<Offset> = names.iter().filter_map(|name| live_segment(name)).collect();
        bases.sort_unstable();
        let mut log = MetadataLog {
            home,
            settings,
            segments: Vec::new(),
            next_offset: Offset::ZERO,
            epochs: Vec::new(),
            snapshots,
            failed: false,
        };
        let (base, tail) = log.find(&bases, damage).await?;
        let replay = match log.snapshots.last_key_value() {
            None => Replay::default(),
            Some((id, _)) => {
                let bytes = read_snapshot(&log.home, *id).await?;
                let path = log.home.join(id.file_name());
                Replay::from_snapshot(bytes, id.end)
                    .map_err(|source| MetadataLogError::Replay { path, source })?
            }
        };
        log.write_epochs().await?;
        for path in [&*log.home, dir] {
            let synced = rt::fs::sync_dir(path).await;
            synced.map_err(io_error("cannot sync", path))?;
        }
        Ok(Opened {
            log,
            base,
            replay,
            tail,
        })
    }

    /// Reads the segments; gives where the part behind the newest snapshot begins, and that part.
    async fn find(
        &mut self,
        bases: &[Offset],
        damage: Damage,
    ) -> Result<(Base, Vec<Batch>), MetadataLogError> {
        let newest = self.snapshots.last_key_value().map(|(id, _)| *id);
        let begin = bases.first().copied().unwrap_or(Offset::ZERO);
        if newest.is_none_or(|id| id.end < begin) && begin > Offset::ZERO {
            let path = self.home.clone();
            return Err(MetadataLogError::NoSnapshot { path, begin });
        }
        let from = newest.map_or(Offset::ZERO, |id| id.end);
        let mut read = Read {
            snapshots: self.snapshots.keys().map(|id| (id.end, None)).collect(),
            ..Read::default()
        };
        self.next_offset = begin;
        if let Some(id) = self.snapshots.keys().rev().find(|id| id.end == begin) {
            self.epochs.push((id.epoch, begin));
        }
        for (at, base) in bases.iter().enumerate() {
            let is_last = at + 1 == bases.len();
            if !self
                .read_segment(*base, is_last, from, damage, &mut read)
                .await?
            {
                break;
            }
        }
        let Some(id) = newest else {
            if self.segments.is_empty() {
                self.segments
                    .push(Segment::create(&self.home, Offset::ZERO).await?);
            }
            return Ok((Base::default(), read.tail));
        };
        // The log does not hold what the snapshot ends with: it was being replaced by it.
        let is_behind = self.next_offset < id.end || self.segments.is_empty();
        let is_other = read.epoch_before.is_some_and(|epoch| epoch != id.epoch);
        if is_behind || is_other || !read.is_aligned(id.end, begin) {
            self.begin_again(id).await?;
            read.tail.clear();
        }
        let index = match damage {
            Damage::Fatal => self.index_at(id, begin, &read).await?,
            // Only a voter counts.
            Damage::FetchedAgain => 0,
        };
        let base = Base {
            end: id.end,
            epoch: id.epoch,
            index,
        };
        Ok((base, read.tail))
    }

    /// Adds a segment's batches to the log. False if the log ends in it.
    async fn read_segment(
        &mut self,
        base: Offset,
        is_last: bool,
        from: Offset,
        damage: Damage,
        read: &mut Read,
    ) -> Result<bool, MetadataLogError> {
        let path = self.home.join(segment_file(base, FileKind::Log));
        let bad = |source| MetadataLogError::Replay {
            path: path.clone(),
            source,
        };
        let expected = self.next_offset;
        if base != expected {
            if damage == Damage::FetchedAgain {
                return self.drop_segment(base).await;
            }
            return Err(bad(ReplayError::Gap {
                position: 0,
                expected,
                found: base,
            }));
        }
        let mut segment = Segment::open(&self.home, base).await?;
        let length = segment.file.len().map_err(io_error("cannot read", &path))?;
        let bytes = segment.file.read_at(0, length as usize).await;
        let bytes = bytes.map_err(io_error("cannot read", &path))?;
        let unsynced = unsynced(&self.home).await;
        let scanned = scan(&bytes, expected, unsynced, damage).map_err(bad)?;
        if scanned.whole < length {
            if !is_last && damage == Damage::Fatal {
                let source = crate::wire::batch::BatchError::Partial {
                    needed: length as usize + 1,
                    available: length as usize,
                };
                return Err(bad(ReplayError::Batch {
                    position: scanned.whole,
                    source,
                }));
            }
            tracing::warn!(
                file = %path.display(), from = scanned.whole, cut = length - scanned.whole,
                "metadata log: a batch that a crash cut short is removed"
            );
            let cut = segment.file.set_len(scanned.whole).await;
            cut.map_err(io_error("cannot cut", &path))?;
            let synced = segment.file.sync_all().await;
            synced.map_err(io_error("cannot sync", &path))?;
        }
        if is_last && damage == Damage::Fatal {
            write_again(&segment, &scanned, &bytes, unsynced)
                .await
                .map_err(io_error("cannot write", &path))?;
        }
        let mut position = 0;
        // The tail has memory of its own: a slice would keep the whole file's.
        let mut own: Option<(u64, bytes::Bytes)> = None;
        for batch in scanned.batches {
            let (offset, size) = (batch.base_offset(), batch.total_size() as u64);
            let epoch = batch.partition_leader_epoch();
            segment.add(offset, size);
            if self.epochs.last().is_none_or(|(last, _)| epoch > *last) {
                self.epochs.push((epoch, offset));
            }
            if offset < from {
                read.epoch_before = Some(epoch);
            } else {
                let (at, bytes) = own.get_or_insert_with(|| {
                    let rest = &bytes[position as usize..scanned.whole as usize];
                    (position, bytes::Bytes::copy_from_slice(rest))
                });
                let within = (position - *at) as usize;
                let bytes = bytes.slice(within..within + size as usize);
                let parsed = Batch::parse(&bytes).map(|(batch, _)| batch);
                read.tail
                    .push(parsed.map_err(|source| bad(ReplayError::Batch { position, source }))?);
            }
            read.batches += 1;
            let end = batch.last_offset().next();
            if let Some(count) = read.snapshots.get_mut(&end) {
                *count = Some(read.batches);
            }
            position += size;
        }
        self.next_offset = scanned.next;
        self.segments.push(segment);
        Ok(scanned.whole == length || is_last)
    }

    async fn drop_segment(&mut self, base: Offset) -> Result<bool, MetadataLogError> {
        let path = self.home.join(segment_file(base, FileKind::Log));
        let removed = rt::fs::remove_file(&path).await;
        removed.map_err(io_error("cannot remove", &path))?;
        Ok(true)
    }

    /// Batches before the newest snapshot's end. Counted from the log's begin, or from a snapshot
    /// whose sidecar says it. Where nothing does, as in a directory that a Kafka controller left, the
    /// snapshot's end stands for it from now on: all that matters is that it never changes.
    async fn index_at(
        &mut self,
        newest: SnapshotId,
        begin: Offset,
        read: &Read,
    ) -> Result<u64, MetadataLogError> {
        let count = |end: &Offset| match *end == begin {
            true => Some(0),
            false => read.snapshots.get(end).copied().flatten(),
        };
        if let Some(index) = self.snapshots.get(&newest).and_then(|found| found.index) {
            return Ok(index);
        }
        let at_newest = count(&newest.end);
        let from_other = self.snapshots.iter().rev().find_map(|(id, found)| {
            let (known, here, there) = (found.index?, at_newest?, count(&id.end)?);
            (known + here).checked_sub(there)
        });
        let index = match (from_other, at_newest) {
            (Some(index), _) => index,
            (None, Some(index)) if begin == Offset::ZERO => index,
            _ => newest.end.0 as u64,
        };
        write_sidecar(&self.home, newest, index).await?;
        if let Some(found) = self.snapshots.get_mut(&newest) {
            found.index = Some(index);
        }
        Ok(index)
    }
}

/// What is found while the segments are read.
#[derive(Default)]
struct Read {
    batches: u64,
    /// By where a snapshot ends: the batches before, where one ends there.
    snapshots: BTreeMap<Offset, Option<u64>>,
    /// The epoch of the last batch that begins before the newest snapshot's end.
    epoch_before: Option<LeaderEpoch>,
    tail: Vec<Batch>,
}

impl Read {
    fn is_aligned(&self, end: Offset, begin: Offset) -> bool {
        end == begin || self.snapshots.get(&end).is_some_and(Option::is_some)
    }
}

fn live_segment(name: &str) -> Option<Offset> {
    let file = parse_segment_file(name)?;
    (file.kind == FileKind::Log && file.state == FileState::Live).then_some(file.base)
}

/// Writes the last write once more, to be synced before anything is built on it. If its sync failed before the process ended, it is still read
/// although the device does not have it, and a sync of now would not be told: what is not dirty
/// counts as written.
async fn write_again(
    segment: &Segment,
    scanned: &Scanned,
    bytes: &bytes::Bytes,
    unsynced: Option<(Offset, Offset)>,
) -> io::Result<()> {
    let Some(last) = scanned.batches.last() else {
        return Ok(());
    };
    let from = match unsynced {
        Some((from, to)) if to == scanned.next => from,
        _ => last.base_offset(),
    };
    let again = scanned.batches.iter().rev();
    let again = again.take_while(|batch| batch.base_offset() >= from);
    let size: usize = again.map(|batch| batch.total_size()).sum();
    let begin = scanned.whole as usize - size;
    let bytes = bytes.slice(begin..scanned.whole as usize);
    segment.file.write_all_at(begin as u64, vec![bytes]).await
}

/// The offsets of the last write of several batches.
async fn unsynced(home: &Path) -> Option<(Offset, Offset)> {
    let text = match rt::fs::read(home.join(UNSYNCED)).await {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            // Without it a torn write counts as damage: nothing is lost by that.
            tracing::warn!(%error, "{UNSYNCED} cannot be read");
            return None;
        }
    };
    let value: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let offset = |name| value.get(name)?.as_i64().map(Offset);
    Some((offset("from")?, offset("to")?))
}

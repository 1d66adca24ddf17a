//! The log `__cluster_metadata-0` of this node: record batches in Kafka's format, each written
//! and synced before it is applied. Owned by the control executor. Never decides what to write.
//!
//! One node alone is its own quorum: what is on its disk is committed. The directory carries
//! Kafka's files (`quorum-state`, `partition.metadata`, `leader-epoch-checkpoint`, snapshots);
//! Kafka's tools read it, and the log of a stopped Kafka controller opens here. Segments are not
//! rolled: a log of cluster changes is small.

use super::features::UnsupportedMetadataVersion;
use super::image::{ApplyError, Image};
use super::record::MetadataRecord;
use super::replay::{Replay, ReplayError};
use super::snapshot::{self, SnapshotId};
use crate::log::checkpoint::encode_partition_metadata;
use crate::log::names::{
    FileKind, FileState, LEADER_EPOCH_CHECKPOINT, METADATA_TOPIC_DIR, PARTITION_METADATA,
    parse_segment_file, segment_file,
};
use crate::rt;
use crate::rt::fs::{File, OpenOptions};
use crate::types::{LeaderEpoch, NodeId, Offset, Uuid};
use crate::wire::batch_builder::{BatchBuilder, BuildError, ControlType, control_batch};
use crate::wire::messages::abort_transaction_record::AbortTransactionRecord;
use crate::wire::messages::begin_transaction_record::BeginTransactionRecord;
use crate::wire::messages::end_transaction_record::EndTransactionRecord;
use crate::wire::messages::leader_change_message::{LeaderChangeMessage, Voter};
use crate::wire::{EncodeError, Message};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};

const QUORUM_STATE: &str = "quorum-state";
/// The topic id of the metadata topic.
pub const METADATA_TOPIC_ID: Uuid = Uuid::from_halves(0, 1);
/// Records of one batch, Kafka's limit. A change of more is a transaction of several batches.
pub const RECORDS_PER_BATCH_MAX: usize = 10_000;

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
}

/// See the module's words.
pub struct MetadataLog {
    path: PathBuf,
    file: File,
    /// Where the next batch goes in the file.
    position: u64,
    next_offset: Offset,
    epoch: LeaderEpoch,
    failed: bool,
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MetadataLogError {
    let path = path.to_owned();
    move |source| MetadataLogError::Io { what, path, source }
}

impl MetadataLog {
    /// Opens the log under `dir` and replays it into an image. A batch that was cut short by a
    /// crash is cut off; one that is damaged is an error: what it held cannot be guessed. Begins
    /// a new epoch with this node as leader.
    pub async fn open(dir: &Path, node: NodeId) -> Result<(MetadataLog, Image), MetadataLogError> {
        let home = dir.join(METADATA_TOPIC_DIR);
        rt::fs::create_dir_all(&home)
            .await
            .map_err(io_error("cannot create", &home))?;
        let entries = rt::fs::read_dir(&home)
            .await
            .map_err(io_error("cannot read", &home))?;
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        if !names.contains(&PARTITION_METADATA) {
            let path = home.join(PARTITION_METADATA);
            let text = encode_partition_metadata(METADATA_TOPIC_ID);
            rt::fs::write_atomic(&path, text)
                .await
                .map_err(io_error("cannot write", &path))?;
        }
        let mut bases: Vec<Offset> = names.iter().filter_map(|name| live_segment(name)).collect();
        bases.sort_unstable();
        let newest = names
            .iter()
            .filter_map(|name| SnapshotId::of_file(name))
            .max();
        let mut replay = begin(&home, bases.first().copied(), newest).await?;
        let (last, earlier) = bases
            .split_last()
            .map_or((replay.next_offset(), &[][..]), |(last, rest)| {
                (*last, rest)
            });
        for base in earlier {
            let path = home.join(segment_file(*base, FileKind::Log));
            let bytes = rt::fs::read(&path)
                .await
                .map_err(io_error("cannot read", &path))?;
            replay_segment(&mut replay, &path, bytes.into())?;
        }
        let path = home.join(segment_file(last, FileKind::Log));
        let file = File::open(&path, OpenOptions::CREATE)
            .await
            .map_err(io_error("cannot open", &path))?;
        let length = file.len().map_err(io_error("cannot read", &path))?;
        let bytes = file
            .read_at(0, length as usize)
            .await
            .map_err(io_error("cannot read", &path))?;
        let position = replay_segment(&mut replay, &path, bytes)?;
        if position < length {
            tracing::warn!(
                file = %path.display(), from = position, cut = length - position,
                "metadata log: a batch that a crash cut short is removed"
            );
            file.set_len(position)
                .await
                .map_err(io_error("cannot cut", &path))?;
            file.sync_all()
                .await
                .map_err(io_error("cannot sync", &path))?;
        }
        let voted = voted_epoch(&home).await;
        let seen = replay
            .epochs()
            .last()
            .map_or(LeaderEpoch(0), |(epoch, _)| *epoch)
            .max(voted);
        let epoch = LeaderEpoch(seen.0 + 1);
        let next_offset = replay.next_offset();
        let mut log = MetadataLog {
            path,
            file,
            position,
            next_offset,
            epoch,
            failed: false,
        };
        log.write_epoch_files(&home, node, replay.epochs())
            .await
            .map_err(io_error("cannot write in", &home))?;
        for path in [&*home, dir] {
            rt::fs::sync_dir(path)
                .await
                .map_err(io_error("cannot sync", path))?;
        }
        log.write_leader_change(node).await?;
        let (mut image, in_transaction) = replay.finish();
        if in_transaction {
            let abort = AbortTransactionRecord {
                reason: Some("its controller has gone".into()),
                ..Default::default()
            };
            let abort = MetadataRecord::from(abort);
            let offset = log
                .append(std::slice::from_ref(&abort), rt::wall_ms())
                .await?;
            image.set_offset(offset.0);
        }
        Ok((log, image))
    }

    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// Whether nothing can be written any more.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The records as they will stand in the log: more than fit in one batch become a transaction,
    /// for a change happens as a whole or not at all (KIP-868).
    pub fn framed(mut records: Vec<MetadataRecord>) -> Vec<MetadataRecord> {
        if records.len() > RECORDS_PER_BATCH_MAX {
            records.insert(0, MetadataRecord::from(BeginTransactionRecord::default()));
            records.push(MetadataRecord::from(EndTransactionRecord::default()));
        }
        records
    }

    /// Writes [`framed`](Self::framed) records and syncs them; returns the offset of the first.
    /// After a failure nothing is written any more: what is on disk is not known.
    pub async fn append(
        &mut self,
        records: &[MetadataRecord],
        now_ms: i64,
    ) -> Result<Offset, MetadataLogError> {
        let mut batches = Vec::with_capacity(records.len().div_ceil(RECORDS_PER_BATCH_MAX));
        let mut offset = self.next_offset;
        for chunk in records.chunks(RECORDS_PER_BATCH_MAX) {
            let mut batch = BatchBuilder::new();
            (batch.base_offset, batch.leader_epoch) = (offset, self.epoch);
            for record in chunk {
                batch.append(now_ms, None, Some(&record.encode()?), &[])?;
            }
            batches.push(batch.build()?);
            offset = Offset(offset.0 + chunk.len() as i64);
        }
        self.write(batches, offset).await
    }

    async fn write_leader_change(&mut self, node: NodeId) -> Result<(), MetadataLogError> {
        let voter = || Voter {
            voter_id: node.0,
            ..Default::default()
        };
        let message = LeaderChangeMessage {
            version: 0,
            leader_id: node.0,
            voters: vec![voter()],
            granting_voters: vec![voter()],
            ..Default::default()
        };
        let value = message.to_bytes(0)?;
        let change = [(ControlType::LeaderChange, &value[..])];
        let batch = control_batch(self.next_offset, self.epoch, rt::wall_ms(), &change)?;
        self.write(vec![batch], self.next_offset.next())
            .await
            .map(|_| ())
    }

    /// Writes batches that end before `next_offset`.
    async fn write(
        &mut self,
        batches: Vec<Bytes>,
        next_offset: Offset,
    ) -> Result<Offset, MetadataLogError> {
        if self.failed {
            return Err(MetadataLogError::Failed);
        }
        // Until both have succeeded the state of the file is unknown.
        self.failed = true;
        let length: usize = batches.iter().map(Bytes::len).sum();
        let written = self.file.write_all_at(self.position, batches).await;
        if let Err(error) = written {
            if is_no_space(&error) {
                // Nothing of it counts, and nothing of it may stay before what comes next.
                self.failed = self.file.set_len(self.position).await.is_err()
                    || self.file.sync_data().await.is_err();
            }
            return Err(io_error("cannot write", &self.path)(error));
        }
        self.file
            .sync_data()
            .await
            .map_err(io_error("cannot sync", &self.path))?;
        self.failed = false;
        self.position += length as u64;
        Ok(std::mem::replace(&mut self.next_offset, next_offset))
    }

    async fn write_epoch_files(
        &self,
        home: &Path,
        node: NodeId,
        epochs: &[(LeaderEpoch, Offset)],
    ) -> io::Result<()> {
        let epoch = self.epoch.0;
        let mut checkpoint = format!("0\n{}\n", epochs.len() + 1);
        for (epoch, begin) in epochs.iter().chain([&(self.epoch, self.next_offset)]) {
            checkpoint.push_str(&format!("{} {begin}\n", epoch.0));
        }
        rt::fs::write_atomic(home.join(LEADER_EPOCH_CHECKPOINT), checkpoint.into_bytes()).await?;
        let state = serde_json::json!({
            "clusterId": "",
            "leaderId": node.0,
            "leaderEpoch": epoch,
            "votedId": node.0,
            "appliedOffset": 0,
            "currentVoters": [{ "voterId": node.0 }],
            "data_version": 0,
        });
        rt::fs::write_atomic(home.join(QUORUM_STATE), state.to_string().into_bytes()).await
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

/// The file system is full: the log is as it was, and goes on when there is space again.
fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn live_segment(name: &str) -> Option<Offset> {
    let file = parse_segment_file(name)?;
    (file.kind == FileKind::Log && file.state == FileState::Live).then_some(file.base)
}

/// Where reading begins: at the log's first record, or at the newest snapshot if those before
/// it are gone.
async fn begin(
    home: &Path,
    first: Option<Offset>,
    newest: Option<SnapshotId>,
) -> Result<Replay, MetadataLogError> {
    let begin = first.unwrap_or(Offset::ZERO);
    let newest = newest.filter(|id| *id != SnapshotId::BOOTSTRAP);
    match newest {
        // A log without segments but with a snapshot begins behind the snapshot.
        Some(id) if id.end >= begin && (begin > Offset::ZERO || first.is_none()) => {
            let path = home.join(id.file_name());
            let bytes = rt::fs::read(&path)
                .await
                .map_err(io_error("cannot read", &path))?;
            Replay::from_snapshot(bytes.into(), id.end, id.epoch)
                .map_err(|source| MetadataLogError::Replay { path, source })
        }
        _ if begin == Offset::ZERO => Ok(Replay::default()),
        _ => Err(MetadataLogError::NoSnapshot {
            path: home.to_owned(),
            begin,
        }),
    }
}

fn replay_segment(replay: &mut Replay, path: &Path, bytes: Bytes) -> Result<u64, MetadataLogError> {
    replay
        .batches(bytes)
        .map_err(|source| MetadataLogError::Replay {
            path: path.to_owned(),
            source,
        })
}

/// The epoch in `quorum-state`: a controller may have voted in one that left nothing in the log.
async fn voted_epoch(home: &Path) -> LeaderEpoch {
    let state = rt::fs::read(home.join(QUORUM_STATE))
        .await
        .unwrap_or_default();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap_or_default();
    let epoch = state.get("leaderEpoch").and_then(serde_json::Value::as_i64);
    LeaderEpoch(
        epoch
            .and_then(|epoch| i32::try_from(epoch).ok())
            .unwrap_or(0),
    )
}

#[cfg(test)]
#[path = "metadata_log_tests.rs"]
mod tests;

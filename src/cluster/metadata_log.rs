//! The log `__cluster_metadata-0` of this node: record batches in Kafka's format, each written
//! and synced before it is applied. Owned by the control executor. Never decides what to write.
//!
//! One node alone is its own quorum: what is on its disk is committed. The directory carries
//! Kafka's files (`quorum-state`, `partition.metadata`, `leader-epoch-checkpoint`), and Kafka's
//! tools read it.

use super::image::{ApplyError, Image};
use super::record::{MetadataRecord, RecordError};
use crate::rt;
use crate::rt::fs::{File, OpenOptions};
use crate::types::{LeaderEpoch, NodeId, Offset, Uuid};
use crate::wire::batch::{BatchError, Batches};
use crate::wire::batch_builder::{BatchBuilder, BuildError, ControlType, control_batch};
use crate::wire::messages::leader_change_message::{LeaderChangeMessage, Voter};
use crate::wire::{EncodeError, Message};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "__cluster_metadata-0";
const SEGMENT: &str = "00000000000000000000.log";
/// The topic id of the metadata topic.
pub const METADATA_TOPIC_ID: Uuid = Uuid::from_halves(0, 1);
/// Inflated size of one stored batch; the controller's own are far smaller.
const INFLATED_MAX: usize = 64 << 20;
/// Why the metadata log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MetadataLogError {
    #[error("{what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} at position {position}: {source}", path.display())]
    Batch { path: PathBuf, position: u64, source: BatchError },
    #[error("{} at offset {offset}: {source}", path.display())]
    Record { path: PathBuf, offset: i64, source: RecordError },
    #[error("{}: {source}", path.display())]
    Apply { path: PathBuf, source: ApplyError },
    #[error("a metadata batch cannot be built: {0}")]
    Build(#[from] BuildError),
    #[error("a metadata record cannot be encoded: {0}")]
    Encode(#[from] EncodeError),
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

impl MetadataLog {
    /// Opens the log under `dir` and replays it into an image. A batch that was cut short by a
    /// crash is cut off; one that is damaged is an error: what it held cannot be guessed.
    pub async fn open(dir: &Path, node: NodeId) -> Result<(MetadataLog, Image), MetadataLogError> {
        let home = dir.join(DIRECTORY);
        let io = |what, path: &Path| {
            let path = path.to_owned();
            move |source| MetadataLogError::Io { what, path, source }
        };
        rt::fs::create_dir_all(&home).await.map_err(io("cannot create", &home))?;
        write_partition_metadata(&home).await.map_err(io("cannot write in", &home))?;
        let path = home.join(SEGMENT);
        let file =
            File::open(&path, OpenOptions::CREATE).await.map_err(io("cannot open", &path))?;
        let length = file.len().map_err(io("cannot read", &path))?;
        let bytes = file.read_at(0, length as usize).await.map_err(io("cannot read", &path))?;
        let mut log = MetadataLog {
            path: path.clone(),
            file,
            position: 0,
            next_offset: Offset::ZERO,
            epoch: LeaderEpoch(0),
            failed: false,
        };
        let image = log.replay(bytes)?;
        if log.position < length {
            tracing::warn!(
                file = %path.display(), from = log.position, cut = length - log.position,
                "metadata log: a batch that a crash cut short is removed"
            );
            log.file.set_len(log.position).await.map_err(io("cannot cut", &path))?;
            log.file.sync_all().await.map_err(io("cannot sync", &path))?;
        }
        log.epoch = LeaderEpoch(log.epoch.0 + 1);
        log.write_epoch_files(&home, node).await.map_err(io("cannot write in", &home))?;
        log.write_leader_change(node).await?;
        Ok((log, image))
    }

    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// Writes `records` as one batch and syncs it; returns the offset of the first. After a
    /// failure nothing is written any more: what is on disk is not known.
    pub async fn append(&mut self, records: &[MetadataRecord], now_ms: i64) -> Result<Offset, MetadataLogError> {
        let mut batch = BatchBuilder::new();
        batch.base_offset = self.next_offset;
        batch.leader_epoch = self.epoch;
        for record in records {
            batch.append(now_ms, None, Some(&record.encode()?), &[])?;
        }
        self.write(batch.build()?, records.len() as i64).await
    }

    async fn write_leader_change(&mut self, node: NodeId) -> Result<(), MetadataLogError> {
        let voter = || Voter { voter_id: node.0, ..Default::default() };
        let message = LeaderChangeMessage {
            version: 0,
            leader_id: node.0,
            voters: vec![voter()],
            granting_voters: vec![voter()],
            ..Default::default()
        };
        let value = message.to_bytes(0)?;
        let batch = control_batch(self.next_offset, self.epoch, rt::wall_ms(), &[(ControlType::LeaderChange, &value)])?;
        self.write(batch, 1).await.map(|_| ())
    }

    async fn write(&mut self, batch: Bytes, records: i64) -> Result<Offset, MetadataLogError> {
        if self.failed {
            return Err(MetadataLogError::Failed);
        }
        // Until both have succeeded the state of the file is unknown.
        self.failed = true;
        let io = |what| {
            let path = self.path.clone();
            move |source| MetadataLogError::Io { what, path, source }
        };
        let length = batch.len() as u64;
        self.file.write_all_at(self.position, vec![batch]).await.map_err(io("cannot write"))?;
        self.file.sync_all().await.map_err(io("cannot sync"))?;
        self.failed = false;
        self.position += length;
        let first = self.next_offset;
        self.next_offset = Offset(first.0 + records);
        Ok(first)
    }

    fn replay(&mut self, bytes: Bytes) -> Result<Image, MetadataLogError> {
        let mut image = Image::default();
        let mut batches = Batches::new(bytes.clone());
        while let Some(batch) = batches.next() {
            let position = self.position;
            let bad = |source| MetadataLogError::Batch { path: self.path.clone(), position, source };
            let batch = batch.map_err(bad)?;
            if let Err(source) = batch.check_crc() {
                // The last batch may have been torn inside; one before it cannot.
                if batches.rest().is_empty() {
                    return Ok(image);
                }
                return Err(bad(source));
            }
            self.epoch = self.epoch.max(batch.partition_leader_epoch());
            if !batch.is_control() {
                for record in batch.records(INFLATED_MAX).map_err(bad)? {
                    let record = record.map_err(bad)?;
                    let offset = record.offset.0;
                    let decoded = MetadataRecord::decode(record.value.unwrap_or_default()).map_err(
                        |source| MetadataLogError::Record { path: self.path.clone(), offset, source },
                    )?;
                    image.apply(offset, &decoded).map_err(|source| MetadataLogError::Apply {
                        path: self.path.clone(),
                        source,
                    })?;
                }
            }
            self.position += batch.total_size() as u64;
            self.next_offset = batch.last_offset().next();
        }
        Ok(image)
    }

    async fn write_epoch_files(&self, home: &Path, node: NodeId) -> io::Result<()> {
        let epoch = self.epoch.0;
        let checkpoint = format!("0\n1\n{epoch} {}\n", self.next_offset);
        rt::fs::write_atomic(home.join("leader-epoch-checkpoint"), checkpoint.into_bytes()).await?;
        let state = serde_json::json!({
            "clusterId": "",
            "leaderId": node.0,
            "leaderEpoch": epoch,
            "votedId": node.0,
            "appliedOffset": 0,
            "currentVoters": [{ "voterId": node.0 }],
            "data_version": 0,
        });
        rt::fs::write_atomic(home.join("quorum-state"), state.to_string().into_bytes()).await
    }
}

async fn write_partition_metadata(home: &Path) -> io::Result<()> {
    let path = home.join("partition.metadata");
    if rt::fs::exists(&path).await? {
        return Ok(());
    }
    let text = format!("version: 0\ntopic_id: {METADATA_TOPIC_ID}");
    rt::fs::write_atomic(path, text.into_bytes()).await
}

//! Snapshots of the metadata log: `<end offset>-<epoch>.checkpoint` with the records of an image
//! between a header and a footer (KIP-630). Pure; never touches the disk.

use super::metadata_log::MetadataLogError;
use super::record::MetadataRecord;
use crate::types::{LeaderEpoch, Offset};
use crate::wire::Message;
use crate::wire::batch_builder::{BatchBuilder, ControlType, control_batch};
use crate::wire::messages::snapshot_footer_record::SnapshotFooterRecord;
use crate::wire::messages::snapshot_header_record::SnapshotHeaderRecord;
use bytes::{Bytes, BytesMut};

/// Records of one batch, Kafka's limit.
pub const RECORDS_PER_BATCH_MAX: usize = 10_000;

/// A snapshot's name: everything below `end` is in it, `epoch` is that of the record before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotId {
    pub end: Offset,
    pub epoch: LeaderEpoch,
}

impl SnapshotId {
    /// What a cluster is formatted with, before its log has begun (KIP-1170).
    pub const BOOTSTRAP: SnapshotId = SnapshotId {
        end: Offset::ZERO,
        epoch: LeaderEpoch(0),
    };

    pub fn file_name(self) -> String {
        format!("{:020}-{:010}.checkpoint", self.end.0, self.epoch.0)
    }

    /// Reads a file's name; `None` if it is no complete snapshot.
    pub fn of_file(name: &str) -> Option<SnapshotId> {
        let (end, epoch) = name.strip_suffix(".checkpoint")?.split_once('-')?;
        if end.len() != 20 || epoch.len() != 10 {
            return None;
        }
        Some(SnapshotId {
            end: Offset(end.parse().ok()?),
            epoch: LeaderEpoch(epoch.parse().ok()?),
        })
    }
}

/// The bytes of a snapshot with these records, as of `timestamp_ms`.
pub fn encode(
    records: &[MetadataRecord],
    id: SnapshotId,
    timestamp_ms: i64,
) -> Result<Bytes, MetadataLogError> {
    let mut bytes = BytesMut::new();
    let mut offset = Offset::ZERO;
    let header = SnapshotHeaderRecord {
        last_contained_log_timestamp: timestamp_ms,
        ..Default::default()
    };
    let header = header.to_bytes(0)?;
    bytes.extend(control_batch(
        offset,
        id.epoch,
        timestamp_ms,
        &[(ControlType::SnapshotHeader, &header)],
    )?);
    offset = offset.next();
    for chunk in records.chunks(RECORDS_PER_BATCH_MAX) {
        let mut batch = BatchBuilder::new();
        (batch.base_offset, batch.leader_epoch) = (offset, id.epoch);
        for record in chunk {
            batch.append(timestamp_ms, None, Some(&record.encode()?), &[])?;
        }
        bytes.extend(batch.build()?);
        offset = Offset(offset.0 + chunk.len() as i64);
    }
    let footer = SnapshotFooterRecord::default().to_bytes(0)?;
    bytes.extend(control_batch(
        offset,
        id.epoch,
        timestamp_ms,
        &[(ControlType::SnapshotFooter, &footer)],
    )?);
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use super::super::replay::Replay;
    use super::*;
    use crate::wire::messages::topic_record::TopicRecord;

    #[test]
    fn a_snapshot_brings_its_records_back_and_stands_for_its_end() {
        let topic = |name: &str, id| {
            MetadataRecord::from(TopicRecord {
                name: name.into(),
                topic_id: crate::types::Uuid::from_halves(9, id),
                ..Default::default()
            })
        };
        let id = SnapshotId {
            end: Offset(100),
            epoch: LeaderEpoch(7),
        };
        let bytes = encode(&[topic("a", 1), topic("b", 2)], id, 5).unwrap();
        let replay = Replay::from_snapshot(bytes.clone(), id.end).unwrap();
        assert_eq!(replay.next_offset(), Offset(100));
        assert!(!replay.in_transaction() && replay.image().offset() == 99);
        assert_eq!(replay.image().topics().count(), 2);
        let cut = bytes.slice(..bytes.len() - 1);
        assert!(
            Replay::from_snapshot(cut, id.end).is_err(),
            "a cut snapshot is no snapshot"
        );
    }

    #[test]
    fn only_complete_snapshots_are_taken_for_snapshots() {
        let id = SnapshotId {
            end: Offset(2852),
            epoch: LeaderEpoch(4),
        };
        assert_eq!(id.file_name(), "00000000000000002852-0000000004.checkpoint");
        assert_eq!(SnapshotId::of_file(&id.file_name()), Some(id));
        for other in [
            "x.checkpoint",
            "00000000000000002852-0000000004.checkpoint.part",
            "leader-epoch-checkpoint",
        ] {
            assert_eq!(SnapshotId::of_file(other), None, "{other}");
        }
    }
}

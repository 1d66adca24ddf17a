//! The records of `__consumer_offsets` as bytes: what Kafka 4.4 writes and any version it may
//! have left behind. Pure. A key is its type (i16) and fields, a value its version (i16) and
//! fields; a missing value is a tombstone.

use bytes::Bytes;

use super::effects::CoordinatorRecord;
use super::group::Group;
use super::member::Member;
use super::offsets::OffsetAndMetadata;
use crate::wire::messages::group_metadata_key::GroupMetadataKey;
use crate::wire::messages::group_metadata_value::{GroupMetadataValue, MemberMetadata};
use crate::wire::messages::offset_commit_key::OffsetCommitKey;
use crate::wire::messages::offset_commit_value::OffsetCommitValue;
use crate::wire::{DecodeError, Message, Reader, Str, Writer};

/// Key types of the classic coordinator. Types 0 and 1 have the same shape; 0 is read only.
const LEGACY_OFFSET_COMMIT: i16 = 0;
const OFFSET_COMMIT: i16 = 1;
const GROUP_METADATA: i16 = 2;
/// Key types whose record says that a group of another protocol exists.
const CONSUMER_GROUP_METADATA: i16 = 3;
const SHARE_GROUP_METADATA: i16 = 11;
const STREAMS_GROUP_METADATA: i16 = 17;

/// Version 3 has instance ids; Kafka does not write the flexible version 4.
const GROUP_METADATA_VALUE: i16 = 3;
/// Version 4 has the topic id (Kafka 4.3 on).
const OFFSET_COMMIT_VALUE: i16 = 4;
/// The only version with an explicit expiry, for commits that carried a retention time.
const OFFSET_COMMIT_VALUE_WITH_EXPIRY: i16 = 1;

/// A group kind that is stored here but run by another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignKind {
    Consumer,
    Share,
    Streams,
}

/// What a record's key is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordKey {
    Offset {
        group: Str,
        topic: Str,
        partition: i32,
    },
    Group {
        group: Str,
    },
    Foreign {
        group: Str,
        kind: ForeignKind,
    },
    /// A type that is not ours to interpret; such records are left alone.
    Other,
}

impl RecordKey {
    /// Every string of the key.
    pub(super) fn names(&self) -> impl Iterator<Item = &Str> {
        let (group, topic) = match self {
            RecordKey::Offset { group, topic, .. } => (Some(group), Some(topic)),
            RecordKey::Group { group } | RecordKey::Foreign { group, .. } => (Some(group), None),
            RecordKey::Other => (None, None),
        };
        group.into_iter().chain(topic)
    }
}

pub(super) fn read_key(key: &Bytes) -> Result<RecordKey, DecodeError> {
    let mut reader = Reader::new(key.clone());
    let kind = reader.i16("type")?;
    // A key has version 0 whatever its type.
    Ok(match kind {
        LEGACY_OFFSET_COMMIT | OFFSET_COMMIT => {
            let key = OffsetCommitKey::decode(&mut reader, 0)?;
            RecordKey::Offset {
                group: key.group.detached(),
                topic: key.topic.detached(),
                partition: key.partition,
            }
        }
        GROUP_METADATA => {
            let key = GroupMetadataKey::decode(&mut reader, 0)?;
            RecordKey::Group {
                group: key.group.detached(),
            }
        }
        CONSUMER_GROUP_METADATA | SHARE_GROUP_METADATA | STREAMS_GROUP_METADATA => {
            let kind = match kind {
                CONSUMER_GROUP_METADATA => ForeignKind::Consumer,
                SHARE_GROUP_METADATA => ForeignKind::Share,
                _ => ForeignKind::Streams,
            };
            RecordKey::Foreign {
                group: reader.string(false, "group")?.detached(),
                kind,
            }
        }
        _ => RecordKey::Other,
    })
}

pub(super) fn read_offset(
    value: &Bytes,
    record_offset: i64,
) -> Result<OffsetAndMetadata, DecodeError> {
    let mut reader = Reader::new(value.clone());
    let version = reader.i16("version")?;
    let value = OffsetCommitValue::decode(&mut reader, version)?;
    Ok(OffsetAndMetadata {
        offset: value.offset,
        leader_epoch: value.leader_epoch,
        metadata: value.metadata.detached(),
        commit_ms: value.commit_timestamp,
        expire_ms: (value.expire_timestamp >= 0).then_some(value.expire_timestamp),
        topic_id: value.topic_id,
        record_offset,
    })
}

pub(super) fn read_group(value: &Bytes) -> Result<GroupMetadataValue, DecodeError> {
    let mut reader = Reader::new(value.clone());
    let version = reader.i16("version")?;
    GroupMetadataValue::decode(&mut reader, version)
}

pub(super) fn offset_commit(
    group: &Str,
    topic: &Str,
    partition: i32,
    value: &OffsetAndMetadata,
) -> CoordinatorRecord {
    let version = match value.expire_ms {
        Some(_) => OFFSET_COMMIT_VALUE_WITH_EXPIRY,
        None => OFFSET_COMMIT_VALUE,
    };
    let body = OffsetCommitValue {
        offset: value.offset,
        leader_epoch: value.leader_epoch,
        metadata: value.metadata.clone(),
        commit_timestamp: value.commit_ms,
        expire_timestamp: value.expire_ms.unwrap_or(-1),
        topic_id: value.topic_id,
        ..Default::default()
    };
    CoordinatorRecord {
        key: offset_key(group, topic, partition),
        value: Some(prefixed(version, version, &body)),
    }
}

pub(super) fn offset_tombstone(group: &Str, topic: &Str, partition: i32) -> CoordinatorRecord {
    CoordinatorRecord {
        key: offset_key(group, topic, partition),
        value: None,
    }
}

/// The group as it stands, with the given assignments.
pub(super) fn group_metadata(
    group: &Group,
    assignment_of: impl Fn(&Member) -> Bytes,
) -> CoordinatorRecord {
    let protocol = group.protocol_name.as_deref().unwrap_or_default();
    let members = group
        .members()
        .map(|member| MemberMetadata {
            member_id: member.id.clone(),
            group_instance_id: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            rebalance_timeout: member.rebalance_timeout_ms,
            session_timeout: member.session_timeout_ms,
            subscription: member.metadata(protocol),
            assignment: assignment_of(member),
            ..Default::default()
        })
        .collect();
    let body = GroupMetadataValue {
        protocol_type: group.protocol_type.clone().unwrap_or_default(),
        generation: group.generation,
        protocol: group.protocol_name.clone(),
        leader: group.leader.clone(),
        current_state_timestamp: group.state_since_ms.unwrap_or(-1),
        members,
        ..Default::default()
    };
    group_record(&group.id, &body)
}

/// The first record of a group: nothing in it yet.
pub(super) fn new_group_metadata(group: &Group) -> CoordinatorRecord {
    let body = GroupMetadataValue {
        protocol: None,
        leader: None,
        current_state_timestamp: group.state_since_ms.unwrap_or(-1),
        ..Default::default()
    };
    group_record(&group.id, &body)
}

pub(super) fn group_tombstone(group: &Str) -> CoordinatorRecord {
    CoordinatorRecord {
        key: group_key(group),
        value: None,
    }
}

fn group_record(group: &Str, body: &GroupMetadataValue) -> CoordinatorRecord {
    CoordinatorRecord {
        key: group_key(group),
        value: Some(prefixed(GROUP_METADATA_VALUE, GROUP_METADATA_VALUE, body)),
    }
}

fn group_key(group: &Str) -> Bytes {
    prefixed(
        GROUP_METADATA,
        0,
        &GroupMetadataKey {
            group: group.clone(),
            ..Default::default()
        },
    )
}

fn offset_key(group: &Str, topic: &Str, partition: i32) -> Bytes {
    let key = OffsetCommitKey {
        group: group.clone(),
        topic: topic.clone(),
        partition,
        ..Default::default()
    };
    prefixed(OFFSET_COMMIT, 0, &key)
}

fn prefixed<M: Message>(prefix: i16, version: i16, body: &M) -> Bytes {
    let mut writer = Writer::new();
    writer.i16(prefix);
    body.encode(&mut writer, version)
        .expect("strings longer than the wire allows are refused when they arrive or are replayed");
    writer.into_bytes()
}

//! From records to state: loading a partition of `__consumer_offsets`, and making the changes of
//! an append that succeeded. Part of the shard state machine on the core of the partition. It
//! reads batches that the log room has checked; it does no I/O.

use bytes::Bytes;

use super::appends::Change;
use super::group::Group;
use super::member::{Member, Protocol};
use super::records::{self, RecordKey};
use super::refusal::fits;
use super::shard_state::{GroupCoordinatorShard, Phase};
use crate::rt::Instant;
use crate::wire::batch::{Batch, BatchError};
use crate::wire::batch_builder::ControlType;
use crate::wire::messages::group_metadata_value::GroupMetadataValue;
use crate::wire::{DecodeError, Str};

/// The most a compressed batch may inflate to while loading: the largest batch the offsets topic
/// takes is 1 MiB, and group metadata compresses by less than a hundred.
const INFLATED_BATCH_BYTES_MAX: usize = 128 << 20;

/// A record of the offsets partition that cannot be understood; the partition cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("record at offset {offset}: {source}")]
    Record { offset: i64, source: DecodeError },
    /// Malformed UTF-8 grew beyond what a string can carry when it was read.
    #[error("record at offset {offset}: a name is too long to be written again")]
    Name { offset: i64 },
    #[error("batch at offset {offset}: {source}")]
    Batch { offset: i64, source: BatchError },
}

impl GroupCoordinatorShard {
    /// Replays one batch while loading. Records of unknown types, and records without a key, are
    /// passed over; a control batch ends its producer's transaction.
    pub fn replay_batch(&mut self, batch: &Batch) -> Result<(), ReplayError> {
        let view = batch.view();
        let base = view.base_offset().0;
        let producer_id = if view.is_transactional() {
            view.producer_id()
        } else {
            -1
        };
        let is_control = view.is_control();
        let batch_error = |source| ReplayError::Batch {
            offset: base,
            source,
        };
        for record in batch
            .records(INFLATED_BATCH_BYTES_MAX)
            .map_err(batch_error)?
        {
            let record = record.map_err(batch_error)?;
            let offset = record.offset.0;
            let Some(key) = record.key else { continue };
            if !is_control {
                self.replay_record(offset, producer_id, &key, record.value.as_ref())?;
                continue;
            }
            match ControlType::of_key(&key) {
                Some(ControlType::Commit) => self.complete_transaction(view.producer_id(), true),
                Some(ControlType::Abort) => self.complete_transaction(view.producer_id(), false),
                _ => {}
            }
        }
        Ok(())
    }

    /// Replays one record while loading. `producer_id` is -1 outside of transactions. Without
    /// effect if leadership was lost meanwhile.
    pub fn replay_record(
        &mut self,
        offset: i64,
        producer_id: i64,
        key: &Bytes,
        value: Option<&Bytes>,
    ) -> Result<(), ReplayError> {
        match self.phase {
            Phase::Loading => {}
            Phase::Active => panic!("records are replayed before commands are taken"),
            Phase::Unloaded => return Ok(()),
        }
        let malformed = |source| ReplayError::Record { offset, source };
        let key = records::read_key(key).map_err(malformed)?;
        if !key.names().all(|name| fits(name)) {
            return Err(ReplayError::Name { offset });
        }
        match (key, value) {
            (RecordKey::Other, _) => {}
            (
                RecordKey::Offset {
                    group,
                    topic,
                    partition,
                },
                Some(value),
            ) => {
                let value = records::read_offset(value, offset).map_err(malformed)?;
                if !fits(&value.metadata) {
                    return Err(ReplayError::Name { offset });
                }
                let change = Change::CommitOffset {
                    group,
                    topic,
                    partition,
                    value,
                };
                self.apply(change, producer_id, offset);
            }
            (
                RecordKey::Offset {
                    group,
                    topic,
                    partition,
                },
                None,
            ) => {
                self.apply(
                    Change::RemoveOffset {
                        group,
                        topic,
                        partition,
                    },
                    producer_id,
                    offset,
                );
            }
            (RecordKey::Group { group }, Some(value)) => {
                let value = records::read_group(value).map_err(malformed)?;
                if !names_of(&value).all(|name| fits(name)) {
                    return Err(ReplayError::Name { offset });
                }
                self.restore_group(group, value);
            }
            (RecordKey::Group { group }, None) => {
                self.groups.swap_remove(&group);
            }
            (RecordKey::Foreign { group, kind }, Some(_)) => {
                // A group has one protocol at a time; the later record says which.
                self.groups.swap_remove(&group);
                self.foreign.insert(group, kind);
            }
            (RecordKey::Foreign { group, .. }, None) => {
                self.foreign.remove(&group);
            }
        }
        Ok(())
    }

    /// The end of a producer's transaction, by its marker in this partition.
    pub fn complete_transaction(&mut self, producer_id: i64, committed: bool) {
        self.offsets.complete_transaction(producer_id, committed);
    }

    /// Makes the change of one record that stands at `offset`.
    pub(super) fn apply(&mut self, change: Change, producer_id: i64, offset: i64) {
        match change {
            Change::CommitOffset {
                group,
                topic,
                partition,
                mut value,
            } => {
                value.record_offset = offset;
                self.ensure_group(&group);
                if producer_id < 0 {
                    self.offsets.commit(&group, &topic, partition, value);
                } else {
                    self.offsets
                        .commit_pending(producer_id, &group, &topic, partition, value);
                }
            }
            Change::RemoveOffset {
                group,
                topic,
                partition,
            } => {
                self.offsets.remove(&group, &topic, partition);
            }
            Change::RemoveGroup { group } => {
                // A group of that id that a join has made since is another one.
                self.take_removing(&group);
            }
        }
    }

    /// Offsets without a group make a simple one: no members, no protocol.
    fn ensure_group(&mut self, id: &Str) {
        let exists = self.groups.contains_key(id)
            || self.removing.contains_key(id)
            || self.foreign.contains_key(id);
        if !exists {
            let birth = self.next_birth();
            let mut group = Group::new(id.clone(), birth, 0);
            group.state_since_ms = None;
            group.is_durable = true;
            self.groups.insert(id.clone(), group);
        }
    }

    fn restore_group(&mut self, id: Str, value: GroupMetadataValue) {
        self.foreign.remove(&id);
        let protocol = value.protocol.map(|name| name.detached());
        let members = value.members.into_iter().map(|member| Member {
            id: member.member_id.detached(),
            instance: member.group_instance_id.map(|id| id.detached()),
            client_id: member.client_id.detached(),
            client_host: member.client_host.detached(),
            // Version 0 had one time-out for both.
            rebalance_timeout_ms: match member.rebalance_timeout {
                -1 => member.session_timeout,
                timeout => timeout,
            },
            session_timeout_ms: member.session_timeout,
            protocols: vec![Protocol {
                name: protocol.clone().unwrap_or_default(),
                metadata: Bytes::copy_from_slice(&member.subscription),
            }],
            assignment: Bytes::copy_from_slice(&member.assignment),
            join: None,
            sync: None,
            is_new: false,
            deadline: Instant::default(),
            timer: None,
        });
        let birth = self.next_birth();
        let mut group = Group::restored(id.clone(), birth, members.collect());
        group.generation = value.generation;
        group.protocol_type =
            (!value.protocol_type.is_empty()).then(|| value.protocol_type.detached());
        group.protocol_name = protocol;
        if let Some(leader) = value.leader.filter(|leader| group.has_member(leader)) {
            group.leader = Some(leader.detached());
        }
        let since_ms = value.current_state_timestamp;
        group.state_since_ms = (since_ms != -1).then_some(since_ms);
        group.subscribed_topics = group.read_subscriptions();
        self.groups.insert(id, group);
    }
}

/// Every string of a group's record.
fn names_of(value: &GroupMetadataValue) -> impl Iterator<Item = &Str> {
    let members = value.members.iter().flat_map(|member| {
        let plain = [&member.member_id, &member.client_id, &member.client_host];
        plain.into_iter().chain(&member.group_instance_id)
    });
    std::iter::once(&value.protocol_type)
        .chain(&value.protocol)
        .chain(&value.leader)
        .chain(members)
}

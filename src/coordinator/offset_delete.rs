//! OffsetDelete (0), and the end of a topic's offsets when it is deleted. Part of the shard state
//! machine on the core of the group's partition. It writes tombstones; what they remove goes when
//! they are in the log.

use super::appends::Change;
use super::effects::{Call, Clock, Effect, Effects, ReplyToken, Response};
use super::group::GroupState;
use super::offset_commit::TopicLookup;
use super::refusal;
use super::shard_state::GroupCoordinatorShard;
use crate::types::Uuid;
use crate::wire::messages::offset_delete_request::OffsetDeleteRequest;
use crate::wire::messages::offset_delete_response::{
    OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use crate::wire::{ErrorCode, Str};

impl GroupCoordinatorShard {
    /// Answers `token` once the tombstones are stored, or at once.
    pub fn offset_delete(
        &mut self,
        call: &Call<'_>,
        request: OffsetDeleteRequest,
        topics: &dyn TopicLookup,
        token: ReplyToken,
    ) -> Effects {
        let mut out = Effects::new();
        let refused = if request.group_id.is_empty() {
            Some(ErrorCode::INVALID_GROUP_ID)
        } else {
            self.refusal()
                .or_else(|| self.refuse_offset_delete(&request.group_id))
        };
        if let Some(error) = refused {
            let response = Response::OffsetDelete(refusal::offset_delete(error));
            out.push(Effect::Reply(token, response));
            return out;
        }
        let group_id = request.group_id.detached();
        let mut response = OffsetDeleteResponse::default();
        let mut changes = Vec::new();
        for topic in &request.topics {
            let is_subscribed = self
                .groups
                .get(&group_id)
                .is_some_and(|group| group.is_subscribed_to(&topic.name));
            let name = topic.name.detached();
            let mut answers = Vec::with_capacity(topic.partitions.len());
            for partition in &topic.partitions {
                let index = partition.partition_index;
                let error = if !topics.may_read(&name) {
                    ErrorCode::TOPIC_AUTHORIZATION_FAILED
                } else if !topics.has_partition(&name, index) {
                    ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
                } else if is_subscribed {
                    ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC
                } else {
                    ErrorCode::NONE
                };
                if error == ErrorCode::NONE && self.offsets.knows(&group_id, &name, index) {
                    changes.push(Change::RemoveOffset {
                        group: group_id.clone(),
                        topic: name.clone(),
                        partition: index,
                    });
                }
                answers.push(OffsetDeleteResponsePartition {
                    partition_index: index,
                    error_code: error.0,
                    ..Default::default()
                });
            }
            response.topics.push(OffsetDeleteResponseTopic {
                name: topic.name.clone(),
                partitions: answers,
                ..Default::default()
            });
        }
        let reply = Some((token, Response::OffsetDelete(response)));
        self.write(changes, None, false, reply, call.clock, &mut out);
        out
    }

    /// Topics were deleted: their offsets go too, unless they carry another topic's id (the
    /// topic was created again under its name).
    pub fn on_topics_deleted(&mut self, deleted: &[(Uuid, Str)], clock: Clock) -> Effects {
        let mut out = Effects::new();
        if self.refusal().is_some() {
            return out;
        }
        let mut changes = Vec::new();
        for (id, topic) in deleted {
            let topic = topic.detached();
            for (group, partition) in self.offsets.of_topic(&topic, *id) {
                changes.push(Change::RemoveOffset {
                    group,
                    topic: topic.clone(),
                    partition,
                });
            }
        }
        self.write(changes, None, false, None, clock, &mut out);
        out
    }

    fn refuse_offset_delete(&self, group: &Str) -> Option<ErrorCode> {
        if self.foreign.contains_key(group) {
            return Some(ErrorCode::NON_EMPTY_GROUP);
        }
        let Some(group) = self.groups.get(group) else {
            return Some(ErrorCode::GROUP_ID_NOT_FOUND);
        };
        let is_in_use = !group.is_in(GroupState::Empty) && !group.uses_consumer_protocol();
        is_in_use.then_some(ErrorCode::NON_EMPTY_GROUP)
    }
}

//! AlterPartition (key 56, v2-3): a leader asks for another in-sync set. Pure: the image and the
//! request in; records and the answer out.

use super::draft::{Draft, as_registered};
use super::heartbeat::check_epoch;
use super::image::Image;
use super::partition_change::{RECOVERED, RECOVERING};
use super::record::MetadataRecord;
use super::topics::PartitionRegistration;
use crate::config::BrokerConfig;
use crate::types::{NodeId, PartitionId};
use crate::wire::ErrorCode;
use crate::wire::messages::alter_partition_request as asked;
use crate::wire::messages::alter_partition_response::{
    AlterPartitionResponse, PartitionData, TopicData,
};

/// First version whose members come with their broker epochs.
const EPOCHS_VERSION: i16 = 3;
/// A member's epoch that is not to be compared.
const ANY_EPOCH: i64 = -1;

pub(super) fn refused(error: ErrorCode) -> AlterPartitionResponse {
    AlterPartitionResponse {
        error_code: error.0,
        ..Default::default()
    }
}

pub(super) fn decide(
    image: &Image,
    config: &BrokerConfig,
    request: &asked::AlterPartitionRequest,
    version: i16,
) -> (Vec<MetadataRecord>, AlterPartitionResponse) {
    if request.topics.is_empty() {
        return (Vec::new(), AlterPartitionResponse::default());
    }
    let sender = NodeId(request.broker_id);
    if let Err(error) = check_epoch(image, sender, request.broker_epoch) {
        return (Vec::new(), refused(error));
    }
    let mut draft = Draft::new(image, config);
    let mut response = AlterPartitionResponse::default();
    for topic in &request.topics {
        let partitions = topic.partitions.iter().map(|wanted| {
            let id = PartitionId {
                topic: topic.topic_id,
                index: wanted.partition_index,
            };
            let told = alter(&mut draft, sender, id, wanted, version);
            told.unwrap_or_else(|error| PartitionData {
                partition_index: wanted.partition_index,
                error_code: error.0,
                ..Default::default()
            })
        });
        response.topics.push(TopicData {
            topic_id: topic.topic_id,
            partitions: partitions.collect(),
            ..Default::default()
        });
    }
    (draft.into_records(), response)
}

fn alter(
    draft: &mut Draft<'_>,
    sender: NodeId,
    id: PartitionId,
    wanted: &asked::PartitionData,
    version: i16,
) -> Result<PartitionData, ErrorCode> {
    let members: Vec<(NodeId, i64)> = if version >= EPOCHS_VERSION {
        let with_epochs = wanted.new_isr_with_epochs.iter();
        with_epochs
            .map(|member| (NodeId(member.broker_id), member.broker_epoch))
            .collect()
    } else {
        let plain = wanted.new_isr.iter();
        plain.map(|member| (NodeId(*member), ANY_EPOCH)).collect()
    };
    if draft.image().topic_by_id(id.topic).is_none() {
        return Err(ErrorCode::UNKNOWN_TOPIC_ID);
    }
    let Some((_, before)) = draft.partition(id) else {
        return Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    };
    let before = before.clone();
    check(&before, sender, wanted, &members)?;
    if !members
        .iter()
        .all(|member| is_eligible(draft.image(), *member))
    {
        tracing::debug!(topic = %id.topic, partition = id.index, ?members, "a replica may not be in sync");
        return Err(ErrorCode::INELIGIBLE_REPLICA);
    }
    let election = draft.election(id);
    let changed = draft.change(id, &as_registered, |change| {
        change.election = election;
        change.isr = members.iter().map(|(node, _)| *node).collect();
        change.recovery_state = wanted.leader_recovery_state;
    });
    let after = changed.unwrap_or_else(|| before.clone());
    // Only the end of a reassignment moves the leader; the change is made all the same.
    if after.leader != before.leader {
        return Err(ErrorCode::NEW_LEADER_ELECTED);
    }
    Ok(PartitionData {
        partition_index: id.index,
        leader_id: after.leader.0,
        leader_epoch: after.leader_epoch.0,
        isr: after.isr.iter().map(|node| node.0).collect(),
        leader_recovery_state: after.leader_recovery_state,
        partition_epoch: after.partition_epoch.0,
        ..Default::default()
    })
}

/// Kafka's checks of one partition, in its order. A sender that knows more than this controller
/// is told to look for another one.
fn check(
    partition: &PartitionRegistration,
    sender: NodeId,
    wanted: &asked::PartitionData,
    members: &[(NodeId, i64)],
) -> Result<(), ErrorCode> {
    let leader_epoch = partition.leader_epoch.0;
    let partition_epoch = partition.partition_epoch.0;
    if wanted.leader_epoch > leader_epoch || wanted.partition_epoch > partition_epoch {
        return Err(ErrorCode::NOT_CONTROLLER);
    }
    if wanted.leader_epoch < leader_epoch {
        return Err(ErrorCode::FENCED_LEADER_EPOCH);
    }
    if sender != partition.leader {
        return Err(ErrorCode::INVALID_REQUEST);
    }
    if wanted.partition_epoch < partition_epoch {
        return Err(ErrorCode::INVALID_UPDATE_VERSION);
    }
    let mut ids: Vec<NodeId> = members.iter().map(|(node, _)| *node).collect();
    ids.sort_unstable();
    let is_subset = ids.iter().all(|id| partition.replicas.contains(id));
    let has_double = ids.windows(2).any(|pair| pair[0] == pair[1]);
    let state = wanted.leader_recovery_state;
    let is_sound = is_subset
        && !has_double
        && ids.contains(&partition.leader)
        && matches!(state, RECOVERED | RECOVERING)
        && !(state == RECOVERING && ids.len() > 1)
        && !(state == RECOVERING && partition.leader_recovery_state == RECOVERED);
    match is_sound {
        true => Ok(()),
        false => Err(ErrorCode::INVALID_REQUEST),
    }
}

fn is_eligible(image: &Image, (node, epoch): (NodeId, i64)) -> bool {
    image
        .broker(node)
        .is_some_and(|broker| broker.is_active() && (epoch == ANY_EPOCH || epoch == broker.epoch.0))
}

#[cfg(test)]
#[path = "alter_partition_tests.rs"]
mod tests;

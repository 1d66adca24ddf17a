//! AlterPartitionReassignments (key 45, v0-1) and ListPartitionReassignments (46, v0): replicas on
//! their way to other brokers. Pure: the image and the request in; records and answers out. When a
//! reassignment has come to its end is decided in `partition_change`.
//!
//! While it is under way a partition's replicas are the wanted ones, in their order, and behind
//! them those that will go. `adding` are all that were not there at the beginning, so that a
//! reassignment can be undone even when another one has taken its place; one that was added then
//! and is not wanted now is in both lists.

use super::assignment::check_assignment;
use super::directories::Placement;
use super::draft::{Draft, as_registered};
use super::image::Image;
use super::partition_change::RECOVERING;
use super::record::MetadataRecord;
use super::topic_admin::{Refusal, refuse};
use super::topics::{PartitionRegistration, Topic};
use crate::config::BrokerConfig;
use crate::types::{NodeId, PartitionId};
use crate::wire::messages::alter_partition_reassignments_request::AlterPartitionReassignmentsRequest;
use crate::wire::messages::alter_partition_reassignments_response::{
    AlterPartitionReassignmentsResponse, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use crate::wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsRequest;
use crate::wire::messages::list_partition_reassignments_response::{
    ListPartitionReassignmentsResponse, OngoingPartitionReassignment, OngoingTopicReassignment,
};
use crate::wire::{ErrorCode, Str};

pub(super) fn decide(
    image: &Image,
    config: &BrokerConfig,
    request: &AlterPartitionReassignmentsRequest,
) -> (Vec<MetadataRecord>, AlterPartitionReassignmentsResponse) {
    let mut draft = Draft::new(image, config);
    let mut response = AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        ..Default::default()
    };
    for topic in &request.topics {
        let mut partitions = Vec::new();
        for wanted in &topic.partitions {
            let decided = alter(
                &mut draft,
                &topic.name,
                wanted.partition_index,
                wanted.replicas.as_deref(),
                request.allow_replication_factor_change,
            );
            let (error, why) = decided.err().unwrap_or((ErrorCode::NONE, None));
            partitions.push(ReassignablePartitionResponse {
                partition_index: wanted.partition_index,
                error_code: error.0,
                error_message: why.map(Str::from),
                ..Default::default()
            });
        }
        response.responses.push(ReassignableTopicResponse {
            name: topic.name.clone(),
            partitions,
            ..Default::default()
        });
    }
    (draft.into_records(), response)
}

/// One partition: new replicas, or none to undo what is under way.
fn alter(
    draft: &mut Draft<'_>,
    name: &str,
    index: i32,
    replicas: Option<&[i32]>,
    factor_may_change: bool,
) -> Result<(), Refusal> {
    let unknown = |what: String| {
        let why = format!("Unable to find {what}.");
        (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, Some(why))
    };
    let topic = draft.image().topic_by_name(name);
    let topic = topic.ok_or_else(|| unknown(format!("a topic named {name}")))?;
    let partition = topic.partition(index);
    let partition = partition.ok_or_else(|| unknown(format!("partition {name}:{index}")))?;
    let id = PartitionId {
        topic: topic.id,
        index,
    };
    let partition = partition.clone();
    match replicas {
        Some(wanted) => change(draft, id, &partition, wanted, factor_may_change),
        None => cancel(draft, name, id, &partition),
    }
}

fn change(
    draft: &mut Draft<'_>,
    id: PartitionId,
    before: &PartitionRegistration,
    wanted: &[i32],
    factor_may_change: bool,
) -> Result<(), Refusal> {
    let wanted = check_assignment(draft.image(), wanted, None)?;
    let original = original(before);
    let staying = before
        .replicas
        .iter()
        .filter(|id| !before.removing.contains(id))
        .count();
    if !factor_may_change && wanted.len() != staying {
        return refuse(
            ErrorCode::INVALID_REPLICATION_FACTOR,
            format!(
                "The replication factor is changed from {staying} to {}",
                wanted.len()
            ),
        );
    }
    let mut removing: Vec<NodeId> = before.replicas.clone();
    removing.retain(|id| !wanted.contains(id));
    removing.sort_unstable();
    let replicas: Vec<NodeId> = wanted.iter().chain(&removing).copied().collect();
    let mut adding = replicas.clone();
    adding.retain(|id| !original.contains(id));
    adding.sort_unstable();
    let mut placement = Placement::new(draft.image());
    let directories: Vec<_> = replicas
        .iter()
        .filter(|id| !before.replicas.contains(id))
        .map(|id| (*id, placement.choose(*id)))
        .collect();
    draft.change(id, &as_registered, |change| {
        change.replicas = replicas;
        change.removing = removing;
        change.adding = adding;
        change.directories = directories;
    });
    Ok(())
}

fn cancel(
    draft: &mut Draft<'_>,
    name: &str,
    id: PartitionId,
    before: &PartitionRegistration,
) -> Result<(), Refusal> {
    if !before.is_reassigning() {
        let error = ErrorCode::NO_REASSIGNMENT_IN_PROGRESS;
        return refuse(error, error.message());
    }
    let replicas = original(before);
    let mut isr = before.isr.clone();
    isr.retain(|id| !before.adding.contains(id));
    // Everybody in sync goes: one of those that stay leads, though it may lack records.
    let is_unclean = isr.is_empty() && !before.isr.is_empty();
    if is_unclean {
        let image = draft.image();
        let allowed = image
            .topic_by_id(id.topic)
            .is_some_and(|topic| draft.allows_unclean(topic));
        let mut staying = replicas.iter();
        match staying.find(|id| allowed && image.can_lead(**id)) {
            Some(leader) => isr.push(*leader),
            None => {
                return refuse(
                    ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                    format!(
                        "Unable to revert partition assignment for {name}:{} because it would require an unclean leader election.",
                        id.index
                    ),
                );
            }
        }
    }
    let election = draft.election(id);
    draft.change(id, &as_registered, |change| {
        change.election = election;
        change.isr = isr;
        change.replicas = replicas;
        change.removing = Vec::new();
        change.adding = Vec::new();
        if is_unclean {
            change.recovery_state = RECOVERING;
        }
    });
    Ok(())
}

/// The replicas before the reassignment that is under way.
fn original(partition: &PartitionRegistration) -> Vec<NodeId> {
    let mut replicas = partition.replicas.clone();
    replicas.retain(|id| !partition.adding.contains(id));
    replicas
}

pub(super) fn list(
    image: &Image,
    request: &ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    let mut response = ListPartitionReassignmentsResponse::default();
    match &request.topics {
        None => response
            .topics
            .extend(image.topics().filter_map(|topic| ongoing(topic, None))),
        Some(asked) => {
            for asked in asked {
                let topic = image.topic_by_name(&asked.name);
                response
                    .topics
                    .extend(topic.and_then(|topic| ongoing(topic, Some(&asked.partition_indexes))));
            }
        }
    }
    response
}

/// The partitions of a topic that are being reassigned; `None` if none is.
fn ongoing(topic: &Topic, only: Option<&[i32]>) -> Option<OngoingTopicReassignment> {
    let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect();
    let partitions: Vec<_> = topic
        .partitions()
        .filter(|(index, _)| only.is_none_or(|only| only.contains(index)))
        .filter(|(_, partition)| partition.is_reassigning())
        .map(
            |(partition_index, partition)| OngoingPartitionReassignment {
                partition_index,
                replicas: ids(&partition.replicas),
                adding_replicas: ids(&partition.adding),
                removing_replicas: ids(&partition.removing),
                ..Default::default()
            },
        )
        .collect();
    (!partitions.is_empty()).then(|| OngoingTopicReassignment {
        name: topic.name.clone(),
        partitions,
        ..Default::default()
    })
}

#[cfg(test)]
#[path = "reassignment_tests.rs"]
mod tests;

//! Replicas of new partitions: whether those that a request assigns can be, and the record that
//! registers them. Pure. Where replicas go that no request assigns is in `placement`.

use super::directories::Placement;
use super::image::Image;
use super::record::MetadataRecord;
use super::topic_admin::{Refusal, refuse};
use crate::types::{NodeId, Uuid};
use crate::wire::ErrorCode;
use crate::wire::messages::partition_record::PartitionRecord;
use ahash::AHashSet;

/// One partition's replicas as a request assigns them. `factor`: how many the others have.
pub(super) fn check_replicas(
    image: &Image,
    partition: i32,
    ids: &[i32],
    factor: Option<usize>,
) -> Result<Vec<NodeId>, Refusal> {
    let replicas = check_assignment(image, ids, factor)?;
    if !replicas.iter().any(|id| image.can_lead(*id)) {
        return refuse(
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
            format!(
                "All brokers specified in the manual partition assignment for partition {partition} are fenced or in controlled shutdown."
            ),
        );
    }
    Ok(replicas)
}

/// As [`check_replicas`]; whether one of them lives does not matter.
pub(super) fn check_assignment(
    image: &Image,
    ids: &[i32],
    factor: Option<usize>,
) -> Result<Vec<NodeId>, Refusal> {
    let refused = |why: String| refuse(ErrorCode::INVALID_REPLICA_ASSIGNMENT, why);
    if ids.is_empty() {
        return refused("The manual partition assignment includes an empty replica list.".into());
    }
    let mut seen = AHashSet::new();
    for id in ids {
        let Some(broker) = image.broker(NodeId(*id)) else {
            return refused(format!(
                "The manual partition assignment includes broker {id}, but no such broker is registered."
            ));
        };
        if !broker.takes_new_replicas() {
            return refused(format!(
                "The manual partition assignment includes broker {id}, but all its log directories are cordoned."
            ));
        }
        if !seen.insert(*id) {
            return refused(format!(
                "The manual partition assignment includes the broker {id} more than once."
            ));
        }
    }
    if let Some(factor) = factor.filter(|factor| *factor != ids.len()) {
        return refused(format!(
            "The manual partition assignment includes a partition with {} replica(s), but this is not consistent with previous partitions, which have {factor} replica(s).",
            ids.len()
        ));
    }
    Ok(ids.iter().map(|id| NodeId(*id)).collect())
}

/// A new partition: in sync are the replicas whose brokers live, and the first of them leads.
pub(super) fn partition_record(
    image: &Image,
    topic_id: Uuid,
    partition_id: i32,
    replicas: &[NodeId],
    placement: &mut Placement<'_>,
) -> MetadataRecord {
    let isr: Vec<i32> = replicas
        .iter()
        .filter(|id| image.can_lead(**id))
        .map(|id| id.0)
        .collect();
    MetadataRecord::from(PartitionRecord {
        partition_id,
        topic_id,
        leader: isr.first().copied().unwrap_or(-1),
        isr,
        directories: replicas
            .iter()
            .map(|node| placement.choose(*node))
            .collect(),
        replicas: replicas.iter().map(|node| node.0).collect(),
        leader_epoch: 0,
        partition_epoch: 0,
        ..Default::default()
    })
}

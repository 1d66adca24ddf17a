//! Brokers that come and go: what fencing, unfencing, controlled shutdown, a new incarnation, the
//! loss of a directory and unregistration change in the partitions, and the leaders that follow.
//! Pure: adds its records to a draft.

use super::draft::{Draft, as_registered};
use super::image::Image;
use super::partition_change::Election;
use super::record::MetadataRecord;
use crate::types::{BrokerEpoch, NodeId, PartitionId, Uuid};
use crate::wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;
use crate::wire::messages::unregister_broker_record::UnregisterBrokerRecord;

/// BrokerRegistrationChangeRecord.fenced.
const FENCE: i8 = 1;
const UNFENCE: i8 = -1;

fn registration_change(image: &Image, node: NodeId) -> BrokerRegistrationChangeRecord {
    let epoch = image.broker(node).map_or(BrokerEpoch(-1), |one| one.epoch);
    BrokerRegistrationChangeRecord {
        broker_id: node.0,
        broker_epoch: epoch.0,
        ..Default::default()
    }
}

/// A broker is fenced: it leaves every in-sync set, and others lead what it led.
pub(super) fn fence(draft: &mut Draft<'_>, node: NodeId) {
    let Some(broker) = draft.image().broker(node) else {
        return;
    };
    let is_new = !broker.fenced;
    let in_sync = draft.partitions(|partition| partition.isr.contains(&node));
    leave(draft, node, &in_sync);
    if is_new {
        draft.push(BrokerRegistrationChangeRecord {
            fenced: FENCE,
            ..registration_change(draft.image(), node)
        });
    }
}

/// A broker takes part again: partitions that nobody leads may have found their leader.
pub(super) fn unfence(draft: &mut Draft<'_>, node: NodeId) {
    draft.push(BrokerRegistrationChangeRecord {
        fenced: UNFENCE,
        ..registration_change(draft.image(), node)
    });
    for id in draft.partitions(|partition| !partition.has_leader()) {
        let election = draft.election(id);
        draft.change(id, &as_registered, |change| change.election = election);
    }
}

/// A broker is about to stop: it still serves, but others take its leaderships.
pub(super) fn shut_down(draft: &mut Draft<'_>, node: NodeId) {
    let Some(broker) = draft.image().broker(node) else {
        return;
    };
    if !broker.in_controlled_shutdown {
        draft.push(BrokerRegistrationChangeRecord {
            in_controlled_shutdown: 1,
            ..registration_change(draft.image(), node)
        });
    }
    let in_sync = draft.partitions(|partition| partition.isr.contains(&node));
    leave(draft, node, &in_sync);
}

/// An earlier incarnation of a broker has ended. Unless it ended cleanly it may have lost records
/// that it had acknowledged, and, where eligible leader replicas are kept, it is in no set any more.
pub(super) fn end_incarnation(draft: &mut Draft<'_>, node: NodeId, was_clean: bool) {
    if was_clean || !draft.keeps_eligible() {
        let in_sync = draft.partitions(|partition| partition.isr.contains(&node));
        leave(draft, node, &in_sync);
    } else {
        leave_for_good(draft, node);
    }
}

/// A broker is taken off the list; it is in no set any more.
pub(super) fn unregister(draft: &mut Draft<'_>, node: NodeId) {
    let Some(broker) = draft.image().broker(node) else {
        return;
    };
    let record = UnregisterBrokerRecord {
        broker_id: node.0,
        broker_epoch: broker.epoch.0,
        ..Default::default()
    };
    leave_for_good(draft, node);
    draft.push(record);
}

/// Log directories of a broker are offline: it has lost, for now, the replicas in them.
pub(super) fn lose_directories(draft: &mut Draft<'_>, node: NodeId, offline: &[Uuid]) {
    let Some(broker) = draft.image().broker(node) else {
        return;
    };
    let (lost, left): (Vec<Uuid>, Vec<Uuid>) = broker
        .log_dirs
        .iter()
        .partition(|directory| offline.contains(directory));
    if lost.is_empty() {
        return;
    }
    let held = draft.partitions(|partition| {
        partition.replicas.contains(&node) && lost.contains(&partition.directory(node))
    });
    leave(draft, node, &held);
    // A broker without directories ends by itself; a record without any would say "no change".
    if !left.is_empty() {
        draft.push(BrokerRegistrationChangeRecord {
            log_dirs: left,
            ..registration_change(draft.image(), node)
        });
    }
}

/// The directories that take no new replicas; `None`: the broker does not say.
pub(super) fn cordon(draft: &mut Draft<'_>, node: NodeId, cordoned: Option<&[Uuid]>) {
    let (Some(cordoned), Some(broker)) = (cordoned, draft.image().broker(node)) else {
        return;
    };
    let sorted = |dirs: &[Uuid]| {
        let mut dirs = dirs.to_vec();
        dirs.sort_unstable();
        dirs
    };
    if sorted(cordoned) != sorted(&broker.cordoned_dirs) {
        draft.push(BrokerRegistrationChangeRecord {
            cordoned_log_dirs: Some(cordoned.to_vec()),
            ..registration_change(draft.image(), node)
        });
    }
}

/// `node` leaves the in-sync sets of these partitions and leads none of them.
pub(super) fn leave(draft: &mut Draft<'_>, node: NodeId, partitions: &[PartitionId]) {
    let lives = |image: &Image, other: NodeId| other != node && image.can_lead(other);
    for id in partitions {
        let election = draft.election(*id);
        draft.change(*id, &lives, |change| {
            change.election = election;
            change.isr.retain(|member| *member != node);
        });
    }
}

/// `node` leaves the in-sync and the eligible replicas everywhere: what it holds may lack records.
fn leave_for_good(draft: &mut Draft<'_>, node: NodeId) {
    let lives = |image: &Image, other: NodeId| other != node && image.can_lead(other);
    let concerned = draft
        .partitions(|partition| partition.isr.contains(&node) || partition.elr.contains(&node));
    for id in concerned {
        let election = draft.election(id);
        draft.change(id, &lives, |change| {
            change.election = election;
            change.unclean_shutdown = Some(node);
            change.isr.retain(|member| *member != node);
        });
    }
}

/// Leaders for partitions without one, where any replica may lead; at most `most` of them.
pub(super) fn elect_unclean(draft: &mut Draft<'_>, most: usize) {
    for id in draft.partitions(|partition| !partition.has_leader()) {
        if draft.len() >= most {
            return;
        }
        if draft.election(id) != Election::Unclean {
            continue;
        }
        let elected = draft.change(id, &as_registered, |change| {
            change.election = Election::Unclean;
        });
        if let Some(partition) = elected {
            tracing::warn!(topic = %id.topic, partition = id.index, leader = partition.leader.0, "a replica leads that was not in sync: records may be lost");
        }
    }
}

/// Leaderships go back to the first replica of each partition; at most `most` of them.
pub(super) fn elect_preferred(draft: &mut Draft<'_>, most: usize) {
    for id in draft.partitions(|partition| !partition.has_preferred_leader()) {
        if draft.len() >= most {
            return;
        }
        draft.change(id, &as_registered, |change| {
            change.election = Election::Preferred;
        });
    }
}

/// The records of a draft that `decide` fills.
pub(super) fn records_of(
    image: &Image,
    config: &crate::config::BrokerConfig,
    decide: impl FnOnce(&mut Draft<'_>),
) -> Vec<MetadataRecord> {
    let mut draft = Draft::new(image, config);
    decide(&mut draft);
    draft.into_records()
}

#[cfg(test)]
#[path = "fencing_tests.rs"]
mod tests;

//! The ends of transactions: writes their markers to the partitions that this broker leads, as
//! their coordinator asks (WriteTxnMarkers). Starts on any shard; each marker is appended on the
//! owner of its partition, and answered when it is committed. Never asks whether a transaction is
//! open here: a marker for a producer that is not known is written all the same.
//!
//! On a partition of `__consumer_offsets` the group coordinator writes the marker, because it has
//! to show or drop the transaction's offsets when the marker is committed.

use super::Shard;
use super::append::Round;
use super::mesh::{LocalFuture, Place};
use crate::cluster::OFFSETS_TOPIC;
use crate::log::{AppendAs, Origin};
use crate::replica::partition::Partition;
use crate::rt;
use crate::rt::sync::oneshot;
use crate::types::PartitionId;
use crate::wire::batch_builder::{BuildError, end_txn_marker};
use crate::wire::messages::write_txn_markers_request::{WritableTxnMarker, WriteTxnMarkersRequest};
use crate::wire::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
};
use crate::wire::{ErrorCode, Str};
use bytes::Bytes;
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How one transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    producer_id: i64,
    producer_epoch: i16,
    committed: bool,
    coordinator_epoch: i32,
    transaction_version: i16,
}

impl End {
    fn of(marker: &WritableTxnMarker) -> End {
        End {
            producer_id: marker.producer_id,
            producer_epoch: marker.producer_epoch,
            committed: marker.transaction_result,
            coordinator_epoch: marker.coordinator_epoch,
            transaction_version: i16::from(marker.transaction_version),
        }
    }

    fn batch(&self, now_ms: i64) -> Result<Bytes, BuildError> {
        end_txn_marker(
            self.producer_id,
            self.producer_epoch,
            self.committed,
            self.coordinator_epoch,
            now_ms,
        )
    }

    fn append_as(&self, now_ms: i64) -> AppendAs {
        AppendAs {
            transaction_version: self.transaction_version,
            ..AppendAs::new(Origin::Coordinator, i16::MAX, now_ms)
        }
    }
}

/// A marker on its way to a partition.
struct Part {
    slot: usize,
    partition: PartitionId,
    end: End,
}

/// What is asked of one partition, in the order of the request.
struct Slot {
    producer_id: i64,
    topic: Str,
    index: i32,
    /// What the partition's owner says; nothing before, or if it is gone.
    outcome: Option<ErrorCode>,
}

impl Shard {
    /// Writes the markers and waits until they are committed, for `request.timeout.ms` at most.
    pub async fn write_txn_markers(
        self: &Rc<Self>,
        request: WriteTxnMarkersRequest,
    ) -> WriteTxnMarkersResponse {
        let mut slots = Vec::new();
        let mut by_owner: BTreeMap<Place, Vec<Part>> = BTreeMap::new();
        for marker in &request.markers {
            let end = End::of(marker);
            for topic in &marker.topics {
                let id = self.topic_id(&topic.name);
                for index in topic.partition_indexes.iter().copied() {
                    if let Some(topic) = id {
                        let partition = PartitionId { topic, index };
                        let owner = self.owner(partition);
                        by_owner.entry(owner).or_default().push(Part {
                            slot: slots.len(),
                            partition,
                            end,
                        });
                    }
                    slots.push(Slot {
                        producer_id: end.producer_id,
                        topic: topic.name.clone(),
                        index,
                        outcome: id
                            .is_none()
                            .then_some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
                    });
                }
            }
        }
        let calls = by_owner.into_iter().map(|(owner, parts)| {
            let write = move |shard: Rc<Shard>| shard.write_markers_here(parts);
            self.clone().on(owner, write)
        });
        for (slot, error) in rt::join_all(calls).await.into_iter().flatten().flatten() {
            slots[slot].outcome = Some(error);
        }
        respond(slots)
    }

    /// Appends the markers now, in order; the future waits until they are committed.
    fn write_markers_here(
        self: Rc<Self>,
        parts: Vec<Part>,
    ) -> LocalFuture<Vec<(usize, ErrorCode)>> {
        let now_ms = rt::wall_ms();
        let limit = Duration::from_millis(self.node.config.request_timeout_ms);
        let mut round = Round::new(-1, parts.len());
        let mut answers = Vec::with_capacity(parts.len());
        let mut of_groups = Vec::new();
        for Part {
            slot,
            partition: id,
            end,
        } in parts
        {
            let Some(partition) = self.partition(id).filter(|p| !p.log.is_offline()) else {
                answers.push((slot, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
                continue;
            };
            let batch = match end.batch(now_ms) {
                Ok(batch) => batch,
                Err(error) => {
                    tracing::error!(producer = end.producer_id, %error, "marker cannot be built");
                    answers.push((slot, ErrorCode::UNKNOWN_SERVER_ERROR));
                    continue;
                }
            };
            let how = end.append_as(now_ms);
            if partition.topic == OFFSETS_TOPIC {
                of_groups.push((slot, self.end_in_group(&partition, &end, batch, how)));
            } else {
                round.append(&self, partition, slot, batch, how);
            }
        }
        let appended = round.acknowledged(&self, limit);
        let deadline = rt::now() + limit;
        Box::pin(async move {
            let appended = appended.await.into_iter();
            answers.extend(appended.map(|(slot, produced)| (slot, produced.error)));
            for (slot, told) in of_groups {
                let outcome = match told {
                    Ok(told) => outcome_of(told, deadline).await,
                    Err(error) => Err(error),
                };
                answers.push((slot, outcome.err().map_or(ErrorCode::NONE, of_coordinator)));
            }
            answers
        })
    }

    fn end_in_group(
        &self,
        partition: &Partition,
        end: &End,
        batch: Bytes,
        how: AppendAs,
    ) -> Result<oneshot::Receiver<Result<(), ErrorCode>>, ErrorCode> {
        let coordinator = self
            .groups
            .coordinator(partition.id.index)
            .ok_or(ErrorCode::NOT_COORDINATOR)?;
        Ok(coordinator.end_transaction(end.producer_id, end.committed, batch, how))
    }
}

/// What a group coordinator says of a marker by `deadline`.
async fn outcome_of(
    told: oneshot::Receiver<Result<(), ErrorCode>>,
    deadline: rt::Instant,
) -> Result<(), ErrorCode> {
    let left = deadline.since(rt::now());
    match rt::timeout(left, told).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(ErrorCode::NOT_COORDINATOR),
        Err(_) => Err(ErrorCode::REQUEST_TIMED_OUT),
    }
}

/// A transaction's coordinator looks for the partition's leader again when the group's coordinator
/// is not there; it would not know what else to do about that.
fn of_coordinator(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::COORDINATOR_NOT_AVAILABLE
        | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
        | ErrorCode::NOT_COORDINATOR => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        error => error,
    }
}

/// One result for each producer, topic and partition: who reads the answer keeps only the last one
/// of each.
fn respond(slots: Vec<Slot>) -> WriteTxnMarkersResponse {
    let mut by_producer: IndexMap<i64, IndexMap<Str, IndexMap<i32, ErrorCode>>> = IndexMap::new();
    for slot in slots {
        let outcome = slot.outcome.unwrap_or(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        let topics = by_producer.entry(slot.producer_id).or_default();
        let partitions = topics.entry(slot.topic).or_default();
        partitions.insert(slot.index, outcome);
    }
    let partition = |(index, error): (i32, ErrorCode)| WritableTxnMarkerPartitionResult {
        partition_index: index,
        error_code: error.0,
        ..Default::default()
    };
    let topic =
        |(name, partitions): (Str, IndexMap<i32, ErrorCode>)| WritableTxnMarkerTopicResult {
            name,
            partitions: partitions.into_iter().map(partition).collect(),
            ..Default::default()
        };
    let markers = by_producer.into_iter();
    WriteTxnMarkersResponse {
        markers: markers
            .map(|(producer_id, topics)| WritableTxnMarkerResult {
                producer_id,
                topics: topics.into_iter().map(topic).collect(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producer_named_twice_loses_no_partitions_result() {
        let slot = |producer_id, topic, index, outcome| Slot {
            producer_id,
            topic: Str::from(topic),
            index,
            outcome,
        };
        let response = respond(vec![
            slot(7, "a", 0, Some(ErrorCode::NONE)),
            slot(8, "a", 0, None),
            slot(7, "b", 1, Some(ErrorCode::NONE)),
            slot(7, "a", 0, Some(ErrorCode::INVALID_PRODUCER_EPOCH)),
        ]);
        let told: Vec<_> = response
            .markers
            .iter()
            .flat_map(|marker| {
                marker.topics.iter().flat_map(|topic| {
                    topic.partitions.iter().map(|partition| {
                        let error = ErrorCode(partition.error_code);
                        (
                            marker.producer_id,
                            &*topic.name,
                            partition.partition_index,
                            error,
                        )
                    })
                })
            })
            .collect();
        assert_eq!(
            told,
            [
                (7, "a", 0, ErrorCode::INVALID_PRODUCER_EPOCH),
                (7, "b", 1, ErrorCode::NONE),
                (8, "a", 0, ErrorCode::NOT_LEADER_OR_FOLLOWER),
            ]
        );
    }

    #[test]
    fn a_group_coordinator_that_is_not_there_sends_the_marker_to_the_leader_again() {
        for error in [
            ErrorCode::COORDINATOR_NOT_AVAILABLE,
            ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode::NOT_COORDINATOR,
        ] {
            assert_eq!(of_coordinator(error), ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        let fenced = ErrorCode::TRANSACTION_COORDINATOR_FENCED;
        assert_eq!(of_coordinator(fenced), fenced);
    }
}

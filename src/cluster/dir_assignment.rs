//! AssignReplicasToDirs (key 73, v0): a broker says in which log directories its replicas lie
//! (KIP-858). Pure: the image and the request in; records and the answer out.

use super::draft::{Draft, as_registered};
use super::fencing;
use super::heartbeat::check_epoch;
use super::image::Image;
use super::record::MetadataRecord;
use crate::config::BrokerConfig;
use crate::types::{NodeId, PartitionId, Uuid};
use crate::wire::ErrorCode;
use crate::wire::messages::assign_replicas_to_dirs_request::AssignReplicasToDirsRequest;
use crate::wire::messages::assign_replicas_to_dirs_response::{
    AssignReplicasToDirsResponse, DirectoryData, PartitionData, TopicData,
};

pub(super) fn refused(error: ErrorCode) -> AssignReplicasToDirsResponse {
    AssignReplicasToDirsResponse {
        error_code: error.0,
        ..Default::default()
    }
}

pub(super) fn decide(
    image: &Image,
    config: &BrokerConfig,
    request: &AssignReplicasToDirsRequest,
) -> (Vec<MetadataRecord>, AssignReplicasToDirsResponse) {
    let node = NodeId(request.broker_id);
    let broker = match check_epoch(image, node, request.broker_epoch) {
        Ok(broker) => broker,
        Err(error) => return (Vec::new(), refused(error)),
    };
    let mut draft = Draft::new(image, config);
    let mut response = AssignReplicasToDirsResponse::default();
    let mut lost = Vec::new();
    for directory in &request.directories {
        let is_online = broker.has_online_dir(directory.id);
        let mut topics = Vec::new();
        for topic in &directory.topics {
            let mut partitions = Vec::new();
            for partition in &topic.partitions {
                let id = PartitionId {
                    topic: topic.topic_id,
                    index: partition.partition_index,
                };
                let assigned = assign(&mut draft, node, id, directory.id);
                if assigned.is_ok() && !is_online {
                    lost.push(id);
                }
                partitions.push(PartitionData {
                    partition_index: id.index,
                    error_code: assigned.err().unwrap_or(ErrorCode::NONE).0,
                    ..Default::default()
                });
            }
            topics.push(TopicData {
                topic_id: topic.topic_id,
                partitions,
                ..Default::default()
            });
        }
        response.directories.push(DirectoryData {
            id: directory.id,
            topics,
            ..Default::default()
        });
    }
    // A replica that lies in a directory that has failed serves nobody.
    fencing::leave(&mut draft, node, &lost);
    (draft.into_records(), response)
}

fn assign(
    draft: &mut Draft<'_>,
    node: NodeId,
    id: PartitionId,
    directory: Uuid,
) -> Result<(), ErrorCode> {
    if draft.image().topic_by_id(id.topic).is_none() {
        return Err(ErrorCode::UNKNOWN_TOPIC_ID);
    }
    let (_, partition) = draft
        .partition(id)
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    if !partition.replicas.contains(&node) {
        return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
    }
    draft.change(id, &as_registered, |change| {
        change.directories.push((node, directory));
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::test_kit::{Model, TOPIC, directory};
    use crate::wire::messages::assign_replicas_to_dirs_request as asked;
    use crate::wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;

    fn request(model: &Model, parts: &[(Uuid, Uuid, i32)]) -> AssignReplicasToDirsRequest {
        let directory = |(id, topic_id, index): &(Uuid, Uuid, i32)| asked::DirectoryData {
            id: *id,
            topics: vec![asked::TopicData {
                topic_id: *topic_id,
                partitions: vec![asked::PartitionData {
                    partition_index: *index,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        AssignReplicasToDirsRequest {
            broker_id: 1,
            broker_epoch: model.epoch(1),
            directories: parts.iter().map(directory).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn replicas_are_registered_where_they_lie_and_lost_with_their_directory() {
        let mut model = Model::with_brokers(2);
        let (first, second) = (directory(1), directory(8));
        model.apply_one(BrokerRegistrationChangeRecord {
            broker_id: 1,
            broker_epoch: model.epoch(1),
            log_dirs: vec![first, second],
            ..Default::default()
        });
        for _ in 0..2 {
            model.partition(&[1, 2], &[1, 2], 1);
        }
        model.partition(&[2], &[2], 2);
        let elsewhere = directory(9);
        let unknown = Uuid::from_halves(0, 4321);
        let request = request(
            &model,
            &[
                (second, TOPIC, 0),
                (elsewhere, TOPIC, 1),
                (second, TOPIC, 2),
                (second, TOPIC, 7),
                (second, unknown, 0),
            ],
        );
        let (records, response) = decide(&model.image, &model.config, &request);
        let codes: Vec<i16> = response
            .directories
            .iter()
            .map(|one| one.topics[0].partitions[0].error_code)
            .collect();
        assert_eq!((response.error_code, codes), (0, vec![0, 0, 6, 3, 100]));
        model.apply(&records);
        assert_eq!(model.of(0).directory(NodeId(1)), second);
        assert_eq!(model.told(0), (1, vec![1, 2], vec![]));
        assert_eq!(model.of(1).directory(NodeId(1)), elsewhere);
        assert_eq!(model.told(1), (2, vec![2], vec![]));
        let (records, _) = decide(&model.image, &model.config, &request);
        assert!(records.is_empty(), "it is so already");
        let stale = AssignReplicasToDirsRequest {
            broker_epoch: 99,
            ..request
        };
        assert_eq!(decide(&model.image, &model.config, &stale).1.error_code, 77);
    }
}

//! AlterReplicaLogDirs (key 34, v1-2): in which log directory of this broker a replica is to lie
//! (KIP-113). Runs on the connection's shard; the owners of the partitions begin the moves.

use super::request::Context;
use crate::shard::Shard;
use crate::shard::mesh::LocalFuture;
use crate::types::PartitionId;
use crate::wire::messages::alter_replica_log_dirs_request::AlterReplicaLogDirsRequest;
use crate::wire::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsResponse,
};
use crate::wire::{ErrorCode, Str};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

pub async fn handle(
    context: Rc<Context>,
    request: AlterReplicaLogDirsRequest,
) -> AlterReplicaLogDirsResponse {
    let mut results: BTreeMap<Str, Vec<AlterReplicaLogDirPartitionResult>> = BTreeMap::new();
    for dir in request.dirs {
        let path = PathBuf::from(&*dir.path);
        for topic in dir.topics {
            for index in topic.partitions {
                let outcome = alter(&context.shard, &topic.name, index, &path).await;
                if let Err(error) = outcome {
                    tracing::warn!(topic = %topic.name, partition = index, dir = %dir.path, %error, "replica is not moved");
                }
                results.entry(topic.name.clone()).or_default().push(
                    AlterReplicaLogDirPartitionResult {
                        partition_index: index,
                        error_code: outcome.err().unwrap_or(ErrorCode::NONE).0,
                        ..Default::default()
                    },
                );
            }
        }
    }
    let results = results.into_iter();
    AlterReplicaLogDirsResponse {
        results: results
            .map(|(topic_name, partitions)| AlterReplicaLogDirTopicResult {
                topic_name,
                partitions,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

async fn alter(
    shard: &Rc<Shard>,
    topic: &str,
    index: i32,
    path: &PathBuf,
) -> Result<(), ErrorCode> {
    if !shard.node.config.log_dirs.contains(path) {
        return Err(ErrorCode::LOG_DIR_NOT_FOUND);
    }
    if shard.logs.failure_of(path).is_some() {
        return Err(ErrorCode::KAFKA_STORAGE_ERROR);
    }
    let known = shard.image().topic_by_name(topic).map(|known| known.id);
    let topic = known.ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    let id = PartitionId { topic, index };
    let path = path.clone();
    let asked = move |owner: Rc<Shard>| -> LocalFuture<Result<(), ErrorCode>> {
        Box::pin(async move { owner.alter_log_dir(id, path).await })
    };
    let place = shard.owner(id);
    let answered = shard.clone().on(place, asked).await;
    answered.unwrap_or(Err(ErrorCode::REPLICA_NOT_AVAILABLE))
}

//! The admin's part in log directories: where a broker's replicas are to lie (KIP-113). On the
//! admin's executor. What lies where is told by [`Admin::log_dirs`].

use super::admin::Admin;
use super::error::ClientError;
use super::topic_partition::TopicPartition;
use crate::types::NodeId;
use crate::wire::ErrorCode;
use crate::wire::messages::alter_replica_log_dirs_request::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
};
use std::collections::BTreeMap;

impl Admin {
    /// Has replicas of a broker lie in these of its directories from some time on; each one's
    /// outcome. REPLICA_NOT_AVAILABLE says that it is not there yet, and will be made there.
    pub async fn alter_log_dirs(
        &self,
        node: NodeId,
        wanted: &[(TopicPartition, String)],
    ) -> Result<Vec<(TopicPartition, ErrorCode)>, ClientError> {
        let mut dirs: BTreeMap<&str, BTreeMap<&str, Vec<i32>>> = BTreeMap::new();
        for (key, path) in wanted {
            let topics = dirs.entry(path).or_default();
            topics.entry(&key.topic).or_default().push(key.partition);
        }
        let topic = |(name, partitions): (&str, Vec<i32>)| AlterReplicaLogDirTopic {
            name: name.into(),
            partitions,
            ..Default::default()
        };
        let dirs = dirs.into_iter().map(|(path, topics)| AlterReplicaLogDir {
            path: path.into(),
            topics: topics.into_iter().map(topic).collect(),
            ..Default::default()
        });
        let request = AlterReplicaLogDirsRequest {
            dirs: dirs.collect(),
            ..Default::default()
        };
        self.retry(async || {
            let answer = self.cluster.call_node(node, &request).await?;
            let mut outcomes = Vec::new();
            for topic in &answer.results {
                for partition in &topic.partitions {
                    let name = topic.topic_name.detached();
                    let key = TopicPartition::new(name, partition.partition_index);
                    outcomes.push((key, ErrorCode(partition.error_code)));
                }
            }
            Ok(outcomes)
        })
        .await
    }
}

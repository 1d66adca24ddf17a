//! The quorum of controllers as its leader describes it (DescribeQuorum, KIP-595), asked through a
//! broker or directly at a controller's listener.

use std::time::Duration;

use super::admin::{Admin, unanswered};
use super::controllers::Controllers;
use super::error::{ClientError, check_with};
use crate::types::{LeaderEpoch, NodeId, Offset, Uuid};
use crate::wire::messages::describe_quorum_request::{
    DescribeQuorumRequest, PartitionData, TopicData,
};
use crate::wire::messages::describe_quorum_response::{DescribeQuorumResponse, ReplicaState};

/// The topic whose one partition the quorum replicates.
const METADATA_TOPIC: &str = "__cluster_metadata";

/// See the module's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumView {
    pub leader: NodeId,
    pub leader_epoch: LeaderEpoch,
    pub high_watermark: Offset,
    pub voters: Vec<QuorumReplica>,
    pub observers: Vec<QuorumReplica>,
    /// Where the voters listen, as far as the leader tells.
    pub nodes: Vec<QuorumNode>,
}

/// A voter or an observer of the metadata log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumReplica {
    pub node: NodeId,
    /// Zero where it is not known.
    pub directory: Uuid,
    /// -1 where it is not known.
    pub log_end: Offset,
    /// By the leader's wall clock; `None` for the leader, and where it is not known.
    pub last_fetch_ms: Option<i64>,
    pub last_caught_up_ms: Option<i64>,
}

/// The listeners of a voter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumNode {
    pub node: NodeId,
    pub endpoints: Vec<QuorumEndpoint>,
}

/// One listener of a voter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumEndpoint {
    pub listener: String,
    pub host: String,
    pub port: u16,
}

impl Admin {
    /// The quorum, by a broker that asks the active controller.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER and the like while there is no active controller.
    pub async fn describe_quorum(&self) -> Result<QuorumView, ClientError> {
        let request = request();
        self.retry(async || read(&self.cluster.call_any(&request, Duration::ZERO).await?))
            .await
    }
}

impl Controllers {
    /// The quorum, by its leader itself.
    ///
    /// # Errors
    /// As [`Admin::describe_quorum`].
    pub async fn describe_quorum(&self) -> Result<QuorumView, ClientError> {
        let request = request();
        self.retry(async || read(&self.call_active(&request).await?))
            .await
    }
}

fn request() -> DescribeQuorumRequest {
    DescribeQuorumRequest {
        topics: vec![TopicData {
            topic_name: METADATA_TOPIC.into(),
            partitions: vec![PartitionData::default()],
            ..TopicData::default()
        }],
        ..DescribeQuorumRequest::default()
    }
}

fn read(answer: &DescribeQuorumResponse) -> Result<QuorumView, ClientError> {
    let what = || "describing the quorum".to_owned();
    check_with(answer.error_code, answer.error_message.as_deref(), what)?;
    let partition = answer
        .topics
        .first()
        .and_then(|topic| topic.partitions.first())
        .ok_or_else(|| unanswered("DESCRIBE_QUORUM"))?;
    check_with(
        partition.error_code,
        partition.error_message.as_deref(),
        what,
    )?;
    let nodes = answer.nodes.iter().map(|node| QuorumNode {
        node: NodeId(node.node_id),
        endpoints: node
            .listeners
            .iter()
            .map(|listener| QuorumEndpoint {
                listener: listener.name.as_str().to_owned(),
                host: listener.host.as_str().to_owned(),
                port: listener.port,
            })
            .collect(),
    });
    Ok(QuorumView {
        leader: NodeId(partition.leader_id),
        leader_epoch: LeaderEpoch(partition.leader_epoch),
        high_watermark: Offset(partition.high_watermark),
        voters: partition.current_voters.iter().map(replica).collect(),
        observers: partition.observers.iter().map(replica).collect(),
        nodes: nodes.collect(),
    })
}

fn replica(state: &ReplicaState) -> QuorumReplica {
    let known = |time: i64| Some(time).filter(|time| *time >= 0);
    QuorumReplica {
        node: NodeId(state.replica_id),
        directory: state.replica_directory_id,
        log_end: Offset(state.log_end_offset),
        last_fetch_ms: known(state.last_fetch_timestamp),
        last_caught_up_ms: known(state.last_caught_up_timestamp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ErrorCode;
    use crate::wire::messages::describe_quorum_response as m;

    #[test]
    fn an_error_of_the_partition_is_an_error_and_minus_one_is_no_time() {
        let state = ReplicaState {
            replica_id: 2,
            log_end_offset: 7,
            ..Default::default()
        };
        let mut partition = m::PartitionData {
            leader_id: 1,
            leader_epoch: 3,
            high_watermark: 6,
            current_voters: vec![state],
            ..Default::default()
        };
        let answer = |partition: &m::PartitionData| DescribeQuorumResponse {
            topics: vec![m::TopicData {
                partitions: vec![partition.clone()],
                ..Default::default()
            }],
            ..Default::default()
        };
        let view = read(&answer(&partition)).unwrap();
        assert_eq!(view.leader, NodeId(1));
        assert_eq!(
            view.voters,
            [QuorumReplica {
                node: NodeId(2),
                directory: Uuid::ZERO,
                log_end: Offset(7),
                last_fetch_ms: None,
                last_caught_up_ms: None,
            }]
        );
        partition.error_code = ErrorCode::NOT_LEADER_OR_FOLLOWER.0;
        let error = read(&answer(&partition)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NOT_LEADER_OR_FOLLOWER);
        assert!(error.is_retriable());
        assert!(read(&DescribeQuorumResponse::default()).is_err());
    }
}

//! The admin: topics, partitions, records and log directories.
//!
//! One executor. A change goes to any broker, which forwards it to the controller; what belongs to
//! a leader goes there. Errors that pass are retried until `default.api.timeout.ms`. Groups and
//! configurations have files of their own.

use std::rc::Rc;
use std::time::Duration;

use super::cluster::Cluster;
use super::config::{ClientConfig, Isolation};
use super::error::{ClientError, check, check_with};
use super::list_offsets::{ListedOffsets, OffsetSpec, list_offsets};
use super::metadata::ClusterView;
use super::topic_partition::TopicPartition;
use crate::rt;
use crate::types::{NodeId, Offset, Uuid};
use crate::wire::messages::create_partitions_request::{
    CreatePartitionsRequest, CreatePartitionsTopic,
};
use crate::wire::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use crate::wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use crate::wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use crate::wire::messages::describe_cluster_request::DescribeClusterRequest;
use crate::wire::messages::describe_cluster_response::DescribeClusterResponse;
use crate::wire::messages::describe_log_dirs_request::DescribeLogDirsRequest;
use crate::wire::messages::unregister_broker_request::UnregisterBrokerRequest;
use crate::wire::{ErrorCode, Str};

/// The first version of DeleteTopics that names topics in structs.
const DELETE_TOPICS_STRUCTS_FIRST: i16 = 6;
/// The first version of DescribeCluster that tells of fenced brokers (KIP-1073).
const FENCED_BROKERS_FIRST: i16 = 2;

/// A topic that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    pub name: String,
    /// `None`: the broker's `num.partitions`.
    pub partitions: Option<i32>,
    /// `None`: the broker's `default.replication.factor`.
    pub replication_factor: Option<i16>,
    /// Replicas by partition; then the two numbers above are left out.
    pub assignment: Vec<Vec<NodeId>>,
    /// Settings that differ from the broker's.
    pub configs: Vec<(String, String)>,
}

impl NewTopic {
    pub fn new(name: &str, partitions: i32, replication_factor: i16) -> NewTopic {
        NewTopic {
            name: name.to_owned(),
            partitions: Some(partitions),
            replication_factor: Some(replication_factor),
            assignment: Vec::new(),
            configs: Vec::new(),
        }
    }
}

/// A topic that was made; id and numbers only where the broker tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedTopic {
    pub id: Uuid,
    pub partitions: i32,
    pub replication_factor: i16,
}

/// A broker's log directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDir {
    pub path: String,
    pub error: ErrorCode,
    pub total_bytes: Option<i64>,
    pub usable_bytes: Option<i64>,
    pub replicas: Vec<ReplicaInDir>,
}

/// A replica in a log directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaInDir {
    pub key: TopicPartition,
    pub bytes: i64,
    pub offset_lag: i64,
    pub is_future: bool,
}

/// A handle; clones share the connections.
#[derive(Clone)]
pub struct Admin {
    pub(super) cluster: Cluster,
}

impl Admin {
    /// Connects.
    ///
    /// # Errors
    /// As [`Cluster::connect`].
    pub async fn connect(mut config: ClientConfig) -> Result<Admin, ClientError> {
        // Looking at a topic must not make it.
        config.allow_auto_create_topics = false;
        Ok(Admin {
            cluster: Cluster::connect(config).await?,
        })
    }

    /// An admin over the connections of another client.
    pub fn new(cluster: Cluster) -> Admin {
        Admin { cluster }
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn close(&self) {
        self.cluster.close();
    }

    /// How long a broker may take over a change, milliseconds.
    pub(super) fn timeout_ms(&self) -> i32 {
        i32::try_from(self.cluster.config().request_timeout.as_millis()).unwrap_or(i32::MAX)
    }

    /// Repeats what fails with a retriable error.
    pub(super) async fn retry<T>(
        &self,
        attempt: impl AsyncFnMut() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let deadline = rt::now() + self.cluster.config().api_timeout;
        self.cluster.retry_until(deadline, attempt).await
    }

    // -------------------------------------------------------------------------------- topics

    /// Every topic there is, with partitions, leaders and replicas.
    pub async fn topics(&self) -> Result<Rc<ClusterView>, ClientError> {
        self.retry(async || self.cluster.read_all_topics().await)
            .await
    }

    /// The cluster as its brokers register it; with `fenced_too` also those that serve nobody.
    ///
    /// # Errors
    /// [`ClientError::UnsupportedVersion`] where the broker cannot tell of fenced ones.
    pub async fn describe_cluster(
        &self,
        fenced_too: bool,
    ) -> Result<DescribeClusterResponse, ClientError> {
        let request = DescribeClusterRequest {
            include_fenced_brokers: fenced_too,
            ..DescribeClusterRequest::default()
        };
        let first = if fenced_too { FENCED_BROKERS_FIRST } else { 0 };
        let limit = self.cluster.config().request_timeout;
        self.retry(async || {
            let connection = self.cluster.any().await?;
            let version = connection
                .versions()
                .choose::<DescribeClusterRequest>(first, i16::MAX)?;
            let sent = connection.start(&request, version)?;
            let answer = sent.answer::<DescribeClusterRequest>(limit).await?;
            let what = || "describing the cluster".to_owned();
            check_with(answer.error_code, answer.error_message.as_deref(), what)?;
            Ok(answer)
        })
        .await
    }

    /// Takes a broker that has gone for good out of the cluster.
    ///
    /// # Errors
    /// BROKER_ID_NOT_REGISTERED.
    pub async fn unregister_broker(&self, node: NodeId) -> Result<(), ClientError> {
        let request = UnregisterBrokerRequest {
            broker_id: node.0,
            ..UnregisterBrokerRequest::default()
        };
        self.retry(async || {
            let answer = self.cluster.call_any(&request, Duration::ZERO).await?;
            let what = || format!("unregistering broker {}", node.0);
            check_with(answer.error_code, answer.error_message.as_deref(), what)
        })
        .await
    }

    /// Makes a topic; with `validate_only` the broker only says whether it would.
    ///
    /// # Errors
    /// TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG and the like.
    pub async fn create_topic(
        &self,
        topic: &NewTopic,
        validate_only: bool,
    ) -> Result<CreatedTopic, ClientError> {
        let manual = !topic.assignment.is_empty();
        let assignments = (0..)
            .zip(&topic.assignment)
            .map(|(partition_index, replicas)| CreatableReplicaAssignment {
                partition_index,
                broker_ids: replicas.iter().map(|node| node.0).collect(),
                ..CreatableReplicaAssignment::default()
            });
        let configs = topic
            .configs
            .iter()
            .map(|(name, value)| CreatableTopicConfig {
                name: name.as_str().into(),
                value: Some(value.as_str().into()),
                ..CreatableTopicConfig::default()
            });
        let request = CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: topic.name.as_str().into(),
                num_partitions: if manual {
                    -1
                } else {
                    topic.partitions.unwrap_or(-1)
                },
                replication_factor: if manual {
                    -1
                } else {
                    topic.replication_factor.unwrap_or(-1)
                },
                assignments: assignments.collect(),
                configs: configs.collect(),
                ..CreatableTopic::default()
            }],
            timeout_ms: self.timeout_ms(),
            validate_only,
            ..CreateTopicsRequest::default()
        };
        self.retry(async || {
            let answer = self.cluster.call_any(&request, Duration::ZERO).await?;
            let result = answer
                .topics
                .first()
                .ok_or_else(|| unanswered("CREATE_TOPICS"))?;
            check_with(result.error_code, result.error_message.as_deref(), || {
                format!("creating topic {}", topic.name)
            })?;
            Ok(CreatedTopic {
                id: result.topic_id,
                partitions: result.num_partitions,
                replication_factor: result.replication_factor,
            })
        })
        .await
    }

    /// Deletes a topic.
    pub async fn delete_topic(&self, name: &str) -> Result<(), ClientError> {
        let name = Str::from(name);
        self.retry(async || {
            let connection = self.cluster.any().await?;
            let version = connection
                .versions()
                .choose::<DeleteTopicsRequest>(1, i16::MAX)?;
            let mut request = DeleteTopicsRequest {
                timeout_ms: self.timeout_ms(),
                ..Default::default()
            };
            if version >= DELETE_TOPICS_STRUCTS_FIRST {
                let name = Some(name.clone());
                request.topics = vec![DeleteTopicState {
                    name,
                    ..Default::default()
                }];
            } else {
                request.topic_names = vec![name.clone()];
            }
            let limit = self.cluster.config().request_timeout;
            let sent = connection.start(&request, version)?;
            let answer = sent.answer::<DeleteTopicsRequest>(limit).await?;
            let result = answer
                .responses
                .first()
                .ok_or_else(|| unanswered("DELETE_TOPICS"))?;
            check_with(result.error_code, result.error_message.as_deref(), || {
                format!("deleting topic {name}")
            })
        })
        .await
    }

    /// Lets a topic grow to `count` partitions.
    pub async fn create_partitions(&self, topic: &str, count: i32) -> Result<(), ClientError> {
        let request = CreatePartitionsRequest {
            topics: vec![CreatePartitionsTopic {
                name: topic.into(),
                count,
                assignments: None,
                ..CreatePartitionsTopic::default()
            }],
            timeout_ms: self.timeout_ms(),
            validate_only: false,
            ..CreatePartitionsRequest::default()
        };
        self.retry(async || {
            let answer = self.cluster.call_any(&request, Duration::ZERO).await?;
            let result = answer
                .results
                .first()
                .ok_or_else(|| unanswered("CREATE_PARTITIONS"))?;
            check_with(result.error_code, result.error_message.as_deref(), || {
                format!("partitions of topic {topic}")
            })
        })
        .await
    }

    // ------------------------------------------------------------------------------- records

    /// Offsets by time, or where logs begin and end.
    pub async fn list_offsets(
        &self,
        wanted: &[(TopicPartition, OffsetSpec)],
        isolation: Isolation,
    ) -> Result<ListedOffsets, ClientError> {
        let topics: Vec<Str> = wanted.iter().map(|(key, _)| key.topic.clone()).collect();
        let deadline = rt::now() + self.cluster.config().api_timeout;
        self.cluster.with_topics(&topics, deadline).await?;
        self.retry(async || {
            let listed = list_offsets(&self.cluster, wanted, isolation).await?;
            let passing = listed.iter().find_map(|(key, result)| match result {
                Err(code) if code.is_retriable() => Some((key, *code)),
                _ => None,
            });
            match passing {
                None => Ok(listed),
                Some((key, code)) => {
                    self.cluster.refresh().await?;
                    Err(ClientError::broker(format!("offset of {key}"), code, ""))
                }
            }
        })
        .await
    }

    /// Deletes the records of a partition below `before` (`None`: below the high watermark).
    /// Returns where its log begins now.
    pub async fn delete_records(
        &self,
        key: &TopicPartition,
        before: Option<Offset>,
    ) -> Result<Offset, ClientError> {
        let request = DeleteRecordsRequest {
            topics: vec![DeleteRecordsTopic {
                name: key.topic.clone(),
                partitions: vec![DeleteRecordsPartition {
                    partition_index: key.partition,
                    offset: before.map_or(-1, |offset| offset.0),
                    ..DeleteRecordsPartition::default()
                }],
                ..DeleteRecordsTopic::default()
            }],
            timeout_ms: self.timeout_ms(),
            ..DeleteRecordsRequest::default()
        };
        self.retry(async || {
            let leader = self.leader(key).await?;
            let answer = self.cluster.call_node(leader, &request).await?;
            let result = answer
                .topics
                .first()
                .and_then(|topic| topic.partitions.first());
            let result = result.ok_or_else(|| unanswered("DELETE_RECORDS"))?;
            check(result.error_code, || format!("deleting records of {key}"))?;
            Ok(Offset(result.low_watermark))
        })
        .await
    }

    async fn leader(&self, key: &TopicPartition) -> Result<NodeId, ClientError> {
        self.cluster.want(std::slice::from_ref(&key.topic))?;
        let view = self.cluster.refresh().await?;
        view.leader_of(&key.topic, key.partition).ok_or_else(|| {
            let unknown = || match view.topic(&key.topic) {
                Some(_) => ErrorCode::LEADER_NOT_AVAILABLE,
                None => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            };
            let code = view.error_of(&key.topic).unwrap_or_else(unknown);
            ClientError::broker(key.to_string(), code, "")
        })
    }

    /// The log directories of a broker with all their replicas.
    pub async fn log_dirs(&self, node: NodeId) -> Result<Vec<LogDir>, ClientError> {
        let request = DescribeLogDirsRequest {
            topics: None,
            ..Default::default()
        };
        self.retry(async || {
            let answer = self.cluster.call_node(node, &request).await?;
            check(answer.error_code, || {
                format!("log directories of broker {}", node.0)
            })?;
            let dirs = answer.results.iter().map(|dir| LogDir {
                path: dir.log_dir.as_str().to_owned(),
                error: ErrorCode(dir.error_code),
                total_bytes: Some(dir.total_bytes).filter(|bytes| *bytes >= 0),
                usable_bytes: Some(dir.usable_bytes).filter(|bytes| *bytes >= 0),
                replicas: dir
                    .topics
                    .iter()
                    .flat_map(|topic| {
                        topic.partitions.iter().map(|partition| ReplicaInDir {
                            key: TopicPartition::new(topic.name.clone(), partition.partition_index),
                            bytes: partition.partition_size,
                            offset_lag: partition.offset_lag,
                            is_future: partition.is_future_key,
                        })
                    })
                    .collect(),
            });
            Ok(dirs.collect())
        })
        .await
    }
}

/// The broker answered without answering for what was asked.
pub(super) fn unanswered(api: &'static str) -> ClientError {
    let text = "the answer leaves out what was asked";
    ClientError::broker(api, ErrorCode::UNKNOWN_SERVER_ERROR, text)
}

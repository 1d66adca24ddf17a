//! The admin's view of partitions as a cluster keeps them: topics with their eligible leader
//! replicas, reassignments, elections of leaders.

use std::collections::BTreeMap;
use std::time::Duration;

use super::admin::{Admin, unanswered};
use super::error::{ClientError, check, check_with};
use super::metadata::{PartitionView, TopicView};
use super::topic_partition::TopicPartition;
use crate::types::{LeaderEpoch, NodeId};
use crate::wire::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use crate::wire::messages::describe_topic_partitions_request::{
    Cursor, DescribeTopicPartitionsRequest, TopicRequest,
};
use crate::wire::messages::describe_topic_partitions_response::{
    DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use crate::wire::messages::elect_leaders_request::{ElectLeadersRequest, TopicPartitions};
use crate::wire::messages::list_partition_reassignments_request::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsTopics,
};
use crate::wire::{ErrorCode, Str};

/// Partitions that are asked for at once; the broker has a limit of its own.
const PARTITIONS_IN_PAGE: i32 = 2000;

/// A topic with what only DescribeTopicPartitions tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedTopic {
    pub view: TopicView,
    /// By the index of the partition; `None` where the broker does not tell (it speaks only
    /// Metadata, or the cluster keeps none).
    pub elr: Vec<EligibleReplicas>,
}

/// Who may become a partition's leader without being in sync (KIP-966).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EligibleReplicas {
    pub eligible: Option<Vec<NodeId>>,
    pub last_known: Option<Vec<NodeId>>,
}

/// A partition whose replicas are being moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reassignment {
    pub replicas: Vec<NodeId>,
    pub adding: Vec<NodeId>,
    pub removing: Vec<NodeId>,
}

/// Which leader is wanted (protocol: `election_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Election {
    /// The first of the replicas, if it is in sync.
    Preferred = 0,
    /// Any live replica, where none is in sync.
    Unclean = 1,
}

/// What became of each partition: nothing, or an error with the broker's own words.
pub type PartitionOutcomes = Vec<(TopicPartition, Result<(), (ErrorCode, String)>)>;

impl Admin {
    /// Topics with their partitions; all of them without `names`.
    ///
    /// # Errors
    /// UNKNOWN_TOPIC_OR_PARTITION for a name that does not exist.
    pub async fn describe_topics(
        &self,
        names: Option<&[Str]>,
    ) -> Result<Vec<DescribedTopic>, ClientError> {
        let paged = self.retry(async || self.read_pages(names).await).await;
        match paged {
            Err(ClientError::UnsupportedVersion { .. }) => self.by_metadata(names).await,
            paged => paged,
        }
    }

    async fn read_pages(&self, names: Option<&[Str]>) -> Result<Vec<DescribedTopic>, ClientError> {
        let topic = |name: &Str| TopicRequest {
            name: name.clone(),
            ..TopicRequest::default()
        };
        let mut request = DescribeTopicPartitionsRequest {
            topics: names.unwrap_or_default().iter().map(topic).collect(),
            response_partition_limit: PARTITIONS_IN_PAGE,
            ..DescribeTopicPartitionsRequest::default()
        };
        let mut pages = Pages::default();
        loop {
            let answer = self.cluster.call_any(&request, Duration::ZERO).await?;
            for topic in &answer.topics {
                let name = topic.name.clone().unwrap_or_default();
                // One that was deleted between two pages is none that was asked for.
                match check(topic.error_code, || format!("topic {name}")) {
                    Err(_) if names.is_none() => {}
                    outcome => {
                        outcome?;
                        pages.add(name, topic);
                    }
                }
            }
            let Some(next) = answer.next_cursor else {
                return Ok(pages.topics());
            };
            let next = (next.topic_name, next.partition_index);
            pages.check_progress(&request.cursor, &next)?;
            request.cursor = Some(Cursor {
                topic_name: next.0,
                partition_index: next.1,
                ..Cursor::default()
            });
        }
    }

    async fn by_metadata(&self, names: Option<&[Str]>) -> Result<Vec<DescribedTopic>, ClientError> {
        let view = self.topics().await?;
        let mut topics: Vec<TopicView> = match names {
            None => view.topics().cloned().collect(),
            Some(names) => {
                let known = names.iter().map(|name| {
                    view.topic(name).cloned().ok_or_else(|| {
                        let code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
                        ClientError::broker(format!("topic {name}"), code, "")
                    })
                });
                known.collect::<Result<_, _>>()?
            }
        };
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        let described = topics.into_iter().map(|view| DescribedTopic {
            elr: vec![EligibleReplicas::default(); view.partitions.len()],
            view,
        });
        Ok(described.collect())
    }

    // ------------------------------------------------------------------------ reassignments

    /// Reassignments under way; of all partitions without `partitions`.
    pub async fn list_reassignments(
        &self,
        partitions: Option<&[TopicPartition]>,
    ) -> Result<BTreeMap<TopicPartition, Reassignment>, ClientError> {
        let topics = |partitions: &[TopicPartition]| {
            let by_topic = by_topic(partitions).into_iter();
            let topic = |(name, partition_indexes)| ListPartitionReassignmentsTopics {
                name,
                partition_indexes,
                ..ListPartitionReassignmentsTopics::default()
            };
            by_topic.map(topic).collect()
        };
        let request = ListPartitionReassignmentsRequest {
            timeout_ms: self.timeout_ms(),
            topics: partitions.map(topics),
            ..ListPartitionReassignmentsRequest::default()
        };
        self.retry(async || {
            let answer = self.cluster.call_any(&request, Duration::ZERO).await?;
            let what = || "listing reassignments".to_owned();
            check_with(answer.error_code, answer.error_message.as_deref(), what)?;
            let mut found = BTreeMap::new();
            for topic in &answer.topics {
                for partition in &topic.partitions {
                    let key = TopicPartition::new(topic.name.detached(), partition.partition_index);
                    let reassignment = Reassignment {
                        replicas: nodes(&partition.replicas),
                        adding: nodes(&partition.adding_replicas),
                        removing: nodes(&partition.removing_replicas),
                    };
                    found.insert(key, reassignment);
                }
            }
            Ok(found)
        })
        .await
    }

    /// Lets partitions move to other replicas; `None` ends a move that is under way and goes back.
    ///
    /// # Errors
    /// Of the request as a whole; what each partition says is in the outcome.
    pub async fn alter_reassignments(
        &self,
        wanted: &[(TopicPartition, Option<Vec<NodeId>>)],
        may_change_replication_factor: bool,
    ) -> Result<PartitionOutcomes, ClientError> {
        let mut topics: BTreeMap<&Str, Vec<ReassignablePartition>> = BTreeMap::new();
        for (key, replicas) in wanted {
            topics
                .entry(&key.topic)
                .or_default()
                .push(ReassignablePartition {
                    partition_index: key.partition,
                    replicas: replicas.as_ref().map(|replicas| ids(replicas)),
                    ..ReassignablePartition::default()
                });
        }
        let topic = |(name, partitions): (&Str, Vec<ReassignablePartition>)| ReassignableTopic {
            name: name.clone(),
            partitions,
            ..ReassignableTopic::default()
        };
        let request = AlterPartitionReassignmentsRequest {
            timeout_ms: self.timeout_ms(),
            allow_replication_factor_change: may_change_replication_factor,
            topics: topics.into_iter().map(topic).collect(),
            ..AlterPartitionReassignmentsRequest::default()
        };
        self.retry(async || {
            let answer = self.cluster.call_any(&request, Duration::ZERO).await?;
            let what = || "reassigning partitions".to_owned();
            check_with(answer.error_code, answer.error_message.as_deref(), what)?;
            let mut outcomes = Vec::new();
            for topic in &answer.responses {
                for partition in &topic.partitions {
                    let key = TopicPartition::new(topic.name.detached(), partition.partition_index);
                    let outcome = outcome(partition.error_code, &partition.error_message);
                    outcomes.push((key, outcome));
                }
            }
            all_answered("ALTER_PARTITION_REASSIGNMENTS", wanted.len(), outcomes)
        })
        .await
    }

    // ---------------------------------------------------------------------------- elections

    /// Elects the leaders of these partitions, or of all without `partitions`: then only those
    /// appear whose leader is another now, or whose election failed.
    ///
    /// # Errors
    /// Of the request as a whole; what each partition says is in the outcome.
    pub async fn elect_leaders(
        &self,
        election: Election,
        partitions: Option<&[TopicPartition]>,
    ) -> Result<PartitionOutcomes, ClientError> {
        let topics = |partitions: &[TopicPartition]| {
            let topic = |(topic, partitions)| TopicPartitions {
                topic,
                partitions,
                ..TopicPartitions::default()
            };
            by_topic(partitions).into_iter().map(topic).collect()
        };
        let request = ElectLeadersRequest {
            election_type: election as i8,
            topic_partitions: partitions.map(topics),
            timeout_ms: self.timeout_ms(),
            ..ElectLeadersRequest::default()
        };
        // Version 0 knows the preferred leader only.
        let first = if election == Election::Preferred {
            0
        } else {
            1
        };
        let limit = 2 * self.cluster.config().request_timeout;
        self.retry(async || {
            let connection = self.cluster.any().await?;
            let version = connection
                .versions()
                .choose::<ElectLeadersRequest>(first, i16::MAX)?;
            let sent = connection.start(&request, version)?;
            let answer = sent.answer::<ElectLeadersRequest>(limit).await?;
            check(answer.error_code, || "electing leaders".to_owned())?;
            let mut outcomes = Vec::new();
            for topic in &answer.replica_election_results {
                for partition in &topic.partition_result {
                    let key = TopicPartition::new(topic.topic.detached(), partition.partition_id);
                    let outcome = outcome(partition.error_code, &partition.error_message);
                    outcomes.push((key, outcome));
                }
            }
            let wanted = partitions.map_or(0, <[_]>::len);
            all_answered("ELECT_LEADERS", wanted, outcomes)
        })
        .await
    }
}

/// Topics that come in several answers, each partition once.
#[derive(Default)]
struct Pages {
    topics: BTreeMap<Str, DescribedTopic>,
}

impl Pages {
    fn add(&mut self, name: Str, topic: &DescribeTopicPartitionsResponseTopic) {
        let name = name.detached();
        let described = self
            .topics
            .entry(name.clone())
            .or_insert_with(|| DescribedTopic {
                view: TopicView {
                    name,
                    id: topic.topic_id,
                    internal: topic.is_internal,
                    partitions: Vec::new(),
                },
                elr: Vec::new(),
            });
        for partition in &topic.partitions {
            // Whole up to here: what is behind a gap, or came before, does not fit.
            if partition.partition_index as usize == described.view.partitions.len() {
                described.view.partitions.push(view(partition));
                described.elr.push(EligibleReplicas {
                    eligible: partition.eligible_leader_replicas.as_deref().map(nodes),
                    last_known: partition.last_known_elr.as_deref().map(nodes),
                });
            }
        }
    }

    /// A broker whose cursor does not move on would be asked for ever.
    fn check_progress(&self, asked: &Option<Cursor>, next: &(Str, i32)) -> Result<(), ClientError> {
        let before = asked
            .as_ref()
            .map(|cursor| (&cursor.topic_name, cursor.partition_index));
        match before {
            Some(before) if before >= (&next.0, next.1) => {
                Err(unanswered("DESCRIBE_TOPIC_PARTITIONS"))
            }
            _ => Ok(()),
        }
    }

    fn topics(self) -> Vec<DescribedTopic> {
        self.topics.into_values().collect()
    }
}

fn view(partition: &DescribeTopicPartitionsResponsePartition) -> PartitionView {
    PartitionView {
        index: partition.partition_index,
        leader: Some(NodeId(partition.leader_id)).filter(|node| node.0 >= 0),
        leader_epoch: LeaderEpoch(partition.leader_epoch),
        replicas: nodes(&partition.replica_nodes),
        in_sync: nodes(&partition.isr_nodes),
        offline: nodes(&partition.offline_replicas),
    }
}

fn nodes(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().map(|id| NodeId(*id)).collect()
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.0).collect()
}

fn by_topic(partitions: &[TopicPartition]) -> BTreeMap<Str, Vec<i32>> {
    let mut by_topic: BTreeMap<Str, Vec<i32>> = BTreeMap::new();
    for key in partitions {
        let indexes = by_topic.entry(key.topic.clone()).or_default();
        indexes.push(key.partition);
    }
    by_topic
}

fn outcome(code: i16, message: &Option<Str>) -> Result<(), (ErrorCode, String)> {
    let text = message.as_ref().map(|text| text.as_str().to_owned());
    match ErrorCode(code) {
        ErrorCode::NONE => Ok(()),
        code => Err((code, text.unwrap_or_default())),
    }
}

/// A partition that was asked for and has no outcome would look as if it had succeeded.
fn all_answered(
    api: &'static str,
    wanted: usize,
    mut outcomes: PartitionOutcomes,
) -> Result<PartitionOutcomes, ClientError> {
    if outcomes.len() < wanted {
        return Err(unanswered(api));
    }
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(indexes: &[i32]) -> DescribeTopicPartitionsResponseTopic {
        let partition = |index: &i32| DescribeTopicPartitionsResponsePartition {
            partition_index: *index,
            leader_id: 1,
            eligible_leader_replicas: (*index == 0).then(|| vec![3]),
            ..Default::default()
        };
        DescribeTopicPartitionsResponseTopic {
            partitions: indexes.iter().map(partition).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn a_topic_in_two_pages_is_one_topic_with_each_partition_once() {
        let mut pages = Pages::default();
        pages.add("t".into(), &topic(&[0, 1]));
        pages.add("t".into(), &topic(&[1, 2]));
        pages.add("u".into(), &topic(&[0]));
        let topics = pages.topics();
        let indexes = |topic: &DescribedTopic| -> Vec<i32> {
            topic.view.partitions.iter().map(|p| p.index).collect()
        };
        assert_eq!(indexes(&topics[0]), [0, 1, 2]);
        assert_eq!(indexes(&topics[1]), [0]);
        assert_eq!(topics[0].elr[0].eligible, Some(vec![NodeId(3)]));
        assert_eq!(topics[0].elr[1].eligible, None);
    }

    #[test]
    fn a_cursor_that_stands_still_ends_the_paging_with_an_error() {
        let pages = Pages::default();
        let asked = |name: &str, index| {
            Some(Cursor {
                topic_name: name.into(),
                partition_index: index,
                ..Cursor::default()
            })
        };
        assert!(pages.check_progress(&None, &("t".into(), 0)).is_ok());
        assert!(
            pages
                .check_progress(&asked("t", 0), &("t".into(), 1))
                .is_ok()
        );
        assert!(
            pages
                .check_progress(&asked("t", 9), &("u".into(), 0))
                .is_ok()
        );
        assert!(
            pages
                .check_progress(&asked("t", 1), &("t".into(), 1))
                .is_err()
        );
        assert!(
            pages
                .check_progress(&asked("t", 1), &("s".into(), 7))
                .is_err()
        );
    }

    #[test]
    fn a_partition_without_an_outcome_is_not_taken_for_done() {
        let one = vec![(TopicPartition::new("t".into(), 0), Ok(()))];
        assert!(all_answered("X", 2, one.clone()).is_err());
        assert!(all_answered("X", 1, one).is_ok());
    }
}

//! The admin's view of groups: listing, describing, deleting, and their committed offsets.

use super::admin::{Admin, unanswered};
use super::cluster::CoordinatorKind;
use super::consumer_protocol::{self, PROTOCOL_TYPE};
use super::error::{ClientError, check, check_with};
use super::group_coordinator::{CommittedOffset, Committer, GroupCoordinator};
use super::topic_partition::TopicPartition;
use crate::types::NodeId;
use crate::wire::messages::delete_groups_request::DeleteGroupsRequest;
use crate::wire::messages::describe_groups_request::DescribeGroupsRequest;
use crate::wire::messages::list_groups_request::ListGroupsRequest;
use crate::wire::messages::offset_delete_request::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use crate::wire::{ErrorCode, Str};

/// The first version of ListGroups that filters by state.
const LIST_BY_STATE_FIRST: i16 = 4;

/// A group as its coordinator lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    pub group_id: String,
    pub protocol_type: String,
    /// Empty where the broker is too old to say.
    pub state: String,
    /// `classic`, `consumer`, `share`; empty where the broker is too old to say.
    pub group_type: String,
    pub coordinator: NodeId,
}

/// A group of the classic protocol with its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedGroup {
    pub group_id: String,
    /// `Empty`, `PreparingRebalance`, `CompletingRebalance`, `Stable` or `Dead`.
    pub state: String,
    pub protocol_type: String,
    /// The assignor of a consumer group.
    pub protocol: String,
    pub coordinator: NodeId,
    pub members: Vec<DescribedMember>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMember {
    pub member_id: String,
    pub instance_id: Option<String>,
    pub client_id: String,
    pub client_host: String,
    /// Of a consumer; empty for other protocols, and while the group rebalances.
    pub assigned: Vec<TopicPartition>,
}

impl Admin {
    /// The groups of all brokers; `states` empty means in any state.
    pub async fn list_groups(&self, states: &[&str]) -> Result<Vec<ListedGroup>, ClientError> {
        let view = self.retry(async || self.cluster.refresh().await).await?;
        let request = ListGroupsRequest {
            states_filter: states.iter().map(|state| Str::from(*state)).collect(),
            ..ListGroupsRequest::default()
        };
        let first = if states.is_empty() {
            0
        } else {
            LIST_BY_STATE_FIRST
        };
        let mut groups = Vec::new();
        for broker in &view.brokers {
            let answer = self
                .retry(async || {
                    let connection = self.cluster.node(broker.node).await?;
                    let version = connection
                        .versions()
                        .choose::<ListGroupsRequest>(first, i16::MAX)?;
                    let limit = self.cluster.config().request_timeout;
                    let sent = connection.start(&request, version)?;
                    let answer = sent.answer::<ListGroupsRequest>(limit).await?;
                    check(answer.error_code, || "listing groups".to_owned())?;
                    Ok(answer)
                })
                .await?;
            groups.extend(answer.groups.iter().map(|group| ListedGroup {
                group_id: group.group_id.as_str().to_owned(),
                protocol_type: group.protocol_type.as_str().to_owned(),
                state: group.group_state.as_str().to_owned(),
                group_type: group.group_type.as_str().to_owned(),
                coordinator: broker.node,
            }));
        }
        groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
        Ok(groups)
    }

    /// A group with its members.
    ///
    /// # Errors
    /// GROUP_ID_NOT_FOUND where the broker says so; older ones describe a group as `Dead` instead.
    pub async fn describe_group(&self, group: &str) -> Result<DescribedGroup, ClientError> {
        let request = DescribeGroupsRequest {
            groups: vec![Str::from(group)],
            ..Default::default()
        };
        self.retry(async || {
            let node = self.coordinator(group).await?;
            let answer = self.cluster.call_node(node, &request).await?;
            let found = answer
                .groups
                .first()
                .ok_or_else(|| unanswered("DESCRIBE_GROUPS"))?;
            check_with(found.error_code, found.error_message.as_deref(), || {
                format!("group {group}")
            })?;
            let is_consumer = found.protocol_type == PROTOCOL_TYPE;
            let members = found.members.iter().map(|member| DescribedMember {
                member_id: member.member_id.as_str().to_owned(),
                instance_id: member
                    .group_instance_id
                    .as_ref()
                    .map(|id| id.as_str().to_owned()),
                client_id: member.client_id.as_str().to_owned(),
                client_host: member.client_host.as_str().to_owned(),
                // What other clients wrote may be anything.
                assigned: match is_consumer {
                    true => consumer_protocol::assigned_partitions(&member.member_assignment)
                        .unwrap_or_default(),
                    false => Vec::new(),
                },
            });
            Ok(DescribedGroup {
                group_id: found.group_id.as_str().to_owned(),
                state: found.group_state.as_str().to_owned(),
                protocol_type: found.protocol_type.as_str().to_owned(),
                protocol: found.protocol_data.as_str().to_owned(),
                coordinator: node,
                members: members.collect(),
            })
        })
        .await
    }

    /// Deletes a group without members, with its offsets.
    ///
    /// # Errors
    /// NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
    pub async fn delete_group(&self, group: &str) -> Result<(), ClientError> {
        let request = DeleteGroupsRequest {
            groups_names: vec![Str::from(group)],
            ..Default::default()
        };
        self.retry(async || {
            let node = self.coordinator(group).await?;
            let answer = self.cluster.call_node(node, &request).await?;
            let result = answer
                .results
                .first()
                .ok_or_else(|| unanswered("DELETE_GROUPS"))?;
            check_with(result.error_code, result.error_message.as_deref(), || {
                format!("deleting group {group}")
            })
        })
        .await
    }

    /// A group's committed offsets, of all partitions that have one.
    pub async fn group_offsets(
        &self,
        group: &str,
    ) -> Result<Vec<(TopicPartition, CommittedOffset)>, ClientError> {
        let coordinator = GroupCoordinator::new(self.cluster.clone(), Str::from(group));
        let mut offsets = self
            .retry(async || coordinator.committed(None, false).await)
            .await?;
        offsets.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(offsets)
    }

    /// Sets a group's committed offsets; only while it has no members.
    pub async fn alter_group_offsets(
        &self,
        group: &str,
        offsets: &[(TopicPartition, CommittedOffset)],
    ) -> Result<(), ClientError> {
        let coordinator = GroupCoordinator::new(self.cluster.clone(), Str::from(group));
        self.retry(async || coordinator.commit(&Committer::simple(), offsets).await)
            .await
    }

    /// Forgets a group's committed offsets of some partitions.
    ///
    /// # Errors
    /// GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic.
    pub async fn delete_group_offsets(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<(), ClientError> {
        let mut topics: Vec<OffsetDeleteRequestTopic> = Vec::new();
        for key in partitions {
            let partition = OffsetDeleteRequestPartition {
                partition_index: key.partition,
                ..OffsetDeleteRequestPartition::default()
            };
            match topics.iter_mut().find(|topic| topic.name == key.topic) {
                Some(topic) => topic.partitions.push(partition),
                None => topics.push(OffsetDeleteRequestTopic {
                    name: key.topic.clone(),
                    partitions: vec![partition],
                    ..OffsetDeleteRequestTopic::default()
                }),
            }
        }
        let request = OffsetDeleteRequest {
            group_id: group.into(),
            topics,
            ..Default::default()
        };
        self.retry(async || {
            let node = self.coordinator(group).await?;
            let answer = self.cluster.call_node(node, &request).await?;
            let what = || format!("deleting offsets of group {group}");
            check(answer.error_code, what)?;
            let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
            let failed = partitions
                .map(|p| p.error_code)
                .find(|code| ErrorCode(*code).is_error());
            failed.map_or(Ok(()), |code| check(code, what))
        })
        .await
    }

    async fn coordinator(&self, group: &str) -> Result<NodeId, ClientError> {
        let kind = CoordinatorKind::Group;
        self.retry(async || self.cluster.find_coordinator(kind, group).await)
            .await
    }
}

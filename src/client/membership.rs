//! A consumer's membership in its group, by the classic protocol: join, sync, heartbeat, leave.
//!
//! One executor. Owns the member's id and generation and the task that heartbeats. Tells the
//! consumer that it must join again; never decides about offsets.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::assignor::Subscriber;
use super::config::ConsumerConfig;
use super::consumer_protocol::{self, PROTOCOL_TYPE};
use super::error::{ClientError, check};
use super::group_coordinator::{Committer, GroupCoordinator};
use super::topic_partition::TopicPartition;
use crate::rt::sync::Notify;
use crate::rt::{self, Instant};
use crate::wire::messages::heartbeat_request::HeartbeatRequest;
use crate::wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use crate::wire::messages::join_group_response::JoinGroupResponse;
use crate::wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use crate::wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use crate::wire::{ErrorCode, Str};

/// The first version of LeaveGroup that names its members in a list.
const LEAVE_LIST_FIRST: i16 = 3;
/// What the broker's own work adds to the longest rebalance.
const JOIN_MARGIN: Duration = Duration::from_secs(5);

/// See the module's words.
pub(super) struct Membership {
    pub(super) coordinator: Rc<GroupCoordinator>,
    config: ConsumerConfig,
    instance_id: Option<Str>,
    member_id: RefCell<Str>,
    generation: Cell<i32>,
    state: Cell<State>,
    /// When the application polled last.
    pub(super) polled_at: Cell<Instant>,
    /// Rung when the member must join again or has failed.
    bell: Notify,
    failure: RefCell<Option<ClientError>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not in the group, or asked to join again.
    Out,
    /// Assigned; the heartbeat task of this generation runs.
    Stable,
    Left,
}

impl Membership {
    pub(super) fn new(
        coordinator: Rc<GroupCoordinator>,
        config: ConsumerConfig,
        bell: Notify,
    ) -> Rc<Membership> {
        Rc::new(Membership {
            coordinator,
            instance_id: config.group_instance_id.as_deref().map(Str::from),
            config,
            member_id: RefCell::new(Str::default()),
            generation: Cell::new(-1),
            state: Cell::new(State::Out),
            polled_at: Cell::new(rt::now()),
            bell,
            failure: RefCell::new(None),
        })
    }

    pub(super) fn must_join(&self) -> bool {
        self.state.get() == State::Out
    }

    /// What the heartbeat found that the application must know.
    pub(super) fn take_failure(&self) -> Option<ClientError> {
        self.failure.borrow_mut().take()
    }

    pub(super) fn member_id(&self) -> Str {
        self.member_id.borrow().clone()
    }

    pub(super) fn committer(&self) -> Committer {
        Committer {
            generation: self.generation.get(),
            member_id: self.member_id(),
            instance_id: self.instance_id.clone(),
        }
    }

    /// Asks for a new assignment, e.g. after the topics changed.
    pub(super) fn request_rejoin(&self) {
        if self.state.get() == State::Stable {
            self.state.set(State::Out);
            self.bell.notify_one();
        }
    }

    /// Joins and returns what is assigned. Takes as long as the group's other members need.
    ///
    /// # Errors
    /// What is final: not authorized, fenced, inconsistent protocols, group full.
    pub(super) async fn join(
        self: Rc<Self>,
        topics: Vec<Str>,
        owned: Vec<TopicPartition>,
    ) -> Result<Vec<TopicPartition>, ClientError> {
        let mut failures = 0;
        loop {
            if self.state.get() == State::Left {
                return Err(ClientError::Closed);
            }
            match self.join_once(&topics, &owned).await {
                Ok(assigned) => {
                    self.state.set(State::Stable);
                    drop(rt::spawn(heartbeat(self.clone(), self.generation.get())));
                    return Ok(assigned);
                }
                Err(error) => {
                    self.coordinator.doubt(&error);
                    if !self.can_go_on(&error) {
                        return Err(error);
                    }
                    // The first id is given by way of an error; that is no reason to wait.
                    if error.code() != ErrorCode::MEMBER_ID_REQUIRED {
                        failures += 1;
                        let backoff = self.config.client.retry_backoff;
                        rt::sleep(backoff.delay(failures, rt::random_u64())).await;
                    }
                }
            }
        }
    }

    /// Takes in what an error says about this member; whether joining again makes sense.
    fn can_go_on(&self, error: &ClientError) -> bool {
        match error.code() {
            ErrorCode::UNKNOWN_MEMBER_ID => self.reset(),
            ErrorCode::ILLEGAL_GENERATION => self.generation.set(-1),
            ErrorCode::REBALANCE_IN_PROGRESS | ErrorCode::MEMBER_ID_REQUIRED => {}
            _ => return error.is_retriable(),
        }
        true
    }

    fn reset(&self) {
        *self.member_id.borrow_mut() = Str::default();
        self.generation.set(-1);
    }

    async fn join_once(
        &self,
        topics: &[Str],
        owned: &[TopicPartition],
    ) -> Result<Vec<TopicPartition>, ClientError> {
        let metadata = consumer_protocol::subscription(topics, owned)?;
        let millis = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        let request = JoinGroupRequest {
            group_id: self.coordinator.group.clone(),
            session_timeout_ms: millis(self.config.session_timeout),
            rebalance_timeout_ms: millis(self.config.poll_interval),
            member_id: self.member_id(),
            group_instance_id: self.instance_id.clone(),
            protocol_type: Str::from_static(PROTOCOL_TYPE),
            protocols: self
                .config
                .assignors
                .iter()
                .map(|assignor| JoinGroupRequestProtocol {
                    name: Str::from_static(assignor.name()),
                    metadata: metadata.clone(),
                    ..JoinGroupRequestProtocol::default()
                })
                .collect(),
            ..JoinGroupRequest::default()
        };
        let longest = self.config.poll_interval + JOIN_MARGIN;
        let joined = self.coordinator.call(&request, i16::MAX, longest).await?;
        let what = || format!("joining group {}", self.coordinator.group);
        if ErrorCode(joined.error_code) == ErrorCode::MEMBER_ID_REQUIRED {
            *self.member_id.borrow_mut() = joined.member_id.detached();
        }
        check(joined.error_code, what)?;
        *self.member_id.borrow_mut() = joined.member_id.detached();
        self.generation.set(joined.generation_id);
        let assignments = if joined.leader == joined.member_id && !joined.skip_assignment {
            self.assign(&joined).await?
        } else {
            Vec::new()
        };
        let request = SyncGroupRequest {
            group_id: self.coordinator.group.clone(),
            generation_id: joined.generation_id,
            member_id: joined.member_id.clone(),
            group_instance_id: self.instance_id.clone(),
            protocol_type: Some(Str::from_static(PROTOCOL_TYPE)),
            protocol_name: joined.protocol_name.clone(),
            assignments,
            ..SyncGroupRequest::default()
        };
        let synced = self.coordinator.call(&request, i16::MAX, longest).await?;
        check(synced.error_code, what)?;
        consumer_protocol::assigned_partitions(&synced.assignment)
    }

    /// As the group's leader: who gets what.
    async fn assign(
        &self,
        joined: &JoinGroupResponse,
    ) -> Result<Vec<SyncGroupRequestAssignment>, ClientError> {
        let name = joined.protocol_name.as_deref().unwrap_or_default();
        let assignor = self
            .config
            .assignors
            .iter()
            .find(|assignor| assignor.name() == name);
        let Some(assignor) = assignor.copied() else {
            return Err(ClientError::Invalid(format!(
                "the group chose assignor {name:?}"
            )));
        };
        let mut members = Vec::with_capacity(joined.members.len());
        for member in &joined.members {
            members.push(Subscriber {
                member_id: member.member_id.clone(),
                instance_id: member.group_instance_id.clone(),
                topics: consumer_protocol::subscribed_topics(&member.metadata)?,
            });
        }
        // Others may know topics that are new to us.
        let cluster = &self.coordinator.cluster;
        let topics: Vec<Str> = members
            .iter()
            .flat_map(|m| m.topics.iter().cloned())
            .collect();
        cluster.want(&topics)?;
        let view = cluster.refresh().await?;
        let count = |topic: &str| view.topic(topic).map_or(0, |topic| topic.partitions.len());
        let assigned = assignor.assign(&members, count);
        let mut assignments = Vec::with_capacity(assigned.len());
        for (member, partitions) in members.iter().zip(&assigned) {
            assignments.push(SyncGroupRequestAssignment {
                member_id: member.member_id.clone(),
                assignment: consumer_protocol::assignment(partitions)?,
                ..SyncGroupRequestAssignment::default()
            });
        }
        Ok(assignments)
    }

    /// Leaves, so that the others need not wait for the session to time out. Static members stay.
    pub(super) async fn leave(&self, reason: &'static str) {
        let was = self.state.replace(State::Left);
        if was == State::Left || self.member_id.borrow().is_empty() || self.instance_id.is_some() {
            return;
        }
        let request = LeaveGroupRequest {
            group_id: self.coordinator.group.clone(),
            members: vec![MemberIdentity {
                member_id: self.member_id(),
                reason: Some(Str::from_static(reason)),
                ..MemberIdentity::default()
            }],
            ..LeaveGroupRequest::default()
        };
        let left = async {
            let node = self.coordinator.node().await?;
            let connection = self.coordinator.cluster.node(node).await?;
            let version = connection
                .versions()
                .choose::<LeaveGroupRequest>(LEAVE_LIST_FIRST, i16::MAX)?;
            let limit = self.config.client.request_timeout;
            connection
                .start(&request, version)?
                .answer::<LeaveGroupRequest>(limit)
                .await
        };
        // The session times out if this did not arrive.
        if let Err(error) = left.await {
            tracing::debug!(group = %self.coordinator.group, %error, "leaving failed");
        }
        self.reset();
    }
}

/// Keeps one generation's session alive until the group changes.
async fn heartbeat(membership: Rc<Membership>, generation: i32) {
    let interval = membership.config.heartbeat_interval;
    loop {
        rt::sleep(interval).await;
        let current =
            membership.state.get() == State::Stable && membership.generation.get() == generation;
        if !current || membership.coordinator.cluster.is_closed() {
            return;
        }
        if membership.polled_at.get().elapsed() > membership.config.poll_interval {
            // An application that is stuck must not hold its partitions (KIP-62).
            membership.leave("max.poll.interval.ms has passed").await;
            membership.state.set(State::Out);
            membership.bell.notify_one();
            return;
        }
        let request = HeartbeatRequest {
            group_id: membership.coordinator.group.clone(),
            generation_id: generation,
            member_id: membership.member_id(),
            group_instance_id: membership.instance_id.clone(),
            ..HeartbeatRequest::default()
        };
        let result = match membership
            .coordinator
            .call(&request, i16::MAX, Duration::ZERO)
            .await
        {
            Ok(answer) => check(answer.error_code, || "heartbeat".to_owned()),
            Err(error) => Err(error),
        };
        let Err(error) = result else { continue };
        membership.coordinator.doubt(&error);
        if membership.generation.get() != generation {
            return;
        }
        match error.code() {
            ErrorCode::REBALANCE_IN_PROGRESS
            | ErrorCode::ILLEGAL_GENERATION
            | ErrorCode::UNKNOWN_MEMBER_ID => {
                membership.can_go_on(&error);
                membership.request_rejoin();
                return;
            }
            // The next one finds the coordinator again.
            _ if error.is_retriable() => {}
            _ => {
                *membership.failure.borrow_mut() = Some(error);
                membership.request_rejoin();
                return;
            }
        }
    }
}

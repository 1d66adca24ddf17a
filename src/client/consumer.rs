//! The consumer: records out of assigned or subscribed partitions, with committed offsets.
//!
//! One executor. [`Consumer::poll`] starts what is due: joining, finding positions, fetching,
//! committing. Each runs beside it to its own end, so that short polls do not start it over again;
//! nothing new begins between polls but heartbeats.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use super::assignment::Position;
use super::cluster::Cluster;
use super::config::ConsumerConfig;
use super::error::ClientError;
use super::fetched::ConsumerRecord;
use super::fetcher::Fetcher;
use super::group_coordinator::GroupCoordinator;
use super::list_offsets::{ListedOffsets, OffsetSpec};
use super::membership::Membership;
use super::positions::{self, list};
use super::topic_partition::TopicPartition;
use crate::rt::sync::{Notify, Semaphore};
use crate::rt::{self, Instant, Task};
use crate::types::Offset;
use crate::wire::Str;

/// See the module's words.
pub struct Consumer {
    pub(super) fetcher: Rc<Fetcher>,
    bell: Notify,
    pub(super) mode: Mode,
    /// A rebalance under way; it may take longer than one poll.
    joining: Option<Task<Result<Vec<TopicPartition>, ClientError>>>,
    pub(super) committed_at: Instant,
    rebalances: u64,
    /// One commit at a time, or an older one could arrive last.
    pub(super) commits: Semaphore,
    closed: bool,
}

pub(super) enum Mode {
    /// Partitions by [`Consumer::assign`]; the coordinator is only for offsets.
    Assigned(Option<Rc<GroupCoordinator>>),
    Subscribed {
        topics: Vec<Str>,
        membership: Rc<Membership>,
    },
}

impl Mode {
    pub(super) fn coordinator(&self) -> Option<&Rc<GroupCoordinator>> {
        match self {
            Mode::Assigned(coordinator) => coordinator.as_ref(),
            Mode::Subscribed { membership, .. } => Some(&membership.coordinator),
        }
    }
}

impl Consumer {
    /// Connects.
    ///
    /// # Errors
    /// As [`Cluster::connect`].
    pub async fn connect(config: ConsumerConfig) -> Result<Consumer, ClientError> {
        if config.assignors.is_empty() || config.poll_records == 0 {
            return Err(ClientError::Invalid(
                "no assignor, or no records per poll".to_owned(),
            ));
        }
        let cluster = Cluster::connect(config.client.clone()).await?;
        let bell = Notify::new();
        let coordinator = coordinator(&cluster, &config);
        Ok(Consumer {
            fetcher: Fetcher::new(cluster, config, bell.clone()),
            bell,
            mode: Mode::Assigned(coordinator),
            joining: None,
            committed_at: rt::now(),
            rebalances: 0,
            commits: Semaphore::new(1),
            closed: false,
        })
    }

    pub fn cluster(&self) -> &Cluster {
        &self.fetcher.cluster
    }

    pub(super) fn config(&self) -> &ConsumerConfig {
        &self.fetcher.config
    }

    // -------------------------------------------------------------------------- what to read

    /// Reads these partitions, outside of any group's protocol.
    pub async fn assign(&mut self, partitions: &[TopicPartition]) -> Result<(), ClientError> {
        self.leave("assigned by hand").await;
        self.mode = Mode::Assigned(coordinator(self.cluster(), self.config()));
        let topics: Vec<Str> = partitions.iter().map(|key| key.topic.clone()).collect();
        self.cluster().want(&topics)?;
        self.fetcher.assignment.borrow_mut().replace(partitions);
        Ok(())
    }

    /// Reads what the group assigns of these topics; joins at the next poll.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] without `group.id`.
    pub async fn subscribe(&mut self, topics: &[&str]) -> Result<(), ClientError> {
        let topics: Vec<Str> = topics.iter().map(|topic| Str::from(*topic)).collect();
        self.cluster().want(&topics)?;
        if let Mode::Subscribed {
            topics: current,
            membership,
        } = &mut self.mode
        {
            *current = topics;
            membership.request_rejoin();
            return Ok(());
        }
        let Some(coordinator) = coordinator(self.cluster(), self.config()) else {
            return Err(ClientError::Invalid(
                "subscribing needs group.id".to_owned(),
            ));
        };
        self.fetcher.assignment.borrow_mut().replace(&[]);
        let membership = Membership::new(coordinator, self.config().clone(), self.bell.clone());
        self.mode = Mode::Subscribed { topics, membership };
        Ok(())
    }

    /// The partitions as of the last poll.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.fetcher.assignment.borrow().keys()
    }

    /// How often the group has assigned partitions to this member.
    pub fn rebalances(&self) -> u64 {
        self.rebalances
    }

    /// This member's id in its group, empty outside of one.
    pub fn member_id(&self) -> String {
        match &self.mode {
            Mode::Subscribed { membership, .. } => membership.member_id().as_str().to_owned(),
            Mode::Assigned(_) => String::new(),
        }
    }

    /// Goes on at `offset`.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] if the partition is not assigned.
    pub fn seek(&mut self, key: &TopicPartition, offset: Offset) -> Result<(), ClientError> {
        self.set(key, Position::At(offset))
    }

    /// Goes on at an offset that the leader says, looked up at the next poll.
    pub fn seek_to(&mut self, key: &TopicPartition, spec: OffsetSpec) -> Result<(), ClientError> {
        self.set(key, Position::Lookup(Some(spec)))
    }

    fn set(&mut self, key: &TopicPartition, position: Position) -> Result<(), ClientError> {
        match self.fetcher.assignment.borrow_mut().set(key, position) {
            true => Ok(()),
            false => Err(ClientError::Invalid(format!("{key} is not assigned"))),
        }
    }

    /// The offset of the next record that poll returns, if it is known.
    pub fn position(&self, key: &TopicPartition) -> Option<Offset> {
        match self.fetcher.assignment.borrow().position(key) {
            Some(Position::At(offset)) => Some(offset),
            _ => None,
        }
    }

    /// The high watermark that came with the last records of the partition.
    pub fn high_watermark(&self, key: &TopicPartition) -> Option<Offset> {
        self.fetcher.assignment.borrow().high_watermark(key)
    }

    /// Stops (or resumes) handing out records of a partition without giving it up. False if it is
    /// not assigned.
    pub fn pause(&mut self, key: &TopicPartition, paused: bool) -> bool {
        self.fetcher.assignment.borrow_mut().pause(key, paused)
    }

    // ---------------------------------------------------------------------------------- poll

    /// The next records, at most `max.poll.records`; none if nothing came within `limit`.
    ///
    /// # Errors
    /// What the application must decide: no offset with `auto.offset.reset=none`, a damaged batch,
    /// a refusal by the broker. Polling again goes on.
    pub async fn poll(&mut self, limit: Duration) -> Result<Vec<ConsumerRecord>, ClientError> {
        let deadline = rt::now() + limit;
        loop {
            if self.closed {
                return Err(ClientError::Closed);
            }
            if let Some(error) = self.take_failure() {
                return Err(error);
            }
            if let Mode::Subscribed { membership, .. } = &self.mode {
                membership.polled_at.set(rt::now());
            }
            let config = &self.fetcher.config;
            self.cluster()
                .refresh_beside(config.client.metadata_max_age);
            let backoff = config.client.retry_backoff;
            let mut look = backoff.longest;
            // A look at what is there, even with no time at all.
            if self.be_member(deadline).await? {
                self.auto_commit();
                positions::find_beside(&self.fetcher, self.mode.coordinator().cloned());
                let max = self.config().poll_records;
                let taken = self.fetcher.assignment.borrow_mut().take(max);
                let records = taken.map_err(|error| ClientError::Invalid(error.to_string()))?;
                // While the application works the next records are on their way.
                if self.fetcher.send() {
                    look = backoff.first;
                    self.cluster().refresh_beside(look);
                }
                if !records.is_empty() {
                    return Ok(records);
                }
            }
            if rt::now() >= deadline {
                return Ok(Vec::new());
            }
            self.wait(deadline, look).await;
        }
    }

    fn take_failure(&self) -> Option<ClientError> {
        let own = match &self.mode {
            Mode::Subscribed { membership, .. } => membership.take_failure(),
            Mode::Assigned(_) => None,
        };
        own.or_else(|| self.fetcher.take_failure())
    }

    /// Waits for records, the end of a rebalance, or the next automatic commit. No longer than
    /// `look`: a leader is found without a bell.
    async fn wait(&self, deadline: Instant, look: Duration) {
        let config = self.config();
        let commits = config.auto_commit.filter(|_| self.joining.is_none());
        let commit_at = commits.map(|every| self.committed_at + every);
        let until = commit_at
            .map_or(deadline, |at| at.min(deadline))
            .min(rt::now() + look);
        rt::select2(self.bell.notified(), rt::sleep_until(until)).await;
    }

    /// True as a member of the group, or without one; false while a rebalance is under way, in
    /// which automatic commits are not due.
    async fn be_member(&mut self, deadline: Instant) -> Result<bool, ClientError> {
        let Mode::Subscribed { topics, membership } = &self.mode else {
            return Ok(true);
        };
        if self.joining.is_none() {
            if !membership.must_join() {
                return Ok(true);
            }
            let (topics, membership) = (topics.clone(), membership.clone());
            // Eager: what was read so far is committed and given up before joining (KIP-429).
            if self.config().auto_commit.is_some() && !self.fetcher.assignment.borrow().is_empty() {
                let left = deadline.since(rt::now()).max(Duration::from_millis(100));
                // A member that is thrown out cannot commit any more.
                let _ = rt::timeout(left, self.commit()).await;
            }
            let owned = Vec::new();
            self.fetcher.assignment.borrow_mut().replace(&[]);
            let bell = self.bell.clone();
            self.joining = Some(rt::spawn(async move {
                let result = membership.join(topics, owned).await;
                bell.notify_one();
                result
            }));
        }
        let Some(task) = &mut self.joining else {
            return Ok(false);
        };
        let left = deadline.since(rt::now());
        let Ok(result) = rt::timeout(left, Pin::new(task)).await else {
            return Ok(false);
        };
        self.joining = None;
        let assigned = result?;
        self.rebalances += 1;
        self.committed_at = rt::now();
        tracing::debug!(partitions = ?assigned, "assigned");
        self.fetcher.assignment.borrow_mut().replace(&assigned);
        Ok(true)
    }

    /// Offsets by time, or where logs begin and end, for any partitions.
    pub async fn offsets(
        &self,
        wanted: &[(TopicPartition, OffsetSpec)],
    ) -> Result<ListedOffsets, ClientError> {
        let topics: Vec<Str> = wanted.iter().map(|(key, _)| key.topic.clone()).collect();
        self.cluster().want(&topics)?;
        list(self.cluster(), wanted, self.config().isolation).await
    }

    // ----------------------------------------------------------------------------------- end

    async fn leave(&mut self, reason: &'static str) {
        if let Some(joining) = self.joining.take() {
            joining.cancel().await;
        }
        if let Mode::Subscribed { membership, .. } = &self.mode {
            membership.leave(reason).await;
        }
        self.fetcher.assignment.borrow_mut().replace(&[]);
    }

    /// Commits (if that is automatic), leaves the group and ends the connections.
    ///
    /// # Errors
    /// Of the commit; the consumer is closed all the same.
    pub async fn close(mut self) -> Result<(), ClientError> {
        let committed = match self.config().auto_commit {
            Some(_) if self.mode.coordinator().is_some() => self.commit().await,
            _ => Ok(()),
        };
        self.leave("the consumer is closed").await;
        self.closed = true;
        self.cluster().close();
        committed
    }
}

fn coordinator(cluster: &Cluster, config: &ConsumerConfig) -> Option<Rc<GroupCoordinator>> {
    let group = config.group_id.as_deref()?;
    let coordinator = GroupCoordinator::new(cluster.clone(), Str::from(group));
    Some(Rc::new(coordinator))
}

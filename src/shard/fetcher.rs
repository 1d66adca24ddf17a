//! The followers' fetchers of a shard: for each leader broker one connection with one incremental
//! fetch session over all partitions that the shard follows there. Runs on the shard. What an
//! answer means is decided by [`crate::replica::follower`].
//!
//! A fetch leaves once this replica counts all that the fetch before it brought: its position is a
//! promise that all below is kept here. One answer is under way at a time, so what a fetcher holds in
//! memory is one answer: `replica.fetch.response.max.bytes` or one batch.

use super::Shard;
use super::cut::Cut;
use super::throttles::Side;
use crate::client::{ClientError, Connection};
use crate::log::validator::ReplicatedError;
use crate::log::{FollowError, Followed, LogError};
use crate::observe::hop::{self, What};
use crate::replica::fetch_session::{FetchSession, SessionRequest};
use crate::replica::follower::{Answer, Asked, Step};
use crate::replica::partition::Partition;
use crate::rt;
use crate::rt::sync::Notify;
use crate::rt::{Either2, Instant};
use crate::types::{LeaderEpoch, NodeId, Offset, PartitionId};
use crate::wire::messages::fetch_request::{
    FetchPartition, FetchRequest, FetchTopic, ForgottenTopic,
};
use crate::wire::messages::fetch_response::{FetchResponse, PartitionData};
use crate::wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use crate::wire::{ErrorCode, Records};
use ahash::AHashMap;
use indexmap::IndexMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The first version that names topics by id: Kafka's brokers of today all speak it.
const FETCH_VERSION_MIN: i16 = 13;
/// The first version that says who fetches, and in which life.
const REPLICA_STATE_VERSION: i16 = 15;
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause after a connection failed; each further one is twice as long, up to
/// `replica.fetch.backoff.ms`.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// How long a partition waits before its throttle is looked at again.
const THROTTLE_PAUSE: Duration = Duration::from_millis(200);
/// ListOffsets: the leader's log end, and its log start.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

/// The fetchers of a shard, by leader.
#[derive(Default)]
pub struct Fetchers {
    by_leader: RefCell<BTreeMap<NodeId, Rc<Fetcher>>>,
    /// Bytes of records fetched.
    pub bytes: Cell<u64>,
}

/// What the shard follows at one leader.
struct Fetcher {
    leader: NodeId,
    parts: RefCell<IndexMap<PartitionId, Rc<Partition>, ahash::RandomState>>,
    changed: Notify,
}

/// A connection to a leader with its session.
struct Link {
    connection: Connection,
    version: i16,
    session: FetchSession,
}

/// What is to be fetched now.
struct Positions {
    wanted: Vec<(PartitionId, Asked)>,
    /// When the first of those that pause is wanted again.
    next: Option<Instant>,
}

/// Pauses that grow from one failure to the next.
struct Pauses {
    next: Duration,
    max: Duration,
}

impl Pauses {
    fn take(&mut self) -> Duration {
        let pause = self.next.min(self.max);
        self.next = (pause * 2).min(self.max);
        pause
    }

    fn reset(&mut self) {
        self.next = FIRST_PAUSE;
    }
}

impl Shard {
    /// Fetches a partition from `leader` from here on.
    pub(super) fn follow(self: &Rc<Self>, partition: &Rc<Partition>, leader: NodeId) {
        let mut by_leader = self.fetchers.by_leader.borrow_mut();
        let fetcher = by_leader.entry(leader).or_insert_with(|| {
            let fetcher = Rc::new(Fetcher {
                leader,
                parts: RefCell::new(IndexMap::default()),
                changed: Notify::new(),
            });
            rt::spawn(self.clone().run_fetcher(fetcher.clone()));
            fetcher
        });
        let mut parts = fetcher.parts.borrow_mut();
        parts.insert(partition.id, partition.clone());
        fetcher.changed.notify_one();
    }

    /// Stops to fetch a partition, but from `leader`.
    pub(super) fn unfollow(&self, partition: &Rc<Partition>, leader: Option<NodeId>) {
        for fetcher in self.fetchers.by_leader.borrow().values() {
            if Some(fetcher.leader) != leader
                && fetcher
                    .parts
                    .borrow_mut()
                    .shift_remove(&partition.id)
                    .is_some()
            {
                fetcher.changed.notify_one();
            }
        }
    }

    async fn run_fetcher(self: Rc<Self>, fetcher: Rc<Fetcher>) {
        let backoff = Duration::from_millis(self.node.config.replica_fetch_backoff_ms);
        let mut pauses = Pauses {
            next: FIRST_PAUSE,
            max: backoff,
        };
        let mut link: Option<Link> = None;
        while !self.is_draining() {
            if fetcher.parts.borrow().is_empty() {
                // Whoever follows there next starts another.
                let mut by_leader = self.fetchers.by_leader.borrow_mut();
                by_leader.remove(&fetcher.leader);
                return;
            }
            let positions = self.positions(&fetcher).await;
            if positions.wanted.is_empty() {
                let changed = fetcher.changed.notified();
                rt::select2(rt::sleep_until_opt(positions.next), changed).await;
                continue;
            }
            let outcome = match &mut link {
                Some(link) => self.fetch(&fetcher, link, &positions.wanted).await,
                None => match self.connect(&fetcher).await {
                    Ok(connected) => {
                        let link = link.insert(connected);
                        self.fetch(&fetcher, link, &positions.wanted).await
                    }
                    Err(error) => Err(error),
                },
            };
            match outcome {
                Ok(()) => pauses.reset(),
                Err(error) => {
                    link = None;
                    let pause = pauses.take();
                    tracing::debug!(leader = fetcher.leader.0, %error, pause_ms = pause.as_millis() as u64, "fetching from the leader failed");
                    let changed = fetcher.changed.notified();
                    rt::select3(rt::sleep(pause), changed, self.drained()).await;
                }
            }
        }
    }

    async fn connect(&self, fetcher: &Fetcher) -> Result<Link, ClientError> {
        let (host, port) = self.address_of(fetcher.leader)?;
        let client_id = format!("broker-{}-fetcher-{}", self.node.node.0, self.place());
        let connection = Connection::open(&host, port, &client_id, CONNECT_TIMEOUT).await?;
        let versions = connection.versions();
        let version = versions.choose::<FetchRequest>(FETCH_VERSION_MIN, i16::MAX)?;
        Ok(Link {
            connection,
            version,
            session: FetchSession::new(),
        })
    }

    /// Where the partitions stand that can be fetched now, once all that was fetched counts.
    async fn positions(self: &Rc<Self>, fetcher: &Rc<Fetcher>) -> Positions {
        let parts: Vec<Rc<Partition>> = fetcher.parts.borrow().values().cloned().collect();
        let mut positions = Positions {
            wanted: Vec::with_capacity(parts.len()),
            next: None,
        };
        let mut gone = Vec::new();
        let mut cuts = Vec::new();
        let now = rt::now();
        for partition in parts {
            let log = &partition.log;
            if log.counted() < log.log_end() && log.wait_counted(log.log_end()).await.is_err() {
                if log.is_offline() {
                    gone.push(partition.id);
                }
                // Else it was cut meanwhile: its new end is looked at next time.
                positions.next = Some(now + FIRST_PAUSE);
                continue;
            }
            let unknown = partition.as_follower(|follower, log| {
                let to = follower.cut_unknown(log)?;
                // A cut that failed is tried again after a pause.
                follower
                    .pause(now)
                    .is_none()
                    .then(|| (follower.epoch(), to))
            });
            if let Some((epoch, to)) = unknown.flatten() {
                cuts.extend(cut_of(&partition, epoch, Step::Truncate(to)));
                positions.next = Some(now);
                continue;
            }
            let asked = partition.as_follower(|follower, log| {
                if follower.leader() != Some(fetcher.leader) {
                    return Err(None);
                }
                if follower.is_behind() && self.is_held_up(&partition, Side::Follower) {
                    return Err(Some(now + THROTTLE_PAUSE));
                }
                match follower.pause(now) {
                    Some(until) => Err(Some(until)),
                    None => Ok(follower.ask(log, log.counted())),
                }
            });
            match asked {
                Some(Ok(Some(asked))) => positions.wanted.push((partition.id, asked)),
                Some(Ok(None)) => positions.next = Some(now + FIRST_PAUSE),
                Some(Err(Some(until))) => {
                    let next = positions.next.map_or(until, |next| next.min(until));
                    positions.next = Some(next);
                }
                // It has another role by now.
                Some(Err(None)) | None => gone.push(partition.id),
            }
        }
        if !cuts.is_empty() {
            self.cut(cuts).await;
        }
        let mut parts = fetcher.parts.borrow_mut();
        gone.iter().for_each(|id| {
            parts.shift_remove(id);
        });
        // Fenced ones wait for metadata, which rings.
        positions.next = positions.next.filter(|next| next.0 != u64::MAX);
        positions
    }

    /// One exchange with the leader.
    async fn fetch(
        self: &Rc<Self>,
        fetcher: &Rc<Fetcher>,
        link: &mut Link,
        wanted: &[(PartitionId, Asked)],
    ) -> Result<(), ClientError> {
        let limit = Duration::from_millis(self.node.config.replica_socket_timeout_ms);
        let within = link.session.request(wanted);
        let request = self.fetch_request(within, link.version);
        let sent = link.connection.start(&request, link.version)?;
        let answer = sent.answer::<FetchRequest>(limit);
        let response = match rt::select2(answer, self.drained()).await {
            Either2::First(response) => response?,
            // The logs are about to be closed.
            Either2::Second(()) => return Err(ClientError::Closed),
        };
        let error = ErrorCode(response.error_code);
        if !link.session.on_answer(error, response.session_id) {
            let of_session = [
                ErrorCode::FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode::INVALID_FETCH_SESSION_EPOCH,
            ];
            if of_session.contains(&error) {
                return Ok(());
            }
            return Err(ClientError::Broker {
                what: format!("fetch from {}", link.connection.peer()),
                code: error,
                message: String::new(),
            });
        }
        self.take_answer(fetcher, link, response).await
    }

    fn fetch_request(&self, within: SessionRequest, version: i16) -> FetchRequest {
        let config = &self.node.config;
        let mut request = FetchRequest {
            max_wait_ms: config.replica_fetch_wait_max_ms,
            min_bytes: config.replica_fetch_min_bytes,
            max_bytes: config.replica_fetch_response_max_bytes,
            session_id: within.id,
            session_epoch: within.epoch,
            ..Default::default()
        };
        if version >= REPLICA_STATE_VERSION {
            request.replica_state.replica_id = self.node.node.0;
            request.replica_state.replica_epoch = self.broker_epoch();
        } else {
            request.replica_id = self.node.node.0;
        }
        for (id, asked) in within.named {
            let part = FetchPartition {
                partition: id.index,
                current_leader_epoch: asked.epoch.0,
                fetch_offset: asked.from.0,
                last_fetched_epoch: asked.last_epoch.0,
                log_start_offset: asked.log_start.0,
                partition_max_bytes: config.replica_fetch_max_bytes,
                ..Default::default()
            };
            match request.topics.last_mut() {
                Some(last) if last.topic_id == id.topic => last.partitions.push(part),
                _ => request.topics.push(FetchTopic {
                    topic_id: id.topic,
                    partitions: vec![part],
                    ..Default::default()
                }),
            }
        }
        for id in within.forgotten {
            match request.forgotten_topics_data.last_mut() {
                Some(last) if last.topic_id == id.topic => last.partitions.push(id.index),
                _ => request.forgotten_topics_data.push(ForgottenTopic {
                    topic_id: id.topic,
                    partitions: vec![id.index],
                    ..Default::default()
                }),
            }
        }
        request
    }

    async fn take_answer(
        self: &Rc<Self>,
        fetcher: &Rc<Fetcher>,
        link: &Link,
        response: FetchResponse,
    ) -> Result<(), ClientError> {
        let backoff = Duration::from_millis(self.node.config.replica_fetch_backoff_ms);
        let mut cuts = Vec::new();
        let mut out_of_range = Vec::new();
        for topic in response.responses {
            for data in topic.partitions {
                let id = PartitionId {
                    topic: topic.topic_id,
                    index: data.partition_index,
                };
                let found = fetcher.parts.borrow().get(&id).cloned();
                let (Some(partition), Some(asked)) = (found, link.session.asked(id)) else {
                    continue;
                };
                let answer = answer_of(&data);
                let now = rt::now();
                let step = partition.as_follower(|follower, log| {
                    follower.on_answer(&asked, &answer, log, now, backoff)
                });
                if answer.error != ErrorCode::NONE {
                    tracing::debug!(topic = %partition.topic, partition = id.index, error = %answer.error, ?step, "leader refused a fetch");
                }
                match step {
                    Some(Step::Append) => {
                        let records = data.records.unwrap_or_default();
                        self.append_fetched(&partition, &asked, &answer, records)
                            .await;
                    }
                    Some(step @ (Step::Truncate(_) | Step::StartOver(_))) => {
                        cuts.extend(cut_of(&partition, asked.epoch, step));
                    }
                    Some(Step::AskLatest) => out_of_range.push((partition, asked)),
                    _ => {}
                }
            }
        }
        if !out_of_range.is_empty() {
            self.find_range(link, out_of_range, &mut cuts).await?;
        }
        if !cuts.is_empty() {
            self.cut(cuts).await;
        }
        Ok(())
    }

    async fn cut(self: &Rc<Self>, cuts: Vec<Cut>) {
        let backoff = Duration::from_millis(self.node.config.replica_fetch_backoff_ms);
        for failed in self.cut_logs(cuts).await {
            failed
                .partition
                .as_follower(|follower, _| follower.back_off(rt::now(), backoff));
        }
    }

    /// Appends what was fetched at the log's end.
    async fn append_fetched(
        self: &Rc<Self>,
        partition: &Rc<Partition>,
        asked: &Asked,
        answer: &Answer,
        records: Records,
    ) {
        let size = records.len();
        if size > 0 {
            let records = records.to_bytes();
            let append = || {
                let log = &partition.log;
                log.append_as_follower(records.clone(), asked.epoch, rt::wall_ms())
            };
            let mut appended = append();
            if let Some(first) = straddling(&appended)
                && let Some(Some(at)) = partition
                    .as_follower(|follower, log| follower.on_straddling(first, answer, log))
            {
                let start_over = Cut {
                    partition: partition.clone(),
                    epoch: asked.epoch,
                    to: at,
                    start_over: true,
                };
                self.cut(vec![start_over]).await;
                // Another role by now, or the log could not be begun anew.
                let follows = partition.as_follower(|follower, _| follower.epoch());
                if follows != Some(asked.epoch) || partition.log.log_end() != at {
                    return;
                }
                appended = append();
            }
            if let Err(error) = appended {
                self.not_appended(partition, error);
                return;
            }
            self.count_copied(partition, Side::Follower, size);
            hop::record(|| partition.hop(What::FollowerAppend).offset(asked.from.0));
            self.fetchers
                .bytes
                .set(self.fetchers.bytes.get() + size as u64);
        }
        let settled = partition.as_follower(|follower, log| follower.settle(answer, log));
        let Some((moved, log_start)) = settled else {
            return;
        };
        if log_start > partition.log.log_start() {
            match partition.log.delete_records_to(log_start) {
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(topic = %partition.topic, partition = partition.id.index, %error, "log start not moved");
                }
            }
        }
        if moved.is_some() || size > 0 {
            self.check_waiting(partition.id, moved.is_some());
        }
        if size >= rt::STEP_BYTES {
            rt::yield_now().await;
        }
    }

    fn not_appended(&self, partition: &Rc<Partition>, error: FollowError) {
        let backoff = Duration::from_millis(self.node.config.replica_fetch_backoff_ms);
        match error {
            // Being closed or cut, or offline: told elsewhere.
            FollowError::Log(LogError::Closed | LogError::Offline(_)) => {}
            error => {
                tracing::error!(topic = %partition.topic, partition = partition.id.index, %error, "fetched records not appended");
            }
        }
        partition.as_follower(|follower, _| follower.back_off(rt::now(), backoff));
    }

    /// Some logs end outside their leader's: asks for its bounds.
    async fn find_range(
        &self,
        link: &Link,
        asked: Vec<(Rc<Partition>, Asked)>,
        cuts: &mut Vec<Cut>,
    ) -> Result<(), ClientError> {
        let latest = self.leader_offsets(link, &asked, LATEST).await?;
        let mut rest = Vec::new();
        for (partition, asked) in asked {
            match self.step_of(&partition, &asked, &latest, LATEST) {
                Some(Step::AskEarliest) => rest.push((partition, asked)),
                Some(step) => cuts.extend(cut_of(&partition, asked.epoch, step)),
                None => {}
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let earliest = self.leader_offsets(link, &rest, EARLIEST).await?;
        for (partition, asked) in rest {
            if let Some(step) = self.step_of(&partition, &asked, &earliest, EARLIEST) {
                cuts.extend(cut_of(&partition, asked.epoch, step));
            }
        }
        Ok(())
    }

    fn step_of(
        &self,
        partition: &Rc<Partition>,
        asked: &Asked,
        offsets: &AHashMap<PartitionId, Result<Offset, ErrorCode>>,
        which: i64,
    ) -> Option<Step> {
        let backoff = Duration::from_millis(self.node.config.replica_fetch_backoff_ms);
        let unknown = Err(ErrorCode::UNKNOWN_SERVER_ERROR);
        let found = offsets.get(&partition.id).copied().unwrap_or(unknown);
        partition.as_follower(|follower, log| {
            if follower.epoch() != asked.epoch {
                return Step::Ignore;
            }
            match found {
                Ok(offset) if which == LATEST => follower.on_latest(offset, log),
                Ok(offset) => match follower.on_earliest(offset, log) {
                    // Not at once: leader and follower contradict each other.
                    Step::FetchAgain => follower.back_off(rt::now(), backoff),
                    step => step,
                },
                Err(_) => follower.back_off(rt::now(), backoff),
            }
        })
    }

    async fn leader_offsets(
        &self,
        link: &Link,
        asked: &[(Rc<Partition>, Asked)],
        timestamp: i64,
    ) -> Result<AHashMap<PartitionId, Result<Offset, ErrorCode>>, ClientError> {
        let limit = Duration::from_millis(self.node.config.replica_socket_timeout_ms);
        let mut request = ListOffsetsRequest {
            replica_id: self.node.node.0,
            ..Default::default()
        };
        let mut ids = AHashMap::new();
        for (partition, asked) in asked {
            ids.insert(partition.topic.clone(), partition.id.topic);
            let part = ListOffsetsPartition {
                partition_index: partition.id.index,
                current_leader_epoch: asked.epoch.0,
                timestamp,
                ..Default::default()
            };
            let topics = &mut request.topics;
            match topics.iter_mut().find(|t| t.name == partition.topic) {
                Some(topic) => topic.partitions.push(part),
                None => topics.push(ListOffsetsTopic {
                    name: partition.topic.clone(),
                    partitions: vec![part],
                    ..Default::default()
                }),
            }
        }
        let response = link.connection.call(&request, limit).await?;
        let mut offsets = AHashMap::new();
        for topic in response.topics {
            let Some(id) = ids.get(&topic.name) else {
                continue;
            };
            for part in topic.partitions {
                let id = PartitionId {
                    topic: *id,
                    index: part.partition_index,
                };
                let offset = match ErrorCode(part.error_code) {
                    ErrorCode::NONE => Ok(Offset(part.offset)),
                    error => Err(error),
                };
                offsets.insert(id, offset);
            }
        }
        Ok(offsets)
    }
}

fn answer_of(data: &PartitionData) -> Answer {
    let diverging = &data.diverging_epoch;
    Answer {
        error: ErrorCode(data.error_code),
        high_watermark: Offset(data.high_watermark),
        log_start: Offset(data.log_start_offset),
        diverging: (diverging.end_offset >= 0)
            .then_some((LeaderEpoch(diverging.epoch), Offset(diverging.end_offset))),
    }
}

/// Where the first batch begins, if that is before the log's end.
fn straddling(appended: &Result<Followed, FollowError>) -> Option<Offset> {
    match appended {
        Err(FollowError::StartOver(first)) => Some(*first),
        Err(FollowError::Replicated(ReplicatedError::Order { expected, found })) => {
            (found < expected).then_some(*found)
        }
        _ => None,
    }
}

fn cut_of(partition: &Rc<Partition>, epoch: LeaderEpoch, step: Step) -> Option<Cut> {
    let (to, start_over) = match step {
        Step::Truncate(to) => (to, false),
        Step::StartOver(to) => (to, true),
        _ => return None,
    };
    Some(Cut {
        partition: partition.clone(),
        epoch,
        to,
        start_over,
    })
}

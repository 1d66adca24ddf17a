//! Fetch requests of a consumer: one on its way per broker, answers into the assignment's buffers.
//!
//! One executor. Uses no fetch sessions: each request names its partitions. Never retries: what
//! failed becomes fetchable again, after a pause.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ahash::{AHashMap, AHashSet};

use super::assignment::{Assignment, Fetchable, Position};
use super::cluster::Cluster;
use super::config::{ConsumerConfig, Isolation, OffsetReset};
use super::error::ClientError;
use super::fetched::Fetched;
use crate::rt;
use crate::rt::sync::Notify;
use crate::types::{NodeId, Offset};
use crate::wire::ErrorCode;
use crate::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use crate::wire::messages::fetch_response::{FetchResponse, PartitionData};

/// The last version that names topics instead of using their ids.
const FETCH_BY_NAME_LAST: i16 = 12;
/// Session id and epoch of a request outside of any session (KIP-227).
const NO_SESSION: (i32, i32) = (0, -1);

/// See the module's words.
pub(super) struct Fetcher {
    pub(super) cluster: Cluster,
    pub(super) config: ConsumerConfig,
    pub(super) assignment: RefCell<Assignment>,
    /// Rung when something arrived or failed.
    pub(super) bell: Notify,
    /// Positions are being looked for.
    pub(super) positioning: Cell<bool>,
    busy: RefCell<AHashSet<NodeId>>,
    failures: RefCell<AHashMap<NodeId, u32>>,
    /// What the application must know.
    failure: RefCell<Option<ClientError>>,
}

impl Fetcher {
    pub(super) fn new(cluster: Cluster, config: ConsumerConfig, bell: Notify) -> Rc<Fetcher> {
        Rc::new(Fetcher {
            cluster,
            config,
            assignment: RefCell::default(),
            bell,
            positioning: Cell::new(false),
            busy: RefCell::default(),
            failures: RefCell::default(),
            failure: RefCell::new(None),
        })
    }

    pub(super) fn take_failure(&self) -> Option<ClientError> {
        self.failure.borrow_mut().take()
    }

    /// Keeps what the application must know until the next poll.
    pub(super) fn fail(&self, error: ClientError) {
        *self.failure.borrow_mut() = Some(error);
    }

    /// Sends a fetch to every leader that has none on its way. True if a partition has no leader.
    pub(super) fn send(self: &Rc<Self>) -> bool {
        let fetchable = self.assignment.borrow().fetchable();
        let view = self.cluster.view();
        let mut leaderless = false;
        let mut by_leader: BTreeMap<NodeId, Vec<Fetchable>> = BTreeMap::new();
        for fetch in fetchable {
            match view.leader_of(&fetch.key.topic, fetch.key.partition) {
                Some(leader) => by_leader.entry(leader).or_default().push(fetch),
                None => leaderless = true,
            }
        }
        for (leader, fetches) in by_leader {
            if !self.busy.borrow_mut().insert(leader) {
                continue;
            }
            for fetch in &fetches {
                self.assignment.borrow_mut().begin(fetch);
            }
            let fetcher = self.clone();
            drop(rt::spawn(async move { fetcher.run(leader, fetches).await }));
        }
        leaderless
    }

    async fn run(self: Rc<Self>, leader: NodeId, fetches: Vec<Fetchable>) {
        let result = self.fetch(leader, &fetches).await;
        let pause = match result {
            Ok(answer) => self.take_in(&fetches, &answer),
            Err(error) => {
                tracing::debug!(broker = leader.0, %error, "fetch failed");
                if !error.is_retriable() && !matches!(error, ClientError::Closed) {
                    *self.failure.borrow_mut() = Some(error);
                }
                self.end_all(&fetches);
                true
            }
        };
        if pause && !self.cluster.is_closed() {
            // Leaders may have moved. If this fails the next fetch does too.
            let _ = self.cluster.refresh().await;
            let failures = {
                let mut failures = self.failures.borrow_mut();
                let count = failures.entry(leader).or_default();
                *count += 1;
                *count
            };
            rt::sleep(
                self.config
                    .client
                    .retry_backoff
                    .delay(failures, rt::random_u64()),
            )
            .await;
        } else {
            self.failures.borrow_mut().remove(&leader);
        }
        self.busy.borrow_mut().remove(&leader);
        self.bell.notify_one();
    }

    fn end_all(&self, fetches: &[Fetchable]) {
        let mut assignment = self.assignment.borrow_mut();
        for fetch in fetches {
            assignment.end(fetch, None);
        }
    }

    async fn fetch(
        &self,
        leader: NodeId,
        fetches: &[Fetchable],
    ) -> Result<FetchResponse, ClientError> {
        let connection = self.cluster.node(leader).await?;
        let view = self.cluster.view();
        let mut topics: Vec<FetchTopic> = Vec::new();
        for fetch in fetches {
            let topic = view.topic(&fetch.key.topic);
            let known = topic.and_then(|topic| topic.partition(fetch.key.partition));
            let partition = FetchPartition {
                partition: fetch.key.partition,
                current_leader_epoch: known.map_or(-1, |known| known.leader_epoch.0),
                fetch_offset: fetch.offset.0,
                partition_max_bytes: self.config.partition_fetch_bytes,
                ..FetchPartition::default()
            };
            match topics
                .iter_mut()
                .find(|topic| topic.topic == fetch.key.topic)
            {
                Some(topic) => topic.partitions.push(partition),
                None => topics.push(FetchTopic {
                    topic: fetch.key.topic.clone(),
                    topic_id: topic.map(|topic| topic.id).unwrap_or_default(),
                    partitions: vec![partition],
                    ..FetchTopic::default()
                }),
            }
        }
        let by_id = topics.iter().all(|topic| !topic.topic_id.is_zero());
        let last = if by_id { i16::MAX } else { FETCH_BY_NAME_LAST };
        let wait = self.config.fetch_max_wait;
        let (session_id, session_epoch) = NO_SESSION;
        let request = FetchRequest {
            max_wait_ms: i32::try_from(wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: self.config.fetch_min_bytes,
            max_bytes: self.config.fetch_max_bytes,
            isolation_level: self.config.isolation as i8,
            session_id,
            session_epoch,
            topics,
            ..FetchRequest::default()
        };
        let limit = self.config.client.request_timeout + wait;
        let answer = connection.call_up_to(&request, last, limit).await?;
        super::error::check(answer.error_code, || "fetch".to_owned())?;
        Ok(answer)
    }

    /// Puts the answer into the buffers. True if a pause and a refresh are due.
    fn take_in(&self, fetches: &[Fetchable], answer: &FetchResponse) -> bool {
        let view = self.cluster.view();
        let mut pause = false;
        let mut parts: AHashMap<(&str, i32), &PartitionData> = AHashMap::new();
        for topic in &answer.responses {
            let name = match topic.topic_id.is_zero() {
                true => Some(&topic.topic),
                false => view.name_of(topic.topic_id),
            };
            let Some(name) = name else { continue };
            for part in &topic.partitions {
                parts.insert((name.as_str(), part.partition_index), part);
            }
        }
        let mut assignment = self.assignment.borrow_mut();
        for fetch in fetches {
            let part = parts.get(&(fetch.key.topic.as_str(), fetch.key.partition));
            let error = part.map(|part| ErrorCode(part.error_code));
            match (part, error) {
                (Some(part), Some(ErrorCode::NONE)) => {
                    assignment.end(fetch, self.fetched(fetch, part));
                }
                (Some(_), Some(ErrorCode::OFFSET_OUT_OF_RANGE)) => {
                    if !assignment.end(fetch, None) {
                        continue;
                    }
                    if self.config.offset_reset == OffsetReset::Fail {
                        let what = format!("fetch of {} at {}", fetch.key, fetch.offset);
                        let error = ClientError::broker(what, ErrorCode::OFFSET_OUT_OF_RANGE, "");
                        *self.failure.borrow_mut() = Some(error);
                        pause = true;
                    } else {
                        assignment.set(&fetch.key, Position::Lookup(None));
                    }
                }
                (_, error) => {
                    assignment.end(fetch, None);
                    pause = true;
                    let error = error.unwrap_or(ErrorCode::UNKNOWN_TOPIC_ID);
                    if !error.is_retriable() {
                        let what = format!("fetch of {}", fetch.key);
                        *self.failure.borrow_mut() = Some(ClientError::broker(what, error, ""));
                    }
                }
            }
        }
        pause
    }

    fn fetched(&self, fetch: &Fetchable, part: &PartitionData) -> Option<(Fetched, Offset)> {
        let records = part
            .records
            .as_ref()
            .map(|records| records.to_bytes())
            .unwrap_or_default();
        if records.is_empty() {
            return None;
        }
        let aborted = (self.config.isolation == Isolation::ReadCommitted).then(|| {
            let aborted = part.aborted_transactions.iter().flatten();
            aborted
                .map(|transaction| (transaction.first_offset, transaction.producer_id))
                .collect()
        });
        let fetched = Fetched::new(
            fetch.key.clone(),
            fetch.offset,
            records,
            aborted,
            self.config.check_crcs,
        );
        Some((fetched, Offset(part.high_watermark)))
    }
}

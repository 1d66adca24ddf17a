//! Fetch (key 1, v4-18): a session's partitions are read on the shards that own them; with fewer
//! bytes than the client's minimum the request waits on those shards, as long as the client
//! allows. Runs on the connection's shard; reading is [`crate::shard::read`].

use super::request::Context;
use crate::observe::hop::{self, Hop, What};
use crate::replica::delayed::Isolation;
use crate::replica::session::{Opened, SessionKey, SessionPart, Sessions, Told};
use crate::rt::{self, Instant};
use crate::shard::Shard;
use crate::shard::quotas::Counted;
use crate::shard::read::{Read, ReadPart, ReadRequest, Reader};
use crate::types::{NodeId, PartitionId, Uuid};
use crate::wire::messages::fetch_request::FetchRequest;
use crate::wire::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchResponse, FetchableTopicResponse, LeaderIdAndEpoch,
    NodeEndpoint, PartitionData,
};
use crate::wire::{ErrorCode, Records, Str};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// First version that names topics by id.
const TOPIC_ID_VERSION: i16 = 13;
/// From this version on a client may read from followers (KIP-392).
const ANY_REPLICA_VERSION: i16 = 11;
/// First version that answers a lost leadership with the leader (KIP-951).
const HINT_VERSION: i16 = 16;
/// Replica id of a consumer, and of a debugging consumer that may read to the log end.
const CONSUMER: i32 = -1;
const DEBUGGING_CONSUMER: i32 = -2;

pub async fn handle(context: Rc<Context>, request: FetchRequest) -> FetchResponse {
    let shard = &context.shard;
    let replica = if context.version >= 15 {
        request.replica_state.replica_id
    } else {
        request.replica_id
    };
    let isolation = match (replica, request.isolation_level) {
        (DEBUGGING_CONSUMER, _) => Isolation::LogEnd,
        (id, _) if id > CONSUMER => Isolation::LogEnd,
        (_, 1) => Isolation::LastStable,
        _ => Isolation::HighWatermark,
    };
    let reader = match replica {
        id if id > CONSUMER => Reader::Follower {
            id: NodeId(id),
            epoch: request.replica_state.replica_epoch,
            first: true,
        },
        _ if context.version >= ANY_REPLICA_VERSION || replica == DEBUGGING_CONSUMER => {
            Reader::OfAny {
                rack: request.rack_id.clone(),
            }
        }
        _ => Reader::OfLeaders,
    };
    let opened = {
        let (named, forgotten) = named_partitions(&context, &request);
        shard.sessions().open(
            request.session_id,
            request.session_epoch,
            context.version >= TOPIC_ID_VERSION,
            replica > CONSUMER,
            named,
            &forgotten,
            rt::now(),
            || (rt::random_u64() >> 33) as i32,
        )
    };
    let (session, mut parts, incremental) = match opened {
        Ok(Opened::Sessionless(parts)) => (0, parts, false),
        Ok(Opened::Full { session, parts }) => (session, parts, false),
        Ok(Opened::Incremental { session, parts }) => (session, parts, true),
        Err(error) => {
            return FetchResponse {
                error_code: error.0,
                ..Default::default()
            };
        }
    };
    if session != 0 {
        // A session is kept on its connection's shard.
        context.peer.steering.stay();
    }
    resolve_again(&context, &mut parts);
    for part in &parts {
        let received = context.timeline.received;
        hop::record(|| fetch_hop(What::FetchReceived, part, replica).at(received));
    }
    let max_bytes = (request.max_bytes.max(0) as u64).min(shard.settings().fetch_max_bytes);
    let plan = Plan::new(shard, &parts, reader, isolation, max_bytes);
    context.peer.steering.saw(plan.by_owner.keys().copied());
    let min_bytes = (request.min_bytes.max(0) as u64).min(max_bytes);
    let deadline = rt::now() + Duration::from_millis(request.max_wait_ms.max(0) as u64);
    let reads = plan.read_enough(&context, min_bytes, deadline).await;
    for read in &reads {
        hop::record(|| {
            let hop = fetch_hop(What::FetchAnswered, &parts[read.slot], replica);
            hop.log(-1, read.high_watermark).bytes(read.records.len())
        });
    }
    let bytes = reads.iter().map(|read| read.records.len()).sum();
    let throttled_ms = match replica > CONSUMER {
        true => 0,
        false => context.count_for_quota(Counted::Consumed, bytes),
    };
    FetchResponse {
        throttle_time_ms: throttled_ms,
        ..respond(&context, session, incremental, &parts, reads)
    }
}

/// A session lasts longer than what the metadata said when a partition was named in it: a topic
/// may have come since, or come anew under its name.
fn resolve_again(context: &Context, parts: &mut [SessionPart]) {
    let image = context.shard.image();
    for key in parts.iter_mut().map(|part| &mut part.key) {
        if context.version < TOPIC_ID_VERSION {
            let known = image.topic_by_name(&key.topic);
            key.id.topic = known.map_or(Uuid::ZERO, |topic| topic.id);
        } else if key.topic.is_empty()
            && let Some(known) = image.topic_by_id(key.id.topic)
        {
            key.topic = known.name.clone();
        }
    }
}

fn fetch_hop(what: What, part: &SessionPart, replica: i32) -> Hop {
    let hop = Hop::new(what, &part.key.topic, part.key.id.index);
    hop.peer(replica).offset(part.fetch_offset)
}

/// The request's partitions and those it forgets, with topic ids and names resolved where known.
fn named_partitions(
    context: &Context,
    request: &FetchRequest,
) -> (Vec<SessionPart>, Vec<SessionKey>) {
    let image = context.shard.image();
    let resolve = |name: &Str, id: Uuid| -> (Str, Uuid) {
        if context.version >= TOPIC_ID_VERSION {
            (
                image
                    .topic_by_id(id)
                    .map(|topic| topic.name.clone())
                    .unwrap_or_default(),
                id,
            )
        } else {
            (
                name.clone(),
                image
                    .topic_by_name(name)
                    .map_or(Uuid::ZERO, |topic| topic.id),
            )
        }
    };
    let mut named = Vec::new();
    for topic in &request.topics {
        let (name, id) = resolve(&topic.topic, topic.topic_id);
        for partition in &topic.partitions {
            named.push(SessionPart::new(
                SessionKey {
                    topic: name.clone(),
                    id: PartitionId {
                        topic: id,
                        index: partition.partition,
                    },
                },
                partition.fetch_offset,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
                partition.log_start_offset,
                partition.partition_max_bytes,
            ));
        }
    }
    let mut forgotten = Vec::new();
    for topic in &request.forgotten_topics_data {
        let (name, id) = resolve(&topic.topic, topic.topic_id);
        forgotten.extend(topic.partitions.iter().map(|index| SessionKey {
            topic: name.clone(),
            id: PartitionId {
                topic: id,
                index: *index,
            },
        }));
    }
    (named, forgotten)
}

/// Which shard reads what.
struct Plan {
    reader: Reader,
    isolation: Isolation,
    max_bytes: u64,
    by_owner: BTreeMap<usize, Vec<ReadPart>>,
    /// Partitions that have only an error to give.
    refused: Vec<(usize, ErrorCode)>,
    slots: usize,
}

impl Plan {
    fn new(
        shard: &Rc<Shard>,
        parts: &[SessionPart],
        reader: Reader,
        isolation: Isolation,
        max_bytes: u64,
    ) -> Plan {
        let mut plan = Plan {
            reader,
            isolation,
            max_bytes,
            by_owner: BTreeMap::new(),
            refused: Vec::new(),
            slots: parts.len(),
        };
        let image = shard.image();
        for (slot, part) in parts.iter().enumerate() {
            let id = part.key.id;
            match image.topic_by_id(id.topic) {
                Some(topic) if topic.has_partition(id.index) => {
                    plan.by_owner
                        .entry(shard.owner(id))
                        .or_default()
                        .push(ReadPart {
                            slot,
                            partition: id,
                            from: part.fetch_offset,
                            current_leader_epoch: part.current_leader_epoch,
                            last_fetched_epoch: part.last_fetched_epoch,
                            log_start: part.log_start_offset,
                            max_bytes: part.max_bytes,
                        });
                }
                None if part.key.topic.is_empty() => {
                    plan.refused.push((slot, ErrorCode::UNKNOWN_TOPIC_ID));
                }
                _ => plan
                    .refused
                    .push((slot, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)),
            }
        }
        plan
    }

    /// Reads, and while there is less than `min_bytes` waits for more until `deadline`.
    async fn read_enough(
        mut self,
        context: &Context,
        min_bytes: u64,
        deadline: Instant,
    ) -> Vec<Read> {
        let mut reads = self.read(&context.shard).await;
        if let Reader::Follower { first, .. } = &mut self.reader {
            *first = false;
        }
        let mut before = None;
        loop {
            let bytes: u64 = reads.iter().map(|read| read.records.len() as u64).sum();
            let now = rt::now();
            let answer_now = bytes >= min_bytes
                || self.slots == 0
                || now >= deadline
                || context.shard.is_draining()
                || reads.iter().any(Read::is_urgent)
                // What woke the fetch cannot be read within its limits: waiting again would spin.
                || before.is_some_and(|before| bytes <= before);
            if answer_now {
                return reads;
            }
            context.parked();
            let left = deadline.since(now);
            let missing = min_bytes - bytes;
            match self.wait(&context.shard, &reads, missing, left).await {
                // The others had less than enough a moment ago, and are not asked again.
                Some(fresh) => {
                    for read in fresh {
                        let slot = read.slot;
                        reads[slot] = read;
                    }
                    self.trim(&mut reads);
                }
                None => reads = self.read(&context.shard).await,
            }
            // One owner wakes only when all that was missing is there.
            before = Some(if self.by_owner.len() == 1 {
                u64::MAX
            } else {
                bytes
            });
        }
    }

    fn request(&self) -> ReadRequest {
        ReadRequest {
            reader: self.reader.clone(),
            isolation: self.isolation,
            max_bytes: self.max_bytes,
        }
    }

    /// One read for each partition, by its slot.
    async fn read(&self, shard: &Rc<Shard>) -> Vec<Read> {
        let request = self.request();
        let mut reads: Vec<Read> = self
            .refused
            .iter()
            .map(|(slot, error)| Read::error(*slot, *error))
            .collect();
        if let [(owner, parts)] = &self.by_owner.iter().collect::<Vec<_>>()[..] {
            reads.extend(shard.read_on(**owner, request, (*parts).clone()).await);
        } else {
            let calls = self
                .by_owner
                .iter()
                .map(|(owner, parts)| shard.read_on(*owner, request.clone(), parts.clone()));
            reads.extend(rt::join_all(calls).await.into_iter().flatten());
        }
        reads.sort_by_key(|read| read.slot);
        debug_assert!(reads.iter().map(|read| read.slot).eq(0..self.slots));
        self.trim(&mut reads);
        reads
    }

    /// Each shard has read up to the whole limit: keep to it over all of them, in request order.
    /// What is dropped stays where it is and is fetched next.
    fn trim(&self, reads: &mut [Read]) {
        let mut left = self.max_bytes;
        let mut found = false;
        for read in reads {
            let bytes = read.records.len() as u64;
            if bytes > left && found {
                read.records = Records::default();
                continue;
            }
            found |= bytes > 0;
            left = left.saturating_sub(bytes);
        }
    }

    /// Waits until any owner sees enough, and gives what it reads then; `None` if the time is up.
    async fn wait(
        &self,
        shard: &Rc<Shard>,
        reads: &[Read],
        missing: u64,
        timeout: Duration,
    ) -> Option<Vec<Read>> {
        let token = shard.next_watch();
        // Each owner counts its own partitions only: what they gave already, and what is missing.
        let later = self.by_owner.iter().map(|(owner, parts)| {
            let have = parts.iter().map(|part| reads[part.slot].records.len());
            let have = have.sum::<usize>() as u64;
            let need = if self.by_owner.len() == 1 {
                have + missing
            } else {
                have + 1
            };
            let request = self.request();
            Box::pin(shard.read_later_on(*owner, token, request, parts.clone(), need, timeout))
        });
        let mut later: Vec<_> = later.collect();
        if later.len() == 1 {
            return Some(later.remove(0).await);
        }
        let fresh = match rt::select2(any_of(later), rt::sleep(timeout)).await {
            rt::Either2::First(fresh) => Some(fresh),
            rt::Either2::Second(()) => None,
        };
        for owner in self.by_owner.keys() {
            shard.unwatch_on(*owner, token).await;
        }
        fresh
    }
}

/// What the first of them gives; the others are dropped.
async fn any_of<F: Future + Unpin>(mut futures: Vec<F>) -> F::Output {
    std::future::poll_fn(|context| {
        let mut polls = futures
            .iter_mut()
            .map(|future| Pin::new(future).poll(context));
        polls.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

fn respond(
    context: &Context,
    session: i32,
    incremental: bool,
    parts: &[SessionPart],
    reads: Vec<Read>,
) -> FetchResponse {
    let mut response = FetchResponse {
        session_id: session,
        ..Default::default()
    };
    let mut sessions = context.shard.sessions();
    let image = context.shard.image();
    let mut lost_leader = false;
    for read in reads {
        let part = &parts[read.slot];
        let told = Told {
            error: read.error,
            has_records: !read.records.is_empty(),
            high_watermark: read.high_watermark,
            log_start: read.log_start,
            notable: read.diverging.is_some() || read.preferred.is_some(),
        };
        if incremental && !Sessions::is_news(part, &told) {
            continue;
        }
        if session != 0 {
            sessions.told(session, &part.key, &told);
        }
        let mut data = PartitionData {
            partition_index: part.key.id.index,
            error_code: read.error.0,
            high_watermark: read.high_watermark,
            last_stable_offset: read.last_stable,
            log_start_offset: read.log_start,
            aborted_transactions: read.aborted.map(|aborted| {
                aborted
                    .into_iter()
                    .map(|(producer_id, first_offset)| AbortedTransaction {
                        producer_id,
                        first_offset,
                        ..Default::default()
                    })
                    .collect()
            }),
            records: Some(read.records),
            ..Default::default()
        };
        if let Some(preferred) = read.preferred {
            data.preferred_read_replica = preferred.0;
        }
        if let Some((epoch, end_offset)) = read.diverging {
            data.diverging_epoch = EpochEndOffset {
                epoch,
                end_offset,
                ..Default::default()
            };
        }
        let hinted = [
            ErrorCode::NOT_LEADER_OR_FOLLOWER,
            ErrorCode::FENCED_LEADER_EPOCH,
        ];
        if context.version >= HINT_VERSION
            && hinted.contains(&read.error)
            && let Some((leader, epoch)) = image.leader(part.key.id.topic, part.key.id.index)
        {
            data.current_leader = LeaderIdAndEpoch {
                leader_id: leader.0,
                leader_epoch: epoch.0,
                ..Default::default()
            };
            lost_leader = true;
        }
        push(&mut response, part, data);
    }
    if lost_leader {
        response.node_endpoints = image
            .endpoints(&context.peer.listener)
            .map(|(id, host, port, rack)| NodeEndpoint {
                node_id: id.0,
                host: Str::from(host),
                port: i32::from(port),
                rack: rack.map(Str::from),
                ..Default::default()
            })
            .collect();
    }
    response
}

/// Adds a partition under its topic; partitions of one topic that follow each other share it.
fn push(response: &mut FetchResponse, part: &SessionPart, data: PartitionData) {
    let id = part.key.id.topic;
    match response.responses.last_mut() {
        Some(last) if last.topic_id == id && last.topic == part.key.topic => {
            last.partitions.push(data)
        }
        _ => response.responses.push(FetchableTopicResponse {
            topic: part.key.topic.clone(),
            topic_id: id,
            partitions: vec![data],
            ..Default::default()
        }),
    }
}

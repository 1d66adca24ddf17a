//! What the active controller tells of its log: Fetch of `__cluster_metadata` and FetchSnapshot for
//! observers (brokers of this software and of Kafka), DescribeQuorum for tools. Runs on the control
//! executor. Serves only what is committed: high watermark and log end are one, and nothing that
//! was served is ever taken back. Never answers as a leader before its own term has begun.

use super::node::Quorum;
use crate::cluster::controller::Controller;
use crate::cluster::metadata_log::{METADATA_TOPIC_ID, MetadataLog, MetadataLogError};
use crate::cluster::snapshot::SnapshotId;
use crate::cluster::topics::METADATA_TOPIC;
use crate::rt;
use crate::rt::fs::{File, OpenOptions};
use crate::types::{LeaderEpoch, NodeId, Offset, Uuid};
use crate::wire::messages::describe_quorum_request::DescribeQuorumRequest;
use crate::wire::messages::describe_quorum_response::{self as described, DescribeQuorumResponse};
use crate::wire::messages::fetch_request::FetchRequest;
use crate::wire::messages::fetch_response::{self as fetched, FetchResponse};
use crate::wire::messages::fetch_snapshot_request::FetchSnapshotRequest;
use crate::wire::messages::fetch_snapshot_response::{self as snapshot, FetchSnapshotResponse};
use crate::wire::records::Records;
use crate::wire::{ErrorCode, Str};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of one answer whatever was asked (8 MiB, the largest batch Kafka's controllers write).
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// How long an observer that asks no more is still named, as Kafka has it.
const OBSERVER_SILENCE_MS: i64 = 300_000;
/// Observers remembered: brokers of one cluster. Beyond it the one that was silent longest goes.
const OBSERVERS_MAX: usize = 2000;

/// One observer as its fetches show it.
#[derive(Clone, Copy, Debug)]
struct Observer {
    directory: Uuid,
    offset: Offset,
    heard_ms: i64,
    caught_up_ms: i64,
    /// The log end when it asked last.
    end_then: Offset,
}

/// Who follows without a vote.
#[derive(Default)]
pub struct Observers {
    by_id: RefCell<BTreeMap<NodeId, Observer>>,
}

impl Observers {
    fn heard(&self, id: NodeId, directory: Uuid, offset: Offset, end: Offset, now_ms: i64) {
        let mut all = self.by_id.borrow_mut();
        all.retain(|_, observer| now_ms - observer.heard_ms < OBSERVER_SILENCE_MS);
        if all.len() >= OBSERVERS_MAX && !all.contains_key(&id) {
            let oldest = all.iter().min_by_key(|(_, observer)| observer.heard_ms);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                all.remove(&oldest);
            }
        }
        let before = all.get(&id).copied();
        // It has all there is, or all there was when it asked before.
        let caught_up_ms = match before {
            _ if offset >= end => now_ms,
            Some(before) if offset >= before.end_then => before.heard_ms,
            Some(before) => before.caught_up_ms,
            None => -1,
        };
        let observer = Observer {
            directory,
            offset,
            heard_ms: now_ms,
            caught_up_ms,
            end_then: end,
        };
        all.insert(id, observer);
    }
}

/// What an observer's position calls for.
#[derive(Debug, PartialEq, Eq)]
enum Position {
    Valid,
    /// Its log parts from this one: the last common epoch and its end.
    Diverging(LeaderEpoch, Offset),
    Snapshot(SnapshotId),
}

/// Where an observer stands whose log ends at `offset` with a record of `epoch`.
fn position(log: &MetadataLog, committed: Offset, offset: Offset, epoch: LeaderEpoch) -> Position {
    let (begin, newest) = (log.start_offset(), log.newest_snapshot());
    if let (true, Some(id)) = (offset == Offset::ZERO, newest) {
        return Position::Snapshot(id);
    }
    if begin == Offset::ZERO && offset == Offset::ZERO {
        return Position::Valid;
    }
    if let (Some(oldest), Some(newest)) = (log.oldest_snapshot(), newest)
        && (offset < begin || (offset == begin && epoch != oldest.epoch) || epoch < oldest.epoch)
    {
        return Position::Snapshot(newest);
    }
    match log.end_offset_for_epoch(epoch) {
        Some((found, end)) if found == epoch && offset <= end.min(committed) => Position::Valid,
        Some((found, end)) => Position::Diverging(found, end.min(committed)),
        None => Position::Diverging(LeaderEpoch(0), Offset::ZERO),
    }
}

/// Why this node does not answer as the leader of `epoch`.
fn refusal(quorum: &Quorum, epoch: i32) -> Option<ErrorCode> {
    let known = quorum.leader().1.0;
    match epoch {
        _ if quorum.has_failed() => Some(ErrorCode::BROKER_NOT_AVAILABLE),
        _ if epoch < known => Some(ErrorCode::FENCED_LEADER_EPOCH),
        _ if epoch > known => Some(ErrorCode::UNKNOWN_LEADER_EPOCH),
        _ if quorum.active_epoch().is_none() => Some(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        _ => None,
    }
}

fn is_other_cluster(quorum: &Quorum, asked: Option<&Str>) -> bool {
    let own = quorum.cluster_id();
    asked.is_some_and(|asked| own.as_deref().is_some_and(|own| own != &**asked))
}

/// Fetch (key 1, v12 and later) of the metadata log.
pub async fn fetch(
    controller: &Rc<Controller>,
    request: FetchRequest,
    version: i16,
) -> FetchResponse {
    let quorum = controller.quorum();
    let whole = |error: ErrorCode| FetchResponse {
        error_code: error.0,
        ..Default::default()
    };
    let [topic] = &request.topics[..] else {
        return whole(ErrorCode::INVALID_REQUEST);
    };
    let is_metadata = match version {
        13.. => topic.topic_id == METADATA_TOPIC_ID,
        _ => &*topic.topic == METADATA_TOPIC,
    };
    let [asked] = &topic.partitions[..] else {
        return whole(ErrorCode::INVALID_REQUEST);
    };
    if !is_metadata || asked.partition != 0 {
        return whole(ErrorCode::INVALID_REQUEST);
    }
    if is_other_cluster(quorum, request.cluster_id.as_ref()) {
        return whole(ErrorCode::INCONSISTENT_CLUSTER_ID);
    }
    let (offset, epoch) = (asked.fetch_offset, asked.last_fetched_epoch);
    let is_possible = offset >= 0 && epoch >= 0 && epoch <= asked.current_leader_epoch;
    let replica = match version {
        15.. => request.replica_state.replica_id,
        _ => request.replica_id,
    };
    let max_bytes = request.max_bytes.min(asked.partition_max_bytes).max(1);
    let wanted = Wanted {
        epoch: asked.current_leader_epoch,
        offset: Offset(offset),
        last_epoch: LeaderEpoch(epoch),
        high_watermark: asked.high_watermark,
        max_bytes: (max_bytes as usize).min(ANSWER_BYTES_MAX),
    };
    let deadline = rt::now() + Duration::from_millis(request.max_wait_ms.max(0) as u64);
    let mut partition = match is_possible {
        false => error_partition(quorum, ErrorCode::INVALID_REQUEST),
        true => loop {
            let changed = quorum.changed().wait();
            if refusal(quorum, wanted.epoch).is_none() && replica >= 0 {
                let (end, now) = (quorum.committed(), rt::wall_ms());
                let directory = asked.replica_directory_id;
                let id = NodeId(replica);
                quorum
                    .observers()
                    .heard(id, directory, wanted.offset, end, now);
            }
            match answer(quorum, &wanted).await {
                Ok(Some(partition)) => break partition,
                Ok(None) if rt::now() < deadline => {
                    rt::select2(changed, rt::sleep_until(deadline)).await;
                }
                Ok(None) => break error_partition(quorum, ErrorCode::NONE),
                Err(error) => {
                    tracing::error!(%error, "the metadata log cannot be read");
                    break error_partition(quorum, ErrorCode::UNKNOWN_SERVER_ERROR);
                }
            }
        },
    };
    partition.current_leader = current_leader(quorum);
    let response = fetched::FetchableTopicResponse {
        topic: topic.topic.clone(),
        topic_id: topic.topic_id,
        partitions: vec![partition],
        ..Default::default()
    };
    let endpoints = leader_endpoint(controller).map(|(id, host, port)| fetched::NodeEndpoint {
        node_id: id.0,
        host: Str::from(host.as_str()),
        port: i32::from(port),
        ..Default::default()
    });
    FetchResponse {
        responses: vec![response],
        node_endpoints: endpoints.into_iter().collect(),
        ..Default::default()
    }
}

struct Wanted {
    epoch: i32,
    offset: Offset,
    last_epoch: LeaderEpoch,
    high_watermark: i64,
    max_bytes: usize,
}

fn current_leader(quorum: &Quorum) -> fetched::LeaderIdAndEpoch {
    let (leader, epoch) = quorum.leader();
    fetched::LeaderIdAndEpoch {
        leader_id: leader.map_or(-1, |leader| leader.0),
        leader_epoch: epoch.0,
        ..Default::default()
    }
}

fn error_partition(quorum: &Quorum, error: ErrorCode) -> fetched::PartitionData {
    fetched::PartitionData {
        error_code: error.0,
        high_watermark: match error {
            ErrorCode::NONE => quorum.committed().0,
            _ => -1,
        },
        records: Some(Records::new()),
        ..Default::default()
    }
}

/// The answer that can be given now; `None` if there is nothing to tell yet.
async fn answer(
    quorum: &Quorum,
    wanted: &Wanted,
) -> Result<Option<fetched::PartitionData>, MetadataLogError> {
    if let Some(error) = refusal(quorum, wanted.epoch) {
        return Ok(Some(error_partition(quorum, error)));
    }
    let committed = quorum.committed();
    let mut guard = quorum.log().await;
    let log = guard.get()?;
    let mut partition = error_partition(quorum, ErrorCode::NONE);
    partition.high_watermark = committed.0;
    partition.log_start_offset = log.start_offset().0;
    match position(log, committed, wanted.offset, wanted.last_epoch) {
        Position::Valid => {}
        Position::Diverging(epoch, end) => {
            partition.diverging_epoch.epoch = epoch.0;
            partition.diverging_epoch.end_offset = end.0;
            return Ok(Some(partition));
        }
        Position::Snapshot(id) => {
            partition.snapshot_id.end_offset = id.end.0;
            partition.snapshot_id.epoch = id.epoch.0;
            return Ok(Some(partition));
        }
    }
    if wanted.offset >= committed {
        // A fetcher that knows a lower high watermark is told the new one (KIP-1166).
        let has_news = committed.0 > wanted.high_watermark;
        return Ok(has_news.then_some(partition));
    }
    let reading = log.read(wanted.offset, committed, wanted.max_bytes);
    drop(guard);
    let in_memory = quorum
        .tail()
        .borrow()
        .read(wanted.offset, committed, wanted.max_bytes);
    let mut records = Records::new();
    match in_memory {
        Some(batches) => batches.into_iter().for_each(|batch| records.push(batch)),
        None => records.push(reading.run().await?),
    }
    partition.records = Some(records);
    Ok(Some(partition))
}

/// Where the leader listens for controllers' clients.
fn leader_endpoint(controller: &Controller) -> Option<(NodeId, String, u16)> {
    let leader = controller.quorum().leader().0?;
    let voters = controller.config.quorum.voters.iter();
    let mut found = voters.filter(|voter| voter.id == leader);
    found
        .next()
        .map(|voter| (voter.id, voter.host.clone(), voter.port))
}

/// FetchSnapshot (key 59): one piece of a snapshot.
pub async fn fetch_snapshot(
    controller: &Rc<Controller>,
    request: FetchSnapshotRequest,
) -> FetchSnapshotResponse {
    let quorum = controller.quorum();
    if is_other_cluster(quorum, request.cluster_id.as_ref()) {
        return FetchSnapshotResponse {
            error_code: ErrorCode::INCONSISTENT_CLUSTER_ID.0,
            ..Default::default()
        };
    }
    let max_bytes = (request.max_bytes.max(1) as usize).min(ANSWER_BYTES_MAX);
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let is_metadata = &*topic.name == METADATA_TOPIC && asked.partition == 0;
            let mut partition = snapshot::PartitionSnapshot {
                index: asked.partition,
                position: asked.position,
                ..Default::default()
            };
            partition.snapshot_id.end_offset = asked.snapshot_id.end_offset;
            partition.snapshot_id.epoch = asked.snapshot_id.epoch;
            let (leader, epoch) = quorum.leader();
            partition.current_leader.leader_id = leader.map_or(-1, |leader| leader.0);
            partition.current_leader.leader_epoch = epoch.0;
            let id = SnapshotId {
                end: Offset(asked.snapshot_id.end_offset),
                epoch: LeaderEpoch(asked.snapshot_id.epoch),
            };
            let piece = match refusal(quorum, asked.current_leader_epoch) {
                _ if !is_metadata => Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
                Some(error) => Err(error),
                None => piece(quorum, id, asked.position, max_bytes).await,
            };
            match piece {
                Ok((size, bytes)) => {
                    partition.size = size as i64;
                    partition.unaligned_records = Records::from(bytes);
                }
                Err(error) => partition.error_code = error.0,
            }
            partitions.push(partition);
        }
        topics.push(snapshot::TopicSnapshot {
            name: topic.name.clone(),
            partitions,
            ..Default::default()
        });
    }
    let endpoints = leader_endpoint(controller).map(|(id, host, port)| snapshot::NodeEndpoint {
        node_id: id.0,
        host: Str::from(host.as_str()),
        port,
        ..Default::default()
    });
    FetchSnapshotResponse {
        topics,
        node_endpoints: endpoints.into_iter().collect(),
        ..Default::default()
    }
}

/// A snapshot's size, and its bytes from a position on.
async fn piece(
    quorum: &Quorum,
    id: SnapshotId,
    position: i64,
    max_bytes: usize,
) -> Result<(u64, Bytes), ErrorCode> {
    let (size, path) = {
        let mut guard = quorum.log().await;
        let log = guard.get().map_err(|_| ErrorCode::BROKER_NOT_AVAILABLE)?;
        let size = log.snapshot_bytes(id);
        let size = size.ok_or(ErrorCode::SNAPSHOT_NOT_FOUND)?;
        (size, log.snapshot_path(id))
    };
    let from = u64::try_from(position).ok().filter(|from| *from < size);
    let from = from.ok_or(ErrorCode::POSITION_OUT_OF_RANGE)?;
    let read = async {
        let file = File::open(&path, OpenOptions::READ).await?;
        file.read_at(from, max_bytes).await
    };
    match read.await {
        Ok(bytes) => Ok((size, bytes)),
        // It went between the two.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(ErrorCode::SNAPSHOT_NOT_FOUND)
        }
        Err(error) => {
            tracing::error!(%error, file = %path.display(), "a snapshot cannot be read");
            Err(ErrorCode::UNKNOWN_SERVER_ERROR)
        }
    }
}

/// DescribeQuorum (key 55): the voters and the observers as the leader sees them.
pub fn describe_quorum(
    controller: &Rc<Controller>,
    request: &DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    let quorum = controller.quorum();
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| {
            match &*topic.topic_name == METADATA_TOPIC && asked.partition_index == 0 {
                true => described_partition(quorum),
                false => refused(asked.partition_index, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
            }
        });
        described::TopicData {
            topic_name: topic.topic_name.clone(),
            partitions: partitions.collect(),
            ..Default::default()
        }
    });
    let names = &controller.config.quorum.listener_names;
    let name = names.first().map_or("CONTROLLER", String::as_str);
    let nodes = controller.config.quorum.voters.iter().map(|voter| {
        let listener = described::Listener {
            name: Str::from(name),
            host: Str::from(voter.host.as_str()),
            port: voter.port,
            ..Default::default()
        };
        described::Node {
            node_id: voter.id.0,
            listeners: vec![listener],
            ..Default::default()
        }
    });
    DescribeQuorumResponse {
        topics: topics.collect(),
        nodes: nodes.collect(),
        ..Default::default()
    }
}

fn refused(index: i32, error: ErrorCode) -> described::PartitionData {
    described::PartitionData {
        partition_index: index,
        error_code: error.0,
        ..Default::default()
    }
}

fn described_partition(quorum: &Quorum) -> described::PartitionData {
    let Some(epoch) = quorum.active_epoch() else {
        return refused(0, ErrorCode::NOT_LEADER_OR_FOLLOWER);
    };
    let (own, now) = (quorum.settings().node, rt::wall_ms());
    let voters = quorum.progress().into_iter().map(|(id, end, contact)| {
        let (heard, caught_up) = match contact {
            _ if id == own => (now, now),
            Some(contact) => (contact.heard_ms, contact.caught_up_ms),
            None => (-1, -1),
        };
        described::ReplicaState {
            replica_id: id.0,
            log_end_offset: end.map_or(-1, |end| end.0),
            last_fetch_timestamp: heard,
            last_caught_up_timestamp: caught_up,
            ..Default::default()
        }
    });
    let voters: Vec<_> = voters.collect();
    let observers = quorum.observers().by_id.borrow();
    let observers = observers.iter().filter(|(id, observer)| {
        let is_heard = now - observer.heard_ms < OBSERVER_SILENCE_MS;
        is_heard && !quorum.settings().voters.contains(id)
    });
    described::PartitionData {
        leader_id: own.0,
        leader_epoch: epoch.0,
        high_watermark: quorum.committed().0,
        current_voters: voters,
        observers: observers
            .map(|(id, observer)| described::ReplicaState {
                replica_id: id.0,
                replica_directory_id: observer.directory,
                log_end_offset: observer.offset.0,
                last_fetch_timestamp: observer.heard_ms,
                last_caught_up_timestamp: observer.caught_up_ms,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

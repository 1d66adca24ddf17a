//! The other side of the quorum: a broker that is no voter and follows `__cluster_metadata`. Here
//! is what it asks next and what an answer means (KIP-595, KIP-630), of embedded controllers and of
//! Kafka's alike: their leaders also hand out what is not committed, so what is applied ends at the
//! high watermark. Pure; [`super::follow`] carries it out.

use crate::cluster::metadata_log::METADATA_TOPIC_ID;
use crate::cluster::snapshot::SnapshotId;
use crate::cluster::topics::METADATA_TOPIC;
use crate::types::{LeaderEpoch, NodeId, Offset, Uuid};
use crate::wire::batch::{Batch, Batches};
use crate::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use crate::wire::messages::fetch_response::FetchResponse;
use crate::wire::messages::fetch_snapshot_request::{
    FetchSnapshotRequest, PartitionSnapshot, TopicSnapshot,
};
use crate::wire::messages::fetch_snapshot_response::FetchSnapshotResponse;
use crate::wire::{ErrorCode, Str};
use bytes::{Bytes, BytesMut};

/// `controller.quorum.fetch.max.bytes` and `controller.quorum.fetch.snapshot.max.bytes`.
const FETCH_BYTES: i32 = 1 << 20;
/// How long a leader without news may keep a fetch.
const MAX_WAIT_MS: i32 = 500;
/// A snapshot of more is not fetched (1 GiB, what a start reads at once).
const SNAPSHOT_BYTES_MAX: i64 = 1 << 30;

/// Where a controller listens; the id is not known of bootstrap servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub id: Option<NodeId>,
    pub host: String,
    pub port: u16,
}

/// What the observer's log is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFacts {
    pub end: Offset,
    /// Of the last record, or of the snapshot before; 0 while there is nothing.
    pub last_epoch: LeaderEpoch,
}

/// What to ask.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    Fetch(Box<FetchRequest>),
    Snapshot(Box<FetchSnapshotRequest>),
}

/// What an answer calls for.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Ask again; what is below the high watermark is committed.
    Again,
    /// Ask again after a pause.
    Pause,
    Append(Vec<Batch>),
    /// Cut everything from this offset on off.
    Truncate(Offset),
    /// Replace the whole log by this snapshot.
    Install(SnapshotId, Bytes),
}

/// The observer must not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObserverError {
    #[error("the controllers are those of another cluster")]
    Cluster,
    #[error("the controllers' metadata log parts from this node's at {0}, which was committed")]
    Committed(Offset),
}

struct Fetching {
    id: SnapshotId,
    bytes: BytesMut,
}

/// See the module's words.
pub struct Observer {
    node: NodeId,
    directory: Uuid,
    cluster_id: Str,
    /// The controllers that the settings name.
    known: Vec<Target>,
    /// Which of them is asked while there is no leader.
    turn: usize,
    epoch: LeaderEpoch,
    leader: Option<Target>,
    high_watermark: Option<Offset>,
    fetching: Option<Fetching>,
}

impl Observer {
    /// Begins without a leader; `first` of the known controllers is asked first.
    pub fn new(
        node: NodeId,
        directory: Uuid,
        cluster_id: &str,
        known: Vec<Target>,
        epoch: LeaderEpoch,
        first: usize,
    ) -> Observer {
        Observer {
            node,
            directory,
            cluster_id: Str::from(cluster_id),
            turn: first % known.len().max(1),
            known,
            epoch,
            leader: None,
            high_watermark: None,
            fetching: None,
        }
    }

    /// The leader and its epoch, as far as they are known.
    pub fn leader(&self) -> (Option<&Target>, LeaderEpoch) {
        (self.leader.as_ref(), self.epoch)
    }

    /// What is below is committed; `None` while no leader has said.
    pub fn high_watermark(&self) -> Option<Offset> {
        self.high_watermark
    }

    /// Whom to ask: the leader, or whoever may know it. `None` without any controller.
    pub fn target(&self) -> Option<&Target> {
        self.leader.as_ref().or(self.known.get(self.turn))
    }

    /// What to ask next.
    pub fn next(&self, log: LogFacts) -> Ask {
        match &self.fetching {
            Some(fetching) => Ask::Snapshot(Box::new(self.snapshot_request(fetching))),
            None => Ask::Fetch(Box::new(self.fetch_request(log))),
        }
    }

    fn fetch_request(&self, log: LogFacts) -> FetchRequest {
        let partition = FetchPartition {
            current_leader_epoch: self.epoch.0,
            fetch_offset: log.end.0,
            last_fetched_epoch: log.last_epoch.0,
            partition_max_bytes: FETCH_BYTES,
            replica_directory_id: self.directory,
            high_watermark: self.high_watermark.map_or(-1, |known| known.0),
            ..Default::default()
        };
        let topic = FetchTopic {
            topic: Str::from_static(METADATA_TOPIC),
            topic_id: METADATA_TOPIC_ID,
            partitions: vec![partition],
            ..Default::default()
        };
        let mut request = FetchRequest {
            cluster_id: Some(self.cluster_id.clone()),
            max_wait_ms: MAX_WAIT_MS,
            max_bytes: FETCH_BYTES,
            topics: vec![topic],
            ..Default::default()
        };
        request.replica_state.replica_id = self.node.0;
        request
    }

    fn snapshot_request(&self, fetching: &Fetching) -> FetchSnapshotRequest {
        let mut partition = PartitionSnapshot {
            current_leader_epoch: self.epoch.0,
            position: fetching.bytes.len() as i64,
            replica_directory_id: self.directory,
            ..Default::default()
        };
        partition.snapshot_id.end_offset = fetching.id.end.0;
        partition.snapshot_id.epoch = fetching.id.epoch.0;
        let topic = TopicSnapshot {
            name: Str::from_static(METADATA_TOPIC),
            partitions: vec![partition],
            ..Default::default()
        };
        FetchSnapshotRequest {
            cluster_id: Some(self.cluster_id.clone()),
            replica_id: self.node.0,
            max_bytes: FETCH_BYTES,
            topics: vec![topic],
            ..Default::default()
        }
    }

    /// Nobody answered in time, or what came was no answer: another controller is asked.
    pub fn unanswered(&mut self) -> Step {
        self.leader = None;
        self.fetching = None;
        if !self.known.is_empty() {
            self.turn = (self.turn + 1) % self.known.len();
        }
        Step::Pause
    }

    /// What a Fetch was answered, when the log was like `log`.
    pub fn fetched(
        &mut self,
        response: &FetchResponse,
        log: LogFacts,
    ) -> Result<Step, ObserverError> {
        match ErrorCode(response.error_code) {
            ErrorCode::NONE => {}
            ErrorCode::INCONSISTENT_CLUSTER_ID => return Err(ObserverError::Cluster),
            _ => return Ok(self.unanswered()),
        }
        let topic = response.responses.first();
        let Some(partition) = topic.and_then(|topic| topic.partitions.first()) else {
            return Ok(self.unanswered());
        };
        let told = &partition.current_leader;
        let endpoints = response.node_endpoints.iter();
        let endpoint = endpoints
            .filter(|endpoint| endpoint.node_id == told.leader_id)
            .filter_map(|endpoint| {
                Some((endpoint.host.to_string(), endpoint.port.try_into().ok()?))
            })
            .next();
        if !self.heard_of(told.leader_id, told.leader_epoch, endpoint) {
            return Ok(self.unanswered());
        }
        if partition.error_code != 0 {
            return Ok(self.refused());
        }
        if partition.diverging_epoch.end_offset >= 0 && partition.diverging_epoch.epoch >= 0 {
            let end = Offset(partition.diverging_epoch.end_offset).min(log.end);
            return match self.high_watermark {
                Some(committed) if end < committed => Err(ObserverError::Committed(end)),
                _ if end == log.end => Ok(Step::Pause),
                _ => Ok(Step::Truncate(end)),
            };
        }
        let snapshot = &partition.snapshot_id;
        if snapshot.end_offset >= 0 && snapshot.epoch >= 0 {
            self.fetching = Some(Fetching {
                id: SnapshotId {
                    end: Offset(snapshot.end_offset),
                    epoch: LeaderEpoch(snapshot.epoch),
                },
                bytes: BytesMut::new(),
            });
            return Ok(Step::Again);
        }
        let records = partition.records.as_ref().map(|records| records.to_bytes());
        let Some(batches) = whole_batches(records.unwrap_or_default(), log.end) else {
            return Ok(self.unanswered());
        };
        let end = batches.last().map(|batch| batch.last_offset().next());
        let known = Offset(partition.high_watermark).min(end.unwrap_or(log.end));
        if partition.high_watermark >= 0 && self.high_watermark.is_none_or(|before| known > before)
        {
            self.high_watermark = Some(known);
        }
        match batches.is_empty() {
            true => Ok(Step::Again),
            false => Ok(Step::Append(batches)),
        }
    }

    /// What a FetchSnapshot was answered.
    pub fn snapshot_fetched(
        &mut self,
        response: &FetchSnapshotResponse,
    ) -> Result<Step, ObserverError> {
        match ErrorCode(response.error_code) {
            ErrorCode::NONE => {}
            ErrorCode::INCONSISTENT_CLUSTER_ID => return Err(ObserverError::Cluster),
            _ => return Ok(self.unanswered()),
        }
        let topic = response.topics.first();
        let Some(partition) = topic.and_then(|topic| topic.partitions.first()) else {
            return Ok(self.unanswered());
        };
        let told = &partition.current_leader;
        let endpoints = response.node_endpoints.iter();
        let endpoint = endpoints
            .filter(|endpoint| endpoint.node_id == told.leader_id)
            .map(|endpoint| (endpoint.host.to_string(), endpoint.port))
            .next();
        if !self.heard_of(told.leader_id, told.leader_epoch, endpoint) {
            return Ok(self.unanswered());
        }
        let Some(mut fetching) = self.fetching.take() else {
            return Ok(Step::Again);
        };
        if partition.error_code != 0 {
            // Gone, or from another leader: a Fetch tells where to begin.
            return Ok(self.refused());
        }
        let id = &partition.snapshot_id;
        let is_same = (id.end_offset, id.epoch) == (fetching.id.end.0, fetching.id.epoch.0);
        let piece = partition.unaligned_records.to_bytes();
        let held = fetching.bytes.len() as i64;
        let end = held + piece.len() as i64;
        let fits = partition.position == held && end <= partition.size;
        if !is_same || !fits || piece.is_empty() || partition.size > SNAPSHOT_BYTES_MAX {
            return Ok(self.unanswered());
        }
        fetching.bytes.extend_from_slice(&piece);
        if end < partition.size {
            self.fetching = Some(fetching);
            return Ok(Step::Again);
        }
        // What a snapshot holds was committed.
        let known = self.high_watermark.unwrap_or(Offset::ZERO);
        self.high_watermark = Some(known.max(fetching.id.end));
        Ok(Step::Install(fetching.id, fetching.bytes.freeze()))
    }

    /// The leader does not answer as one.
    fn refused(&mut self) -> Step {
        self.fetching = None;
        if self.leader.is_none() {
            return self.unanswered();
        }
        Step::Pause
    }

    /// Learns who leads. False if the answer is of an epoch that is over.
    fn heard_of(&mut self, leader: i32, epoch: i32, endpoint: Option<(String, u16)>) -> bool {
        let epoch = LeaderEpoch(epoch);
        if epoch < self.epoch {
            return false;
        }
        let found = (leader >= 0).then(|| {
            let id = NodeId(leader);
            let known = self.known.iter().find(|target| target.id == Some(id));
            match (endpoint, known) {
                (Some((host, port)), _) => Some(Target {
                    id: Some(id),
                    host,
                    port,
                }),
                (None, Some(known)) => Some(known.clone()),
                (None, None) => None,
            }
        });
        let found = found.flatten();
        if epoch > self.epoch {
            self.epoch = epoch;
            self.leader = found;
            self.fetching = None;
        } else if self.leader.is_none() {
            self.leader = found;
        }
        true
    }
}

/// The whole batches that follow `end`; `None` if what came does not. A cut last one is left out.
fn whole_batches(records: Bytes, mut end: Offset) -> Option<Vec<Batch>> {
    let mut batches = Vec::new();
    for batch in Batches::new(records) {
        let batch = batch.ok()?;
        batch.check_crc().ok()?;
        let is_possible = batch.last_offset() >= batch.base_offset();
        // A leader may begin with the batch that holds the offset.
        if is_possible && batches.is_empty() && batch.last_offset() < end {
            continue;
        }
        if batch.base_offset() != end || !is_possible {
            return None;
        }
        end = batch.last_offset().next();
        batches.push(batch);
    }
    Some(batches)
}

#[cfg(test)]
#[path = "observer_tests.rs"]
mod tests;

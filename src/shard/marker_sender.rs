//! Writes the ends of transactions to the partitions they have touched: finds each partition's
//! leader, sends the markers of many transactions in one WriteTxnMarkers, and goes on until every
//! partition has its marker. Runs on the shard of the transaction's coordinator; where this broker
//! leads, it writes without a connection.
//!
//! A marker whose answer did not come is sent again, so that one may be written twice. With
//! `transaction.version` 2 that does no harm, for each transaction has an epoch of its own. Before it
//! a marker that was held up somewhere for longer than `request.timeout.ms` can end the producer's
//! next transaction on that partition, as in Kafka (KIP-890 has the story).

use super::Shard;
use super::mesh::LocalFuture;
use super::peers::Purpose;
use super::transactions::TransactionCoordinator;
use crate::client::ClientError;
use crate::coordinator::transactions::{Markers, Partitions};
use crate::rt;
use crate::rt::sync::oneshot;
use crate::types::NodeId;
use crate::wire::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};
use crate::wire::messages::write_txn_markers_response::WriteTxnMarkersResponse;
use crate::wire::{ErrorCode, Str};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Markers of so many transactions in one request.
const MARKERS_MAX: usize = 500;
/// Requests under way to one broker, each on a connection of its own: a slow partition holds up what
/// shares its request, and so many of them what comes next.
const REQUESTS_MAX: u8 = 4;
/// How much longer than itself, which waits for `request.timeout.ms`, a broker is waited for.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// The pause after a round that has left partitions over; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// What each partition has answered.
type Verdicts = Vec<(Str, i32, ErrorCode)>;

/// The markers on their way from a shard, by the broker that leads the partitions: for each
/// transactional id and broker one, and one of a coordinator before this.
#[derive(Default)]
pub struct MarkerSender {
    by_node: RefCell<BTreeMap<NodeId, Rc<Outgoing>>>,
}

struct Outgoing {
    queue: RefCell<VecDeque<Item>>,
    /// The connections that no request is under way on.
    idle: RefCell<Vec<u8>>,
}

impl Default for Outgoing {
    fn default() -> Self {
        Outgoing {
            queue: RefCell::default(),
            idle: RefCell::new((0..REQUESTS_MAX).rev().collect()),
        }
    }
}

struct Item {
    marker: WritableTxnMarker,
    /// What the partitions have answered; nothing if the broker has not.
    answered: oneshot::Sender<Verdicts>,
}

/// Where the partitions of a transaction are to be found now.
#[derive(Default)]
struct Places {
    by_leader: BTreeMap<NodeId, Partitions>,
    /// They wait for a leader.
    leaderless: Partitions,
    /// Their topics are deleted: nobody can read them any more.
    gone: Partitions,
}

impl Shard {
    /// Writes the markers of a transaction to these of its partitions, until each has its own or the
    /// coordinator is another. What lies at several leaders goes on by itself for each: the slowest
    /// holds none of the others up.
    pub(super) fn write_markers_until_done(
        self: Rc<Self>,
        coordinator: Rc<TransactionCoordinator>,
        markers: Rc<Markers>,
        mut left: Partitions,
    ) -> LocalFuture<()> {
        Box::pin(async move {
            let mut pause = FIRST_PAUSE;
            while !coordinator.is_stopped() && !self.is_draining() {
                let places = self.places_of(&left);
                coordinator.written(&markers, &places.gone);
                left = places.leaderless;
                let mut by_leader = places.by_leader.into_iter();
                let own = by_leader.next();
                for (_, partitions) in by_leader {
                    let (shard, coordinator) = (self.clone(), coordinator.clone());
                    let more =
                        shard.write_markers_until_done(coordinator, markers.clone(), partitions);
                    rt::spawn(more);
                }
                if let Some((leader, partitions)) = own {
                    let marker = marker_of(&markers, &partitions, coordinator.epoch());
                    let verdicts = self.send_marker(leader, marker).await.unwrap_or_default();
                    let (written, goes_on) = judge(&markers, &verdicts);
                    coordinator.written(&markers, &written);
                    if !goes_on {
                        return;
                    }
                    left.extend(&partitions);
                    for (topic, index) in written.iter() {
                        left.remove(topic, index);
                    }
                }
                if left.is_empty() {
                    return;
                }
                rt::select3(rt::sleep(pause), coordinator.stopped(), self.drained()).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        })
    }

    /// Who leads the partitions. A partition that the metadata does not have is deleted: it was in
    /// the metadata of this shard when it was added, or of the shard of a coordinator before, whose
    /// election came later.
    fn places_of(&self, partitions: &Partitions) -> Places {
        let image = self.image();
        let mut places = Places::default();
        for (name, index) in partitions.iter() {
            let topic = image.topic_by_name(name);
            let Some(topic) = topic.filter(|topic| topic.has_partition(index)) else {
                places.gone.insert(name, index);
                continue;
            };
            let leader = image.leader(topic.id, index).map(|(leader, _)| leader);
            match leader.filter(|leader| leader.0 >= 0) {
                Some(leader) => {
                    let of_leader = places.by_leader.entry(leader).or_default();
                    of_leader.insert(name, index);
                }
                None => places.leaderless.insert(name, index),
            }
        }
        places
    }

    /// Queues a marker for a broker.
    fn send_marker(
        self: &Rc<Self>,
        leader: NodeId,
        marker: WritableTxnMarker,
    ) -> oneshot::Receiver<Verdicts> {
        let (answered, answer) = oneshot::channel();
        let outgoing = {
            let mut by_node = self.marker_sender.by_node.borrow_mut();
            by_node.entry(leader).or_default().clone()
        };
        outgoing
            .queue
            .borrow_mut()
            .push_back(Item { marker, answered });
        let idle = outgoing.idle.borrow_mut().pop();
        if let Some(lane) = idle {
            rt::spawn(self.clone().run_requests(leader, lane, outgoing));
        }
        answer
    }

    /// Sends what is queued for a broker, one request after the other, until nothing is left.
    async fn run_requests(self: Rc<Self>, leader: NodeId, lane: u8, outgoing: Rc<Outgoing>) {
        loop {
            let items: Vec<Item> = {
                let mut queue = outgoing.queue.borrow_mut();
                let count = queue.len().min(MARKERS_MAX);
                queue.drain(..count).collect()
            };
            if items.is_empty() {
                break;
            }
            let request = WriteTxnMarkersRequest {
                markers: items.iter().map(|item| item.marker.clone()).collect(),
                ..Default::default()
            };
            match self.request_markers(leader, lane, request).await {
                Ok(response) => settle(items, response),
                Err(error) => {
                    tracing::debug!(leader = leader.0, %error, "markers could not be sent");
                }
            }
        }
        outgoing.idle.borrow_mut().push(lane);
    }

    async fn request_markers(
        self: &Rc<Self>,
        leader: NodeId,
        lane: u8,
        request: WriteTxnMarkersRequest,
    ) -> Result<WriteTxnMarkersResponse, ClientError> {
        if leader == self.node.node {
            return Ok(self.write_txn_markers(request).await);
        }
        let purpose = Purpose::Markers(lane);
        let limit = Duration::from_millis(self.node.config.request_timeout_ms) + ANSWER_MARGIN;
        self.ask_broker(leader, purpose, &request, 1, limit).await
    }
}

/// Hands each transaction its partitions' answers. A producer id has one transaction at a time, so
/// that it names the marker; a second one of a coordinator before this gets no answer.
fn settle(items: Vec<Item>, response: WriteTxnMarkersResponse) {
    let mut answers: BTreeMap<i64, Verdicts> = BTreeMap::new();
    for marker in response.markers {
        let verdicts = answers.entry(marker.producer_id).or_default();
        for topic in marker.topics {
            let partitions = topic.partitions.into_iter().map(|partition| {
                let error = ErrorCode(partition.error_code);
                (topic.name.clone(), partition.partition_index, error)
            });
            verdicts.extend(partitions);
        }
    }
    for item in items {
        let verdicts = answers.remove(&item.marker.producer_id);
        // The coordinator may have gone.
        let _ = item.answered.send(verdicts.unwrap_or_default());
    }
}

/// Which partitions need nothing more, and whether it is this coordinator's to go on.
fn judge(markers: &Markers, verdicts: &Verdicts) -> (Partitions, bool) {
    let mut written = Partitions::default();
    let mut goes_on = true;
    for (topic, index, error) in verdicts {
        match *error {
            ErrorCode::NONE => written.insert(topic, *index),
            // It has seen a later epoch of the producer, so that nothing of this one is open there:
            // a transaction's epoch ends with its marker only.
            ErrorCode::INVALID_PRODUCER_EPOCH => {
                tracing::warn!(
                    transactional_id = &*markers.transactional_id,
                    topic = &**topic,
                    partition = index,
                    "a transaction's marker is of the past"
                );
                written.insert(topic, *index);
            }
            // This coordinator is not the one any more, and will hear of it.
            ErrorCode::TRANSACTION_COORDINATOR_FENCED => goes_on = false,
            error => tracing::debug!(
                transactional_id = &*markers.transactional_id,
                topic = &**topic,
                partition = index,
                error = error.name(),
                "a transaction's marker is to be written again"
            ),
        }
    }
    (written, goes_on)
}

fn marker_of(markers: &Markers, partitions: &Partitions, epoch: i32) -> WritableTxnMarker {
    WritableTxnMarker {
        producer_id: markers.producer.id,
        producer_epoch: markers.producer.epoch,
        transaction_result: markers.commit,
        topics: partitions
            .topics()
            .map(|(name, partition_indexes)| WritableTxnMarkerTopic {
                name: name.clone(),
                partition_indexes,
                ..Default::default()
            })
            .collect(),
        coordinator_epoch: epoch,
        transaction_version: markers.transaction_version,
        ..Default::default()
    }
}

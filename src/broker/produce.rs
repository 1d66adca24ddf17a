//! Produce (key 0, v3-13): routes each partition's batch to the shard that owns it and answers
//! when the slowest has what its acks ask for. Runs on the connection's shard; the appends run on
//! the owners, see [`crate::shard::append`].

use super::reply::Reply;
use super::request::Context;
use crate::observe::hop::{self, Hop, What};
use crate::shard::append::{AppendPart, AppendRequest, Produced};
use crate::shard::mesh::LocalFuture;
use crate::shard::quotas::Counted;
use crate::shard::verification::{OneProducer, TransactionalBatch};
use crate::types::{PartitionId, Uuid};
use crate::wire::messages::produce_request::ProduceRequest;
use crate::wire::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse,
    ProduceResponse, TopicProduceResponse,
};
use crate::wire::{ErrorCode, Str};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// First version that answers a lost leadership with the leader and its endpoint (KIP-951).
const HINT_VERSION: i16 = 10;
/// First version that names topics by id.
const TOPIC_ID_VERSION: i16 = 13;
/// The client id by which Kafka's admin tools may write to internal topics.
const ADMIN_CLIENT: &str = "__admin_client";

/// A produce that has been appended; its answer follows.
pub type Appended = LocalFuture<Reply>;

/// One partition of the request, in the order of the answer.
struct Slot {
    topic: usize,
    index: i32,
    produced: Option<Produced>,
}

impl Slot {
    fn answered(&self, topic: &Str) -> Hop {
        let offset = self.produced.as_ref().map_or(-1, |p| p.base_offset);
        Hop::new(What::ProduceAnswered, topic, self.index).offset(offset)
    }
}

struct TopicSlot {
    name: Str,
    id: Uuid,
}

/// Appends the request's batches; the returned future waits for their acknowledgement. What
/// arrives on the connection afterwards is appended after them; where a batch has to wait for its
/// transaction's coordinator, that holds for its producer's next batches of the partition.
pub async fn start(
    context: Rc<Context>,
    request: ProduceRequest,
    request_json: Option<serde_json::Value>,
) -> Appended {
    let shard = context.shard.clone();
    let acks = request.acks;
    let throttled_ms = context.count_for_quota(Counted::Produced, context.size);
    let mut topics = Vec::with_capacity(request.topic_data.len());
    let mut slots = Vec::new();
    let mut by_owner: BTreeMap<usize, Vec<AppendPart>> = BTreeMap::new();
    let mut producer = OneProducer::new(request.transactional_id.is_some());
    {
        let image = shard.image();
        for topic in request.topic_data {
            let known = if context.version >= TOPIC_ID_VERSION {
                image.topic_by_id(topic.topic_id)
            } else {
                image.topic_by_name(&topic.name)
            };
            let at = topics.len();
            let (name, id) = match known {
                Some(known) => (known.name.clone(), known.id),
                None => (topic.name.clone(), topic.topic_id),
            };
            for data in topic.partition_data {
                let error = match known {
                    None if context.version >= TOPIC_ID_VERSION => {
                        Some(ErrorCode::UNKNOWN_TOPIC_ID)
                    }
                    None => Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
                    Some(_) if !(-1..=1).contains(&acks) => Some(ErrorCode::INVALID_REQUIRED_ACKS),
                    Some(_) if is_internal(&name) && &*context.client_id != ADMIN_CLIENT => {
                        Some(ErrorCode::INVALID_TOPIC_EXCEPTION)
                    }
                    Some(known) if !known.has_partition(data.index) => {
                        Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
                    }
                    Some(_) => None,
                };
                let records = data.records.map(|records| records.to_bytes());
                let transactional = records.as_deref().and_then(TransactionalBatch::of);
                if let Some(batch) = &transactional {
                    producer.saw(batch, error.is_none());
                }
                let slot = slots.len();
                slots.push(Slot {
                    topic: at,
                    index: data.index,
                    produced: error.map(Produced::error),
                });
                if error.is_none() {
                    let received = context.timeline.received;
                    hop::record(|| Hop::new(What::ProduceReceived, &name, data.index).at(received));
                    let partition = PartitionId {
                        topic: id,
                        index: data.index,
                    };
                    by_owner
                        .entry(shard.owner(partition))
                        .or_default()
                        .push(AppendPart {
                            slot,
                            partition,
                            records,
                            transactional,
                        });
                }
            }
            topics.push(TopicSlot { name, id });
        }
    }
    if let Some(error) = producer.refusal() {
        by_owner.clear();
        for slot in &mut slots {
            slot.produced = Some(Produced::error(error));
        }
    }
    context.peer.steering.saw(by_owner.keys().copied());
    let request_facts = AppendRequest {
        acks,
        version: context.version,
        timeout: Duration::from_millis(request.timeout_ms.max(0) as u64),
        transactional_id: request.transactional_id,
    };
    let mut waits: Vec<LocalFuture<Vec<(usize, Produced)>>> = Vec::with_capacity(by_owner.len());
    for (owner, parts) in by_owner {
        waits.push(shard.append_on(owner, request_facts.clone(), parts).await);
    }
    Box::pin(async move {
        for wait in waits {
            for (slot, produced) in wait.await {
                slots[slot].produced = Some(produced);
            }
        }
        context.complete();
        if acks == 0 {
            let failed = slots.iter().any(|slot| {
                slot.produced
                    .as_ref()
                    .is_some_and(|produced| produced.error != ErrorCode::NONE)
            });
            return Reply::none(&context, failed, request_json);
        }
        for slot in &slots {
            hop::record(|| slot.answered(&topics[slot.topic].name));
        }
        let response = ProduceResponse {
            throttle_time_ms: throttled_ms,
            ..respond(&context, topics, slots)
        };
        super::encode(&context, &response, request_json)
    })
}

fn is_internal(topic: &str) -> bool {
    crate::cluster::is_internal_topic(topic)
}

fn respond(context: &Context, topics: Vec<TopicSlot>, slots: Vec<Slot>) -> ProduceResponse {
    let mut response = ProduceResponse::default();
    let mut lost_leader = false;
    for topic in topics {
        response.responses.push(TopicProduceResponse {
            name: topic.name,
            topic_id: topic.id,
            ..Default::default()
        });
    }
    for slot in slots {
        let produced = slot
            .produced
            .unwrap_or_else(|| Produced::error(ErrorCode::UNKNOWN_SERVER_ERROR));
        let mut answer = PartitionProduceResponse {
            index: slot.index,
            error_code: produced.error.0,
            base_offset: produced.base_offset,
            log_append_time_ms: produced.log_append_time_ms,
            log_start_offset: produced.log_start_offset,
            record_errors: produced
                .record_errors
                .into_iter()
                .map(|(batch_index, message)| BatchIndexAndErrorMessage {
                    batch_index,
                    batch_index_error_message: message.map(Str::from),
                    ..Default::default()
                })
                .collect(),
            error_message: produced.message.map(Str::from),
            ..Default::default()
        };
        if produced.error == ErrorCode::NOT_LEADER_OR_FOLLOWER && context.version >= HINT_VERSION {
            let topic = response.responses[slot.topic].topic_id;
            if let Some((leader, epoch)) = context.shard.image().leader(topic, slot.index) {
                answer.current_leader = LeaderIdAndEpoch {
                    leader_id: leader.0,
                    leader_epoch: epoch.0,
                    ..Default::default()
                };
                lost_leader = true;
            }
        }
        response.responses[slot.topic]
            .partition_responses
            .push(answer);
    }
    if lost_leader {
        response.node_endpoints = context
            .shard
            .image()
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

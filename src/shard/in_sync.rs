//! The in-sync sets of the partitions that a shard leads: looks who has fallen behind, and asks
//! the controller for changes, many partitions in one AlterPartition and one request at a time.
//! Runs on the shard. Who belongs into a set is decided by [`crate::replica::leader`].

use super::Shard;
use crate::replica::in_sync::{Altered, Outcome, Proposal};
use crate::replica::partition::Partition;
use crate::rt;
use crate::rt::sync::Notify;
use crate::types::{LeaderEpoch, NodeId, PartitionEpoch, PartitionId};
use crate::wire::ErrorCode;
use crate::wire::messages::alter_partition_request::{
    AlterPartitionRequest, BrokerState, PartitionData, TopicData,
};
use crate::wire::messages::alter_partition_response::AlterPartitionResponse;
use ahash::AHashMap;
use indexmap::IndexMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// The pause before the controller is asked again, as Kafka's.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Partitions in one request: some 100 KiB. More wait for the next.
const PARTITIONS_MAX: usize = 2000;

/// The changes that wait to be asked for; each partition at most once.
#[derive(Default)]
pub struct InSyncChanges {
    queue: RefCell<IndexMap<PartitionId, Rc<Partition>, ahash::RandomState>>,
    bell: Notify,
    pub shrinks: Cell<u64>,
    pub expands: Cell<u64>,
    /// Answers that only newer metadata can settle.
    pub failed_updates: Cell<u64>,
}

impl Shard {
    /// The partition has proposed a change of its in-sync set.
    pub(super) fn ask_in_sync(&self, partition: &Rc<Partition>) {
        let mut queue = self.in_sync.queue.borrow_mut();
        queue
            .entry(partition.id)
            .or_insert_with(|| partition.clone());
        drop(queue);
        self.in_sync.bell.notify_one();
    }

    /// Looks for members that have fallen behind, twice a lag time as Kafka does: one leaves after
    /// at most one and a half.
    pub(super) async fn watch_in_sync(self: Rc<Self>) {
        let pause = Duration::from_millis(self.node.config.replica_lag_time_max_ms / 2);
        let pause = pause.max(Duration::from_millis(1));
        while !self.is_draining() {
            rt::sleep(pause).await;
            for partition in self.partitions() {
                if partition.propose_shrink() {
                    self.ask_in_sync(&partition);
                }
            }
        }
    }

    /// Asks the controller for the changes, as they come.
    pub(super) async fn ask_for_in_sync(self: Rc<Self>) {
        while !self.is_draining() {
            let asked: Vec<Rc<Partition>> = {
                let mut queue = self.in_sync.queue.borrow_mut();
                let count = queue.len().min(PARTITIONS_MAX);
                queue
                    .drain(..count)
                    .map(|(_, partition)| partition)
                    .collect()
            };
            if asked.is_empty() {
                self.in_sync.bell.notified().await;
                continue;
            }
            let epoch = self.broker_epoch();
            let proposals: Vec<(Rc<Partition>, Proposal)> = asked
                .into_iter()
                .filter_map(|partition| {
                    let proposal = partition.proposal(epoch)?;
                    Some((partition, proposal))
                })
                .collect();
            if proposals.is_empty() {
                continue;
            }
            let request = request(self.node.node, epoch, &proposals);
            let answer = self.ask_controller(request).await;
            if !self.take_answers(proposals, answer) {
                rt::sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// False if some are to be asked for again.
    fn take_answers(
        self: &Rc<Self>,
        proposals: Vec<(Rc<Partition>, Proposal)>,
        answer: Result<AlterPartitionResponse, ErrorCode>,
    ) -> bool {
        let mut answers = by_partition(answer);
        let mut done = true;
        for (partition, proposal) in proposals {
            let answer = match &mut answers {
                Ok(answers) => answers
                    .remove(&partition.id)
                    .unwrap_or(Err(ErrorCode::UNKNOWN_SERVER_ERROR)),
                Err(error) => Err(*error),
            };
            let members: Vec<i32> = proposal.members.iter().map(|(id, _)| id.0).collect();
            let outcome = partition.on_altered(&proposal, &answer);
            tracing::debug!(topic = %partition.topic, partition = partition.id.index, ?members, ?outcome, "in-sync set");
            match outcome {
                Outcome::Committed => {
                    let count = if proposal.grows {
                        &self.in_sync.expands
                    } else {
                        &self.in_sync.shrinks
                    };
                    count.set(count.get() + 1);
                    tracing::info!(topic = %partition.topic, partition = partition.id.index, in_sync = ?members, "in-sync set changed");
                    self.progressed(&partition);
                }
                Outcome::Retry => {
                    done = false;
                    self.ask_in_sync(&partition);
                }
                Outcome::AwaitMetadata => {
                    let failed = &self.in_sync.failed_updates;
                    failed.set(failed.get() + 1);
                }
                Outcome::Reverted | Outcome::Stale => {}
            }
        }
        done
    }
}

fn request(
    node: NodeId,
    broker_epoch: i64,
    proposals: &[(Rc<Partition>, Proposal)],
) -> AlterPartitionRequest {
    let mut request = AlterPartitionRequest {
        broker_id: node.0,
        broker_epoch,
        ..Default::default()
    };
    for (partition, proposal) in proposals {
        let members = proposal.members.iter().map(|(id, epoch)| BrokerState {
            broker_id: id.0,
            broker_epoch: *epoch,
            ..Default::default()
        });
        let data = PartitionData {
            partition_index: partition.id.index,
            leader_epoch: proposal.leader_epoch.0,
            new_isr_with_epochs: members.collect(),
            partition_epoch: proposal.partition_epoch.0,
            ..Default::default()
        };
        match request.topics.last_mut() {
            Some(last) if last.topic_id == partition.id.topic => last.partitions.push(data),
            _ => request.topics.push(TopicData {
                topic_id: partition.id.topic,
                partitions: vec![data],
                ..Default::default()
            }),
        }
    }
    request
}

type Answers = AHashMap<PartitionId, Result<Altered, ErrorCode>>;

fn by_partition(answer: Result<AlterPartitionResponse, ErrorCode>) -> Result<Answers, ErrorCode> {
    let answer = answer?;
    if answer.error_code != ErrorCode::NONE.0 {
        return Err(ErrorCode(answer.error_code));
    }
    let mut answers = Answers::new();
    for topic in answer.topics {
        for data in topic.partitions {
            let id = PartitionId {
                topic: topic.topic_id,
                index: data.partition_index,
            };
            let answer = match ErrorCode(data.error_code) {
                ErrorCode::NONE => Ok(Altered {
                    leader_epoch: LeaderEpoch(data.leader_epoch),
                    partition_epoch: PartitionEpoch(data.partition_epoch),
                    in_sync: data.isr.iter().map(|id| NodeId(*id)).collect(),
                }),
                error => Err(error),
            };
            answers.insert(id, answer);
        }
    }
    Ok(answers)
}

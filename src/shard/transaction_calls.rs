//! How the APIs of transactions reach the coordinator of a transactional id: on the shard that owns
//! its partition of `__transaction_state`. Starts on any shard. Decides nothing.

use super::Shard;
use super::mesh::LocalFuture;
use super::transactions::TransactionCoordinator;
use crate::cluster::TRANSACTIONS_TOPIC;
use crate::coordinator::transactions::{
    Answer, Effects, ListFilter, Listed, NeedsProducerId, Partitions, Producer, Transaction,
    TransactionCoordinatorShard, TransactionVersion,
};
use crate::coordinator::{ReplyToken, partition_for};
use crate::rt;
use crate::types::PartitionId;
use crate::wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use crate::wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use crate::wire::{ErrorCode, Str};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The first pause before a transaction that is being completed is asked about again; each further
/// one is twice as long. On one broker it is completed within less than that.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The error of each partition of a question.
type Verdicts = Vec<(Str, i32, ErrorCode)>;

impl Shard {
    /// Asks again while another step of the same transaction is under way, which is soon over: with
    /// pauses up to `add.partitions.to.txn.retry.backoff.ms`, for
    /// `add.partitions.to.txn.retry.backoff.max.ms`.
    pub async fn patiently<R>(
        &self,
        is_early: impl Fn(&R) -> bool,
        mut ask: impl AsyncFnMut() -> R,
    ) -> R {
        let config = &self.node.config;
        let longest = Duration::from_millis(config.add_partitions_to_txn_retry_backoff_ms);
        let patience = config
            .add_partitions_to_txn_retry_backoff_max_ms
            .min(config.request_timeout_ms);
        let started = rt::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let answer = ask().await;
            if !is_early(&answer) || started.elapsed() >= Duration::from_millis(patience) {
                return answer;
            }
            rt::sleep(pause.min(longest)).await;
            pause *= 2;
        }
    }

    /// The partition of a coordinator's topic that a key belongs to; before the topic exists no
    /// coordinator is available.
    pub fn coordinator_partition(&self, topic: &str, key: &str) -> Result<PartitionId, ErrorCode> {
        let image = self.image();
        let topic = image
            .topic_by_name(topic)
            .ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?;
        Ok(PartitionId {
            topic: topic.id,
            index: partition_for(key, topic.partition_count()),
        })
    }

    /// Runs `job` with the coordinator of a transactional id, on the shard that owns it.
    async fn with_coordinator_of<R: Send + 'static>(
        self: &Rc<Self>,
        id: &str,
        job: impl FnOnce(Rc<TransactionCoordinator>) -> LocalFuture<Result<R, ErrorCode>>
        + Send
        + 'static,
    ) -> Result<R, ErrorCode> {
        let partition = self.coordinator_partition(TRANSACTIONS_TOPIC, id)?;
        let run = move |shard: Rc<Shard>| -> LocalFuture<Result<R, ErrorCode>> {
            match shard.transactions.coordinator(partition.index) {
                Some(coordinator) => job(coordinator),
                None => Box::pin(std::future::ready(Err(ErrorCode::NOT_COORDINATOR))),
            }
        };
        let answered = self.clone().on(self.owner(partition), run).await;
        answered.unwrap_or(Err(ErrorCode::NOT_COORDINATOR))
    }

    /// Gives a command to the coordinator of a transactional id, with a producer id if it asks for
    /// one, and waits for its answer.
    async fn command_coordinator_of(
        self: &Rc<Self>,
        id: Str,
        mut run: impl FnMut(
            &mut TransactionCoordinatorShard,
            &Str,
            Option<i64>,
            ReplyToken,
        ) -> Result<Effects, NeedsProducerId>
        + Send
        + 'static,
    ) -> Result<Answer, ErrorCode> {
        let key = id.clone();
        self.with_coordinator_of(&key, move |coordinator| {
            Box::pin(async move {
                let run = |state: &mut _, fresh, token| run(state, &id, fresh, token);
                coordinator.command(run).await
            })
        })
        .await
    }

    /// Gives a producer its id and epoch under a transactional id.
    pub async fn init_transactional_producer(
        self: &Rc<Self>,
        id: Str,
        timeout_ms: i32,
        expected: Option<Producer>,
    ) -> Result<Answer, ErrorCode> {
        self.command_coordinator_of(id, move |state, id, fresh, token| {
            state.init_producer_id(id, timeout_ms, expected, fresh, rt::wall_ms(), token)
        })
        .await
    }

    /// Ends a producer's transaction.
    pub async fn end_transaction(
        self: &Rc<Self>,
        id: Str,
        producer: Producer,
        commit: bool,
        version: TransactionVersion,
    ) -> Result<Answer, ErrorCode> {
        self.command_coordinator_of(id, move |state, id, fresh, token| {
            state.end(id, producer, commit, version, fresh, rt::wall_ms(), token)
        })
        .await
    }

    /// Adds partitions to a producer's transaction; the first ones open it. The error of each.
    pub async fn add_partitions_to_transaction(
        self: &Rc<Self>,
        id: Str,
        producer: Producer,
        partitions: Partitions,
        version: TransactionVersion,
    ) -> Result<Verdicts, ErrorCode> {
        let key = id.clone();
        let add = move |coordinator: Rc<TransactionCoordinator>| -> LocalFuture<_> {
            // What is added is in the metadata by which its marker will be sent.
            let missing = coordinator.missing(&partitions);
            if !missing.is_empty() {
                return Box::pin(std::future::ready(Ok(not_attempted(&partitions, &missing))));
            }
            Box::pin(async move {
                let run = |state: &mut TransactionCoordinatorShard, _, token| {
                    let now_ms = rt::wall_ms();
                    Ok(state.add_partitions(&id, producer, &partitions, version, now_ms, token))
                };
                let answer = coordinator.command(run).await?;
                let named = partitions.iter();
                Ok(named
                    .map(|(t, index)| (t.clone(), index, answer.error))
                    .collect())
            })
        };
        self.with_coordinator_of(&key, add).await
    }

    /// Adds partitions to a transaction that this broker coordinates, or only looks whether they
    /// are in it (`verify_only`): what a partition's leader asks before it appends.
    pub async fn add_or_verify(
        self: &Rc<Self>,
        transaction: AddPartitionsToTxnTransaction,
        version: TransactionVersion,
    ) -> AddPartitionsToTxnResult {
        let id = transaction.transactional_id.clone();
        let producer = Producer {
            id: transaction.producer_id,
            epoch: transaction.producer_epoch,
        };
        let topics = transaction.topics.iter();
        let partitions: Partitions = topics
            .flat_map(|topic| topic.partitions.iter().map(|index| (&topic.name, *index)))
            .collect();
        let verdicts = match transaction.verify_only {
            true => {
                let key = id.clone();
                self.with_coordinator_of(&key, move |coordinator| {
                    let verdicts = coordinator
                        .ask(|state| state.verify_partitions(&id, producer, &partitions));
                    Box::pin(std::future::ready(Ok(verdicts)))
                })
                .await
            }
            false => {
                self.add_partitions_to_transaction(id, producer, partitions, version)
                    .await
            }
        };
        match verdicts {
            Ok(verdicts) => {
                let verdicts: BTreeMap<(Str, i32), ErrorCode> = verdicts
                    .into_iter()
                    .map(|(topic, index, error)| ((topic, index), error))
                    .collect();
                result_of(transaction, |topic, index| {
                    let verdict = verdicts.get(&(topic.clone(), index));
                    verdict.copied().unwrap_or(ErrorCode::UNKNOWN_SERVER_ERROR)
                })
            }
            Err(error) => not_added(transaction, error),
        }
    }

    /// A transactional id as its coordinator has it.
    pub async fn describe_transaction(self: &Rc<Self>, id: Str) -> Result<Transaction, ErrorCode> {
        let key = id.clone();
        self.with_coordinator_of(&key, move |coordinator| {
            let described = coordinator.ask(|state| state.describe(&id));
            Box::pin(std::future::ready(described))
        })
        .await
    }

    /// The transactional ids that this broker coordinates.
    pub async fn list_transactions(
        self: &Rc<Self>,
        filter: ListFilter,
    ) -> Result<Vec<Listed>, ErrorCode> {
        let answers = self
            .ask_all(move |shard| {
                let filter = filter.clone();
                Box::pin(async move { shard.list_own_transactions(&filter).await })
            })
            .await;
        let mut all = Vec::new();
        for answer in answers {
            all.extend(answer.unwrap_or(Err(ErrorCode::NOT_COORDINATOR))?);
        }
        Ok(all)
    }

    async fn list_own_transactions(&self, filter: &ListFilter) -> Result<Vec<Listed>, ErrorCode> {
        let mut all = Vec::new();
        for coordinator in self.transactions.all() {
            let mut from = Some(0);
            while let Some(at) = from {
                let now_ms = rt::wall_ms();
                let (listed, next) = coordinator.ask(|state| state.list(filter, at, now_ms))?;
                all.extend(listed);
                from = next;
                rt::yield_now().await;
            }
        }
        Ok(all)
    }
}

/// The errors of an addition of which some partitions do not exist: it is all or nothing.
fn not_attempted(partitions: &Partitions, missing: &Partitions) -> Verdicts {
    let error = |topic: &str, index| match missing.contains(topic, index) {
        true => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        false => ErrorCode::OPERATION_NOT_ATTEMPTED,
    };
    let named = partitions.iter();
    named
        .map(|(topic, index)| (topic.clone(), index, error(topic, index)))
        .collect()
}

/// The answer that gives every partition the same error.
pub fn not_added(
    transaction: AddPartitionsToTxnTransaction,
    error: ErrorCode,
) -> AddPartitionsToTxnResult {
    result_of(transaction, |_, _| error)
}

fn result_of(
    transaction: AddPartitionsToTxnTransaction,
    error: impl Fn(&Str, i32) -> ErrorCode,
) -> AddPartitionsToTxnResult {
    let topic_results = transaction
        .topics
        .into_iter()
        .map(|topic| AddPartitionsToTxnTopicResult {
            results_by_partition: topic
                .partitions
                .into_iter()
                .map(|partition_index| AddPartitionsToTxnPartitionResult {
                    partition_index,
                    partition_error_code: error(&topic.name, partition_index).0,
                    ..Default::default()
                })
                .collect(),
            name: topic.name,
            ..Default::default()
        })
        .collect();
    AddPartitionsToTxnResult {
        transactional_id: transaction.transactional_id,
        topic_results,
        ..Default::default()
    }
}

//! A producer's way to the broker that coordinates its transactions, and the requests there.
//!
//! One executor. Remembers which broker it is until told that it is not, and repeats what may
//! succeed later; what an answer means the states decide. Never sends a batch, and never waits for
//! one: whoever ends a transaction has settled its batches before.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::cluster::{Cluster, CoordinatorKind};
use super::error::{ClientError, check};
use super::exchange::Exchange;
use super::sequences::Identity;
use super::topic_partition::TopicPartition;
use super::transaction::{Next, Severity, Step, Transaction, severity};
use crate::rt::sync::Semaphore;
use crate::rt::{self, Instant};
use crate::types::NodeId;
use crate::wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic,
};
use crate::wire::messages::end_txn_request::EndTxnRequest;
use crate::wire::messages::init_producer_id_request::InitProducerIdRequest;
use crate::wire::{ErrorCode, Str};

/// The `transaction.version` from which leaders add partitions themselves and every end raises the
/// epoch.
const IMPLICIT_FIRST: i16 = 2;
/// The last version of AddPartitionsToTxn that is for clients.
const ADD_PARTITIONS_LAST: i16 = 3;
/// With later versions the end raises the epoch.
const END_EXPLICIT_LAST: i16 = 4;
/// While the transaction before it is being completed, which is soon over.
const CONCURRENT_BACKOFF: Duration = Duration::from_millis(20);

/// See the module's words.
pub(crate) struct Transactions {
    pub(super) cluster: Cluster,
    id: Str,
    timeout: Duration,
    node: Cell<Option<NodeId>>,
    state: RefCell<Transaction>,
    /// Beginning, ending and offsets go one after the other.
    pub(super) turn: Semaphore,
}

impl Transactions {
    /// Of `transactional.id` with `transaction.timeout.ms`.
    pub(crate) fn new(cluster: Cluster, id: &str, timeout: Duration) -> Transactions {
        Transactions {
            cluster,
            id: Str::from(id),
            timeout,
            node: Cell::new(None),
            state: RefCell::default(),
            turn: Semaphore::new(1),
        }
    }

    pub(crate) fn id(&self) -> &Str {
        &self.id
    }

    /// Looks at, or moves, the states. Not across an await.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Transaction) -> T) -> T {
        look(&mut self.state.borrow_mut())
    }

    // ------------------------------------------------------------------------- the way there

    async fn node(&self) -> Result<NodeId, ClientError> {
        if let Some(node) = self.node.get() {
            return Ok(node);
        }
        let kind = CoordinatorKind::Transaction;
        let node = self.cluster.find_coordinator(kind, &self.id).await?;
        self.node.set(Some(node));
        Ok(node)
    }

    /// Sends to the coordinator at no later version than `last`. With the answer comes whether the
    /// cluster's transactions are of the newer protocol.
    pub(super) async fn call<R: Exchange>(
        &self,
        request: &R,
        last: i16,
    ) -> Result<(R::Response, bool), ClientError> {
        let node = self.node().await?;
        let connection = self.cluster.coordinator(node).await?;
        let implicit = connection.versions().transaction_version() >= IMPLICIT_FIRST;
        let limit = self.cluster.config().request_timeout;
        let answer = connection.call_up_to(request, last, limit).await?;
        Ok((answer, implicit))
    }

    /// Repeats `attempt` while `step` may succeed later and `deadline` has not passed. The last
    /// error is the states' to take in, too.
    pub(super) async fn repeat<T>(
        &self,
        step: Step,
        deadline: Instant,
        mut attempt: impl AsyncFnMut() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut failures = 0;
        let error = loop {
            let error = match attempt().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if is_lost(&error) {
                self.node.set(None);
            }
            if severity(step, error.code()) != Severity::Retriable || self.cluster.is_closed() {
                break error;
            }
            tracing::debug!(transactional_id = %self.id, ?step, %error, "retrying");
            let delay = if error.code() == ErrorCode::CONCURRENT_TRANSACTIONS {
                CONCURRENT_BACKOFF
            } else {
                failures += 1;
                let backoff = self.cluster.config().retry_backoff;
                backoff.delay(failures, rt::random_u64())
            };
            if rt::now() + delay >= deadline {
                break error;
            }
            rt::sleep(delay).await;
        };
        self.with(|state| state.failed(step, &error));
        Err(error)
    }

    /// What requests say of the producer.
    pub(super) fn identity(&self) -> Result<Identity, ClientError> {
        let missing = || ClientError::Invalid("transactions are not initialised".to_owned());
        self.with(|state| state.identity()).ok_or_else(missing)
    }

    // ---------------------------------------------------------------------------- beginning

    /// Takes the transactional id over: a transaction that an earlier producer left is ended, and
    /// that producer is fenced.
    ///
    /// # Errors
    /// The coordinator's refusal. After one that is retriable it may be tried again.
    pub(crate) async fn init(&self, deadline: Instant) -> Result<Identity, ClientError> {
        let _turn = self.turn.acquire(1).await;
        self.with(|state| state.check_initialising())?;
        self.init_producer_id(None, deadline).await
    }

    async fn init_producer_id(
        &self,
        current: Option<Identity>,
        deadline: Instant,
    ) -> Result<Identity, ClientError> {
        let current = current.unwrap_or(Identity { id: -1, epoch: -1 });
        let request = InitProducerIdRequest {
            transactional_id: Some(self.id.clone()),
            transaction_timeout_ms: i32::try_from(self.timeout.as_millis()).unwrap_or(i32::MAX),
            producer_id: current.id,
            producer_epoch: current.epoch,
            ..InitProducerIdRequest::default()
        };
        self.repeat(Step::Init, deadline, async || {
            let (answer, implicit) = self.call(&request, i16::MAX).await?;
            check(answer.error_code, || self.what("INIT_PRODUCER_ID"))?;
            let identity = Identity {
                id: answer.producer_id,
                epoch: answer.producer_epoch,
            };
            self.with(|state| state.initialised(identity, implicit));
            Ok(identity)
        })
        .await
    }

    // ------------------------------------------------------------------------------- within

    /// Tells the coordinator of partitions, which the older protocol wants before their first
    /// batch.
    ///
    /// # Errors
    /// The coordinator's refusal; the transaction can only be aborted then.
    pub(crate) async fn add(
        &self,
        partitions: Vec<TopicPartition>,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let identity = self.identity()?;
        let mut topics: Vec<AddPartitionsToTxnTopic> = Vec::new();
        for key in &partitions {
            match topics.iter_mut().find(|topic| topic.name == key.topic) {
                Some(topic) => topic.partitions.push(key.partition),
                None => topics.push(AddPartitionsToTxnTopic {
                    name: key.topic.clone(),
                    partitions: vec![key.partition],
                    ..AddPartitionsToTxnTopic::default()
                }),
            }
        }
        let request = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: self.id.clone(),
            v3_and_below_producer_id: identity.id,
            v3_and_below_producer_epoch: identity.epoch,
            v3_and_below_topics: topics,
            ..AddPartitionsToTxnRequest::default()
        };
        self.repeat(Step::AddPartitions, deadline, async || {
            let (answer, _) = self.call(&request, ADD_PARTITIONS_LAST).await?;
            let results = answer.results_by_topic_v3_and_below.iter();
            let codes = results
                .flat_map(|topic| &topic.results_by_partition)
                .map(|partition| partition.partition_error_code);
            check(worst(codes), || self.what("ADD_PARTITIONS_TO_TXN"))
        })
        .await?;
        self.with(|state| state.added(partitions));
        Ok(())
    }

    // ---------------------------------------------------------------------------------- end

    /// Ends the transaction as [`Transaction::finish`] said, once all its batches are settled.
    /// Returns the identity of the next one.
    ///
    /// # Errors
    /// What keeps it from being committed, or the coordinator's refusal. After one that is
    /// retriable it may be tried again.
    pub(crate) async fn end(&self, deadline: Instant) -> Result<Identity, ClientError> {
        let _turn = self.turn.acquire(1).await;
        loop {
            match self.with(Transaction::next)? {
                Next::Ready(identity) => return Ok(identity),
                Next::Bump(identity) => {
                    self.init_producer_id(Some(identity), deadline).await?;
                }
                Next::End {
                    identity,
                    committed,
                } => self.end_transaction(identity, committed, deadline).await?,
            }
        }
    }

    async fn end_transaction(
        &self,
        identity: Identity,
        committed: bool,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let request = EndTxnRequest {
            transactional_id: self.id.clone(),
            producer_id: identity.id,
            producer_epoch: identity.epoch,
            committed,
            ..EndTxnRequest::default()
        };
        let last = match self.with(|state| state.is_implicit()) {
            true => i16::MAX,
            false => END_EXPLICIT_LAST,
        };
        self.repeat(Step::End, deadline, async || {
            let (answer, implicit) = self.call(&request, last).await?;
            check(answer.error_code, || self.what("END_TXN"))?;
            let next = Identity {
                id: answer.producer_id,
                epoch: answer.producer_epoch,
            };
            self.with(|state| state.ended((next.id >= 0).then_some(next), implicit));
            Ok(())
        })
        .await
    }

    pub(super) fn what(&self, api: &str) -> String {
        format!("{api} of {}", self.id)
    }
}

/// Whether the coordinator must be looked up again.
fn is_lost(error: &ClientError) -> bool {
    match error {
        ClientError::Broker { code, .. } => matches!(
            *code,
            ErrorCode::NOT_COORDINATOR | ErrorCode::COORDINATOR_NOT_AVAILABLE
        ),
        error => error.is_retriable(),
    }
}

/// The code that decides: one that says why before those that say that another did.
pub(super) fn worst(codes: impl Iterator<Item = i16>) -> i16 {
    let rank = |code: &i16| match ErrorCode(*code) {
        ErrorCode::NONE => 0,
        ErrorCode::OPERATION_NOT_ATTEMPTED => 1,
        code if code.is_retriable() => 2,
        _ => 3,
    };
    codes.max_by_key(rank).unwrap_or(ErrorCode::NONE.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_that_says_why_decides() {
        let codes = |codes: &[ErrorCode]| ErrorCode(worst(codes.iter().map(|code| code.0)));
        let (not_attempted, retriable, refused) = (
            ErrorCode::OPERATION_NOT_ATTEMPTED,
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode::TOPIC_AUTHORIZATION_FAILED,
        );
        assert_eq!(codes(&[]), ErrorCode::NONE);
        assert_eq!(codes(&[ErrorCode::NONE, not_attempted]), not_attempted);
        assert_eq!(codes(&[retriable, not_attempted]), retriable);
        assert_eq!(codes(&[refused, retriable, not_attempted]), refused);
    }
}

//! How the coordinator of a transaction is asked about partitions (AddPartitionsToTxn v4-5). Runs
//! on the shard that owns, or would own, the transaction's partition of `__transaction_state`: all
//! shards of this broker ask through it, one question at a time for each transaction. A
//! coordinator refuses what comes while it stores an earlier answer, so what is asked meanwhile
//! goes along with the next question. Never decides what an answer means for a batch.

use super::Shard;
use super::mesh::LocalFuture;
use super::peers::Purpose;
use super::transaction_calls::not_added;
use crate::client::ClientError;
use crate::cluster::TRANSACTIONS_TOPIC;
use crate::coordinator::java_string_hash;
use crate::coordinator::transactions::TransactionVersion;
use crate::rt;
use crate::rt::sync::oneshot;
use crate::wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use crate::wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
};
use crate::wire::{ErrorCode, Str};
use ahash::AHashMap;
use indexmap::{IndexMap, IndexSet};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// The first version that a broker may send.
const FIRST_BROKER_VERSION: i16 = 4;

/// The connections to another coordinator over which questions are spread, by transactional id: each
/// waits for the coordinator's record, and a connection has one of them at a time.
const QUESTION_CONNECTIONS: u32 = 4;

/// What a leader wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) transactional_id: Str,
    pub(super) producer_id: i64,
    pub(super) producer_epoch: i16,
    /// To add the partitions, not only to look for them.
    pub(super) adds: bool,
    pub(super) partitions: Vec<(Str, i32)>,
}

/// The error of each partition of a question, in its order.
type Errors = Vec<ErrorCode>;

/// A question that waits for the one before it.
struct Waiting {
    question: Question,
    answered: oneshot::Sender<Errors>,
}

/// The transactions that are asked about now, each with the questions that wait. As many as there
/// are requests in progress that ask; their memory permits bound them.
#[derive(Default)]
pub(super) struct Questions {
    by_transaction: RefCell<AHashMap<Str, Vec<Waiting>>>,
    #[cfg(test)]
    oracle: RefCell<Option<Rc<Oracle>>>,
}

/// Answers in place of coordinators.
#[cfg(test)]
pub(crate) type Oracle =
    dyn Fn(AddPartitionsToTxnTransaction) -> LocalFuture<AddPartitionsToTxnResult>;

impl Question {
    /// Whether `other` can be asked in the same breath.
    fn goes_with(&self, other: &Question) -> bool {
        (self.producer_id, self.producer_epoch, self.adds)
            == (other.producer_id, other.producer_epoch, other.adds)
    }

    fn all(&self, error: ErrorCode) -> Errors {
        vec![error; self.partitions.len()]
    }

    /// The error of each partition in an answer; one that the answer leaves out is not known.
    fn errors_in(&self, result: &AddPartitionsToTxnResult) -> Errors {
        let told: AHashMap<(&str, i32), i16> = result
            .topic_results
            .iter()
            .flat_map(|topic| {
                let partitions = topic.results_by_partition.iter();
                partitions.map(|p| ((&*topic.name, p.partition_index), p.partition_error_code))
            })
            .collect();
        let error_of = |(name, index): &(Str, i32)| match told.get(&(&**name, *index)) {
            Some(error) => ErrorCode(*error),
            None => ErrorCode::UNKNOWN_SERVER_ERROR,
        };
        self.partitions.iter().map(error_of).collect()
    }
}

/// The questions, all of one transaction, as one request to its coordinator.
fn together(questions: &[Waiting]) -> Option<AddPartitionsToTxnTransaction> {
    let first = &questions.first()?.question;
    let mut topics: IndexMap<Str, IndexSet<i32>> = IndexMap::new();
    for (name, index) in questions.iter().flat_map(|w| &w.question.partitions) {
        topics.entry(name.clone()).or_default().insert(*index);
    }
    let topics = topics
        .into_iter()
        .map(|(name, partitions)| AddPartitionsToTxnTopic {
            name,
            partitions: partitions.into_iter().collect(),
            ..Default::default()
        })
        .collect();
    Some(AddPartitionsToTxnTransaction {
        transactional_id: first.transactional_id.clone(),
        producer_id: first.producer_id,
        producer_epoch: first.producer_epoch,
        verify_only: !first.adds,
        topics,
        ..Default::default()
    })
}

impl Questions {
    /// Takes the next questions of a transaction that can be asked together; with none left the
    /// transaction is forgotten.
    fn next(&self, transactional_id: &str) -> Vec<Waiting> {
        let mut by_transaction = self.by_transaction.borrow_mut();
        let Some(waiting) = by_transaction.get_mut(transactional_id) else {
            return Vec::new();
        };
        if waiting.is_empty() {
            by_transaction.remove(transactional_id);
            return Vec::new();
        }
        let first = waiting[0].question.clone();
        let (now, later) = std::mem::take(waiting)
            .into_iter()
            .partition(|waiting| waiting.question.goes_with(&first));
        *waiting = later;
        now
    }

    /// True if nobody asks about this transaction yet.
    fn add(&self, waiting: Waiting) -> bool {
        let mut by_transaction = self.by_transaction.borrow_mut();
        let id = &waiting.question.transactional_id;
        match by_transaction.get_mut(id) {
            Some(others) => {
                others.push(waiting);
                false
            }
            None => {
                by_transaction.insert(id.detached(), vec![waiting]);
                true
            }
        }
    }
}

impl Shard {
    /// Asks the coordinator of a transaction; the error of each partition of the question.
    pub(super) async fn ask_about_transaction(self: &Rc<Self>, question: Question) -> Errors {
        let id = &question.transactional_id;
        let partition = match self.coordinator_partition(TRANSACTIONS_TOPIC, id) {
            Ok(partition) => partition,
            Err(error) => return question.all(error),
        };
        let unanswered = question.all(ErrorCode::NETWORK_EXCEPTION);
        let ask = move |shard: Rc<Shard>| -> LocalFuture<Errors> {
            Box::pin(async move { shard.ask_in_turn(question).await })
        };
        let owner = self.owner(partition);
        self.clone().on(owner, ask).await.unwrap_or(unanswered)
    }

    #[cfg(test)]
    pub(crate) fn take_oracle(&self, oracle: Rc<Oracle>) {
        let questions = &self.verifications.questions;
        *questions.oracle.borrow_mut() = Some(oracle);
    }

    async fn ask_in_turn(self: Rc<Self>, question: Question) -> Errors {
        let unanswered = question.all(ErrorCode::NETWORK_EXCEPTION);
        let id = question.transactional_id.detached();
        let (answered, answer) = oneshot::channel();
        let waiting = Waiting { question, answered };
        if self.verifications.questions.add(waiting) {
            // By itself: whoever asked first may go away before the others are answered.
            rt::spawn(self.ask_all_about(id));
        }
        answer.await.unwrap_or(unanswered)
    }

    async fn ask_all_about(self: Rc<Self>, transactional_id: Str) {
        loop {
            let questions = self.verifications.questions.next(&transactional_id);
            let Some(transaction) = together(&questions) else {
                return;
            };
            let result = self.ask_coordinator(transaction).await;
            for Waiting { question, answered } in questions {
                // Who asked may have gone away.
                let _ = answered.send(question.errors_in(&result));
            }
        }
    }

    async fn ask_coordinator(
        self: &Rc<Self>,
        transaction: AddPartitionsToTxnTransaction,
    ) -> AddPartitionsToTxnResult {
        #[cfg(test)]
        {
            let oracle = self.verifications.questions.oracle.borrow().clone();
            if let Some(oracle) = oracle {
                return oracle(transaction).await;
            }
        }
        let leader = self
            .coordinator_partition(TRANSACTIONS_TOPIC, &transaction.transactional_id)
            .ok()
            .and_then(|id| self.image().leader(id.topic, id.index));
        let Some((leader, _)) = leader else {
            return not_added(transaction, ErrorCode::COORDINATOR_NOT_AVAILABLE);
        };
        if leader == self.node.node {
            return self
                .add_or_verify(transaction, TransactionVersion::V2)
                .await;
        }
        let asked = transaction.clone();
        let id = &asked.transactional_id;
        let connection = java_string_hash(id).unsigned_abs() % QUESTION_CONNECTIONS;
        let connection = connection as u8;
        let request = AddPartitionsToTxnRequest {
            transactions: vec![transaction],
            ..Default::default()
        };
        let limit = Duration::from_millis(self.node.config.request_timeout_ms);
        let answer = self
            .ask_broker(
                leader,
                Purpose::Question(connection),
                &request,
                FIRST_BROKER_VERSION,
                limit,
            )
            .await;
        if let Err(error) = &answer {
            tracing::warn!(coordinator = leader.0, %error, "a transaction's coordinator gave no answer");
        }
        answer_of(asked, answer)
    }
}

/// What another broker's answer says of the transaction.
fn answer_of(
    asked: AddPartitionsToTxnTransaction,
    answer: Result<AddPartitionsToTxnResponse, ClientError>,
) -> AddPartitionsToTxnResult {
    match answer {
        Ok(answer) => {
            let error = match ErrorCode(answer.error_code) {
                // That brokers may not ask each other is nothing that a client can act on.
                ErrorCode::CLUSTER_AUTHORIZATION_FAILED => ErrorCode::INVALID_TXN_STATE,
                error => error,
            };
            result_of(asked, answer.results_by_transaction, error)
        }
        // A coordinator before KIP-890 cannot verify, and Kafka's leaders then do without. Nor can
        // it add: appended all the same, the batch would never see the transaction's end.
        Err(ClientError::UnsupportedVersion { .. }) => {
            let error = match asked.verify_only {
                true => ErrorCode::NONE,
                false => ErrorCode::COORDINATOR_NOT_AVAILABLE,
            };
            not_added(asked, error)
        }
        Err(_) => not_added(asked, ErrorCode::NETWORK_EXCEPTION),
    }
}

fn result_of(
    asked: AddPartitionsToTxnTransaction,
    results: Vec<AddPartitionsToTxnResult>,
    error: ErrorCode,
) -> AddPartitionsToTxnResult {
    if error != ErrorCode::NONE {
        return not_added(asked, error);
    }
    let mut results = results.into_iter();
    let own = results.find(|result| result.transactional_id == asked.transactional_id);
    own.unwrap_or_else(|| not_added(asked, ErrorCode::UNKNOWN_SERVER_ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(epoch: i16, adds: bool, partitions: &[(&str, i32)]) -> Waiting {
        Waiting {
            question: Question {
                transactional_id: Str::from("t"),
                producer_id: 7,
                producer_epoch: epoch,
                adds,
                partitions: partitions
                    .iter()
                    .map(|(topic, index)| (Str::from(*topic), *index))
                    .collect(),
            },
            answered: oneshot::channel().0,
        }
    }

    #[test]
    fn what_is_asked_meanwhile_goes_along_with_the_next_question() {
        let questions = Questions::default();
        assert!(questions.add(waiting(1, true, &[("a", 0)])));
        assert_eq!(questions.next("t").len(), 1);
        assert!(!questions.add(waiting(1, true, &[("a", 1), ("b", 0)])));
        assert!(!questions.add(waiting(2, true, &[("a", 1)])));
        assert!(!questions.add(waiting(1, true, &[("a", 2), ("b", 0)])));
        let next = questions.next("t");
        let asked = together(&next).unwrap();
        let named: Vec<(&str, &[i32])> = asked
            .topics
            .iter()
            .map(|topic| (&*topic.name, &topic.partitions[..]))
            .collect();
        assert_eq!(named, [("a", &[1, 2][..]), ("b", &[0])]);
        assert_eq!((asked.producer_epoch, asked.verify_only), (1, false));
        let last = questions.next("t");
        assert_eq!(last[0].question.producer_epoch, 2, "another transaction");
        assert!(together(&questions.next("t")).is_none());
        assert!(
            questions.add(waiting(1, true, &[("a", 0)])),
            "a transaction that nobody asks about is forgotten"
        );
    }

    #[test]
    fn an_answer_that_does_not_name_a_partition_does_not_let_it_in() {
        let asked = waiting(1, false, &[("a", 0), ("a", 1), ("b", 0)]).question;
        let in_answer = |partitions: &[(&str, i32)]| {
            together(&[waiting(1, false, partitions)]).map(|t| not_added(t, ErrorCode::NONE))
        };
        let result = in_answer(&[("a", 1), ("b", 1)]).unwrap();
        let unknown = ErrorCode::UNKNOWN_SERVER_ERROR;
        assert_eq!(
            asked.errors_in(&result),
            [unknown, ErrorCode::NONE, unknown]
        );
    }

    #[test]
    fn a_coordinator_that_cannot_add_leaves_no_batch_without_an_end() {
        let told = |adds| {
            let question = waiting(1, adds, &[("a", 0)]);
            let error = ClientError::UnsupportedVersion {
                api: "AddPartitionsToTxn",
            };
            let asked = together(std::slice::from_ref(&question)).unwrap();
            question.question.errors_in(&answer_of(asked, Err(error)))
        };
        assert_eq!(told(false), [ErrorCode::NONE]);
        assert_eq!(told(true), [ErrorCode::COORDINATOR_NOT_AVAILABLE]);
    }

    #[test]
    fn what_brokers_may_not_ask_each_other_is_not_told_to_clients() {
        let question = waiting(1, false, &[("a", 0)]);
        let asked = together(std::slice::from_ref(&question)).unwrap();
        let answer = AddPartitionsToTxnResponse {
            error_code: ErrorCode::CLUSTER_AUTHORIZATION_FAILED.0,
            ..Default::default()
        };
        let errors = question.question.errors_in(&answer_of(asked, Ok(answer)));
        assert_eq!(errors, [ErrorCode::INVALID_TXN_STATE]);
    }
}

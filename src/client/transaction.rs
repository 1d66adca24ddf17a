//! The states of a transactional producer (KIP-98, KIP-360, KIP-890): what it may do now, what must
//! come before a batch leaves, and what an error means for the transaction.
//!
//! Pure; one executor. Owns the producer's identity and which partitions its transaction holds.
//! Sends nothing and never waits: `transactions` does what this says.

use ahash::AHashSet;

use super::error::ClientError;
use super::sequences::Identity;
use super::topic_partition::TopicPartition;
use crate::wire::ErrorCode;

/// What was being done when an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// InitProducerId.
    Init,
    /// AddPartitionsToTxn.
    AddPartitions,
    /// AddOffsetsToTxn.
    AddOffsets,
    /// TxnOffsetCommit.
    CommitOffsets,
    /// A batch, after all its retries.
    Produce,
    /// EndTxn.
    End,
}

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The same request may succeed later.
    Retriable,
    /// This transaction can only be aborted; the next one may succeed.
    Abortable,
    /// The producer is of no more use.
    Fatal,
}

/// How Kafka's own producer takes an error of a step.
pub fn severity(step: Step, code: ErrorCode) -> Severity {
    use ErrorCode as E;
    use Severity::{Abortable, Fatal, Retriable};
    match (step, code) {
        (_, E::TRANSACTION_ABORTABLE) => Abortable,
        (_, E::PRODUCER_FENCED)
        | (_, E::TRANSACTIONAL_ID_AUTHORIZATION_FAILED | E::CLUSTER_AUTHORIZATION_FAILED)
        | (_, E::UNSUPPORTED_VERSION) => Fatal,
        (Step::Produce, E::INVALID_PRODUCER_ID_MAPPING) => Fatal,
        // Also an old epoch: a leader may have been told by a marker before this producer was.
        // Whether a newer producer is there the coordinator says at the abort.
        (Step::Produce, _) => Abortable,
        (_, E::INVALID_PRODUCER_EPOCH) => Fatal,
        (
            Step::AddPartitions | Step::AddOffsets | Step::End,
            E::UNKNOWN_PRODUCER_ID | E::INVALID_PRODUCER_ID_MAPPING,
        ) => Abortable,
        (Step::AddOffsets | Step::CommitOffsets, E::GROUP_AUTHORIZATION_FAILED)
        | (
            Step::CommitOffsets,
            E::FENCED_INSTANCE_ID
            | E::UNKNOWN_MEMBER_ID
            | E::ILLEGAL_GENERATION
            | E::STALE_MEMBER_EPOCH,
        ) => Abortable,
        (_, code) if code.is_retriable() => Retriable,
        (Step::AddPartitions, E::INVALID_TXN_STATE) => Fatal,
        // Refused for one of the partitions.
        (Step::AddPartitions, _) => Abortable,
        _ => Fatal,
    }
}

#[derive(Clone, Debug)]
enum State {
    Uninitialised,
    Ready,
    InTransaction,
    Committing,
    Aborting,
    AbortableError(ClientError),
    FatalError(ClientError),
}

/// What comes next on the way out of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// EndTxn.
    End { identity: Identity, committed: bool },
    /// InitProducerId with the current identity: numbers were lost, or the protocol changes.
    Bump(Identity),
    /// Nothing: the producer is ready for another.
    Ready(Identity),
}

/// See the module's words.
#[derive(Debug)]
pub struct Transaction {
    state: State,
    identity: Option<Identity>,
    /// `transaction.version` is 2: leaders and group coordinators add themselves, and every end
    /// raises the epoch.
    implicit: bool,
    /// The coordinator knows of the transaction, or may.
    started: bool,
    /// Bounded by the partitions that the cluster has described.
    added: AHashSet<TopicPartition>,
    /// Before the next transaction the epoch must be raised by InitProducerId.
    bump: bool,
}

impl Default for Transaction {
    fn default() -> Self {
        Transaction {
            state: State::Uninitialised,
            identity: None,
            implicit: false,
            started: false,
            added: AHashSet::new(),
            bump: false,
        }
    }
}

impl Transaction {
    // ---------------------------------------------------------------------------- beginning

    /// Whether InitProducerId may be sent for the first time.
    ///
    /// # Errors
    /// The fatal error; [`ClientError::Invalid`] if it was done.
    pub fn check_initialising(&self) -> Result<(), ClientError> {
        match &self.state {
            State::Uninitialised => Ok(()),
            State::FatalError(error) => Err(error.clone()),
            _ => Err(invalid("transactions are initialised already")),
        }
    }

    /// InitProducerId was answered; `implicit` if the cluster's `transaction.version` is 2.
    pub fn initialised(&mut self, identity: Identity, implicit: bool) {
        (self.identity, self.implicit) = (Some(identity), implicit);
        self.bump = false;
        if let State::Uninitialised = self.state {
            self.state = State::Ready;
        }
    }

    /// # Errors
    /// The error that the producer is in; [`ClientError::Invalid`] if this is not the time.
    pub fn begin(&mut self) -> Result<(), ClientError> {
        match &self.state {
            State::Ready => {
                self.state = State::InTransaction;
                Ok(())
            }
            State::Uninitialised => Err(invalid("transactions are not initialised")),
            State::AbortableError(error) | State::FatalError(error) => Err(error.clone()),
            _ => Err(invalid("a transaction is under way")),
        }
    }

    pub fn is_implicit(&self) -> bool {
        self.implicit
    }

    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Between begin and the answer to its end.
    pub fn is_under_way(&self) -> bool {
        !matches!(
            self.state,
            State::Uninitialised | State::Ready | State::FatalError(_)
        )
    }

    pub fn fatal(&self) -> Option<&ClientError> {
        match &self.state {
            State::FatalError(error) => Some(error),
            _ => None,
        }
    }

    // ------------------------------------------------------------------------------ within

    /// Whether a record or an offset may be given to the transaction.
    ///
    /// # Errors
    /// As [`Transaction::begin`].
    pub fn check_open(&self) -> Result<(), ClientError> {
        match &self.state {
            State::InTransaction => Ok(()),
            State::AbortableError(error) | State::FatalError(error) => Err(error.clone()),
            _ => Err(invalid("no transaction is open")),
        }
    }

    /// Whether what is queued may still leave.
    ///
    /// # Errors
    /// Why it is to be given up.
    pub fn check_leaving(&self) -> Result<(), ClientError> {
        match &self.state {
            State::AbortableError(error) | State::FatalError(error) => Err(error.clone()),
            State::Aborting => {
                let text = "aborted before the record was sent";
                let code = ErrorCode::TRANSACTION_ABORTABLE;
                Err(ClientError::broker("transaction", code, text))
            }
            _ => Ok(()),
        }
    }

    /// Which of these partitions the coordinator must be told of before a batch for them leaves.
    /// Where leaders tell it themselves there are none.
    pub fn missing<'a>(
        &mut self,
        partitions: impl Iterator<Item = &'a TopicPartition>,
    ) -> Vec<TopicPartition> {
        let mut missing = Vec::new();
        for key in partitions {
            self.sending();
            if !self.implicit && !self.added.contains(key) {
                missing.push(key.clone());
            }
        }
        missing
    }

    /// A batch is about to leave: where leaders tell the coordinator it may know from now on.
    pub fn sending(&mut self) {
        self.started |= self.implicit;
    }

    /// The coordinator took these partitions.
    pub fn added(&mut self, partitions: Vec<TopicPartition>) {
        self.started = true;
        self.added.extend(partitions);
    }

    /// The coordinator knows, or may know, that offsets of a group are part of it.
    pub fn offsets_added(&mut self) {
        self.started = true;
    }

    /// A step failed for good: also for being retriable for too long.
    pub fn failed(&mut self, step: Step, error: &ClientError) {
        match severity(step, error.code()) {
            Severity::Fatal => {
                if self.fatal().is_none() {
                    self.state = State::FatalError(error.clone());
                }
            }
            // The outcome is open: the same step may be tried again.
            Severity::Retriable if matches!(step, Step::Init | Step::End) => {}
            Severity::Retriable | Severity::Abortable => {
                let doubtful = matches!(
                    error.code(),
                    ErrorCode::UNKNOWN_PRODUCER_ID | ErrorCode::INVALID_PRODUCER_ID_MAPPING
                );
                self.bump |= doubtful && !self.implicit;
                match self.state {
                    State::InTransaction | State::Committing => {
                        self.state = State::AbortableError(error.clone());
                    }
                    // What fails on the way to an abort was to be dropped anyway.
                    State::Aborting if step == Step::End => {
                        self.state = State::AbortableError(error.clone());
                    }
                    _ => {}
                }
            }
        }
    }

    /// A batch was given up. `numbered`: it had its sequence number, which nobody will use now.
    pub fn batch_failed(&mut self, error: &ClientError, numbered: bool) {
        self.bump |= numbered && !self.implicit;
        self.failed(Step::Produce, error);
    }

    // ---------------------------------------------------------------------------------- end

    /// Begins to commit or abort, or goes on with it after an error that left it open.
    ///
    /// # Errors
    /// The error that the producer is in; [`ClientError::Invalid`] if this is not the time.
    pub fn finish(&mut self, committed: bool) -> Result<(), ClientError> {
        match (&self.state, committed) {
            (State::FatalError(error), _) | (State::AbortableError(error), true) => {
                return Err(error.clone());
            }
            (State::InTransaction | State::Committing, true) => self.state = State::Committing,
            (State::InTransaction | State::AbortableError(_) | State::Aborting, false) => {
                self.state = State::Aborting;
            }
            (State::Committing, false) => {
                return Err(invalid("the transaction is being committed"));
            }
            (State::Aborting, true) => return Err(invalid("the transaction is being aborted")),
            (State::Uninitialised | State::Ready, _) => {
                return Err(invalid("no transaction is open"));
            }
        }
        Ok(())
    }

    /// What is to be done next, with nothing of the transaction on the wire any more.
    ///
    /// # Errors
    /// The error that keeps it from being committed.
    pub fn next(&mut self) -> Result<Next, ClientError> {
        let committed = match &self.state {
            State::AbortableError(error) | State::FatalError(error) => return Err(error.clone()),
            State::Committing => true,
            State::Aborting => false,
            _ => return Err(invalid("no transaction is open")),
        };
        let Some(identity) = self.identity else {
            return Err(invalid("transactions are not initialised"));
        };
        // Nothing was told to the coordinator: there is nothing to end.
        if self.started {
            return Ok(Next::End {
                identity,
                committed,
            });
        }
        if self.bump {
            return Ok(Next::Bump(identity));
        }
        self.added.clear();
        self.state = State::Ready;
        Ok(Next::Ready(identity))
    }

    /// EndTxn was answered, perhaps with the identity of the next transaction. `implicit` is what
    /// the cluster's `transaction.version` says now.
    pub fn ended(&mut self, identity: Option<Identity>, implicit: bool) {
        self.started = false;
        self.identity = identity.or(self.identity);
        // The newer protocol begins with an epoch that nothing was written under (KIP-890).
        self.bump |= implicit && !self.implicit;
        if identity.is_some() {
            self.bump = false;
        }
        self.implicit = implicit;
    }
}

fn invalid(text: &str) -> ClientError {
    ClientError::Invalid(text.to_owned())
}

#[cfg(test)]
#[path = "transaction_tests.rs"]
mod tests;

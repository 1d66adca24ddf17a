//! What becomes of a record that was sent: a future per record, one shared outcome per batch.
//!
//! One executor. The producer's sender settles each outcome once; everybody who waits is woken.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::error::ClientError;
use crate::types::Offset;
use crate::wire::Str;

/// Where a record went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordMetadata {
    pub topic: Str,
    pub partition: i32,
    /// `None` with `acks=0`, and where the broker had the record already and forgot where.
    pub offset: Option<Offset>,
    /// Milliseconds since the epoch: the record's, or the broker's with LogAppendTime.
    pub timestamp: i64,
}

/// How a batch was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acked {
    pub(super) base_offset: Option<Offset>,
    pub(super) append_time: Option<i64>,
}

/// The outcome of all records of one batch.
#[derive(Debug)]
pub(super) struct BatchOutcome {
    pub(super) topic: Str,
    pub(super) partition: i32,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<Acked, ClientError>>,
    /// Errors of single records (KIP-467), by position.
    record_errors: Vec<(i32, String)>,
    waiting: Vec<Waker>,
}

impl BatchOutcome {
    pub(super) fn new(topic: Str, partition: i32) -> Rc<BatchOutcome> {
        Rc::new(BatchOutcome {
            topic,
            partition,
            state: RefCell::default(),
        })
    }

    /// Settles the batch. The first settlement counts.
    pub(super) fn settle(&self, result: Result<Acked, ClientError>, errors: Vec<(i32, String)>) {
        let waiting = {
            let mut state = self.state.borrow_mut();
            if state.result.is_some() {
                return;
            }
            state.result = Some(result);
            state.record_errors = errors;
            std::mem::take(&mut state.waiting)
        };
        // Outside of the borrow: a waker may run foreign code.
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The future of one record's fate. Dropping it changes nothing.
#[derive(Debug)]
pub struct Delivery {
    pub(super) outcome: Rc<BatchOutcome>,
    pub(super) index: i32,
    pub(super) timestamp: i64,
}

impl Delivery {
    /// The fate, if it is known.
    pub fn try_get(&self) -> Option<Result<RecordMetadata, ClientError>> {
        let state = self.outcome.state.borrow();
        Some(match state.result.as_ref()? {
            Ok(acked) => Ok(RecordMetadata {
                topic: self.outcome.topic.clone(),
                partition: self.outcome.partition,
                offset: acked
                    .base_offset
                    .map(|base| Offset(base.0 + i64::from(self.index))),
                timestamp: acked.append_time.unwrap_or(self.timestamp),
            }),
            Err(error) => {
                let mut error = error.clone();
                let own = state
                    .record_errors
                    .iter()
                    .find(|(index, _)| *index == self.index);
                if let (ClientError::Broker { message, .. }, Some((_, text))) = (&mut error, own) {
                    message.clone_from(text);
                }
                Err(error)
            }
        })
    }

    /// The partition that was chosen.
    pub fn partition(&self) -> i32 {
        self.outcome.partition
    }
}

impl Future for Delivery {
    type Output = Result<RecordMetadata, ClientError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.try_get() {
            return Poll::Ready(result);
        }
        let waiting = &mut self.outcome.state.borrow_mut().waiting;
        // A task that waits for many records of the batch is woken once.
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

//! What the transaction coordinator asks of its surroundings. Plain data; nothing here waits.

use super::partitions::Partitions;
use super::transaction::Producer;
use crate::coordinator::{CoordinatorRecord, ReplyToken};
use crate::wire::{ErrorCode, Str};

/// Names an append until its outcome is reported back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppendId(pub u64);

/// The answer to InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn or EndTxn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub error: ErrorCode,
    /// The producer from now on; -1 and -1 beside an error.
    pub producer: Producer,
}

impl Answer {
    pub(super) fn ok(id: i64, epoch: i16) -> Answer {
        Answer {
            error: ErrorCode::NONE,
            producer: Producer { id, epoch },
        }
    }

    pub(super) fn refused(error: ErrorCode) -> Answer {
        Answer {
            error,
            producer: Producer::NONE,
        }
    }
}

/// The end of a transaction, to be told to the partitions it has touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Markers {
    pub transactional_id: Str,
    pub producer: Producer,
    pub commit: bool,
    /// The `transaction.version` of the client, which decides how strictly its epoch is judged.
    pub transaction_version: i8,
    pub partitions: Partitions,
}

/// To be carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this answer.
    Reply(ReplyToken, Answer),
    /// Append the record and wait until the high watermark has passed it; then report the outcome
    /// under `then` with `append_done`.
    Append {
        record: CoordinatorRecord,
        then: AppendId,
    },
    /// The same after a pause: so many attempts before have failed.
    AppendLater {
        record: CoordinatorRecord,
        then: AppendId,
        failures: u32,
    },
    /// Write the markers until each partition has its own, and report them with
    /// `markers_written`.
    WriteMarkers(Markers),
}

/// Effects in the order in which they must be carried out.
#[derive(Debug, Default)]
#[must_use = "an answer, an append or a marker would be lost"]
pub struct Effects {
    list: Vec<Effect>,
}

impl Effects {
    pub(super) fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    pub(super) fn reply(&mut self, token: ReplyToken, answer: Answer) {
        self.push(Effect::Reply(token, answer));
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::vec::IntoIter<Effect>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

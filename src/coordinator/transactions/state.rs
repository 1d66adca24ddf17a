//! The states a transaction goes through, with their numbers and names in `__transaction_state`.
//! Values only.

use crate::wire::coordinator_record::TRANSACTION_STATES;

/// Where a transactional id stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i8)]
pub enum State {
    /// The producer has its id; nothing was written yet.
    Empty = 0,
    Ongoing = 1,
    /// Decided, and not yet told to all partitions.
    PrepareCommit = 2,
    PrepareAbort = 3,
    /// Told to all partitions.
    CompleteCommit = 4,
    CompleteAbort = 5,
}

impl State {
    /// The state of this number; `None` for those that Kafka never stores.
    pub fn of_number(number: i8) -> Option<State> {
        Some(match number {
            0 => State::Empty,
            1 => State::Ongoing,
            2 => State::PrepareCommit,
            3 => State::PrepareAbort,
            4 => State::CompleteCommit,
            5 => State::CompleteAbort,
            _ => return None,
        })
    }

    pub fn of_name(name: &str) -> Option<State> {
        let number = TRANSACTION_STATES.iter().position(|known| *known == name)?;
        State::of_number(number as i8)
    }

    pub fn name(self) -> &'static str {
        TRANSACTION_STATES[self as usize]
    }

    /// The end of a transaction is decided and is being told to its partitions.
    pub fn is_prepared(self) -> bool {
        matches!(self, State::PrepareCommit | State::PrepareAbort)
    }

    /// No transaction is open.
    pub fn is_idle(self) -> bool {
        matches!(
            self,
            State::Empty | State::CompleteCommit | State::CompleteAbort
        )
    }
}

//! What a producer does with a batch after an answer, or after none.
//!
//! Pure: one function from error and circumstances to the decision.

use super::sequences::Place;
use crate::wire::ErrorCode;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The records are in the log; `known_offset` is false if only that is certain.
    Delivered { known_offset: bool },
    /// Send the same bytes again after a back-off. `refresh`: the leader may be another now.
    Retry { refresh: bool },
    /// Not in the log, and refused for its number: send again under a new one.
    RetryAnew,
    /// Give up.
    Fail,
}

/// The circumstances.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// How often the batch was sent before this time.
    pub retried: u32,
    /// `retries`.
    pub retries: u32,
    /// `delivery.timeout.ms` has passed.
    pub expired: bool,
    /// For a numbered batch: where it stands.
    pub place: Option<Place>,
    /// Part of a transaction: the coordinator alone gives new numbers, at its end.
    pub transactional: bool,
}

/// Decides.
pub fn judge(error: ErrorCode, attempt: Attempt) -> Verdict {
    let may_retry = !attempt.expired && attempt.retried < attempt.retries;
    match (error, attempt.place) {
        (ErrorCode::NONE, _) => Verdict::Delivered { known_offset: true },
        // Written by an earlier attempt, too long ago for the broker to say where.
        (ErrorCode::DUPLICATE_SEQUENCE_NUMBER, Some(_)) => Verdict::Delivered {
            known_offset: false,
        },
        // Something before it failed on its way: it will come again, and then this one.
        (ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, Some(Place::Later)) if may_retry => {
            Verdict::Retry { refresh: false }
        }
        // Everything before it was acknowledged and yet the broker misses records; or the broker
        // forgot us and took a later batch for our first, and this one's place is gone.
        (ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, Some(_)) => Verdict::Fail,
        // The broker has lost or replaced what it knew of us; the batch is not in the log.
        (
            ErrorCode::UNKNOWN_PRODUCER_ID
            | ErrorCode::INVALID_PRODUCER_EPOCH
            | ErrorCode::PRODUCER_FENCED,
            Some(_),
        ) if may_retry && !attempt.transactional => Verdict::RetryAnew,
        (error, _) if error.is_retriable() && may_retry => Verdict::Retry {
            refresh: moves_leader(error),
        },
        _ => Verdict::Fail,
    }
}

/// Errors after which the view of the cluster is in doubt.
fn moves_leader(error: ErrorCode) -> bool {
    matches!(
        error,
        ErrorCode::NOT_LEADER_OR_FOLLOWER
            | ErrorCode::LEADER_NOT_AVAILABLE
            | ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode::UNKNOWN_TOPIC_ID
            | ErrorCode::INCONSISTENT_TOPIC_ID
            | ErrorCode::REPLICA_NOT_AVAILABLE
            | ErrorCode::FENCED_LEADER_EPOCH
            | ErrorCode::UNKNOWN_LEADER_EPOCH
            | ErrorCode::KAFKA_STORAGE_ERROR
            | ErrorCode::LISTENER_NOT_FOUND
            | ErrorCode::NETWORK_EXCEPTION
            | ErrorCode::REQUEST_TIMED_OUT
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Attempt = Attempt {
        retried: 0,
        retries: 3,
        expired: false,
        place: None,
        transactional: false,
    };

    fn numbered(place: Place) -> Attempt {
        Attempt {
            place: Some(place),
            ..FIRST
        }
    }

    #[test]
    fn retries_end_with_their_number_and_with_the_delivery_timeout() {
        let error = ErrorCode::NOT_LEADER_OR_FOLLOWER;
        assert_eq!(judge(error, FIRST), Verdict::Retry { refresh: true });
        assert_eq!(
            judge(
                error,
                Attempt {
                    retried: 3,
                    ..FIRST
                }
            ),
            Verdict::Fail
        );
        assert_eq!(
            judge(
                error,
                Attempt {
                    expired: true,
                    ..FIRST
                }
            ),
            Verdict::Fail
        );
        let ok = Verdict::Delivered { known_offset: true };
        assert_eq!(
            judge(
                ErrorCode::NONE,
                Attempt {
                    expired: true,
                    ..FIRST
                }
            ),
            ok
        );
    }

    #[test]
    fn a_gap_is_retried_only_while_something_before_it_is_under_way() {
        let error = ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER;
        assert_eq!(
            judge(error, numbered(Place::Later)),
            Verdict::Retry { refresh: false }
        );
        assert_eq!(judge(error, numbered(Place::Next)), Verdict::Fail);
        assert_eq!(judge(error, numbered(Place::Passed)), Verdict::Fail);
        assert_eq!(judge(error, FIRST), Verdict::Fail);
    }

    #[test]
    fn a_duplicate_is_a_delivery_only_for_a_numbered_batch() {
        let error = ErrorCode::DUPLICATE_SEQUENCE_NUMBER;
        let delivered = Verdict::Delivered {
            known_offset: false,
        };
        assert_eq!(judge(error, numbered(Place::Next)), delivered);
        assert_eq!(judge(error, FIRST), Verdict::Fail);
    }

    #[test]
    fn what_the_broker_refuses_for_good_is_not_sent_again() {
        for error in ErrorCode::all().filter(|e| e.is_error() && !e.is_retriable()) {
            assert_eq!(judge(error, FIRST), Verdict::Fail, "{error}");
        }
    }
}

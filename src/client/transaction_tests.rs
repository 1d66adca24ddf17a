//! The states of a transactional producer, without any broker.

use super::*;

const FIRST: Identity = Identity { id: 9, epoch: 0 };
const SECOND: Identity = Identity { id: 9, epoch: 1 };

fn key(partition: i32) -> TopicPartition {
    TopicPartition::new("t".into(), partition)
}

fn refused(code: ErrorCode) -> ClientError {
    ClientError::broker("test", code, "")
}

fn open(implicit: bool) -> Transaction {
    let mut transaction = Transaction::default();
    transaction.check_initialising().unwrap();
    transaction.initialised(FIRST, implicit);
    transaction.begin().unwrap();
    transaction
}

fn code(result: Result<impl std::fmt::Debug, ClientError>) -> ErrorCode {
    result.unwrap_err().code()
}

#[test]
fn nothing_is_possible_out_of_its_turn() {
    let mut transaction = Transaction::default();
    assert!(transaction.begin().is_err());
    assert!(transaction.check_open().is_err());
    assert!(transaction.finish(true).is_err());
    transaction.initialised(FIRST, true);
    assert!(transaction.check_initialising().is_err());
    assert!(transaction.check_open().is_err() && transaction.finish(false).is_err());
    assert!(!transaction.is_under_way());
    transaction.begin().unwrap();
    assert!(transaction.is_under_way() && transaction.check_open().is_ok());
    assert!(transaction.begin().is_err());
    transaction.finish(true).unwrap();
    assert!(
        transaction.check_open().is_err(),
        "records come before the commit"
    );
    assert!(
        transaction.check_leaving().is_ok(),
        "what came before leaves"
    );
    assert!(
        transaction.finish(false).is_err(),
        "the commit may have happened"
    );
    assert!(transaction.finish(true).is_ok(), "trying again is allowed");
}

#[test]
fn partitions_are_added_once_by_the_older_protocol() {
    let mut transaction = open(false);
    let keys = [key(0), key(1)];
    assert_eq!(transaction.missing(keys.iter()), keys);
    transaction.added(vec![key(0)]);
    assert_eq!(transaction.missing(keys.iter()), [key(1)]);
    transaction.added(vec![key(1)]);
    assert!(transaction.missing(keys.iter()).is_empty());
    transaction.finish(true).unwrap();
    let end = Next::End {
        identity: FIRST,
        committed: true,
    };
    assert_eq!(transaction.next().unwrap(), end);
    transaction.ended(None, false);
    assert_eq!(transaction.next().unwrap(), Next::Ready(FIRST));
    // The next transaction holds none of them.
    transaction.begin().unwrap();
    assert_eq!(transaction.missing(keys.iter()), keys);
}

#[test]
fn the_newer_protocol_adds_nothing_and_goes_on_with_the_identity_of_the_end() {
    let mut transaction = open(true);
    assert!(transaction.missing([key(0)].iter()).is_empty());
    transaction.finish(true).unwrap();
    assert!(matches!(transaction.next().unwrap(), Next::End { .. }));
    transaction.ended(Some(SECOND), true);
    assert_eq!(transaction.next().unwrap(), Next::Ready(SECOND));
    assert_eq!(transaction.identity(), Some(SECOND));
}

#[test]
fn an_empty_transaction_ends_without_the_coordinator() {
    for implicit in [false, true] {
        for committed in [false, true] {
            let mut transaction = open(implicit);
            transaction.finish(committed).unwrap();
            assert_eq!(transaction.next().unwrap(), Next::Ready(FIRST));
            transaction.begin().unwrap();
        }
    }
    let mut offsets = open(true);
    offsets.offsets_added();
    offsets.finish(true).unwrap();
    assert!(matches!(offsets.next().unwrap(), Next::End { .. }));
}

#[test]
fn a_failed_batch_leaves_only_the_abort() {
    for implicit in [false, true] {
        let mut transaction = open(implicit);
        let missing = transaction.missing([key(0)].iter());
        if !implicit {
            transaction.added(missing);
        }
        transaction.batch_failed(&refused(ErrorCode::MESSAGE_TOO_LARGE), true);
        let wrong = ErrorCode::MESSAGE_TOO_LARGE;
        assert_eq!(code(transaction.check_open()), wrong);
        assert_eq!(code(transaction.check_leaving()), wrong);
        assert_eq!(code(transaction.finish(true)), wrong);
        assert_eq!(code(transaction.begin()), wrong);
        transaction.finish(false).unwrap();
        // More of it fails on its way out.
        transaction.batch_failed(&refused(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER), true);
        let end = Next::End {
            identity: FIRST,
            committed: false,
        };
        assert_eq!(transaction.next().unwrap(), end);
        if implicit {
            transaction.ended(Some(SECOND), true);
        } else {
            // The numbers are lost: the coordinator raises the epoch.
            transaction.ended(None, false);
            assert_eq!(transaction.next().unwrap(), Next::Bump(FIRST));
            transaction.initialised(SECOND, false);
        }
        assert_eq!(transaction.next().unwrap(), Next::Ready(SECOND));
        transaction.begin().unwrap();
    }
}

#[test]
fn a_batch_that_fails_while_committing_keeps_the_commit_from_being_sent() {
    let mut transaction = open(true);
    assert!(transaction.missing([key(0)].iter()).is_empty());
    transaction.finish(true).unwrap();
    transaction.batch_failed(&refused(ErrorCode::REQUEST_TIMED_OUT), true);
    assert_eq!(code(transaction.next()), ErrorCode::REQUEST_TIMED_OUT);
    transaction.finish(false).unwrap();
    assert!(transaction.next().is_ok());
}

#[test]
fn what_was_dropped_without_a_number_does_not_cost_an_epoch() {
    let mut transaction = open(false);
    transaction.finish(false).unwrap();
    let error = transaction.check_leaving().unwrap_err();
    transaction.batch_failed(&error, false);
    assert_eq!(transaction.next().unwrap(), Next::Ready(FIRST));
}

#[test]
fn a_fenced_producer_stays_fenced() {
    let mut transaction = open(true);
    transaction.failed(Step::End, &refused(ErrorCode::PRODUCER_FENCED));
    let fenced = ErrorCode::PRODUCER_FENCED;
    assert_eq!(transaction.fatal().map(ClientError::code), Some(fenced));
    assert!(!transaction.is_under_way());
    transaction.batch_failed(&refused(ErrorCode::INVALID_TXN_STATE), true);
    for result in [
        transaction.check_initialising(),
        transaction.begin(),
        transaction.check_open(),
        transaction.finish(false),
    ] {
        assert_eq!(code(result), fenced);
    }
}

#[test]
fn an_open_outcome_stays_open() {
    let mut transaction = open(true);
    assert!(transaction.missing([key(0)].iter()).is_empty());
    transaction.finish(true).unwrap();
    transaction.failed(Step::End, &refused(ErrorCode::NETWORK_EXCEPTION));
    transaction.finish(true).unwrap();
    assert!(matches!(transaction.next().unwrap(), Next::End { .. }));
    // Refused, but not for good: it is aborted then.
    transaction.failed(Step::End, &refused(ErrorCode::TRANSACTION_ABORTABLE));
    assert!(transaction.finish(true).is_err());
    transaction.finish(false).unwrap();
    assert!(matches!(
        transaction.next().unwrap(),
        Next::End {
            committed: false,
            ..
        }
    ));
}

#[test]
fn the_upgrade_of_the_cluster_takes_an_epoch() {
    let mut transaction = open(false);
    transaction.added(vec![key(0)]);
    transaction.finish(true).unwrap();
    assert!(transaction.next().is_ok());
    transaction.ended(None, true);
    assert_eq!(transaction.next().unwrap(), Next::Bump(FIRST));
    transaction.initialised(SECOND, true);
    assert_eq!(transaction.next().unwrap(), Next::Ready(SECOND));
    assert!(transaction.is_implicit());
}

#[test]
fn errors_mean_what_they_mean_to_kafkas_producer() {
    use ErrorCode as E;
    use Severity::{Abortable, Fatal, Retriable};
    let steps = [
        Step::Init,
        Step::AddPartitions,
        Step::AddOffsets,
        Step::CommitOffsets,
        Step::End,
    ];
    for step in steps {
        for code in [
            E::CONCURRENT_TRANSACTIONS,
            E::COORDINATOR_LOAD_IN_PROGRESS,
            E::COORDINATOR_NOT_AVAILABLE,
            E::NOT_COORDINATOR,
            E::NETWORK_EXCEPTION,
        ] {
            assert_eq!(severity(step, code), Retriable, "{step:?} {code}");
        }
        for code in [
            E::PRODUCER_FENCED,
            E::INVALID_PRODUCER_EPOCH,
            E::TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            E::INVALID_TXN_STATE,
        ] {
            assert_eq!(severity(step, code), Fatal, "{step:?} {code}");
        }
        assert_eq!(severity(step, E::TRANSACTION_ABORTABLE), Abortable);
    }
    for (step, code, meaning) in [
        (Step::Produce, E::INVALID_PRODUCER_EPOCH, Abortable),
        (Step::Produce, E::UNKNOWN_PRODUCER_ID, Abortable),
        (Step::Produce, E::INVALID_TXN_STATE, Abortable),
        (Step::Produce, E::NOT_LEADER_OR_FOLLOWER, Abortable),
        (Step::Produce, E::PRODUCER_FENCED, Fatal),
        (
            Step::AddPartitions,
            E::TOPIC_AUTHORIZATION_FAILED,
            Abortable,
        ),
        (Step::AddPartitions, E::OPERATION_NOT_ATTEMPTED, Abortable),
        (Step::AddPartitions, E::UNKNOWN_PRODUCER_ID, Abortable),
        (Step::Init, E::INVALID_TRANSACTION_TIMEOUT, Fatal),
        (Step::CommitOffsets, E::ILLEGAL_GENERATION, Abortable),
        (
            Step::CommitOffsets,
            E::UNKNOWN_TOPIC_OR_PARTITION,
            Retriable,
        ),
        (Step::AddOffsets, E::GROUP_AUTHORIZATION_FAILED, Abortable),
        (Step::End, E::INVALID_PRODUCER_ID_MAPPING, Abortable),
    ] {
        assert_eq!(severity(step, code), meaning, "{step:?} {code}");
    }
}

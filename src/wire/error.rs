//! Kafka's error codes: numbers, names, and whether the same request may succeed if sent again.

use std::fmt;

/// An error code of the protocol (int16); may be one that is not known here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ErrorCode(pub i16);

struct ErrorInfo {
    code: i16,
    name: &'static str,
    retriable: bool,
    message: &'static str,
}

/// One line per code: number, name, retriable or fatal for the request, what it tells a person.
macro_rules! error_codes {
    ($($code:literal $name:ident $class:ident $message:literal,)*) => {
        impl ErrorCode {
            $(#[doc = $message] pub const $name: ErrorCode = ErrorCode($code);)*
        }
        static ERRORS: &[ErrorInfo] = &[
            $(ErrorInfo { code: $code, name: stringify!($name), retriable: error_codes!(@$class), message: $message },)*
        ];
    };
    (@retriable) => { true };
    (@fatal) => { false };
}

error_codes! {
    -1 UNKNOWN_SERVER_ERROR fatal "the broker failed in an unexpected way",
    0 NONE fatal "no error",
    1 OFFSET_OUT_OF_RANGE fatal "the offset is not within the partition's log",
    2 CORRUPT_MESSAGE retriable "the record batch is damaged: wrong checksum, size or format",
    3 UNKNOWN_TOPIC_OR_PARTITION retriable "this broker knows no such topic or partition",
    4 INVALID_FETCH_SIZE fatal "the fetch size is not valid",
    5 LEADER_NOT_AVAILABLE retriable "the partition has no leader at the moment",
    6 NOT_LEADER_OR_FOLLOWER retriable "this broker is not the leader of the partition, or holds no replica of it",
    7 REQUEST_TIMED_OUT retriable "the request was not completed in its time",
    8 BROKER_NOT_AVAILABLE fatal "the broker is not available",
    9 REPLICA_NOT_AVAILABLE retriable "the replica is not available for the partition",
    10 MESSAGE_TOO_LARGE fatal "a record batch is larger than the topic allows",
    11 STALE_CONTROLLER_EPOCH fatal "the controller has moved on to a newer epoch",
    12 OFFSET_METADATA_TOO_LARGE fatal "the metadata beside the offset is too long",
    13 NETWORK_EXCEPTION retriable "the connection ended before a response came",
    14 COORDINATOR_LOAD_IN_PROGRESS retriable "the coordinator is still loading its state",
    15 COORDINATOR_NOT_AVAILABLE retriable "the coordinator is not available",
    16 NOT_COORDINATOR retriable "this broker is not the coordinator",
    17 INVALID_TOPIC_EXCEPTION fatal "the topic's name is not valid, or the topic is internal",
    18 RECORD_LIST_TOO_LARGE fatal "the batch is larger than a segment may be",
    19 NOT_ENOUGH_REPLICAS retriable "fewer replicas are in sync than the topic requires",
    20 NOT_ENOUGH_REPLICAS_AFTER_APPEND retriable "the records were appended, but to fewer in-sync replicas than required",
    21 INVALID_REQUIRED_ACKS fatal "acks must be -1, 0 or 1",
    22 ILLEGAL_GENERATION fatal "the generation is not the group's current one",
    23 INCONSISTENT_GROUP_PROTOCOL fatal "the member shares no protocol with the group",
    24 INVALID_GROUP_ID fatal "the group id is not valid",
    25 UNKNOWN_MEMBER_ID fatal "the group has no such member",
    26 INVALID_SESSION_TIMEOUT fatal "the session timeout is outside the broker's bounds",
    27 REBALANCE_IN_PROGRESS fatal "the group is rebalancing, the member must join again",
    28 INVALID_COMMIT_OFFSET_SIZE fatal "the offset commit is larger than a batch may be",
    29 TOPIC_AUTHORIZATION_FAILED fatal "not authorized for the topic",
    30 GROUP_AUTHORIZATION_FAILED fatal "not authorized for the group",
    31 CLUSTER_AUTHORIZATION_FAILED fatal "not authorized for the cluster",
    32 INVALID_TIMESTAMP fatal "the timestamp is out of the allowed range",
    33 UNSUPPORTED_SASL_MECHANISM fatal "the broker does not offer this SASL mechanism",
    34 ILLEGAL_SASL_STATE fatal "the request does not fit the state of the SASL exchange",
    35 UNSUPPORTED_VERSION fatal "the version of the API is not supported",
    36 TOPIC_ALREADY_EXISTS fatal "there is a topic of this name already",
    37 INVALID_PARTITIONS fatal "the number of partitions is not valid",
    38 INVALID_REPLICATION_FACTOR fatal "the replication factor is below 1 or above the number of brokers",
    39 INVALID_REPLICA_ASSIGNMENT fatal "the replica assignment is not valid",
    40 INVALID_CONFIG fatal "the configuration is not valid",
    41 NOT_CONTROLLER retriable "this is not the active controller",
    42 INVALID_REQUEST fatal "the request contradicts itself or the protocol",
    43 UNSUPPORTED_FOR_MESSAGE_FORMAT fatal "the message format on the broker cannot do this",
    44 POLICY_VIOLATION fatal "a policy of the broker forbids the request",
    45 OUT_OF_ORDER_SEQUENCE_NUMBER fatal "the producer's sequence number does not follow the last one",
    46 DUPLICATE_SEQUENCE_NUMBER fatal "the producer's sequence number was written before",
    47 INVALID_PRODUCER_EPOCH fatal "the producer epoch is older than the current one",
    48 INVALID_TXN_STATE fatal "the transaction is not in a state that allows this",
    49 INVALID_PRODUCER_ID_MAPPING fatal "the producer id does not belong to the transactional id",
    50 INVALID_TRANSACTION_TIMEOUT fatal "the transaction timeout is above the broker's maximum",
    51 CONCURRENT_TRANSACTIONS retriable "another step of the same transaction is still under way",
    52 TRANSACTION_COORDINATOR_FENCED fatal "the transaction coordinator has been replaced",
    53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED fatal "not authorized for the transactional id",
    54 SECURITY_DISABLED fatal "security features are turned off",
    55 OPERATION_NOT_ATTEMPTED fatal "another part of the request failed, so this one was not tried",
    56 KAFKA_STORAGE_ERROR retriable "the log directory of the partition has failed",
    57 LOG_DIR_NOT_FOUND fatal "there is no such log directory",
    58 SASL_AUTHENTICATION_FAILED fatal "SASL authentication failed",
    59 UNKNOWN_PRODUCER_ID fatal "the broker holds no state of this producer",
    60 REASSIGNMENT_IN_PROGRESS fatal "the partition is being reassigned",
    61 DELEGATION_TOKEN_AUTH_DISABLED fatal "delegation tokens are turned off",
    62 DELEGATION_TOKEN_NOT_FOUND fatal "there is no such delegation token",
    63 DELEGATION_TOKEN_OWNER_MISMATCH fatal "the principal is neither owner nor renewer of the token",
    64 DELEGATION_TOKEN_REQUEST_NOT_ALLOWED fatal "delegation tokens need an authenticated channel",
    65 DELEGATION_TOKEN_AUTHORIZATION_FAILED fatal "not authorized for the delegation token",
    66 DELEGATION_TOKEN_EXPIRED fatal "the delegation token has expired",
    67 INVALID_PRINCIPAL_TYPE fatal "the principal type is not supported",
    68 NON_EMPTY_GROUP fatal "the group still has members",
    69 GROUP_ID_NOT_FOUND fatal "there is no such group",
    70 FETCH_SESSION_ID_NOT_FOUND retriable "there is no such fetch session",
    71 INVALID_FETCH_SESSION_EPOCH retriable "the epoch of the fetch session is not the next one",
    72 LISTENER_NOT_FOUND retriable "the leader has no listener of this name",
    73 TOPIC_DELETION_DISABLED fatal "topics may not be deleted here",
    74 FENCED_LEADER_EPOCH retriable "the leader epoch is older than the broker's",
    75 UNKNOWN_LEADER_EPOCH retriable "the leader epoch is newer than the broker's",
    76 UNSUPPORTED_COMPRESSION_TYPE fatal "the compression type is not supported at this version",
    77 STALE_BROKER_EPOCH fatal "the broker epoch is not the registered one",
    78 OFFSET_NOT_AVAILABLE retriable "the new leader's high watermark has not caught up yet",
    79 MEMBER_ID_REQUIRED fatal "the member must join again with the id it was given",
    80 PREFERRED_LEADER_NOT_AVAILABLE retriable "the preferred leader is not available",
    81 GROUP_MAX_SIZE_REACHED fatal "the group has as many members as it may",
    82 FENCED_INSTANCE_ID fatal "another member took over this static instance id",
    83 ELIGIBLE_LEADERS_NOT_AVAILABLE retriable "no replica is eligible to lead the partition",
    84 ELECTION_NOT_NEEDED retriable "the partition has the leader it should have",
    85 NO_REASSIGNMENT_IN_PROGRESS fatal "the partition is not being reassigned",
    86 GROUP_SUBSCRIBED_TO_TOPIC fatal "the group is subscribed to the topic",
    87 INVALID_RECORD fatal "a record failed the broker's validation",
    88 UNSTABLE_OFFSET_COMMIT retriable "offsets of an open transaction are still undecided",
    89 THROTTLING_QUOTA_EXCEEDED retriable "a quota is exhausted",
    90 PRODUCER_FENCED fatal "a newer producer uses the same transactional id",
    91 RESOURCE_NOT_FOUND fatal "there is no such resource",
    92 DUPLICATE_RESOURCE fatal "the resource is named more than once",
    93 UNACCEPTABLE_CREDENTIAL fatal "the credential does not meet the requirements",
    94 INCONSISTENT_VOTER_SET fatal "the voter sets of sender and receiver differ",
    95 INVALID_UPDATE_VERSION fatal "the update is based on an outdated version",
    96 FEATURE_UPDATE_FAILED fatal "the feature could not be updated",
    97 PRINCIPAL_DESERIALIZATION_FAILURE fatal "the forwarded principal cannot be read",
    98 SNAPSHOT_NOT_FOUND fatal "there is no such snapshot",
    99 POSITION_OUT_OF_RANGE fatal "the position is not within the snapshot",
    100 UNKNOWN_TOPIC_ID retriable "this broker knows no topic of this id",
    101 DUPLICATE_BROKER_REGISTRATION fatal "a broker of this id is registered and alive",
    102 BROKER_ID_NOT_REGISTERED fatal "no broker of this id is registered",
    103 INCONSISTENT_TOPIC_ID retriable "the log's topic id differs from the request's",
    104 INCONSISTENT_CLUSTER_ID fatal "the cluster id is not this cluster's",
    105 TRANSACTIONAL_ID_NOT_FOUND fatal "there is no such transactional id",
    106 FETCH_SESSION_TOPIC_ID_ERROR retriable "the fetch session mixes topic ids and names",
    107 INELIGIBLE_REPLICA fatal "the replica may not join the in-sync replicas",
    108 NEW_LEADER_ELECTED fatal "the change made another replica the leader",
    109 OFFSET_MOVED_TO_TIERED_STORAGE fatal "the offset is in tiered storage",
    110 FENCED_MEMBER_EPOCH fatal "the member epoch is fenced, the member must join again",
    111 UNRELEASED_INSTANCE_ID fatal "another member of the group still holds the instance id",
    112 UNSUPPORTED_ASSIGNOR fatal "the group cannot use this assignor",
    113 STALE_MEMBER_EPOCH fatal "the member epoch is not the current one, the member must heartbeat first",
    114 MISMATCHED_ENDPOINT_TYPE fatal "the request was sent to the wrong kind of endpoint",
    115 UNSUPPORTED_ENDPOINT_TYPE fatal "this kind of endpoint is not known",
    116 UNKNOWN_CONTROLLER_ID fatal "there is no such controller",
    117 UNKNOWN_SUBSCRIPTION_ID fatal "the telemetry subscription is outdated or unknown",
    118 TELEMETRY_TOO_LARGE fatal "the metrics are larger than the broker accepts",
    119 INVALID_REGISTRATION fatal "the registration is not valid",
    120 TRANSACTION_ABORTABLE fatal "the transaction must be aborted",
    121 INVALID_RECORD_STATE fatal "the record is not in a state that allows the acknowledgement",
    122 SHARE_SESSION_NOT_FOUND retriable "there is no such share session",
    123 INVALID_SHARE_SESSION_EPOCH retriable "the epoch of the share session is not the next one",
    124 FENCED_STATE_EPOCH fatal "the state epoch of the share partition is older than the stored one",
    125 INVALID_VOTER_KEY fatal "the voter key is not the receiver's",
    126 DUPLICATE_VOTER fatal "the voter is in the set already",
    127 VOTER_NOT_FOUND fatal "the voter is not in the set",
    128 INVALID_REGULAR_EXPRESSION fatal "the regular expression is not valid",
    129 REBOOTSTRAP_REQUIRED fatal "the client must find the cluster anew from its bootstrap servers",
    130 STREAMS_INVALID_TOPOLOGY fatal "the topology is not valid",
    131 STREAMS_INVALID_TOPOLOGY_EPOCH fatal "the topology epoch is not valid",
    132 STREAMS_TOPOLOGY_FENCED fatal "the topology epoch is older than the group's",
    133 SHARE_SESSION_LIMIT_REACHED retriable "the broker holds as many share sessions as it may",
    134 GROUP_DELETION_FAILED fatal "the group could not be deleted",
    135 STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED fatal "the description of the topology could not be stored",
    136 CONTROLLER_ID_NOT_REGISTERED fatal "no controller of this id is registered",
}

impl ErrorCode {
    fn info(self) -> Option<&'static ErrorInfo> {
        ERRORS
            .binary_search_by_key(&self.0, |e| e.code)
            .ok()
            .map(|i| &ERRORS[i])
    }

    pub fn is_error(self) -> bool {
        self != ErrorCode::NONE
    }

    /// Kafka's name; `UNKNOWN_SERVER_ERROR` for a code that is not known, as Kafka's clients
    /// take it.
    pub fn name(self) -> &'static str {
        self.info().map_or("UNKNOWN_SERVER_ERROR", |e| e.name)
    }

    /// One sentence for a person.
    pub fn message(self) -> &'static str {
        self.info()
            .map_or("the error code is not known", |e| e.message)
    }

    /// Whether Kafka's clients send the request again.
    pub fn is_retriable(self) -> bool {
        self.info().is_some_and(|e| e.retriable)
    }

    /// Every code there is, rising.
    pub fn all() -> impl Iterator<Item = ErrorCode> {
        ERRORS.iter().map(|e| ErrorCode(e.code))
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_no_gaps() {
        let codes: Vec<i16> = ErrorCode::all().map(|e| e.0).collect();
        let expected: Vec<i16> = (-1..codes.len() as i16 - 1).collect();
        assert_eq!(codes, expected);
    }

    #[test]
    fn codes_have_kafkas_names() {
        assert_eq!(ErrorCode(6).name(), "NOT_LEADER_OR_FOLLOWER");
        assert_eq!(ErrorCode(129), ErrorCode::REBOOTSTRAP_REQUIRED);
        assert!(ErrorCode::NOT_ENOUGH_REPLICAS.is_retriable());
        assert!(!ErrorCode::OFFSET_OUT_OF_RANGE.is_retriable());
        assert_eq!(ErrorCode(9999).name(), "UNKNOWN_SERVER_ERROR");
    }
}

//! What the coordinator asks of its surroundings and how it is spoken to: tokens, effects, the
//! clock and caller of a command. Plain data on the core of the shard; nothing here waits.

use bytes::Bytes;

use crate::log::VerificationGuard;
use crate::rt::Instant;
use crate::wire::messages::delete_groups_response::DeletableGroupResult;
use crate::wire::messages::heartbeat_response::HeartbeatResponse;
use crate::wire::messages::join_group_response::JoinGroupResponse;
use crate::wire::messages::leave_group_response::LeaveGroupResponse;
use crate::wire::messages::offset_commit_response::OffsetCommitResponse;
use crate::wire::messages::offset_delete_response::OffsetDeleteResponse;
use crate::wire::messages::sync_group_response::SyncGroupResponse;
use crate::wire::messages::txn_offset_commit_response::TxnOffsetCommitResponse;
use crate::wire::{ErrorCode, Str};

/// The caller's name for a request that waits for its answer. Each token that a command was given
/// is answered exactly once, by one [`Effect::Reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyToken(pub u64);

/// Names an append until its outcome is reported back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppendId(pub u64);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Monotonic: deadlines.
    pub now: Instant,
    /// Milliseconds since 1970: what is written into records.
    pub wall_ms: i64,
}

/// Who sends a command and when.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The request's API version; it decides between error codes and response shapes.
    pub version: i16,
    /// The request header's client id; null is "".
    pub client_id: &'a str,
    /// The peer as Java's `InetAddress` prints it: `/` and the address without a port.
    pub client_host: &'a str,
    pub clock: Clock,
    /// 128 fresh random bits, from which a member id is made if one is needed.
    pub random: u128,
}

/// A record of `__consumer_offsets`: a key with its type, a value with its version or a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorRecord {
    pub key: Bytes,
    pub value: Option<Bytes>,
}

/// The producer in whose transaction records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Producer {
    pub id: i64,
    pub epoch: i16,
    /// That the caller has verified the transaction.
    pub guard: VerificationGuard,
}

/// An answer. DeleteGroups is answered per partition of the offsets topic, so that its variant
/// holds results to be put together by the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    JoinGroup(JoinGroupResponse),
    SyncGroup(SyncGroupResponse),
    Heartbeat(HeartbeatResponse),
    LeaveGroup(LeaveGroupResponse),
    OffsetCommit(OffsetCommitResponse),
    TxnOffsetCommit(TxnOffsetCommitResponse),
    OffsetDelete(OffsetDeleteResponse),
    DeleteGroups(Vec<DeletableGroupResult>),
}

/// To be carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this answer.
    Reply(ReplyToken, Response),
    /// Append the records as one batch (in `producer`'s transaction if there is one) and wait
    /// until the high watermark has passed it; then report the outcome under `then` with
    /// `append_done`. Outcomes are reported in the order of the appends.
    Append {
        records: Vec<CoordinatorRecord>,
        producer: Option<Producer>,
        then: AppendId,
    },
}

/// Effects in the order in which they must be carried out.
#[derive(Debug, Default)]
#[must_use = "an answer or an append would be lost"]
pub struct Effects {
    list: Vec<Effect>,
}

impl Effects {
    pub(super) fn new() -> Effects {
        Effects::default()
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::vec::IntoIter<Effect>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

/// A request that waits inside a member, with the version its answer must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parked {
    pub(super) token: ReplyToken,
    pub(super) version: i16,
}

impl Parked {
    /// Without a protocol, its name is "" before version 7 and null from then on.
    pub(super) fn join_reply(self, mut response: JoinGroupResponse) -> Effect {
        let name = response
            .protocol_name
            .take()
            .filter(|name| !name.is_empty());
        response.protocol_name = match name {
            None if self.version < 7 => Some(Str::default()),
            name => name,
        };
        Effect::Reply(self.token, Response::JoinGroup(response))
    }

    pub(super) fn sync_reply(self, response: SyncGroupResponse) -> Effect {
        Effect::Reply(self.token, Response::SyncGroup(response))
    }
}

impl Response {
    /// Turns an answer that was prepared for success into one that says the append failed.
    /// Partitions and groups that already carry an error of their own keep it.
    pub(super) fn fail(&mut self, error: ErrorCode) {
        match self {
            Response::JoinGroup(response) => {
                *response = JoinGroupResponse {
                    error_code: error.0,
                    ..Default::default()
                };
            }
            Response::SyncGroup(response) => {
                *response = SyncGroupResponse {
                    error_code: error.0,
                    ..Default::default()
                };
            }
            Response::Heartbeat(response) => response.error_code = error.0,
            Response::LeaveGroup(response) => {
                *response = LeaveGroupResponse {
                    error_code: error.0,
                    ..Default::default()
                };
            }
            Response::OffsetCommit(response) => {
                for partition in response.topics.iter_mut().flat_map(|t| &mut t.partitions) {
                    if partition.error_code == ErrorCode::NONE.0 {
                        partition.error_code = error.0;
                    }
                }
            }
            Response::TxnOffsetCommit(response) => {
                for partition in response.topics.iter_mut().flat_map(|t| &mut t.partitions) {
                    if partition.error_code == ErrorCode::NONE.0 {
                        partition.error_code = error.0;
                    }
                }
            }
            Response::OffsetDelete(response) => {
                *response = OffsetDeleteResponse {
                    error_code: error.0,
                    ..Default::default()
                };
            }
            Response::DeleteGroups(results) => {
                for result in results {
                    if result.error_code == ErrorCode::NONE.0 {
                        result.error_code = error.0;
                    }
                }
            }
        }
    }
}

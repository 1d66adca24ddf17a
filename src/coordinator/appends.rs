//! Appends whose outcome is not known yet: what each will change, and the answers that wait for
//! it. Owned by the shard state machine. It never writes a record; the driver does, and reports.

use ahash::AHashMap;
use bytes::Bytes;
use smallvec::SmallVec;

use super::effects::{AppendId, Effect, Effects, ReplyToken, Response};
use super::group::GroupRef;
use super::member::Protocol;
use super::offsets::OffsetAndMetadata;
use crate::wire::{ErrorCode, Str};

/// A change that is made by replaying one record, whether it was read from the log at start or
/// has just been appended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    CommitOffset {
        group: Str,
        topic: Str,
        partition: i32,
        value: OffsetAndMetadata,
    },
    RemoveOffset {
        group: Str,
        topic: Str,
        partition: i32,
    },
    RemoveGroup {
        group: GroupRef,
    },
}

/// What happens when the outcome of an append is known.
#[derive(Debug)]
pub(super) enum Continuation {
    /// The first record of a group that a join has created. Without it the group never was.
    NewGroup { group: GroupRef },
    /// A generation without members. If it is lost, the one before comes back after a restart
    /// and times out; so nothing depends on it.
    EmptyGroup { group: GroupRef },
    /// The leader's assignment: stored, then handed to the members.
    Assignment {
        group: GroupRef,
        generation: i32,
        assignment: AHashMap<Str, Bytes>,
    },
    /// A static member came back under a new member id while the group was stable.
    StaticMember(StaticSwap),
    /// Offsets and groups written or removed; `producer_id` is -1 outside of transactions.
    Changes {
        changes: Vec<Change>,
        producer_id: i64,
    },
    /// Its effect was undone or carried out already, after the append took too long.
    Settled { group: GroupRef },
}

/// How to finish, or take back, the replacement of a static member's id.
#[derive(Debug)]
pub(super) struct StaticSwap {
    pub(super) group: GroupRef,
    pub(super) instance: Str,
    pub(super) old_member: Str,
    pub(super) new_member: Str,
    pub(super) old_protocols: Vec<Protocol>,
    pub(super) old_rebalance_timeout_ms: i32,
    pub(super) old_session_timeout_ms: i32,
    /// The leader's id before the swap.
    pub(super) leader: Str,
    /// The JoinGroup that waits inside the new member.
    pub(super) token: ReplyToken,
    pub(super) version: i16,
}

/// An answer that waits for one or more appends; the first error decides.
#[derive(Debug)]
struct Ticket {
    token: ReplyToken,
    response: Response,
    remaining: usize,
    error: Option<ErrorCode>,
}

#[derive(Debug)]
struct InFlight {
    then: Continuation,
    tickets: SmallVec<[u64; 1]>,
}

/// As many entries as there are commands in progress; the memory permits of their requests bound
/// them.
#[derive(Debug, Default)]
pub(super) struct Appends {
    in_flight: AHashMap<AppendId, InFlight>,
    tickets: AHashMap<u64, Ticket>,
    next_append: u64,
    next_ticket: u64,
}

impl Appends {
    pub(super) fn begin(&mut self, then: Continuation) -> AppendId {
        let id = AppendId(self.next_append);
        self.next_append += 1;
        self.in_flight.insert(
            id,
            InFlight {
                then,
                tickets: SmallVec::new(),
            },
        );
        id
    }

    /// Holds `response` back until all of `appends` are known to have succeeded or one failed.
    pub(super) fn hold(&mut self, appends: &[AppendId], token: ReplyToken, response: Response) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let mut remaining = 0;
        for id in appends {
            if let Some(entry) = self.in_flight.get_mut(id) {
                entry.tickets.push(ticket);
                remaining += 1;
            }
        }
        assert!(
            remaining > 0,
            "an answer was held back for appends that are not under way"
        );
        self.tickets.insert(
            ticket,
            Ticket {
                token,
                response,
                remaining,
                error: None,
            },
        );
    }

    /// Takes the append out; `None` if it is not under way.
    pub(super) fn finish(&mut self, id: AppendId) -> Option<Finished> {
        let entry = self.in_flight.remove(&id)?;
        Some(Finished {
            then: entry.then,
            tickets: entry.tickets,
        })
    }

    /// Answers what waits for a finished append. Called after its changes were applied, so that a
    /// client that was told of success reads its own write.
    pub(super) fn release(
        &mut self,
        tickets: SmallVec<[u64; 1]>,
        error: Option<ErrorCode>,
        out: &mut Effects,
    ) {
        for id in tickets {
            let Some(ticket) = self.tickets.get_mut(&id) else {
                continue;
            };
            ticket.remaining -= 1;
            ticket.error = ticket.error.or(error);
            if ticket.remaining == 0
                && let Some(mut ticket) = self.tickets.remove(&id)
            {
                if let Some(error) = ticket.error {
                    ticket.response.fail(error);
                }
                out.push(Effect::Reply(ticket.token, ticket.response));
            }
        }
    }

    /// Answers what waits for `id` with `error` although the outcome is still unknown, and hands
    /// out the continuation to be replaced.
    pub(super) fn give_up_waiting(
        &mut self,
        id: AppendId,
        error: ErrorCode,
        out: &mut Effects,
    ) -> Option<&mut Continuation> {
        let entry = self.in_flight.get_mut(&id)?;
        for ticket in entry.tickets.drain(..) {
            if let Some(mut ticket) = self.tickets.remove(&ticket) {
                ticket.response.fail(error);
                out.push(Effect::Reply(ticket.token, ticket.response));
            }
        }
        Some(&mut entry.then)
    }

    /// Forgets every append and answers whatever waits, in the order in which it began to wait.
    pub(super) fn abandon(&mut self, error: ErrorCode, out: &mut Effects) {
        self.in_flight.clear();
        let mut waiting: Vec<(u64, Ticket)> = self.tickets.drain().collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        for (_, mut ticket) in waiting {
            ticket.response.fail(error);
            out.push(Effect::Reply(ticket.token, ticket.response));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }
}

/// An append whose outcome is known.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) then: Continuation,
    pub(super) tickets: SmallVec<[u64; 1]>,
}

/// The error that a group's client is told when the offsets topic refused an append: what is
/// right about the topic's partition would mislead it about its own.
pub fn append_error_to_response_error(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        | ErrorCode::NOT_ENOUGH_REPLICAS
        | ErrorCode::REQUEST_TIMED_OUT
        // Another partition was asked for in the same breath, and is not known there yet.
        | ErrorCode::OPERATION_NOT_ATTEMPTED => ErrorCode::COORDINATOR_NOT_AVAILABLE,
        ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::KAFKA_STORAGE_ERROR => {
            ErrorCode::NOT_COORDINATOR
        }
        ErrorCode::MESSAGE_TOO_LARGE
        | ErrorCode::RECORD_LIST_TOO_LARGE
        | ErrorCode::INVALID_FETCH_SIZE => ErrorCode::UNKNOWN_SERVER_ERROR,
        // Transactions are verified with their coordinator first; old clients retry this one.
        ErrorCode::NETWORK_EXCEPTION => ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        other => other,
    }
}

impl Continuation {
    /// The group it is about; changes may be about several.
    pub(super) fn group(&self) -> Option<&GroupRef> {
        match self {
            Continuation::NewGroup { group }
            | Continuation::EmptyGroup { group }
            | Continuation::Assignment { group, .. }
            | Continuation::Settled { group } => Some(group),
            Continuation::StaticMember(swap) => Some(&swap.group),
            Continuation::Changes { .. } => None,
        }
    }
}

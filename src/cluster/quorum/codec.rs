//! Messages between voters as bytes, in a form of our own: plain fields, big-endian, every length
//! checked before it is believed. Pure. Never runs raft's protobuf parser.
//!
//! Version 1: u8 version, u8 kind, i32 from, i32 to, u64 term, u64 log term, u64 index, u64 commit,
//! u64 commit term, u64 reject hint, u64 requested snapshot, u8 reject, i64 end (the offset behind
//! the batch at `index` in the sender's log, -1 unknown), u16 context length and context, u32 number
//! of entries and each one's u64 term, u32 length and batch; u8 whether a snapshot follows: u64
//! index, u64 term, u32 length and contents.

use super::tail::{node_id, raft_id};
use crate::types::{NodeId, Offset};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use raft::eraftpb::{ConfState, Entry, Message, MessageType};

const VERSION: u8 = 1;
/// What raft puts there is a word that names the kind of a campaign.
const CONTEXT_BYTES_MAX: usize = 64;

/// A message as it arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    pub message: Message,
    /// The offset behind the batch at the message's index, in the sender's log.
    pub end: Option<Offset>,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("the message is cut short")]
    Short,
    #[error("the message has version {0}, not {VERSION}")]
    Version(u8),
    #[error("the message has the unknown kind {0}")]
    Kind(u8),
    #[error("the message's {0} is out of bounds")]
    Bounds(&'static str),
    #[error("{0} bytes follow the message")]
    Trailing(usize),
}

/// The kinds that travel, by number. Proposals are not forwarded and reads not confirmed here.
const KINDS: [MessageType; 10] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgTimeoutNow,
];

/// The message's bytes; `None` for a kind that does not travel.
pub fn encode(message: &Message, end: Option<Offset>) -> Option<Bytes> {
    let kind = KINDS
        .iter()
        .position(|kind| *kind == message.get_msg_type())?;
    let (from, to) = (node_id(message.from)?, node_id(message.to)?);
    let entries = message.entries.iter();
    let batches: usize = entries.map(|entry| 12 + entry.data.len()).sum();
    let snapshot = message.get_snapshot();
    let mut out = BytesMut::with_capacity(112 + batches + snapshot.data.len());
    out.put_u8(VERSION);
    out.put_u8(kind as u8);
    out.put_i32(from.0);
    out.put_i32(to.0);
    for field in [
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
        message.request_snapshot,
    ] {
        out.put_u64(field);
    }
    out.put_u8(u8::from(message.reject));
    out.put_i64(end.map_or(-1, |end| end.0));
    out.put_u16(message.context.len() as u16);
    out.put_slice(&message.context);
    out.put_u32(message.entries.len() as u32);
    for entry in &message.entries {
        out.put_u64(entry.term);
        out.put_u32(entry.data.len() as u32);
        out.put_slice(&entry.data);
    }
    let has_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
    out.put_u8(u8::from(has_snapshot));
    if has_snapshot {
        let meta = snapshot.get_metadata();
        out.put_u64(meta.index);
        out.put_u64(meta.term);
        out.put_u32(snapshot.data.len() as u32);
        out.put_slice(&snapshot.data);
    }
    Some(out.freeze())
}

/// Reads a message; a snapshot in it is for the voters `voters`.
pub fn decode(mut bytes: Bytes, voters: &ConfState) -> Result<Received, CodecError> {
    let version = bytes.try_get_u8().map_err(|_| CodecError::Short)?;
    if version != VERSION {
        return Err(CodecError::Version(version));
    }
    let kind = bytes.try_get_u8().map_err(|_| CodecError::Short)?;
    let known = KINDS.get(usize::from(kind));
    let mut message = Message::default();
    message.set_msg_type(*known.ok_or(CodecError::Kind(kind))?);
    message.from = node(&mut bytes, "sender")?;
    message.to = node(&mut bytes, "receiver")?;
    let mut field = || bytes.try_get_u64().map_err(|_| CodecError::Short);
    message.term = term(field()?)?;
    message.log_term = term(field()?)?;
    message.index = index(field()?)?;
    message.commit = index(field()?)?;
    message.commit_term = term(field()?)?;
    message.reject_hint = index(field()?)?;
    message.request_snapshot = index(field()?)?;
    message.reject = flag(&mut bytes)?;
    let end = bytes.try_get_i64().map_err(|_| CodecError::Short)?;
    let context = usize::from(bytes.try_get_u16().map_err(|_| CodecError::Short)?);
    if context > CONTEXT_BYTES_MAX {
        return Err(CodecError::Bounds("context"));
    }
    message.context = take(&mut bytes, context)?;
    let count = bytes.try_get_u32().map_err(|_| CodecError::Short)? as usize;
    // Each takes 12 bytes at least: nothing is set aside for more than there can be.
    if count > bytes.len() / 12 {
        return Err(CodecError::Short);
    }
    let mut entries = Vec::with_capacity(count);
    for at in 0..count as u64 {
        let mut entry = Entry {
            term: term(bytes.try_get_u64().map_err(|_| CodecError::Short)?)?,
            index: index(message.index + 1 + at)?,
            ..Default::default()
        };
        let length = bytes.try_get_u32().map_err(|_| CodecError::Short)? as usize;
        entry.data = take(&mut bytes, length)?;
        entries.push(entry);
    }
    message.set_entries(entries.into());
    let has_snapshot = flag(&mut bytes)?;
    if has_snapshot != (message.get_msg_type() == MessageType::MsgSnapshot) {
        return Err(CodecError::Bounds("snapshot"));
    }
    if has_snapshot {
        let snapshot = message.mut_snapshot();
        let meta = snapshot.mut_metadata();
        meta.index = index(bytes.try_get_u64().map_err(|_| CodecError::Short)?)?;
        meta.term = term(bytes.try_get_u64().map_err(|_| CodecError::Short)?)?;
        meta.set_conf_state(voters.clone());
        let length = bytes.try_get_u32().map_err(|_| CodecError::Short)? as usize;
        snapshot.data = take(&mut bytes, length)?;
    }
    match bytes.len() {
        0 => Ok(Received {
            message,
            end: (end >= 0).then_some(Offset(end)),
        }),
        more => Err(CodecError::Trailing(more)),
    }
}

fn node(bytes: &mut Bytes, what: &'static str) -> Result<u64, CodecError> {
    match bytes.try_get_i32() {
        Ok(id) if id >= 0 => Ok(raft_id(NodeId(id))),
        Ok(_) => Err(CodecError::Bounds(what)),
        Err(_) => Err(CodecError::Short),
    }
}

/// Terms are Kafka's leader epochs: 31 bits.
fn term(value: u64) -> Result<u64, CodecError> {
    match value <= i32::MAX as u64 {
        true => Ok(value),
        false => Err(CodecError::Bounds("term")),
    }
}

/// Indexes never exceed offsets: 63 bits, and room to add.
fn index(value: u64) -> Result<u64, CodecError> {
    match value <= i64::MAX as u64 {
        true => Ok(value),
        false => Err(CodecError::Bounds("index")),
    }
}

fn flag(bytes: &mut Bytes) -> Result<bool, CodecError> {
    match bytes.try_get_u8() {
        Ok(0) => Ok(false),
        Ok(1) => Ok(true),
        Ok(_) => Err(CodecError::Bounds("flag")),
        Err(_) => Err(CodecError::Short),
    }
}

fn take(bytes: &mut Bytes, length: usize) -> Result<Bytes, CodecError> {
    match length <= bytes.len() {
        true => Ok(bytes.split_to(length)),
        false => Err(CodecError::Short),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn voters() -> ConfState {
        let mut voters = ConfState::default();
        voters.set_voters(vec![1, 2, 3]);
        voters
    }

    fn messages() -> impl Strategy<Value = Received> {
        let small = || 0..1u64 << 40;
        let entries = prop::collection::vec(
            (0..1000u64, prop::collection::vec(any::<u8>(), 0..80)),
            0..5,
        );
        (
            (
                0..KINDS.len(),
                0..9i32,
                0..9i32,
                0..i32::MAX as u64,
                small(),
                small(),
            ),
            (
                small(),
                any::<bool>(),
                -1..1i64 << 40,
                prop::collection::vec(any::<u8>(), 0..20),
            ),
            (entries, small(), prop::collection::vec(any::<u8>(), 0..200)),
        )
            .prop_map(|(head, more, (entries, at, contents))| {
                let (kind, from, to, term, index, commit) = head;
                let (hint, reject, end, context) = more;
                let mut message = Message::default();
                message.set_msg_type(KINDS[kind]);
                (message.from, message.to) = (raft_id(NodeId(from)), raft_id(NodeId(to)));
                (message.term, message.log_term, message.commit_term) = (term, term / 2, term / 3);
                (message.index, message.commit) = (index, commit);
                (message.reject_hint, message.reject) = (hint, reject);
                message.request_snapshot = hint / 2;
                message.context = context.into();
                let entries: Vec<Entry> = entries
                    .into_iter()
                    .enumerate()
                    .map(|(place, (term, data))| {
                        let mut entry = Entry::default();
                        (entry.term, entry.index) = (term, index + 1 + place as u64);
                        entry.data = data.into();
                        entry
                    })
                    .collect();
                message.set_entries(entries.into());
                if KINDS[kind] == MessageType::MsgSnapshot {
                    let snapshot = message.mut_snapshot();
                    snapshot.data = contents.into();
                    let meta = snapshot.mut_metadata();
                    (meta.index, meta.term) = (at, term);
                    meta.set_conf_state(voters());
                }
                let end = (end >= 0).then_some(Offset(end));
                Received { message, end }
            })
    }

    proptest! {
        #[test]
        fn messages_come_back_whole_and_cut_ones_are_refused(sent in messages(), cut in any::<u32>()) {
            let bytes = encode(&sent.message, sent.end).unwrap();
            let cut = cut as usize % bytes.len();
            prop_assert!(decode(bytes.slice(..cut), &voters()).is_err());
            let mut longer = bytes.to_vec();
            longer.push(0);
            prop_assert_eq!(decode(longer.into(), &voters()), Err(CodecError::Trailing(1)));
            prop_assert_eq!(decode(bytes, &voters()).unwrap(), sent);
        }

        #[test]
        fn what_strangers_send_is_an_error_not_a_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            sent in messages(),
            flips in prop::collection::vec((any::<u32>(), any::<u8>()), 1..4),
        ) {
            let _ = decode(bytes.clone().into(), &voters());
            if bytes.len() > 1 {
                (bytes[0], bytes[1]) = (VERSION, bytes[1] % KINDS.len() as u8);
                let _ = decode(bytes.into(), &voters());
            }
            let mut bytes = encode(&sent.message, sent.end).unwrap().to_vec();
            for (at, value) in flips {
                let at = at as usize % bytes.len();
                bytes[at] ^= value;
            }
            let _ = decode(bytes.into(), &voters());
        }
    }
}

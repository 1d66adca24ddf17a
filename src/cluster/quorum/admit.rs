//! What of the other voters' messages is let into the consensus. The raft crate trusts its peers
//! and ends the process where they contradict what it knows; here a message that makes no sense is
//! dropped, and logs that contradict each other where both are committed stop the node with a
//! reason. Pure.

use super::codec::Received;
use super::tail::{Tail, node_id};
use crate::cluster::metadata_log::MetadataLogError;
use crate::cluster::replay::Replay;
use crate::types::Offset;
use crate::wire::batch::{Batch, BatchView};
use bytes::{Buf, Bytes};
use raft::eraftpb::{Message, MessageType};

/// What the consensus knows when a message comes.
pub struct Known<'a> {
    pub tail: &'a Tail,
    pub own_id: u64,
    pub is_voter: bool,
    pub committed: u64,
    pub last_index: u64,
}

/// Whether a message is let in, perhaps changed.
#[derive(Debug)]
pub enum Verdict {
    In,
    /// It makes no sense; why.
    Drop(&'static str),
}

/// Judges a message.
///
/// # Errors
/// The logs contradict each other: this node must not go on.
pub fn admit(received: &mut Received, known: &Known<'_>) -> Result<Verdict, MetadataLogError> {
    let Received { message, end } = received;
    if message.to != known.own_id || message.from == known.own_id || !known.is_voter {
        return Ok(Verdict::Drop("it is not from a voter to this one"));
    }
    if message.term == 0 {
        return Ok(Verdict::Drop("it has no term"));
    }
    match message.get_msg_type() {
        MessageType::MsgAppend => admit_append(message, *end, known),
        MessageType::MsgHeartbeat => {
            if message.commit > known.last_index {
                // The leader remembers more of this log than there is: its disk was emptied.
                tracing::warn!(
                    leader = node_id(message.from).map(|node| node.0),
                    "the leader knows this controller with a longer log: it begins again"
                );
                message.commit = known.last_index;
            }
            Ok(Verdict::In)
        }
        MessageType::MsgAppendResponse if message.index > known.last_index && !message.reject => {
            Ok(Verdict::Drop("it acknowledges what was never sent"))
        }
        MessageType::MsgSnapshot => Ok(admit_snapshot(message)),
        _ => Ok(Verdict::In),
    }
}

fn admit_append(
    message: &Message,
    end: Option<Offset>,
    known: &Known<'_>,
) -> Result<Verdict, MetadataLogError> {
    let matches = known.tail.term_of(message.index) == Some(message.log_term);
    let own_end = known.tail.end_of(message.index);
    if let (true, Some(end), Some(own)) = (matches, end, own_end)
        && end != own
    {
        return Err(MetadataLogError::Divergence(format!(
            "batch {} of epoch {} ends at offset {own} here, at {end} on controller {}; this controller must begin with an empty metadata log",
            message.index,
            message.log_term,
            node_id(message.from).map_or(-1, |node| node.0),
        )));
    }
    let (mut term, mut next) = (message.log_term, end);
    for entry in &message.entries {
        if entry.term < term || entry.term > message.term {
            return Ok(Verdict::Drop("its terms do not grow"));
        }
        let Ok((batch, rest)) = BatchView::parse(&entry.data) else {
            return Ok(Verdict::Drop("an entry is no batch"));
        };
        if !rest.is_empty() || batch.check_crc().is_err() {
            return Ok(Verdict::Drop("an entry is not one whole batch"));
        }
        if i64::from(batch.partition_leader_epoch().0) != entry.term as i64
            || next.is_some_and(|next| batch.base_offset() != next)
            || batch.last_offset() < batch.base_offset()
        {
            return Ok(Verdict::Drop("a batch is not at its place"));
        }
        (term, next) = (entry.term, Some(batch.last_offset().next()));
        let own = known.tail.term_of(entry.index);
        if entry.index <= known.committed && own.is_some_and(|own| own != entry.term) {
            return Err(MetadataLogError::Divergence(format!(
                "batch {} was committed here with epoch {}, controller {} has it with epoch {}",
                entry.index,
                own.unwrap_or_default(),
                node_id(message.from).map_or(-1, |node| node.0),
                entry.term
            )));
        }
    }
    Ok(Verdict::In)
}

fn admit_snapshot(message: &Message) -> Verdict {
    let snapshot = message.get_snapshot();
    let meta = snapshot.get_metadata();
    let Some((end, bytes)) = snapshot_parts(&snapshot.data) else {
        return Verdict::Drop("its snapshot is cut short");
    };
    let is_possible = meta.index > 0 && meta.term <= message.term && end.0 >= meta.index as i64;
    if !is_possible || Replay::from_snapshot(bytes, end).is_err() {
        return Verdict::Drop("its snapshot cannot be read");
    }
    Verdict::In
}

/// A snapshot as it travels: the offset at which it ends, then Kafka's file.
pub fn snapshot_data(end: Offset, bytes: &[u8]) -> Bytes {
    let mut data = Vec::with_capacity(8 + bytes.len());
    data.extend(end.0.to_be_bytes());
    data.extend(bytes);
    data.into()
}

/// The reverse of [`snapshot_data`].
pub fn snapshot_parts(data: &Bytes) -> Option<(Offset, Bytes)> {
    let mut bytes = data.clone();
    let end = bytes.try_get_i64().ok().filter(|end| *end >= 0)?;
    Some((Offset(end), bytes))
}

/// The batch of an entry that was let in.
pub fn batch_of(data: &Bytes) -> Option<Batch> {
    Batch::parse(data).ok().map(|(batch, _)| batch)
}

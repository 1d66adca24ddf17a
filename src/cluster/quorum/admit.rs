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
    pub term: u64,
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
        // A leader that was replaced may not know it yet; raft does not listen to it.
        let leads = message.term >= known.term;
        if leads && entry.index <= known.committed && own.is_some_and(|own| own != entry.term) {
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

#[cfg(test)]
mod tests {
    use super::super::tail::raft_id;
    use super::*;
    use crate::cluster::metadata_log::Base;
    use crate::types::{LeaderEpoch, NodeId};
    use crate::wire::batch_builder::{ControlType, control_batch};
    use raft::eraftpb::{Entry, HardState};

    fn batch(at: i64, epoch: u64) -> Bytes {
        let change = [(ControlType::LeaderChange, &b"x"[..])];
        control_batch(Offset(at), LeaderEpoch(epoch as i32), 0, &change).unwrap()
    }

    /// Three batches of epoch 1, two of them committed.
    fn tail() -> Tail {
        let nodes = [NodeId(0), NodeId(1)];
        let mut tail = Tail::new(Base::default(), &nodes, HardState::default());
        for at in 0..3 {
            tail.push(1, Offset(at + 1), batch(at, 1));
        }
        tail
    }

    fn append(term: u64, index: u64, log_term: u64, entries: &[(u64, Bytes)]) -> Message {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgAppend);
        (message.from, message.to) = (raft_id(NodeId(1)), raft_id(NodeId(0)));
        (message.term, message.index, message.log_term) = (term, index, log_term);
        let entries = entries.iter().enumerate().map(|(at, (term, data))| {
            let mut entry = Entry::default();
            (entry.term, entry.index) = (*term, index + 1 + at as u64);
            entry.data = data.clone();
            entry
        });
        message.set_entries(entries.collect::<Vec<_>>().into());
        message
    }

    fn judge(message: Message, end: Option<i64>) -> Result<Verdict, MetadataLogError> {
        let tail = tail();
        let known = Known {
            tail: &tail,
            own_id: raft_id(NodeId(0)),
            is_voter: true,
            term: 2,
            committed: 2,
            last_index: 3,
        };
        let end = end.map(Offset);
        admit(&mut Received { message, end }, &known)
    }

    #[test]
    fn batches_that_are_not_at_their_place_are_not_let_in() {
        let is_in = |verdict| matches!(verdict, Ok(Verdict::In));
        assert!(is_in(judge(append(2, 2, 1, &[(2, batch(2, 2))]), Some(2))));
        assert!(is_in(judge(append(2, 3, 1, &[]), Some(3))));
        let mut broken = batch(2, 2).to_vec();
        broken[62] ^= 1;
        let wrong = [
            (2, Bytes::from(broken)),
            (2, Bytes::from([batch(2, 2), batch(3, 2)].concat())),
            (2, batch(2, 2).slice(..40)),
            (2, Bytes::new()),
            (2, batch(2, 1)),
            (2, batch(7, 2)),
            (3, batch(2, 3)),
            (0, batch(2, 0)),
        ];
        for (at, (term, data)) in wrong.into_iter().enumerate() {
            let verdict = judge(append(2, 2, 1, &[(term, data)]), Some(2)).unwrap();
            assert!(matches!(verdict, Verdict::Drop(_)), "{at}");
        }
    }

    #[test]
    fn logs_that_contradict_each_other_stop_the_node_but_an_old_leader_does_not() {
        let entries = [(2, batch(1, 2))];
        let stops = |verdict| matches!(verdict, Err(MetadataLogError::Divergence(_)));
        assert!(stops(judge(append(2, 1, 1, &entries), Some(1))));
        // Batch 2 of the same epoch ends elsewhere: the two count from different begins.
        assert!(stops(judge(append(2, 2, 1, &[]), Some(9))));
        let mut old = append(1, 1, 1, &[(1, batch(1, 1))]);
        old.term = 1;
        assert!(!stops(judge(old, Some(1))));
        // What was not committed here may be replaced.
        assert!(!stops(judge(append(2, 2, 1, &[(2, batch(2, 2))]), Some(2))));
    }

    #[test]
    fn strangers_and_impossible_messages_are_dropped() {
        let is_dropped = |message| matches!(judge(message, None), Ok(Verdict::Drop(_)));
        let mut other = append(2, 0, 0, &[]);
        other.to = 9;
        assert!(is_dropped(other));
        let mut answer = append(2, 4, 0, &[]);
        answer.set_msg_type(MessageType::MsgAppendResponse);
        assert!(is_dropped(answer));
        let mut snapshot = append(2, 0, 0, &[]);
        snapshot.set_msg_type(MessageType::MsgSnapshot);
        snapshot.mut_snapshot().mut_metadata().index = 9;
        snapshot.mut_snapshot().data = snapshot_data(Offset(20), b"not a snapshot");
        assert!(is_dropped(snapshot));
        // A heartbeat that knows more of this log than there is does not end the process.
        let mut heartbeat = append(2, 0, 0, &[]);
        heartbeat.set_msg_type(MessageType::MsgHeartbeat);
        heartbeat.commit = 50;
        let tail = tail();
        let known = Known {
            tail: &tail,
            own_id: raft_id(NodeId(0)),
            is_voter: true,
            term: 2,
            committed: 2,
            last_index: 3,
        };
        let mut received = Received {
            message: heartbeat,
            end: None,
        };
        assert!(matches!(admit(&mut received, &known), Ok(Verdict::In)));
        assert_eq!(received.message.commit, 3);
    }
}

//! Hops of a record: where it was and when, for `highwater trace`. Each is one log event under
//! [`TARGET`], on whatever core it happened; off by default, and then it costs one test of a flag.
//! Record contents never appear. Decides nothing.

use crate::rt::{self, Instant};
use serde_json::{Map, Value};
use std::cell::Cell;

/// The target of the events; on with `HIGHWATER_LOG=highwater::hop=trace`.
pub const TARGET: &str = "highwater::hop";

/// A node id that is no broker's: the client.
pub const CLIENT: i32 = -1;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// The client has queued a batch for its leader.
    BatchSent,
    /// The leader's broker has a whole ProduceRequest.
    ProduceReceived,
    /// The leader has appended a batch; its first offset is `offset`.
    LeaderAppend,
    /// A FetchRequest of `peer` (-1 a consumer) has come that asks from `offset`.
    FetchReceived,
    /// It is answered with `bytes` of records, and with this high watermark.
    FetchAnswered,
    /// A follower has appended what it fetched; the first offset is `offset`.
    FollowerAppend,
    /// The leader's high watermark has moved, from `offset`.
    HighWatermark,
    /// The produced batch with this base offset is acknowledged.
    ProduceAnswered,
    /// The client knows that its record is written.
    Acknowledged,
    /// The consumer has the record.
    RecordRead,
    /// The consumer has sent the offset to commit.
    CommitSent,
    /// The group's coordinator has a whole OffsetCommitRequest; `topic` is the group's name.
    CommitReceived,
    /// The coordinator answers the commit; `topic` is the group's name.
    CommitAnswered,
    /// The consumer knows that its offset is committed.
    Committed,
    /// The consumer has compared its committed offset with the log end.
    LagKnown,
}

const NAMES: [(What, &str); 15] = [
    (What::BatchSent, "batch_sent"),
    (What::ProduceReceived, "produce_received"),
    (What::LeaderAppend, "leader_append"),
    (What::FetchReceived, "fetch_received"),
    (What::FetchAnswered, "fetch_answered"),
    (What::FollowerAppend, "follower_append"),
    (What::HighWatermark, "high_watermark"),
    (What::ProduceAnswered, "produce_answered"),
    (What::Acknowledged, "acknowledged"),
    (What::RecordRead, "record_read"),
    (What::CommitSent, "commit_sent"),
    (What::CommitReceived, "commit_received"),
    (What::CommitAnswered, "commit_answered"),
    (What::Committed, "committed"),
    (What::LagKnown, "lag_known"),
];

impl What {
    pub fn name(self) -> &'static str {
        // Every variant stands in the list, see the test.
        let found = NAMES.iter().find(|(what, _)| *what == self);
        found.map_or("", |(_, name)| name)
    }

    fn read(name: &str) -> Option<What> {
        let found = NAMES.iter().find(|(_, known)| *known == name)?;
        Some(found.0)
    }
}

/// One hop. Numbers that say nothing of it are -1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    pub what: What,
    /// CLOCK_MONOTONIC, the same for all processes of a host.
    pub at: Instant,
    pub node: i32,
    pub shard: i64,
    pub topic: String,
    pub partition: i32,
    /// The replica that fetches; -1 is a consumer.
    pub peer: i32,
    pub offset: i64,
    pub log_end: i64,
    pub high_watermark: i64,
    pub bytes: i64,
}

thread_local! {
    /// Node and shard of this thread: an executor has a thread of its own.
    static HERE: Cell<(i32, i64)> = const { Cell::new((CLIENT, -1)) };
}

/// Says which shard of which node runs on this thread.
pub fn here(node: i32, shard: usize) {
    HERE.set((node, shard as i64));
}

/// Tells of a hop if anybody listens; `make` is not called otherwise.
#[inline]
pub fn record(make: impl FnOnce() -> Hop) {
    if tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
        make().write();
    }
}

impl Hop {
    /// Here and now.
    pub fn new(what: What, topic: &str, partition: i32) -> Hop {
        let (node, shard) = HERE.get();
        Hop {
            what,
            at: rt::now(),
            node,
            shard,
            topic: topic.to_owned(),
            partition,
            peer: -1,
            offset: -1,
            log_end: -1,
            high_watermark: -1,
            bytes: -1,
        }
    }

    pub fn at(self, at: Instant) -> Hop {
        Hop { at, ..self }
    }

    pub fn peer(self, peer: i32) -> Hop {
        Hop { peer, ..self }
    }

    pub fn offset(self, offset: i64) -> Hop {
        Hop { offset, ..self }
    }

    /// Where the log ends and what is committed of it, after the hop.
    pub fn log(self, log_end: i64, high_watermark: i64) -> Hop {
        Hop {
            log_end,
            high_watermark,
            ..self
        }
    }

    pub fn bytes(self, bytes: usize) -> Hop {
        Hop {
            bytes: bytes as i64,
            ..self
        }
    }

    fn write(&self) {
        tracing::trace!(
            target: TARGET,
            what = self.what.name(),
            at_ns = self.at.as_nanos(),
            node = self.node,
            shard = self.shard,
            topic = self.topic,
            partition = self.partition,
            peer = self.peer,
            offset = self.offset,
            log_end = self.log_end,
            high_watermark = self.high_watermark,
            bytes = self.bytes,
        );
    }

    /// The fields of its event, which [`Hop::read`] reads.
    pub fn fields(&self) -> Value {
        serde_json::json!({
            "what": self.what.name(),
            "at_ns": self.at.as_nanos(),
            "node": self.node,
            "shard": self.shard,
            "topic": self.topic,
            "partition": self.partition,
            "peer": self.peer,
            "offset": self.offset,
            "log_end": self.log_end,
            "high_watermark": self.high_watermark,
            "bytes": self.bytes,
        })
    }

    /// A hop from the fields of its event; `None` if it is none.
    pub fn read(fields: &Map<String, Value>) -> Option<Hop> {
        let number = |name: &str| fields.get(name)?.as_i64();
        let small = |name: &str| i32::try_from(number(name)?).ok();
        Some(Hop {
            what: What::read(fields.get("what")?.as_str()?)?,
            at: Instant(fields.get("at_ns")?.as_u64()?),
            node: small("node")?,
            shard: number("shard")?,
            topic: fields.get("topic")?.as_str()?.to_owned(),
            partition: small("partition")?,
            peer: small("peer")?,
            offset: number("offset")?,
            log_end: number("log_end")?,
            high_watermark: number("high_watermark")?,
            bytes: number("bytes")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_hop_has_a_name_of_its_own() {
        for (at, (what, name)) in NAMES.iter().enumerate() {
            assert_eq!(*what as usize, at);
            assert_eq!(what.name(), *name);
            assert_eq!(What::read(name), Some(*what));
        }
        assert_eq!(What::LagKnown as usize, NAMES.len() - 1);
        assert_eq!(What::read("nothing"), None);
    }
}

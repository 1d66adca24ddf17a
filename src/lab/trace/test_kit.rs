//! Hops as three brokers tell them, for the tests of what is made of them.

use super::journey::Kept;
use super::scenario::Facts;
use crate::observe::hop::{Hop, What};
use crate::rt::Instant;

const OFFSETS: &str = "__consumer_offsets";

pub(super) fn facts() -> Facts {
    let racks = (1..=3).map(|node| (node, format!("rack-{node}")));
    Facts {
        topic: Kept {
            topic: "trace".to_owned(),
            partition: 0,
            leader: 1,
            followers: vec![2, 3],
        },
        offsets: Kept {
            topic: OFFSETS.to_owned(),
            partition: 0,
            leader: 2,
            followers: vec![1, 3],
        },
        racks: racks.collect(),
        group: "trace".to_owned(),
    }
}

fn hop(what: What, micros: i64, node: i32, topic: &str) -> Hop {
    let at = Instant(((1_000_000 + micros) * 1000) as u64);
    Hop {
        node,
        shard: if node > 0 { 1 } else { -1 },
        ..Hop::new(what, topic, 0)
    }
    .at(at)
}

/// The record's way on one partition, beginning at `start`.
fn journey(kept: &Kept, offset: i64, start: i64) -> Vec<Hop> {
    let topic = &kept.topic;
    let led = |what, micros| hop(what, start + micros, kept.leader, topic);
    let mut hops = vec![
        led(What::LeaderAppend, 0)
            .offset(offset)
            .log(offset + 1, offset),
        led(What::HighWatermark, 400)
            .offset(offset)
            .log(offset + 1, offset + 1),
    ];
    for (place, follower) in (0..).zip(&kept.followers) {
        let late = 30 * place;
        let fetch = |what, micros| led(what, micros).peer(*follower);
        hops.extend([
            fetch(What::FetchReceived, -200_000 - late).offset(offset),
            fetch(What::FetchAnswered, 20 + late)
                .offset(offset)
                .bytes(70)
                .log(offset + 1, offset),
            hop(What::FollowerAppend, start + 120 + late, *follower, topic)
                .offset(offset)
                .log(offset + 1, offset),
            fetch(What::FetchReceived, 300 + late).offset(offset + 1),
        ]);
    }
    hops
}

/// Everything from the sending to lag 0, in no order of time.
pub(super) fn hops() -> Vec<Hop> {
    let facts = facts();
    let led = |what, micros| hop(what, micros, 1, "trace");
    let client = |what, micros| hop(what, micros, -1, "trace");
    let commit = |what, micros| Hop {
        partition: -1,
        ..hop(what, micros, 2, "trace")
    };
    let mut hops = vec![
        client(What::BatchSent, 0),
        led(What::ProduceReceived, 80),
        led(What::ProduceAnswered, 520).offset(0),
        client(What::Acknowledged, 600).offset(0),
        led(What::FetchReceived, -100_000).offset(0),
        led(What::FetchAnswered, 530).offset(0).bytes(70).log(1, 1),
        client(What::RecordRead, 650).offset(0),
        client(What::CommitSent, 700).offset(1),
        commit(What::CommitReceived, 760),
        commit(What::CommitAnswered, 1250),
        client(What::Committed, 1300).offset(1),
        client(What::LagKnown, 1800).offset(1).log(1, 1),
    ];
    hops.extend(journey(&facts.topic, 0, 100));
    hops.extend(journey(&facts.offsets, 4, 800));
    hops
}

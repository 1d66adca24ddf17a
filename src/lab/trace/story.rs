//! The hops of one record put together: what happened where, in the order of time, each with what
//! it means. Pure. Refuses a story in which something is missing or came too early.

use std::collections::BTreeMap;
use std::fmt;

use super::journey::{Copy, Journey, Kept, Told, in_order};
use super::scenario::Facts;
use crate::observe::hop::{CLIENT, Hop, What};

/// Why hops are no story.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// It may still come.
    #[error("the trace has no hop for {0}")]
    Missing(String),
    /// The cluster did what it must not do.
    #[error("the hops are out of order: {0}")]
    Wrong(String),
}

/// Where a hop was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    Producer,
    /// A shard of a broker.
    Shard {
        node: i32,
        shard: i64,
    },
    Consumer,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lane::Producer => f.write_str("producer"),
            Lane::Consumer => f.write_str("consumer"),
            Lane::Shard { node, shard } => write!(f, "broker {node} shard {shard}"),
        }
    }
}

/// One hop of the story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Since the batch was sent; what waited before is negative.
    pub micros: i64,
    pub lane: Lane,
    pub title: String,
    /// Offsets, in few words.
    pub offsets: String,
    /// What it means.
    pub why: String,
    /// The step whose message it is, by place in the story.
    pub cause: Option<usize>,
}

/// See the module's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    pub steps: Vec<Step>,
    /// From the batch's sending to the acknowledgement, and to the record's being read.
    pub acknowledged_micros: i64,
    pub read_micros: i64,
}

/// A step before it is known what place it has.
struct Part<'a> {
    hop: &'a Hop,
    lane: Lane,
    title: String,
    offsets: String,
    why: String,
    cause: Option<&'a Hop>,
}

impl Story {
    /// The story of the one record of [`super::scenario`].
    ///
    /// # Errors
    /// What is missing, or what came before what it must wait for.
    pub fn tell(hops: &[Hop], facts: &Facts) -> Result<Story, Flaw> {
        let mut sorted = hops.to_vec();
        sorted.sort_by_key(|hop| (hop.at, hop.what));
        let mut teller = Teller {
            told: Told(&sorted),
            facts,
            parts: Vec::new(),
        };
        let (sent, acknowledged, committed) = teller.write()?;
        let read = teller.read(committed)?;
        teller.commit(read)?;
        let micros = |hop: &Hop| micros_between(sent, hop);
        let (acknowledged_micros, read_micros) = (micros(acknowledged), micros(read));
        let mut parts = teller.parts;
        parts.sort_by_key(|part| (part.hop.at, part.hop.what));
        let place: BTreeMap<*const Hop, usize> = parts
            .iter()
            .enumerate()
            .map(|(at, part)| (part.hop as *const Hop, at))
            .collect();
        let steps = parts.iter().map(|part| Step {
            micros: micros(part.hop),
            lane: part.lane,
            title: part.title.clone(),
            offsets: part.offsets.clone(),
            why: part.why.clone(),
            cause: part
                .cause
                .and_then(|cause| place.get(&(cause as *const Hop)).copied()),
        });
        Ok(Story {
            steps: steps.collect(),
            acknowledged_micros,
            read_micros,
        })
    }

    /// All places of the story, in the order of their lanes.
    pub fn lanes(&self) -> Vec<Lane> {
        let mut lanes: Vec<Lane> = self.steps.iter().map(|step| step.lane).collect();
        lanes.sort();
        lanes.dedup();
        lanes
    }
}

fn micros_between(from: &Hop, to: &Hop) -> i64 {
    let nanos = i128::from(to.at.as_nanos()) - i128::from(from.at.as_nanos());
    nanos.div_euclid(1000) as i64
}

struct Teller<'a, 'f> {
    told: Told<'a>,
    facts: &'f Facts,
    parts: Vec<Part<'a>>,
}

impl<'a> Teller<'a, '_> {
    fn add(
        &mut self,
        hop: &'a Hop,
        title: impl Into<String>,
        offsets: impl Into<String>,
        why: impl Into<String>,
        cause: Option<&'a Hop>,
    ) {
        let lane = match (hop.node, hop.what) {
            (CLIENT, What::BatchSent | What::Acknowledged) => Lane::Producer,
            (CLIENT, _) => Lane::Consumer,
            (node, _) => Lane::Shard {
                node,
                shard: hop.shard,
            },
        };
        self.parts.push(Part {
            hop,
            lane,
            title: title.into(),
            offsets: offsets.into(),
            why: why.into(),
            cause,
        });
    }

    /// From the producer to every replica and back: the sending, the acknowledgement, and the
    /// high watermark that covers the record.
    fn write(&mut self) -> Result<(&'a Hop, &'a Hop, &'a Hop), Flaw> {
        let kept = &self.facts.topic;
        let is = |what: What, node: i32| {
            move |hop: &Hop| {
                let here = hop.topic == kept.topic && hop.partition == kept.partition;
                here && hop.what == what && hop.node == node
            }
        };
        let first = |what: What, node: i32| {
            self.told.first(
                || format!("{} on {}", what.name(), whose(node)),
                is(what, node),
            )
        };
        let sent = first(What::BatchSent, CLIENT)?;
        let received = first(What::ProduceReceived, kept.leader)?;
        let append = first(What::LeaderAppend, kept.leader)?;
        in_order(sent, received, || {
            "the produce request came before it was sent".into()
        })?;
        in_order(received, append, || {
            "the leader appended before the request had come".into()
        })?;
        let journey = Journey::find(&self.told, kept, append)?;
        let answered = first(What::ProduceAnswered, kept.leader)?;
        in_order(journey.committed, answered, || {
            "the produce was acknowledged before the high watermark had covered the record".into()
        })?;
        let acknowledged = first(What::Acknowledged, CLIENT)?;
        in_order(answered, acknowledged, || {
            "the producer knew of the acknowledgement before it was given".into()
        })?;
        if acknowledged.offset != append.offset {
            return Err(Flaw::Wrong(format!(
                "the record was appended at offset {} and acknowledged at {}",
                append.offset, acknowledged.offset
            )));
        }
        let committed = journey.committed;
        self.add(
            sent,
            "batch sent",
            "1 record, acks=all",
            format!(
                "The producer has put its batch into a ProduceRequest for broker {}, the leader.",
                kept.leader
            ),
            None,
        );
        self.add(
            received,
            "ProduceRequest arrives",
            "",
            "The whole frame is here; the shard that owns the partition gets the batch.",
            Some(sent),
        );
        self.journey(kept, &journey, "the record");
        self.add(
            answered,
            "produce answered",
            format!("offset {}", append.offset),
            "Every in-sync replica has the record, so acks=all is fulfilled and the delayed \
             produce leaves the purgatory.",
            None,
        );
        self.add(
            acknowledged,
            "acknowledged",
            format!("offset {}", acknowledged.offset),
            "The producer knows where its record is.",
            Some(answered),
        );
        Ok((sent, acknowledged, committed))
    }

    /// From the leader's append to the high watermark.
    fn journey(&mut self, kept: &Kept, journey: &Journey<'a>, record: &str) {
        let append = journey.append;
        let watermarks = |hop: &Hop| format!("LEO {}, HW {}", hop.log_end, hop.high_watermark);
        self.add(
            append,
            format!("leader append{}", of_internal(kept)),
            watermarks(append),
            format!(
                "The leader has {record} at offset {} and nobody else has: consumers may not see \
                 it yet.",
                append.offset
            ),
            None,
        );
        for copy in &journey.copies {
            self.copy(kept, copy, append.offset);
        }
        let committed = journey.committed;
        self.add(
            committed,
            format!(
                "high watermark {} -> {}{}",
                committed.offset,
                committed.high_watermark,
                of_internal(kept)
            ),
            watermarks(committed),
            format!(
                "The last of the {} in-sync replicas has told that it has {record}: it is \
                 committed.",
                kept.followers.len() + 1
            ),
            None,
        );
    }

    fn copy(&mut self, kept: &Kept, copy: &Copy<'a>, offset: i64) {
        let follower = copy.append.node;
        let topic = of_internal(kept);
        self.add(
            copy.pull,
            format!("FetchRequest of broker {follower} arrives{topic}"),
            format!("replica {follower}, fetch offset {offset}"),
            "A follower pulls: its fetch waits here until there is something to give.",
            None,
        );
        self.add(
            copy.served,
            format!("FetchResponse to broker {follower}{topic}"),
            format!(
                "{} bytes, HW {}",
                copy.served.bytes, copy.served.high_watermark
            ),
            "The answer carries the batch and the high watermark as the leader knows it.",
            None,
        );
        self.add(
            copy.append,
            format!("follower append{topic}"),
            format!(
                "LEO {}, HW {}",
                copy.append.log_end, copy.append.high_watermark
            ),
            "The follower appends the leader's batch as it is.",
            Some(copy.served),
        );
        self.add(
            copy.confirmed,
            format!("FetchRequest of broker {follower} arrives{topic}"),
            format!("replica {follower}, fetch offset {}", offset + 1),
            "By asking from the next offset the follower tells that it has the one before.",
            Some(copy.append),
        );
    }

    /// The consumer's fetch; returns when it had the record.
    fn read(&mut self, committed: &'a Hop) -> Result<&'a Hop, Flaw> {
        let kept = &self.facts.topic;
        let consumers = |hop: &Hop| {
            let here = hop.topic == kept.topic && hop.partition == kept.partition;
            here && hop.node != CLIENT && hop.peer == CLIENT && hop.offset == 0
        };
        let served = self.told.first(
            || "the answer with the record to the consumer".into(),
            |hop| hop.what == What::FetchAnswered && consumers(hop) && hop.bytes > 0,
        )?;
        in_order(committed, served, || {
            "the consumer was given the record before the high watermark had covered it".into()
        })?;
        if served.high_watermark < 1 {
            return Err(Flaw::Wrong(
                "the consumer was given a record beyond the high watermark".into(),
            ));
        }
        let asked = self.told.last_before(
            served,
            || "the consumer's fetch from offset 0".into(),
            |hop| hop.what == What::FetchReceived && consumers(hop),
        )?;
        let read = self.told.first(
            || "the consumer's having the record".into(),
            |hop| hop.what == What::RecordRead,
        )?;
        in_order(served, read, || {
            "the consumer had the record before it was given it".into()
        })?;
        self.add(
            asked,
            "FetchRequest of the consumer arrives",
            "fetch offset 0",
            "A consumer that has read everything waits at the leader as a follower does.",
            None,
        );
        self.add(
            served,
            "FetchResponse to the consumer",
            format!("{} bytes, HW {}", served.bytes, served.high_watermark),
            "What is below the high watermark may be read.",
            None,
        );
        self.add(
            read,
            "record read",
            "position 1, committed 0: lag 1",
            "The consumer has the record; its group does not know yet.",
            Some(served),
        );
        Ok(read)
    }

    /// The commit of the offset, which is a record of its own.
    fn commit(&mut self, read: &'a Hop) -> Result<(), Flaw> {
        let kept = &self.facts.offsets;
        let is = |what: What, node: i32| move |hop: &Hop| hop.what == what && hop.node == node;
        let first = |what: What, node: i32| {
            self.told.first(
                || format!("{} on {}", what.name(), whose(node)),
                is(what, node),
            )
        };
        let sent = first(What::CommitSent, CLIENT)?;
        in_order(read, sent, || {
            "the offset was committed before the record was read".into()
        })?;
        let group = &self.facts.group;
        let after = |hop: &Hop| {
            let of_group = hop.topic == *group && hop.partition == -1;
            hop.at >= sent.at && hop.node == kept.leader && of_group
        };
        let received = self.told.first(
            || format!("the commit's arrival at broker {}", kept.leader),
            |hop| hop.what == What::CommitReceived && after(hop),
        )?;
        let append = self.told.first(
            || format!("the append to {}-{}", kept.topic, kept.partition),
            |hop| {
                let here = hop.topic == kept.topic && hop.partition == kept.partition;
                hop.what == What::LeaderAppend && here && hop.at >= received.at
            },
        )?;
        let journey = Journey::find(&self.told, kept, append)?;
        let answered = self.told.first(
            || format!("the commit's answer by broker {}", kept.leader),
            |hop| hop.what == What::CommitAnswered && after(hop),
        )?;
        in_order(journey.committed, answered, || {
            "the commit was answered before the high watermark had covered it".into()
        })?;
        let committed = first(What::Committed, CLIENT)?;
        in_order(answered, committed, || {
            "the consumer knew of its commit before it was answered".into()
        })?;
        let lag = first(What::LagKnown, CLIENT)?;
        if lag.log_end != lag.offset {
            return Err(Flaw::Wrong(format!(
                "the committed offset is {} and the log ends at {}",
                lag.offset, lag.log_end
            )));
        }
        self.add(
            sent,
            "offset commit sent",
            "offset 1",
            format!("To broker {}, the group's coordinator.", kept.leader),
            Some(read),
        );
        self.add(
            received,
            "OffsetCommitRequest arrives",
            "",
            "The coordinator makes a record of it.",
            Some(sent),
        );
        self.journey(kept, &journey, "the committed offset");
        self.add(
            answered,
            "commit answered",
            "",
            "The committed offset is a record as durable as any other.",
            None,
        );
        self.add(
            committed,
            "committed",
            "offset 1",
            "Whoever takes the partition over goes on behind the record.",
            Some(answered),
        );
        self.add(
            lag,
            format!("lag {}", lag.log_end - lag.offset),
            format!("committed {}, log end {}", lag.offset, lag.log_end),
            "The record is end to end.",
            None,
        );
        Ok(())
    }
}

fn whose(node: i32) -> String {
    match node {
        CLIENT => "the client".to_owned(),
        node => format!("broker {node}"),
    }
}

/// Tells hops of the group's topic from those of the record's.
fn of_internal(kept: &Kept) -> String {
    match kept.topic.starts_with("__") {
        true => format!(" ({})", kept.topic),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_kit::{facts, hops};
    use super::*;

    fn at(hops: &mut [Hop], is: impl Fn(&Hop) -> bool) -> &mut Hop {
        hops.iter_mut().find(|hop| is(hop)).unwrap()
    }

    fn wrong(change: impl FnOnce(&mut Vec<Hop>)) -> Flaw {
        let mut hops = hops();
        change(&mut hops);
        Story::tell(&hops, &facts()).unwrap_err()
    }

    #[test]
    fn the_record_is_followed_from_the_producer_to_lag_zero() {
        let mut told = hops();
        // Lines of three processes come in any order.
        fastrand::Rng::with_seed(7).shuffle(&mut told);
        let story = Story::tell(&told, &facts()).unwrap();
        let shown: Vec<String> = story
            .steps
            .iter()
            .map(|step| format!("{} | {} | {}", step.lane, step.title, step.offsets))
            .collect();
        let append = shown
            .iter()
            .position(|s| s.contains("leader append |"))
            .unwrap();
        assert_eq!(
            shown[append],
            "broker 1 shard 1 | leader append | LEO 1, HW 0"
        );
        let moved = shown
            .iter()
            .position(|s| s.contains("high watermark 0 -> 1"))
            .unwrap();
        assert!(shown[moved].ends_with("LEO 1, HW 1"), "{}", shown[moved]);
        let acknowledged = shown
            .iter()
            .position(|s| s.contains("| acknowledged |"))
            .unwrap();
        assert!(append < moved && moved < acknowledged);
        assert_eq!(
            shown.last().unwrap(),
            "consumer | lag 0 | committed 1, log end 1"
        );
        assert_eq!(shown.len(), 32, "{shown:#?}");
        assert!(story.steps.is_sorted_by_key(|step| step.micros));
        assert_eq!(story.steps.iter().filter(|step| step.micros < 0).count(), 5);
        let sent = story.steps.iter().find(|step| step.title == "batch sent");
        assert_eq!(sent.unwrap().micros, 0);
        assert!(story.acknowledged_micros > 0 && story.read_micros > 0);
        for (place, step) in story.steps.iter().enumerate() {
            assert!(step.cause.is_none_or(|cause| cause < place), "{step:?}");
        }
    }

    #[test]
    fn no_hop_may_be_missing() {
        let all = hops();
        for left_out in 0..all.len() {
            let mut some = all.clone();
            let hop = some.remove(left_out);
            let told = Story::tell(&some, &facts());
            assert!(
                matches!(told, Err(Flaw::Missing(_))),
                "without {hop:?}: {told:?}"
            );
        }
    }

    #[test]
    fn an_acknowledgement_before_the_high_watermark_is_found() {
        let flaw = wrong(|hops| {
            let moved = at(hops, |hop| hop.what == What::HighWatermark).at;
            let answered = at(hops, |hop| hop.what == What::ProduceAnswered);
            answered.at.0 = moved.0 - 1000;
        });
        assert_eq!(
            flaw.to_string(),
            "the hops are out of order: the produce was acknowledged before the high watermark \
             had covered the record (1 µs too early)"
        );
    }

    #[test]
    fn a_high_watermark_that_does_not_wait_for_a_follower_is_found() {
        let flaw = wrong(|hops| {
            let told = at(hops, |hop| {
                hop.what == What::FetchReceived && hop.peer == 3 && hop.offset == 1
            });
            told.at.0 += 1_000_000;
        });
        let text = flaw.to_string();
        assert!(
            text.contains("before broker 3 had told that it has offset 0"),
            "{text}"
        );
    }

    #[test]
    fn a_consumer_that_reads_beyond_the_high_watermark_is_found() {
        let is_consumers = |hop: &Hop| hop.what == What::FetchAnswered && hop.peer == CLIENT;
        let early = wrong(|hops| at(hops, is_consumers).at.0 -= 100_000);
        assert!(matches!(early, Flaw::Wrong(_)), "{early}");
        let beyond = wrong(|hops| at(hops, is_consumers).high_watermark = 0);
        assert!(
            beyond.to_string().contains("beyond the high watermark"),
            "{beyond}"
        );
    }

    #[test]
    fn offsets_that_do_not_fit_are_found() {
        let append = |hop: &Hop| hop.what == What::LeaderAppend;
        let known_already = wrong(|hops| at(hops, append).high_watermark = 1);
        assert!(matches!(known_already, Flaw::Wrong(_)), "{known_already}");
        let elsewhere = wrong(|hops| at(hops, |h| h.what == What::Acknowledged).offset = 4);
        assert!(
            elsewhere.to_string().contains("acknowledged at 4"),
            "{elsewhere}"
        );
        let behind = wrong(|hops| at(hops, |h| h.what == What::LagKnown).log_end = 2);
        assert!(behind.to_string().contains("the log ends at 2"), "{behind}");
    }
}

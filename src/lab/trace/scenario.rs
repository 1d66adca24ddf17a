//! What is traced: one record with acks=all to a partition of three replicas in sync, a consumer
//! that waits for it, and the commit of its offset. Runs on an executor of the command, as any
//! client does.

use std::collections::BTreeMap;
use std::time::Duration;

use super::collect::Hops;
use super::journey::Kept;
use super::nodes::BROKERS;
use crate::client::{
    Acks, Admin, ClientConfig, ClientError, CommittedOffset, Consumer, ConsumerConfig, Isolation,
    NewTopic, OffsetReset, OffsetSpec, Producer, ProducerConfig, ProducerRecord, TopicPartition,
    TopicView,
};
use crate::coordinator::partition_for;
use crate::observe::hop::{Hop, What};
use crate::rt::{self, Instant};
use crate::types::Offset;
use crate::wire::Str;

const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// Until the fetches of the followers and of the consumer wait at the leaders: a fetch that had
/// nothing to give comes again after half a second at the latest.
const SETTLING: Duration = Duration::from_millis(300);
/// How often it is looked whether all replicas are in sync.
const LOOK: Duration = Duration::from_millis(50);

/// What is to be played, and where.
#[derive(Clone, Debug)]
pub struct Play {
    pub client: ClientConfig,
    /// Made for the trace; of the group too.
    pub topic: String,
    pub value: String,
    /// Delete the topic at the end: the cluster is somebody's.
    pub tidy: bool,
}

/// Who has what part in the story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The record's partition.
    pub topic: Kept,
    /// The partition of the group's offsets.
    pub offsets: Kept,
    /// By broker.
    pub racks: BTreeMap<i32, String>,
    pub group: String,
}

/// Plays it. The hops of the client come to `hops`.
///
/// # Errors
/// The cluster could not do its part within `default.api.timeout.ms`.
pub async fn play(play: Play, hops: Hops) -> Result<Facts, ClientError> {
    let admin = Admin::connect(play.client.clone()).await?;
    let played = run(&play, &admin, &hops).await;
    if play.tidy {
        // The failure of the play says more.
        let deleted = admin.delete_topic(&play.topic).await;
        return played.and_then(|facts| deleted.map(|()| facts));
    }
    played
}

async fn run(play: &Play, admin: &Admin, hops: &Hops) -> Result<Facts, ClientError> {
    let deadline = rt::now() + play.client.api_timeout;
    let topic = NewTopic {
        configs: vec![("min.insync.replicas".to_owned(), "2".to_owned())],
        ..NewTopic::new(&play.topic, 1, BROKERS as i16)
    };
    // Brokers that have just come may not be counted yet.
    loop {
        match admin.create_topic(&topic, false).await {
            Ok(_) => break,
            Err(error) if rt::now() >= deadline => return Err(error),
            Err(_) if admin.topics().await?.topic(&play.topic).is_some() => break,
            Err(_) => rt::sleep(LOOK).await,
        }
    }
    let (_, topic) = in_sync(admin, &play.topic, |_| 0, deadline).await?;

    let key = TopicPartition::new(Str::from(play.topic.as_str()), 0);
    let mut consumer = consumer(play).await?;
    consumer.assign(std::slice::from_ref(&key)).await?;
    // The first commit makes the topic of the offsets and finds the coordinator.
    let from_start = [(key.clone(), CommittedOffset::new(Offset(0)))];
    consumer.commit_offsets(&from_start).await?;
    let group = &play.topic;
    let of_group = |view: &TopicView| partition_for(group, view.partitions.len().max(1) as i32);
    let (racks, offsets) = in_sync(admin, OFFSETS_TOPIC, of_group, deadline).await?;

    let producer = producer(play, &key, topic.leader, deadline).await?;
    let hop = |what| Hop::new(what, &play.topic, 0);
    let reading = rt::spawn({
        let (hops, topic) = (hops.clone(), play.topic.clone());
        async move {
            let result = read_one(&mut consumer, deadline).await;
            hops.push(Hop::new(What::RecordRead, &topic, 0));
            result.map(|()| consumer)
        }
    });
    rt::sleep(SETTLING).await;

    let record = ProducerRecord::new(key.topic.clone(), play.value.clone().into_bytes());
    let delivery = producer.send(record.with_partition(0)).await?;
    let written = delivery.await?;
    let offset = written.offset.map_or(-1, |offset| offset.0);
    hops.push(hop(What::Acknowledged).offset(offset));
    let consumer = reading.await?;

    let next = consumer.position(&key).unwrap_or(Offset::UNKNOWN);
    hops.push(hop(What::CommitSent).offset(next.0));
    consumer.commit().await?;
    hops.push(hop(What::Committed).offset(next.0));

    let committed = consumer.committed(std::slice::from_ref(&key)).await?;
    let committed = committed
        .first()
        .map_or(Offset::UNKNOWN, |(_, committed)| committed.offset);
    let end = log_end(admin, &key).await?;
    hops.push(hop(What::LagKnown).offset(committed.0).log(end.0, end.0));

    consumer.close().await?;
    producer.close(Duration::ZERO).await;
    Ok(Facts {
        topic,
        offsets,
        racks,
        group: play.topic.clone(),
    })
}

async fn consumer(play: &Play) -> Result<Consumer, ClientError> {
    Consumer::connect(ConsumerConfig {
        client: play.client.clone(),
        group_id: Some(play.topic.clone()),
        offset_reset: OffsetReset::Earliest,
        auto_commit: None,
        ..ConsumerConfig::default()
    })
    .await
}

/// A producer whose connection to the leader is open already.
async fn producer(
    play: &Play,
    key: &TopicPartition,
    leader: i32,
    deadline: Instant,
) -> Result<Producer, ClientError> {
    let producer = Producer::connect(ProducerConfig {
        client: play.client.clone(),
        acks: Acks::All,
        linger: Duration::ZERO,
        block_max: play.client.api_timeout,
        ..ProducerConfig::default()
    })
    .await?;
    let cluster = producer.cluster();
    let topics = std::slice::from_ref(&key.topic);
    cluster.with_topics(topics, deadline).await?;
    cluster.node(crate::types::NodeId(leader)).await?;
    Ok(producer)
}

async fn read_one(consumer: &mut Consumer, deadline: Instant) -> Result<(), ClientError> {
    loop {
        let left = deadline.since(rt::now());
        if !consumer.poll(left).await?.is_empty() {
            return Ok(());
        }
        if rt::now() >= deadline {
            return Err(ClientError::TimedOut {
                peer: "the leader".to_owned(),
                api: "FETCH",
            });
        }
    }
}

async fn log_end(admin: &Admin, key: &TopicPartition) -> Result<Offset, ClientError> {
    let wanted = [(key.clone(), OffsetSpec::Latest)];
    let mut listed = admin
        .list_offsets(&wanted, Isolation::ReadUncommitted)
        .await?;
    let end = listed.pop().and_then(|(_, result)| result.ok()?.offset);
    Ok(end.unwrap_or(Offset::UNKNOWN))
}

/// Waits until a partition has a leader and all its replicas in sync; the racks of the brokers,
/// and who keeps it.
async fn in_sync(
    admin: &Admin,
    topic: &str,
    partition: impl Fn(&TopicView) -> i32,
    deadline: Instant,
) -> Result<(BTreeMap<i32, String>, Kept), ClientError> {
    loop {
        let view = admin.topics().await?;
        let found = view.topic(topic);
        let kept = found.and_then(|found| {
            let kept = found.partition(partition(found))?;
            let whole = kept.in_sync.len() == kept.replicas.len() && kept.replicas.len() == BROKERS;
            let leader = kept.leader.filter(|_| whole)?;
            let others = kept.in_sync.iter().filter(|node| **node != leader);
            Some(Kept {
                topic: topic.to_owned(),
                partition: kept.index,
                leader: leader.0,
                followers: others.map(|node| node.0).collect(),
            })
        });
        let racks = view.brokers.iter().map(|broker| {
            let rack = broker.rack.clone().unwrap_or_else(|| "none".to_owned());
            (broker.node.0, rack)
        });
        if let Some(kept) = kept {
            return Ok((racks.collect(), kept));
        }
        if rt::now() >= deadline {
            let state = found.map_or_else(
                || "does not exist".to_owned(),
                |found| format!("has the partitions {:?}", found.partitions),
            );
            return Err(ClientError::Invalid(format!(
                "topic {topic} has no {BROKERS} replicas in sync: it {state}"
            )));
        }
        rt::sleep(LOOK).await;
    }
}

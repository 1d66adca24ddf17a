//! Numbered records for every row of one cluster at once, and how they are read back: the same
//! code against real brokers and against simulated ones. Runs on whichever executor calls it; the
//! thread that kills looks at the books only.

use super::book::Book;
use super::losses::Event;
use super::matrix::Row;
use crate::client::{
    Acks, Admin, ClientConfig, ClientError, Consumer, ConsumerConfig, NewTopic, OffsetReset,
    OffsetSpec, Producer, ProducerConfig, ProducerRecord, TopicPartition,
};
use crate::rt;
use crate::types::Offset;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Of each row's topic.
const PARTITIONS: i32 = 2;
const NUMBER_BYTES: usize = 8;
/// None of the numbered records: it is too short for a number.
const PROBE: &[u8] = b"probe";
/// Between two looks at something that takes its time.
const LOOK: Duration = Duration::from_millis(50);
/// What a producer with acks=0 handed to its socket has reached the broker by then, if it ever does.
const IN_FLIGHT: Duration = Duration::from_millis(500);

/// How much is sent.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Records of a burst, at most.
    pub burst: u64,
    /// Between two bursts, at most.
    pub pause: Duration,
    pub value_bytes: usize,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bursts of 1 to {} records of {} bytes, less than {} ms apart",
            self.burst,
            self.value_bytes,
            self.pause.as_millis()
        )
    }
}

/// One row's records.
struct Line {
    row: Row,
    book: Book,
}

/// See the module's words.
pub struct Feed {
    servers: String,
    lines: Vec<Line>,
    pace: Pace,
    /// Nothing new is sent.
    paused: AtomicBool,
    ended: AtomicBool,
    /// When the feed began, in nanoseconds of the sender's clock; 0 before.
    began: AtomicU64,
}

impl Feed {
    pub fn new(servers: String, rows: &[Row], pace: Pace) -> Arc<Feed> {
        let line = |row: &Row| Line {
            row: *row,
            book: Book::default(),
        };
        Arc::new(Feed {
            servers,
            lines: rows.iter().map(line).collect(),
            pace,
            paused: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            began: AtomicU64::new(0),
        })
    }

    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Producers end when they have heard of their last records.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Whether every row has had this many acknowledgements since the last event.
    pub fn has_acknowledged(&self, count: u64) -> bool {
        let enough = |line: &Line| line.book.acknowledged_since_event() >= count;
        self.lines.iter().all(enough)
    }

    /// For how long the feed has run, by the clock of the machine that both run on.
    pub fn elapsed(&self) -> Duration {
        let began = rt::Instant(self.began.load(Ordering::Relaxed));
        rt::now().since(began)
    }

    /// Rows that have had no acknowledgement since the last event.
    pub fn silent(&self) -> Vec<String> {
        let silent = |line: &&Line| line.book.acknowledged_since_event() == 0;
        let silent = self.lines.iter().filter(silent);
        silent
            .map(|line| {
                let refused = line.book.refused();
                format!("{} ({refused} records given up)", line.row.name())
            })
            .collect()
    }

    fn client(&self, id: &str) -> ClientConfig {
        ClientConfig {
            client_id: format!("lab-{id}"),
            // A host without power does not say that it is gone.
            request_timeout: Duration::from_secs(2),
            connection_setup_timeout: Duration::from_secs(1),
            api_timeout: Duration::from_secs(20),
            metadata_max_age: Duration::from_secs(2),
            allow_auto_create_topics: false,
            ..ClientConfig::new(&self.servers)
        }
    }

    /// Makes a topic for each row.
    ///
    /// # Errors
    /// The brokers refuse one, or do not answer.
    pub async fn make_topics(&self) -> Result<(), ClientError> {
        let admin = Admin::connect(self.client("admin")).await?;
        for line in &self.lines {
            let topic = NewTopic {
                configs: line.row.topic_configs(),
                ..NewTopic::new(&line.row.topic(), PARTITIONS, line.row.replication())
            };
            admin.create_topic(&topic, false).await?;
        }
        admin.close();
        Ok(())
    }

    /// Sends for all rows until the feed ends and every record's fate is known.
    ///
    /// # Errors
    /// A producer cannot connect.
    pub async fn run(self: Arc<Self>) -> Result<(), ClientError> {
        let since = rt::now();
        self.began.store(since.as_nanos(), Ordering::Relaxed);
        let mut producers = Vec::with_capacity(self.lines.len());
        for at in 0..self.lines.len() {
            let feed = self.clone();
            producers.push(rt::spawn(async move { feed.produce(at, since).await }));
        }
        for producer in producers {
            producer.await?;
        }
        Ok(())
    }

    async fn produce(self: Arc<Self>, at: usize, since: rt::Instant) -> Result<(), ClientError> {
        let line = &self.lines[at];
        let config = ProducerConfig {
            client: self.client(&line.row.topic()),
            acks: line.row.acks,
            // The same for all rows: acks=0 and acks=1 have none.
            idempotence: false,
            linger: Duration::ZERO,
            block_max: Duration::from_secs(10),
            delivery_timeout: Duration::from_secs(20),
            ..ProducerConfig::default()
        };
        let producer = Producer::connect(config).await?;
        let topic = line.row.topic();
        while !self.ended.load(Ordering::Relaxed) {
            if self.paused.load(Ordering::Relaxed) {
                rt::sleep(LOOK).await;
                continue;
            }
            for _ in 0..1 + rt::random_below(self.pace.burst) {
                let number = line.book.open();
                let mut value = number.to_be_bytes().to_vec();
                value.resize(self.pace.value_bytes.max(NUMBER_BYTES), number as u8);
                let record = ProducerRecord::new(topic.as_str(), value)
                    .with_partition((number % PARTITIONS as u64) as i32);
                match producer.send(record).await {
                    Ok(delivery) => {
                        let feed = self.clone();
                        drop(rt::spawn(async move {
                            let heard = delivery.await.is_ok().then(|| rt::now().since(since));
                            feed.lines[at].book.close(number, heard);
                        }));
                    }
                    Err(_) => line.book.close(number, None),
                }
            }
            let pause = u64::try_from(self.pace.pause.as_micros()).unwrap_or(u64::MAX);
            rt::sleep(Duration::from_micros(rt::random_below(pause.max(1)))).await;
        }
        producer.flush().await;
        while !line.book.is_settled() {
            rt::sleep(LOOK).await;
        }
        producer.close(Duration::from_secs(1)).await;
        Ok(())
    }

    /// Once the feed is paused and the cluster is whole again: what of each row's records an event
    /// at `at` cost, in the order of the rows.
    ///
    /// # Errors
    /// The cluster does not become whole within `limit`, or does not answer.
    pub async fn audit(
        self: Arc<Self>,
        at: Duration,
        limit: Duration,
    ) -> Result<Vec<Event>, ClientError> {
        let read = rt::timeout(limit, self.read_back()).await;
        let found = read.unwrap_or_else(|_| {
            Err(ClientError::Invalid(
                "the brokers were not whole again in time".to_owned(),
            ))
        })?;
        let judge = |(line, found): (&Line, &BTreeSet<u64>)| line.book.judge(found, at);
        Ok(self.lines.iter().zip(&found).map(judge).collect())
    }

    async fn read_back(&self) -> Result<Vec<BTreeSet<u64>>, ClientError> {
        while !self.lines.iter().all(|line| line.book.is_settled()) {
            rt::sleep(LOOK).await;
        }
        self.whole().await?;
        rt::sleep(IN_FLIGHT).await;
        let config = ConsumerConfig {
            client: self.client("auditor"),
            offset_reset: OffsetReset::Earliest,
            auto_commit: None,
            fetch_max_wait: Duration::from_millis(100),
            poll_records: 10_000,
            ..ConsumerConfig::default()
        };
        let mut consumer = Consumer::connect(config).await?;
        let mut places = BTreeMap::new();
        for (place, line) in self.lines.iter().enumerate() {
            places.insert(line.row.topic(), place);
        }
        let keys: Vec<TopicPartition> = places
            .keys()
            .flat_map(|topic| {
                let key = move |at| TopicPartition::new(topic.as_str().into(), at);
                (0..PARTITIONS).map(key)
            })
            .collect();
        self.probe(&keys).await?;
        let ends = ends(&consumer, &keys).await?;
        consumer.assign(&keys).await?;
        for key in &keys {
            consumer.seek(key, Offset(0))?;
        }
        let mut found = vec![BTreeSet::new(); self.lines.len()];
        let mut open: BTreeMap<TopicPartition, i64> = ends;
        open.retain(|_, end| *end > 0);
        while !open.is_empty() {
            for record in consumer.poll(Duration::from_millis(500)).await? {
                let place = places.get(record.topic.as_str()).copied();
                let number = record.value.as_ref().and_then(|value| number_of(value));
                if let (Some(place), Some(number)) = (place, number) {
                    found[place].insert(number);
                }
            }
            open.retain(|key, end| consumer.position(key).is_none_or(|at| at.0 < *end));
        }
        consumer.close().await?;
        Ok(found)
    }

    /// Sends a record after all others to every partition and waits until all its replicas have it:
    /// then whatever the leader's log holds can be read. A follower may be in the in-sync set and
    /// not fetch for a while; what its leader acknowledged alone meanwhile is not lost.
    async fn probe(&self, keys: &[TopicPartition]) -> Result<(), ClientError> {
        let producer = Producer::connect(ProducerConfig {
            client: self.client("probe"),
            acks: Acks::All,
            idempotence: false,
            linger: Duration::ZERO,
            ..ProducerConfig::default()
        })
        .await?;
        let mut sent = Vec::with_capacity(keys.len());
        for key in keys {
            let record = ProducerRecord::new(key.topic.clone(), PROBE);
            let record = record.with_partition(key.partition);
            sent.push(producer.send(record).await?);
        }
        for delivery in sent {
            delivery.await?;
        }
        producer.close(Duration::from_secs(1)).await;
        Ok(())
    }

    /// Waits until every partition has a leader and all its replicas are in sync.
    async fn whole(&self) -> Result<(), ClientError> {
        let admin = Admin::connect(self.client("watcher")).await?;
        loop {
            let view = match admin.topics().await {
                Ok(view) => view,
                Err(_) => {
                    rt::sleep(LOOK).await;
                    continue;
                }
            };
            let whole = self.lines.iter().all(|line| {
                let topic = view.topic(&line.row.topic());
                topic.is_some_and(|topic| {
                    topic.partitions.iter().all(|partition| {
                        let in_sync = partition.in_sync.len() == partition.replicas.len();
                        partition.leader.is_some() && in_sync && partition.offline.is_empty()
                    })
                })
            });
            if whole {
                admin.close();
                return Ok(());
            }
            rt::sleep(LOOK).await;
        }
    }
}

/// Waits until all brokers are registered with their cluster.
///
/// # Errors
/// They are not within `limit`.
pub async fn all_registered(
    servers: &str,
    brokers: usize,
    limit: Duration,
) -> Result<(), ClientError> {
    let registered = async {
        loop {
            if let Ok(admin) = Admin::connect(ClientConfig::new(servers)).await {
                let view = admin.topics().await;
                admin.close();
                if view.is_ok_and(|view| view.brokers.len() == brokers) {
                    return;
                }
            }
            rt::sleep(LOOK).await;
        }
    };
    rt::timeout(limit, registered)
        .await
        .map_err(|_| ClientError::Invalid(format!("{brokers} brokers do not find each other")))
}

/// Where the partitions end; asked again while leaders are about to change.
async fn ends(
    consumer: &Consumer,
    keys: &[TopicPartition],
) -> Result<BTreeMap<TopicPartition, i64>, ClientError> {
    let latest = keys.iter().map(|key| (key.clone(), OffsetSpec::Latest));
    let latest: Vec<_> = latest.collect();
    loop {
        let listed = consumer.offsets(&latest).await?;
        let known = listed.iter().filter_map(|(key, listed)| {
            let offset = listed.as_ref().ok()?.offset;
            Some((key.clone(), offset.map_or(0, |offset| offset.0)))
        });
        let known: BTreeMap<TopicPartition, i64> = known.collect();
        if known.len() == keys.len() {
            return Ok(known);
        }
        rt::sleep(LOOK).await;
        consumer.cluster().refresh().await?;
    }
}

fn number_of(value: &[u8]) -> Option<u64> {
    let (number, padding) = value.split_at_checked(NUMBER_BYTES)?;
    let number = u64::from_be_bytes(number.try_into().ok()?);
    let ours = padding.iter().all(|byte| *byte == number as u8);
    ours.then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_by_its_number_and_refused_where_its_bytes_differ() {
        let mut value = 300u64.to_be_bytes().to_vec();
        value.resize(100, 300u64 as u8);
        assert_eq!(number_of(&value), Some(300));
        value[50] ^= 1;
        assert_eq!(number_of(&value), None);
        assert_eq!(number_of(PROBE), None);
    }
}

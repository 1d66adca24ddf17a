//! What a client can be told: plain values under Kafka's names, with Kafka's defaults.
//!
//! Values only; nothing is read from files here.

use std::time::Duration;

use crate::wire::codec::Codec;

use super::backoff::Backoff;

/// What producers, consumers and admins have in common.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `bootstrap.servers`: `host:port` each; any one that answers is enough.
    pub bootstrap_servers: Vec<String>,
    /// `client.id`.
    pub client_id: String,
    /// `request.timeout.ms`: how long a broker may take to answer. The connection is closed after.
    pub request_timeout: Duration,
    /// `socket.connection.setup.timeout.ms`: for one attempt to connect and agree on versions.
    pub connection_setup_timeout: Duration,
    /// `reconnect.backoff.ms` and `reconnect.backoff.max.ms`.
    pub reconnect_backoff: Backoff,
    /// `retry.backoff.ms` and `retry.backoff.max.ms`.
    pub retry_backoff: Backoff,
    /// `metadata.max.age.ms`: refreshed after this without any other reason.
    pub metadata_max_age: Duration,
    /// `default.api.timeout.ms`: for a call that may need several requests and retries.
    pub api_timeout: Duration,
    /// `allow.auto.create.topics`: whether asking for a topic may create it.
    pub allow_auto_create_topics: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            bootstrap_servers: vec!["127.0.0.1:9092".to_owned()],
            client_id: "highwater-client".to_owned(),
            request_timeout: Duration::from_secs(30),
            connection_setup_timeout: Duration::from_secs(10),
            reconnect_backoff: Backoff::from_ms(50, 1000),
            retry_backoff: Backoff::from_ms(100, 1000),
            metadata_max_age: Duration::from_secs(300),
            api_timeout: Duration::from_secs(60),
            allow_auto_create_topics: true,
        }
    }
}

impl ClientConfig {
    /// Defaults, with these `bootstrap.servers` (comma-separated `host:port`).
    pub fn new(bootstrap_servers: &str) -> ClientConfig {
        ClientConfig {
            bootstrap_servers: bootstrap_servers
                .split(',')
                .map(|server| server.trim().to_owned())
                .filter(|server| !server.is_empty())
                .collect(),
            ..ClientConfig::default()
        }
    }
}

/// `acks`: what a broker waits for before it answers a produce request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    /// 0: there is no answer; delivery is only handed to the socket.
    None,
    /// 1: the leader has the records.
    Leader,
    /// -1, `all`: every in-sync replica has them.
    All,
}

impl Acks {
    pub fn wire(self) -> i16 {
        match self {
            Acks::None => 0,
            Acks::Leader => 1,
            Acks::All => -1,
        }
    }
}

/// A producer's settings.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    pub client: ClientConfig,
    /// `acks`.
    pub acks: Acks,
    /// `enable.idempotence`: records arrive once and in order, whatever is retried. Needs
    /// `acks=all` and at most 5 requests in flight.
    pub idempotence: bool,
    /// `compression.type`.
    pub compression: Codec,
    /// `compression.gzip.level`, `compression.zstd.level`; `None` is the codec's default.
    pub compression_level: Option<i32>,
    /// `batch.size`, bytes: a batch that reaches it is sent at once.
    pub batch_size: usize,
    /// `linger.ms`: how long a batch waits for more records.
    pub linger: Duration,
    /// `max.request.size`, bytes: of one produce request, and of one record.
    pub request_size_max: usize,
    /// `buffer.memory`, bytes: records that wait or are in flight; `send` waits beyond it.
    pub buffer_memory: usize,
    /// `max.block.ms`: how long `send` waits for room and for metadata.
    pub block_max: Duration,
    /// `delivery.timeout.ms`: from `send` until a record is given up.
    pub delivery_timeout: Duration,
    /// `max.in.flight.requests.per.connection`.
    pub in_flight_max: usize,
    /// `retries`.
    pub retries: u32,
    /// `transactional.id`: records are sent in transactions. Needs idempotence.
    pub transactional_id: Option<String>,
    /// `transaction.timeout.ms`: after it the coordinator aborts an open transaction by itself.
    pub transaction_timeout: Duration,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        ProducerConfig {
            client: ClientConfig::default(),
            acks: Acks::All,
            idempotence: true,
            compression: Codec::None,
            compression_level: None,
            batch_size: 16 * 1024,
            linger: Duration::from_millis(5),
            request_size_max: 1024 * 1024,
            buffer_memory: 32 * 1024 * 1024,
            block_max: Duration::from_secs(60),
            delivery_timeout: Duration::from_secs(120),
            in_flight_max: 5,
            retries: i32::MAX as u32,
            transactional_id: None,
            transaction_timeout: Duration::from_secs(60),
        }
    }
}

impl ProducerConfig {
    /// Defaults, with these `bootstrap.servers`.
    pub fn new(bootstrap_servers: &str) -> ProducerConfig {
        ProducerConfig {
            client: ClientConfig::new(bootstrap_servers),
            ..ProducerConfig::default()
        }
    }
}

/// `auto.offset.reset`: where to begin without a valid committed offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OffsetReset {
    Earliest,
    #[default]
    Latest,
    /// `none`: `poll` fails instead.
    Fail,
}

/// `isolation.level`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Isolation {
    #[default]
    ReadUncommitted,
    ReadCommitted,
}

/// One entry of `partition.assignment.strategy`; both are eager (KIP-429).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assignor {
    Range,
    RoundRobin,
}

/// A consumer's settings.
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    pub client: ClientConfig,
    /// `group.id`; without one there is no subscribing and no committing.
    pub group_id: Option<String>,
    /// `group.instance.id`: a static member (KIP-345).
    pub group_instance_id: Option<String>,
    /// `auto.offset.reset`.
    pub offset_reset: OffsetReset,
    /// `isolation.level`.
    pub isolation: Isolation,
    /// `enable.auto.commit` and `auto.commit.interval.ms`; `None` turns it off.
    pub auto_commit: Option<Duration>,
    /// `fetch.min.bytes`.
    pub fetch_min_bytes: i32,
    /// `fetch.max.bytes`.
    pub fetch_max_bytes: i32,
    /// `fetch.max.wait.ms`.
    pub fetch_max_wait: Duration,
    /// `max.partition.fetch.bytes`.
    pub partition_fetch_bytes: i32,
    /// `max.poll.records`.
    pub poll_records: usize,
    /// `max.poll.interval.ms`: also how long a rebalance waits for a member.
    pub poll_interval: Duration,
    /// `session.timeout.ms`.
    pub session_timeout: Duration,
    /// `heartbeat.interval.ms`.
    pub heartbeat_interval: Duration,
    /// `check.crcs`.
    pub check_crcs: bool,
    /// `partition.assignment.strategy`, preferred first.
    pub assignors: Vec<Assignor>,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        ConsumerConfig {
            client: ClientConfig::default(),
            group_id: None,
            group_instance_id: None,
            offset_reset: OffsetReset::Latest,
            isolation: Isolation::ReadUncommitted,
            auto_commit: Some(Duration::from_secs(5)),
            fetch_min_bytes: 1,
            fetch_max_bytes: 50 * 1024 * 1024,
            fetch_max_wait: Duration::from_millis(500),
            partition_fetch_bytes: 1024 * 1024,
            poll_records: 500,
            poll_interval: Duration::from_secs(300),
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            check_crcs: true,
            assignors: vec![Assignor::Range],
        }
    }
}

impl ConsumerConfig {
    /// Defaults, with these `bootstrap.servers`.
    pub fn new(bootstrap_servers: &str) -> ConsumerConfig {
        ConsumerConfig {
            client: ClientConfig::new(bootstrap_servers),
            ..ConsumerConfig::default()
        }
    }
}

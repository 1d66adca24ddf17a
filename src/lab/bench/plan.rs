//! What one run of the load tool does, with defaults, and which wishes contradict each other.
//!
//! Values only. [`Plan::options`] is what the result says of them.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::content::{Content, STAMP_BYTES};
use super::error::BenchError;
use super::keys::Keys;
use super::schedule::Arrivals;
use super::sizes::Sizes;
use super::transaction::TransactionPlan;
use crate::client::{Acks, Isolation};
use crate::wire::codec::Codec;

/// Threads, producers and consumers that one process drives; descriptors and memory bound them.
const CLIENTS_MAX: usize = 20_000;
const THREADS_MAX: usize = 256;
/// Kafka's own bound for requests in flight with idempotence: brokers remember five batches.
const IN_FLIGHT_IDEMPOTENT_MAX: usize = 5;
/// Requests in flight on one connection without.
const IN_FLIGHT_MAX: usize = 1_000;
/// A day is longer than anybody measures one load.
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Above it the due times of neighbours are the same nanosecond.
const RATE_MAX: f64 = 1e9;

/// How the records come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Each producer keeps its requests in flight: how fast can it go.
    Closed,
    /// Records are due at times of their own, whatever the broker does.
    Open {
        records_per_second: f64,
        arrivals: Arrivals,
    },
}

/// A topic to make if there is none of the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicToMake {
    pub partitions: i32,
    pub replication_factor: i16,
    pub configs: Vec<(String, String)>,
}

/// How consumers fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchPlan {
    /// `fetch.max.wait.ms`.
    pub max_wait: Duration,
    pub min_bytes: i32,
    pub max_bytes: i32,
    pub partition_bytes: i32,
    /// `isolation.level`.
    pub isolation: Isolation,
    /// Incremental fetch sessions (KIP-227).
    pub sessions: bool,
    pub check_crc: bool,
    /// Only the headers of batches are read, not the records in them.
    pub headers_only: bool,
    pub from_beginning: bool,
    /// At the end of a partition begin anew.
    pub rewind: bool,
}

/// One run. The defaults are those of the command line: one closed-loop producer.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What the result calls the run; left out: the load.
    pub name: Option<String>,
    /// `host:port`, comma-separated.
    pub bootstrap: String,
    pub topic: String,
    pub make_topic: Option<TopicToMake>,
    pub delete_topic: bool,
    pub load: Load,
    /// Each has an identity and connections of its own.
    pub producers: usize,
    /// They share the partitions.
    pub consumers: usize,
    pub warm_up: Duration,
    pub duration: Duration,
    /// How long what was due is waited for after the measured time.
    pub drain: Duration,
    pub threads: usize,
    /// Thread i runs on the i-th of these; empty: where the kernel likes.
    pub cpus: Vec<usize>,
    pub acks: Acks,
    /// Transactions imply it.
    pub idempotence: bool,
    pub transactions: Option<TransactionPlan>,
    pub codec: Codec,
    pub level: Option<i32>,
    /// A batch is full at this size before compression.
    pub batch_bytes: usize,
    /// Or at this many records.
    pub batch_records: Option<usize>,
    pub linger: Duration,
    /// Requests of a producer on one connection that wait for their answers.
    pub in_flight: usize,
    /// Batches, each for another partition, that a request takes at most.
    pub batches_per_request: usize,
    /// Of one producer: what waits or is in flight; beyond it due records are not even made.
    pub buffer_bytes: usize,
    pub sizes: Sizes,
    pub keys: Keys,
    pub content: Content,
    pub request_timeout: Duration,
    /// From a record's making until it is given up.
    pub delivery_timeout: Duration,
    /// For all that comes before the load: connecting, making the topic, waiting for its leaders.
    pub api_timeout: Duration,
    pub fetch: FetchPlan,
    /// Brokers on this machine whose cost is accounted.
    pub broker_pids: Vec<u32>,
    pub seed: u64,
    /// A line a second on standard error.
    pub progress: bool,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            name: None,
            bootstrap: "127.0.0.1:9092".to_owned(),
            topic: "bench".to_owned(),
            make_topic: None,
            delete_topic: false,
            load: Load::Closed,
            producers: 1,
            consumers: 0,
            warm_up: Duration::from_secs(2),
            duration: Duration::from_secs(10),
            drain: Duration::from_secs(10),
            threads: 1,
            cpus: Vec::new(),
            acks: Acks::All,
            idempotence: false,
            transactions: None,
            codec: Codec::None,
            level: None,
            batch_bytes: 16 * 1024,
            batch_records: None,
            linger: Duration::ZERO,
            in_flight: 5,
            batches_per_request: 1,
            buffer_bytes: 32 * 1024 * 1024,
            sizes: Sizes::Fixed(1024),
            keys: Keys::None,
            content: Content::Random,
            request_timeout: Duration::from_secs(30),
            delivery_timeout: Duration::from_secs(120),
            api_timeout: Duration::from_secs(15),
            fetch: FetchPlan {
                max_wait: Duration::from_millis(500),
                min_bytes: 1,
                max_bytes: 50 * 1024 * 1024,
                partition_bytes: 1024 * 1024,
                isolation: Isolation::ReadUncommitted,
                sessions: true,
                check_crc: false,
                headers_only: false,
                from_beginning: false,
                rewind: false,
            },
            broker_pids: Vec::new(),
            seed: 1,
            progress: false,
        }
    }
}

impl Plan {
    /// Whether records carry their due time to consumers of the same process.
    pub fn is_end_to_end(&self) -> bool {
        self.producers > 0 && self.consumers > 0
    }

    pub fn rate(&self) -> Option<f64> {
        match self.load {
            Load::Closed => None,
            Load::Open {
                records_per_second, ..
            } => Some(records_per_second),
        }
    }

    /// The name of the run in results.
    pub fn run_name(&self) -> String {
        match (&self.name, self.load) {
            (Some(name), _) => name.clone(),
            (None, _) if self.producers == 0 => "consume".to_owned(),
            (None, Load::Closed) => "closed loop".to_owned(),
            (
                None,
                Load::Open {
                    records_per_second, ..
                },
            ) => format!("{}/s", records_per_second.round()),
        }
    }

    /// # Errors
    /// [`BenchError::Invalid`] with the first contradiction, in words.
    pub fn validate(&self) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Invalid(text));
        if self.producers + self.consumers == 0 {
            return wrong("neither producers nor consumers: nothing to do".to_owned());
        }
        for (what, count, max) in [
            ("producers", self.producers, CLIENTS_MAX),
            ("consumers", self.consumers, CLIENTS_MAX),
            ("threads", self.threads, THREADS_MAX),
        ] {
            if count > max {
                return wrong(format!("{count} {what}: at most {max}"));
            }
        }
        if self.threads == 0 {
            return wrong("0 threads: at least 1".to_owned());
        }
        if self.threads > self.producers + self.consumers {
            return wrong(format!(
                "{} threads for {} producers and consumers: some would have nothing to do",
                self.threads,
                self.producers + self.consumers
            ));
        }
        if !self.cpus.is_empty() && self.cpus.len() != self.threads {
            return wrong(format!(
                "{} CPUs for {} threads: one for each",
                self.cpus.len(),
                self.threads
            ));
        }
        if self.duration.is_zero() {
            return wrong("a duration of 0: nothing would be measured".to_owned());
        }
        for (what, time) in [
            ("warm-up", self.warm_up),
            ("duration", self.duration),
            ("drain", self.drain),
            ("linger", self.linger),
        ] {
            if time > TIME_MAX {
                return wrong(format!("a {what} of over a day"));
            }
        }
        if let Some(rate) = self.rate()
            && !(rate.is_finite() && rate > 0.0 && rate <= RATE_MAX)
        {
            return wrong(format!(
                "a rate of {rate} records a second: above 0 and up to {RATE_MAX}"
            ));
        }
        self.validate_topic()?;
        self.validate_producers()?;
        self.validate_consumers()
    }

    fn validate_topic(&self) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Invalid(text));
        if self.topic.is_empty() {
            return wrong("the topic has no name".to_owned());
        }
        match &self.make_topic {
            Some(topic) if topic.partitions < 1 => {
                wrong(format!("{} partitions: at least 1", topic.partitions))
            }
            Some(topic) if topic.replication_factor < 1 => wrong(format!(
                "a replication factor of {}: at least 1",
                topic.replication_factor
            )),
            _ => Ok(()),
        }
    }

    fn validate_producers(&self) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Invalid(text));
        if self.producers == 0 {
            return match self.transactions {
                Some(_) => wrong("transactions are those of producers: there are none".to_owned()),
                None => Ok(()),
            };
        }
        if let Some(transactions) = &self.transactions {
            transactions.validate()?;
            if self.acks != Acks::All {
                return wrong("transactions need acks=all".to_owned());
            }
            if !self.idempotence {
                return wrong("transactions need idempotence".to_owned());
            }
        }
        let in_flight_max = if self.idempotence {
            IN_FLIGHT_IDEMPOTENT_MAX
        } else {
            IN_FLIGHT_MAX
        };
        if !(1..=in_flight_max).contains(&self.in_flight) {
            return wrong(format!(
                "{} requests in flight: from 1 to {in_flight_max}{}",
                self.in_flight,
                if self.idempotence {
                    " with idempotence"
                } else {
                    ""
                }
            ));
        }
        if self.idempotence && self.acks != Acks::All {
            return wrong("idempotence needs acks=all".to_owned());
        }
        if self.batch_records == Some(0) || self.batches_per_request == 0 {
            return wrong("a batch and a request hold something: at least 1".to_owned());
        }
        if self.sizes.max() + 1024 > self.buffer_bytes {
            return wrong(format!(
                "a value may have {} bytes, more than the buffer of {} bytes holds",
                self.sizes.max(),
                self.buffer_bytes
            ));
        }
        if self.batch_bytes > self.buffer_bytes {
            return wrong(format!(
                "batches of {} bytes do not fit the buffer of {} bytes",
                self.batch_bytes, self.buffer_bytes
            ));
        }
        if self.is_end_to_end() && self.sizes.min() < STAMP_BYTES {
            return wrong(format!(
                "values of {} bytes cannot carry the time at which they were due: end-to-end \
                 latency needs at least {STAMP_BYTES}",
                self.sizes.min()
            ));
        }
        Ok(())
    }

    fn validate_consumers(&self) -> Result<(), BenchError> {
        let wrong = |text: &str| Err(BenchError::Invalid(text.to_owned()));
        if self.consumers == 0 {
            return Ok(());
        }
        let fetch = &self.fetch;
        if fetch.min_bytes < 0 || fetch.max_bytes < 1 || fetch.partition_bytes < 1 {
            return wrong("a fetch takes at least 1 byte");
        }
        if self.is_end_to_end() && fetch.headers_only {
            return wrong("end-to-end latency is inside the records: not with headers only");
        }
        let sees_all = fetch.isolation == Isolation::ReadUncommitted;
        if self.is_end_to_end() && self.transactions.is_some() && sees_all {
            return wrong(
                "with transactions, consumers wait for what is committed: read_committed",
            );
        }
        if self.is_end_to_end() && (fetch.from_beginning || fetch.rewind) {
            return wrong("with producers, consumers begin at the end of the log");
        }
        Ok(())
    }

    /// Every option with its effective value, as the command line names them.
    pub(super) fn options(&self) -> Map<String, Value> {
        let ms = |time: Duration| json!(time.as_secs_f64() * 1e3);
        let seconds = |time: Duration| json!(time.as_secs_f64());
        let mut all = Map::new();
        let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
        put("bootstrap-server", json!(self.bootstrap));
        put("topic", json!(self.topic));
        if let Some(topic) = &self.make_topic {
            put("partitions", json!(topic.partitions));
            put("replication-factor", json!(topic.replication_factor));
            let configs: Vec<String> = topic
                .configs
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            put("topic-config", json!(configs));
        }
        put("producers", json!(self.producers));
        put("consumers", json!(self.consumers));
        put("threads", json!(self.threads));
        put("cpus", json!(self.cpus));
        put("warm-up", seconds(self.warm_up));
        put("duration", seconds(self.duration));
        put("drain", seconds(self.drain));
        if self.producers > 0 {
            match self.load {
                Load::Closed => put("loop", json!("closed")),
                Load::Open {
                    records_per_second,
                    arrivals,
                } => {
                    put("loop", json!("open"));
                    put("rate", json!(records_per_second));
                    put("arrivals", json!(arrivals.name()))
                }
            };
            put("acks", json!(acks_name(self.acks)));
            put("idempotence", json!(self.idempotence));
            if let Some(transactions) = &self.transactions {
                transactions.options(&mut all);
            }
            let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
            put("compression", json!(self.codec.name()));
            put("compression-level", json!(self.level));
            put("batch-bytes", json!(self.batch_bytes));
            put("batch-records", json!(self.batch_records));
            put("linger-ms", ms(self.linger));
            put("in-flight", json!(self.in_flight));
            put("batches-per-request", json!(self.batches_per_request));
            put("buffer-bytes", json!(self.buffer_bytes));
            put("record-size", json!(self.sizes.to_string()));
            put("keys", json!(self.keys.to_string()));
            put("content", json!(self.content.to_string()));
            put("request-timeout-ms", ms(self.request_timeout));
            put("delivery-timeout-ms", ms(self.delivery_timeout));
            put("seed", json!(self.seed));
        }
        if self.consumers > 0 {
            let fetch = &self.fetch;
            let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
            put("isolation-level", json!(isolation_name(fetch.isolation)));
            put("fetch-max-wait-ms", ms(fetch.max_wait));
            put("fetch-min-bytes", json!(fetch.min_bytes));
            put("fetch-max-bytes", json!(fetch.max_bytes));
            put("fetch-partition-bytes", json!(fetch.partition_bytes));
            put("fetch-sessions", json!(fetch.sessions));
            put("check-crc", json!(fetch.check_crc));
            put("headers-only", json!(fetch.headers_only));
            put("from-beginning", json!(fetch.from_beginning));
            put("rewind", json!(fetch.rewind));
        }
        all
    }
}

fn isolation_name(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadUncommitted => "read_uncommitted",
        Isolation::ReadCommitted => "read_committed",
    }
}

fn acks_name(acks: Acks) -> &'static str {
    match acks {
        Acks::None => "0",
        Acks::Leader => "1",
        Acks::All => "all",
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

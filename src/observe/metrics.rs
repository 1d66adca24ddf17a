//! Prometheus metrics. Each shard has its own instances (label `shard`), so counting on the
//! record path touches no other core's cache lines. Nothing is counted when metrics are off.

use super::cleaner_metrics::CleanerFamilies;
use super::log_metrics::LogFamilies;
use super::replica_metrics::ReplicaFamilies;
use super::transaction_metrics::TransactionFamilies;
use crate::broker::{Context, ms_between};
use crate::rt::Instant;
use crate::wire::api::ApiKey;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::cell::RefCell;
use std::sync::Arc;

/// From 50 µs to about 26 s, each bucket twice the one before.
const STAGE_BUCKETS: u16 = 20;
const FIRST_BUCKET_SECONDS: f64 = 0.000_05;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ApiLabels {
    shard: u32,
    api: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct StageLabels {
    shard: u32,
    api: &'static str,
    stage: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ShardLabels {
    pub shard: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct PartitionLabels {
    pub topic: String,
    pub partition: i32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct DirectoryLabels {
    pub log_directory: String,
}

/// All metric families of one broker.
#[derive(Clone)]
pub struct Families {
    requests: Family<ApiLabels, Counter>,
    request_bytes: Family<ApiLabels, Counter>,
    response_bytes: Family<ApiLabels, Counter>,
    stages: Family<StageLabels, Histogram, fn() -> Histogram>,
    pub connections: Family<ShardLabels, Gauge>,
    pub purgatory_produce: Family<ShardLabels, Gauge>,
    pub purgatory_fetch: Family<ShardLabels, Gauge>,
    pub request_memory: Family<ShardLabels, Gauge>,
    pub lane_calls: Family<ShardLabels, Gauge>,
    pub ring_operations: Family<ShardLabels, Gauge>,
    pub fetch_sessions: Family<ShardLabels, Gauge>,
    pub partitions: Family<ShardLabels, Gauge>,
    pub log_end: Family<PartitionLabels, Gauge>,
    pub log_start: Family<PartitionLabels, Gauge>,
    pub high_watermark: Family<PartitionLabels, Gauge>,
    pub log_size: Family<PartitionLabels, Gauge>,
    pub logs: LogFamilies,
    pub replicas: ReplicaFamilies,
    pub transactions: TransactionFamilies,
    pub offline_log_directories: Gauge,
    pub log_directory_offline: Family<DirectoryLabels, Gauge>,
    pub cleaner: CleanerFamilies,
    registry: Arc<Registry>,
}

fn stage_histogram() -> Histogram {
    Histogram::new(exponential_buckets(
        FIRST_BUCKET_SECONDS,
        2.0,
        STAGE_BUCKETS,
    ))
}

impl Families {
    /// Registers every family once for the whole broker.
    pub fn new() -> Families {
        let mut registry = Registry::with_prefix("highwater");
        let mut families = Families {
            requests: Family::default(),
            request_bytes: Family::default(),
            response_bytes: Family::default(),
            stages: Family::new_with_constructor(stage_histogram as fn() -> Histogram),
            connections: Family::default(),
            purgatory_produce: Family::default(),
            purgatory_fetch: Family::default(),
            request_memory: Family::default(),
            lane_calls: Family::default(),
            ring_operations: Family::default(),
            fetch_sessions: Family::default(),
            partitions: Family::default(),
            log_end: Family::default(),
            log_start: Family::default(),
            high_watermark: Family::default(),
            log_size: Family::default(),
            logs: LogFamilies::default(),
            replicas: ReplicaFamilies::default(),
            transactions: TransactionFamilies::default(),
            offline_log_directories: Gauge::default(),
            log_directory_offline: Family::default(),
            cleaner: CleanerFamilies::default(),
            registry: Arc::new(Registry::default()),
        };
        let f = &families;
        registry.register("requests", "Requests received", f.requests.clone());
        registry.register_with_unit(
            "request_size",
            "Sizes of requests, summed",
            Unit::Bytes,
            f.request_bytes.clone(),
        );
        registry.register_with_unit(
            "response_size",
            "Sizes of answers, summed",
            Unit::Bytes,
            f.response_bytes.clone(),
        );
        registry.register_with_unit(
            "request_stage",
            "Time of requests in each stage",
            Unit::Seconds,
            f.stages.clone(),
        );
        registry.register(
            "connections",
            "Open client connections",
            f.connections.clone(),
        );
        registry.register(
            "purgatory_produce",
            "Produce requests waiting",
            f.purgatory_produce.clone(),
        );
        registry.register(
            "purgatory_fetch",
            "Fetch requests waiting",
            f.purgatory_fetch.clone(),
        );
        registry.register_with_unit(
            "request_memory",
            "Memory held by requests",
            Unit::Bytes,
            f.request_memory.clone(),
        );
        registry.register(
            "lane_calls",
            "Calls to other shards waiting for their answer",
            f.lane_calls.clone(),
        );
        registry.register(
            "ring_operations",
            "File operations on the shard's ring that have not completed",
            f.ring_operations.clone(),
        );
        registry.register(
            "fetch_sessions",
            "Incremental fetch sessions",
            f.fetch_sessions.clone(),
        );
        registry.register(
            "partitions",
            "Partitions with a replica on the shard",
            f.partitions.clone(),
        );
        registry.register(
            "log_end_offset",
            "Next offset to be written",
            f.log_end.clone(),
        );
        registry.register("log_start_offset", "First offset kept", f.log_start.clone());
        registry.register(
            "high_watermark",
            "First offset that is not committed",
            f.high_watermark.clone(),
        );
        registry.register_with_unit(
            "log_size",
            "Bytes in the partition's segments",
            Unit::Bytes,
            f.log_size.clone(),
        );
        f.logs.register(&mut registry);
        f.replicas.register(&mut registry);
        f.transactions.register(&mut registry);
        registry.register(
            "offline_log_directory_count",
            "Log directories that cannot be used",
            f.offline_log_directories.clone(),
        );
        registry.register(
            "log_directory_offline",
            "1 while a log directory cannot be used",
            f.log_directory_offline.clone(),
        );
        f.cleaner.register(&mut registry);
        families.registry = Arc::new(registry);
        families
    }

    /// The text a scrape gets.
    pub fn scrape(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Default for Families {
    fn default() -> Self {
        Families::new()
    }
}

/// The handles one API of one shard counts with.
struct ApiHandles {
    requests: Counter,
    request_bytes: Counter,
    response_bytes: Counter,
    queue: Histogram,
    local: Histogram,
    remote: Histogram,
    response_queue: Histogram,
    send: Histogram,
    total: Histogram,
}

/// One shard's metrics; `None` inside when metrics are off.
pub struct ShardMetrics {
    shard: u32,
    families: Option<Families>,
    /// By API key; filled at first use.
    apis: RefCell<Vec<Option<ApiHandles>>>,
}

impl ShardMetrics {
    pub fn new(shard: usize, families: Option<Families>) -> ShardMetrics {
        ShardMetrics {
            shard: shard as u32,
            families,
            apis: RefCell::new(Vec::new()),
        }
    }

    pub fn families(&self) -> Option<&Families> {
        self.families.as_ref()
    }

    pub fn labels(&self) -> ShardLabels {
        ShardLabels { shard: self.shard }
    }

    /// A whole request of `size` bytes is about to be handled.
    pub fn on_request(&self, context: &Context, size: usize) {
        self.with(context.key, |handles| {
            handles.requests.inc();
            handles.request_bytes.inc_by(size as u64);
        });
    }

    /// An answer of `size` bytes has left.
    pub fn on_reply(&self, context: &Context, size: usize, dequeued: Instant, sent: Instant) {
        self.with(context.key, |handles| {
            let timeline = &context.timeline;
            let (local, remote) = timeline.local_and_remote_ms();
            let seconds = |ms: f64| ms / 1000.0;
            handles.response_bytes.inc_by(size as u64);
            handles
                .queue
                .observe(seconds(ms_between(timeline.received, timeline.started)));
            handles.local.observe(seconds(local));
            handles.remote.observe(seconds(remote));
            handles
                .response_queue
                .observe(seconds(ms_between(timeline.completed(), dequeued)));
            handles.send.observe(seconds(ms_between(dequeued, sent)));
            handles
                .total
                .observe(seconds(ms_between(timeline.received, sent)));
        });
    }

    fn with(&self, key: ApiKey, count: impl FnOnce(&ApiHandles)) {
        let Some(families) = &self.families else {
            return;
        };
        let mut apis = self.apis.borrow_mut();
        let index = key.0.max(0) as usize;
        if apis.len() <= index {
            apis.resize_with(index + 1, || None);
        }
        let handles = apis[index].get_or_insert_with(|| self.handles(families, key));
        count(handles);
    }

    fn handles(&self, families: &Families, key: ApiKey) -> ApiHandles {
        let api = ApiLabels {
            shard: self.shard,
            api: key.name(),
        };
        let stage = |stage| {
            let labels = StageLabels {
                shard: self.shard,
                api: key.name(),
                stage,
            };
            families.stages.get_or_create(&labels).clone()
        };
        ApiHandles {
            requests: families.requests.get_or_create(&api).clone(),
            request_bytes: families.request_bytes.get_or_create(&api).clone(),
            response_bytes: families.response_bytes.get_or_create(&api).clone(),
            queue: stage("queue"),
            local: stage("local"),
            remote: stage("remote"),
            response_queue: stage("response_queue"),
            send: stage("send"),
            total: stage("total"),
        }
    }
}

//! What a shard does by the clock: retention, timed flushes, forgetting silent producers, gauges,
//! and what it reports for the directories' checkpoints. Never on the path of a record.

use super::Shard;
use crate::log::dir::CheckpointFacts;
use crate::observe::metrics::PartitionLabels;
use crate::rt;
use crate::types::Offset;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// How often logs are looked at for `flush.ms`.
const FLUSH_TICK: Duration = Duration::from_millis(100);
/// How often silent producers are forgotten (`producer.id.expiration.check.interval.ms`).
const PRODUCER_TICK: Duration = Duration::from_secs(600);
/// How long open connections get to end at shutdown.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// What one partition tells for the checkpoints of its directory.
pub struct PartitionFacts {
    pub dir: PathBuf,
    pub log: CheckpointFacts,
    pub high_watermark: Offset,
}

impl Shard {
    /// Starts the shard's clocks.
    pub fn start_upkeep(self: &Rc<Self>) {
        rt::spawn(self.clone().run_timer());
        let interval = Duration::from_millis(self.node.config.log_retention_check_interval_ms);
        self.every(interval, Shard::apply_retention);
        self.every(FLUSH_TICK, |shard| {
            let now_ms = rt::wall_ms();
            for partition in shard.partitions() {
                if partition.log.config().flush_ms != i64::MAX {
                    partition.log.flush_if_due(now_ms);
                }
            }
        });
        self.every(PRODUCER_TICK, |shard| {
            let now_ms = rt::wall_ms();
            shard.partitions().iter().for_each(|partition| partition.log.expire_producers(now_ms));
        });
    }

    fn every(self: &Rc<Self>, interval: Duration, work: fn(&Rc<Shard>)) {
        let shard = Rc::downgrade(self);
        rt::spawn(async move {
            loop {
                rt::sleep(interval).await;
                let Some(shard) = shard.upgrade() else { return };
                work(&shard);
            }
        });
    }

    fn apply_retention(self: &Rc<Self>) {
        let now_ms = rt::wall_ms();
        for partition in self.partitions() {
            let report = partition.log.apply_retention(now_ms, partition.bounds().high_watermark);
            if report.bytes() > 0 {
                self.progressed(&partition);
            }
        }
    }

    /// What this shard's partitions tell for the checkpoints.
    pub fn checkpoint_facts(&self) -> Vec<PartitionFacts> {
        self.partitions()
            .iter()
            .filter_map(|partition| {
                Some(PartitionFacts {
                    dir: partition.log.dir().parent()?.to_owned(),
                    log: partition.log.checkpoint_facts(),
                    high_watermark: partition.bounds().high_watermark,
                })
            })
            .collect()
    }

    /// Brings the shard's gauges up to date, before a scrape.
    pub fn refresh_gauges(&self) {
        let Some(families) = self.metrics().families() else { return };
        let labels = self.metrics().labels();
        let (produces, fetches) = self.waiting.len();
        let set = |family: &prometheus_client::metrics::family::Family<_, prometheus_client::metrics::gauge::Gauge>, value: usize| {
            family.get_or_create(&labels).set(value as i64);
        };
        set(&families.connections, self.connections());
        set(&families.purgatory_produce, produces);
        set(&families.purgatory_fetch, fetches);
        set(&families.request_memory, self.budget().used() as usize);
        set(&families.lane_calls, self.mesh().waiting());
        set(&families.fetch_sessions, self.sessions().len());
        set(&families.partitions, self.partition_count());
        for partition in self.partitions() {
            let labels = PartitionLabels {
                topic: partition.topic.to_string(),
                partition: partition.id.index,
            };
            let bounds = partition.bounds();
            families.log_end.get_or_create(&labels).set(bounds.log_end.0);
            families.log_start.get_or_create(&labels).set(bounds.log_start.0);
            families.high_watermark.get_or_create(&labels).set(bounds.high_watermark.0);
            families.log_size.get_or_create(&labels).set(partition.log.size_bytes() as i64);
        }
    }

    /// Ends the shard: no new requests, those under way are answered, every log is closed. True
    /// if all of them closed cleanly.
    pub async fn shut_down(self: Rc<Self>) -> bool {
        self.start_draining();
        self.flush_waiting();
        if rt::timeout(DRAIN_PATIENCE, self.connections_ended()).await.is_err() {
            tracing::warn!(open = self.connections(), "connections are still open at shutdown");
        }
        let mut clean = true;
        for partition in self.partitions() {
            if let Err(error) = partition.log.close().await {
                tracing::error!(topic = %partition.topic, partition = partition.id.index, %error, "log could not be closed");
                clean = false;
            }
        }
        clean
    }
}

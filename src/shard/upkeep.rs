//! What a shard does beside requests: its timer and the upkeep of its logs, its gauges, its end,
//! and what it reports for the directories' checkpoints. Never on the path of a record.

use super::Shard;
use crate::log::dir::CheckpointFacts;
use crate::observe::metrics::PartitionLabels;
use crate::observe::replica_metrics::ReplicaCounts;
use crate::rt;
use crate::types::{Offset, PartitionId};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// How long open connections get to end at shutdown.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// What one partition tells for the checkpoints of its directory.
pub struct PartitionFacts {
    pub dir: PathBuf,
    pub log: CheckpointFacts,
    pub high_watermark: Offset,
}

impl Shard {
    /// Starts what the shard does by the clock.
    pub fn start_upkeep(self: &Rc<Self>) {
        rt::spawn(self.clone().run_timer());
        rt::spawn(self.clone().exchange_quotas());
        rt::spawn(self.clone().watch_in_sync());
        rt::spawn(self.clone().ask_for_in_sync());
        if let Some(idle) = self.node.config.connections_max_idle_ms {
            rt::spawn(
                self.clone()
                    .end_idle_connections(Duration::from_millis(idle)),
            );
        }
        let shard = Rc::downgrade(self);
        self.logs.start(Rc::new(move |log| {
            let id = PartitionId {
                topic: log.topic_id(),
                index: log.partition(),
            };
            let partition = shard.upgrade().and_then(|shard| shard.partition(id));
            // Without a leader nothing is known to be committed, and nothing may go.
            partition.map_or(Offset::ZERO, |partition| partition.bounds().high_watermark)
        }));
    }

    /// Closes connections on which nothing moved for `idle`; looks often enough to be at most a
    /// tenth of it late, and never more than ten times a second.
    async fn end_idle_connections(self: Rc<Self>, idle: Duration) {
        let pause = (idle / 10).max(Duration::from_millis(100));
        while !self.is_draining() {
            rt::sleep(pause).await;
            self.connections().end_idle(rt::now(), idle);
        }
    }

    /// What this shard's partitions tell for the checkpoints. A partition that is not open, or not
    /// yet, keeps what the checkpoints said at the start: its log start must not be forgotten.
    pub fn checkpoint_facts(&self) -> Vec<PartitionFacts> {
        let open = self.partitions();
        let open = open
            .iter()
            .filter(|partition| !partition.log.is_offline())
            .filter_map(|partition| {
                Some(PartitionFacts {
                    dir: partition.log.dir().parent()?.to_owned(),
                    log: partition.log.checkpoint_facts(),
                    high_watermark: partition.bounds().high_watermark,
                })
            });
        let copies = self.partitions();
        let copies = copies.iter().filter_map(|partition| {
            let copy = self.future_of(partition)?;
            Some(PartitionFacts {
                dir: copy.dir().parent()?.to_owned(),
                high_watermark: partition.bounds().high_watermark.min(copy.log_end()),
                log: CheckpointFacts {
                    first_dirty: partition.log.checkpoint_facts().first_dirty,
                    ..copy.checkpoint_facts()
                },
            })
        });
        let unopened = self
            .unopened_in_dirs()
            .into_iter()
            .map(|(dir, topic, partition)| {
                let key = (topic.clone(), partition);
                PartitionFacts {
                    dir: dir.path.clone(),
                    high_watermark: dir
                        .checkpoints
                        .high_watermark
                        .get(&key)
                        .copied()
                        .unwrap_or_default(),
                    log: CheckpointFacts {
                        topic,
                        partition,
                        recovery_point: dir
                            .checkpoints
                            .recovery_point
                            .get(&key)
                            .copied()
                            .unwrap_or_default(),
                        log_start: dir.checkpoints.log_start.get(&key).copied(),
                        first_dirty: dir.checkpoints.cleaner.get(&key).copied(),
                    },
                }
            });
        open.chain(copies).chain(unopened).collect()
    }

    /// Brings the shard's gauges up to date, before a scrape.
    pub fn refresh_gauges(&self) {
        let Some(families) = self.metrics().families() else {
            return;
        };
        let labels = self.metrics().labels();
        let shard_labels = labels.clone();
        let (produces, fetches) = self.waiting.len();
        let set = |family: &prometheus_client::metrics::family::Family<
            _,
            prometheus_client::metrics::gauge::Gauge,
        >,
                   value: usize| {
            family.get_or_create(&labels).set(value as i64);
        };
        set(&families.connections, self.connections().len());
        set(&families.purgatory_produce, produces);
        set(&families.purgatory_fetch, fetches);
        set(&families.request_memory, self.budget().used() as usize);
        set(&families.lane_calls, self.mesh().waiting());
        set(&families.ring_operations, rt::fs::under_way());
        set(&families.fetch_sessions, self.sessions().len());
        set(&families.partitions, self.partition_count());
        families.logs.refresh(&labels, self.logs.shard());
        let cleaner = self.logs.cleaner().stats();
        families.cleaner.set(&labels, &cleaner, rt::wall_ms());
        let mut counts = ReplicaCounts {
            isr_shrinks: self.in_sync.shrinks.get(),
            isr_expands: self.in_sync.expands.get(),
            failed_isr_updates: self.in_sync.failed_updates.get(),
            fetched_bytes: self.fetchers.bytes.get(),
            ..ReplicaCounts::default()
        };
        let mut transactions = self.transactions.counts();
        let max_timeout_ms = i64::from(self.node.config.transaction_max_timeout_ms);
        let now_ms = rt::wall_ms();
        for partition in self.partitions() {
            let labels = PartitionLabels {
                topic: partition.topic.to_string(),
                partition: partition.id.index,
            };
            let bounds = partition.bounds();
            families
                .log_end
                .get_or_create(&labels)
                .set(bounds.log_end.0);
            families
                .log_start
                .get_or_create(&labels)
                .set(bounds.log_start.0);
            families
                .high_watermark
                .get_or_create(&labels)
                .set(bounds.high_watermark.0);
            families
                .log_size
                .get_or_create(&labels)
                .set(partition.log.size_bytes() as i64);
            if let Some(leader) = partition.leader() {
                let (in_sync, least) = (leader.in_sync().len(), leader.effective_min_in_sync());
                counts.leaders += 1;
                let is_late = partition.log.has_late_transaction(now_ms, max_timeout_ms);
                transactions.late_partitions += u64::from(is_late);
                counts.under_replicated += u64::from(in_sync < leader.replicas().len());
                counts.under_min_isr += u64::from(in_sync < least);
                counts.at_min_isr += u64::from(in_sync == least);
                families.replicas.lag.remove(&labels);
            } else if partition.is_following() {
                let lag = partition.as_follower(|follower, _| follower.lag());
                let lag = lag.unwrap_or_default();
                counts.followers += 1;
                counts.max_lag = counts.max_lag.max(lag);
                let gauge = families.replicas.lag.get_or_create(&labels);
                gauge.set(lag as i64);
            }
        }
        families.replicas.refresh(&shard_labels, &counts);
        families.transactions.refresh(&shard_labels, &transactions);
    }

    /// Ends the shard: no new requests, those under way are answered, every log is closed. Answers
    /// the directories of which one did not close cleanly, or was not open.
    pub async fn shut_down(self: Rc<Self>) -> Vec<PathBuf> {
        self.start_draining();
        self.flush_waiting();
        if rt::timeout(DRAIN_PATIENCE, self.connections().all_ended())
            .await
            .is_err()
        {
            tracing::warn!(
                open = self.connections().len(),
                "connections are still open at shutdown"
            );
        }
        let unopened = self.unopened_in_dirs().into_iter();
        let mut unclean: Vec<PathBuf> = unopened.map(|(dir, ..)| dir.path.clone()).collect();
        for (dir, closed) in self.logs.close_all().await {
            if let Err(error) = closed {
                tracing::error!(dir = %dir.display(), %error, "a log could not be closed");
                unclean.push(dir);
            }
        }
        unclean
    }
}

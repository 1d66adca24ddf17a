//! Metrics of replication: what each shard leads and follows, and how its in-sync sets fare. Brought
//! up to date before a scrape. Decides nothing.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::metrics::{PartitionLabels, ShardLabels};

type Counters = Family<ShardLabels, Counter>;
type Gauges = Family<ShardLabels, Gauge>;

/// What one shard counts of replication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    pub leaders: u64,
    pub followers: u64,
    /// Led partitions of which not all replicas are in sync.
    pub under_replicated: u64,
    /// Led partitions with fewer replicas in sync than `min.insync.replicas`, and just as many.
    pub under_min_isr: u64,
    pub at_min_isr: u64,
    pub isr_shrinks: u64,
    pub isr_expands: u64,
    pub failed_isr_updates: u64,
    pub fetched_bytes: u64,
    /// The furthest that a follower here is behind its leader's high watermark.
    pub max_lag: u64,
}

/// The metric families of replication.
#[derive(Clone, Default)]
pub struct ReplicaFamilies {
    leaders: Gauges,
    followers: Gauges,
    under_replicated: Gauges,
    under_min_isr: Gauges,
    at_min_isr: Gauges,
    isr_shrinks: Counters,
    isr_expands: Counters,
    failed_isr_updates: Counters,
    fetched: Counters,
    max_lag: Gauges,
    /// Of one followed partition.
    pub lag: Family<PartitionLabels, Gauge>,
}

impl ReplicaFamilies {
    pub fn register(&self, registry: &mut Registry) {
        let mut gauge = |name: &str, help: &str, family: &Gauges| {
            registry.register(name, help, family.clone());
        };
        gauge("leader_count", "Partitions led", &self.leaders);
        gauge("follower_count", "Partitions followed", &self.followers);
        gauge(
            "under_replicated_partitions",
            "Led partitions of which not all replicas are in sync",
            &self.under_replicated,
        );
        gauge(
            "under_min_isr_partition_count",
            "Led partitions with fewer replicas in sync than min.insync.replicas",
            &self.under_min_isr,
        );
        gauge(
            "at_min_isr_partition_count",
            "Led partitions with just min.insync.replicas in sync",
            &self.at_min_isr,
        );
        gauge(
            "replica_fetcher_max_lag",
            "Most records that a followed partition is behind its leader's high watermark",
            &self.max_lag,
        );
        let mut counter = |name: &str, help: &str, family: &Counters| {
            registry.register(name, help, family.clone());
        };
        counter(
            "isr_shrinks",
            "In-sync sets that lost a member",
            &self.isr_shrinks,
        );
        counter(
            "isr_expands",
            "In-sync sets that gained a member",
            &self.isr_expands,
        );
        counter(
            "failed_isr_updates",
            "Changes of in-sync sets that the controller refused",
            &self.failed_isr_updates,
        );
        registry.register_with_unit(
            "replica_fetch",
            "Record bytes fetched from leaders",
            Unit::Bytes,
            self.fetched.clone(),
        );
        registry.register(
            "replica_fetcher_lag",
            "Records that a followed partition is behind its leader's high watermark",
            self.lag.clone(),
        );
    }

    /// Brings the families up to what the shard has counted.
    pub fn refresh(&self, labels: &ShardLabels, counts: &ReplicaCounts) {
        let set = |family: &Gauges, value: u64| {
            family.get_or_create(labels).set(value as i64);
        };
        set(&self.leaders, counts.leaders);
        set(&self.followers, counts.followers);
        set(&self.under_replicated, counts.under_replicated);
        set(&self.under_min_isr, counts.under_min_isr);
        set(&self.at_min_isr, counts.at_min_isr);
        set(&self.max_lag, counts.max_lag);
        let grow = |family: &Counters, value: u64| {
            let counter = family.get_or_create(labels);
            counter.inc_by(value.saturating_sub(counter.get()));
        };
        grow(&self.isr_shrinks, counts.isr_shrinks);
        grow(&self.isr_expands, counts.isr_expands);
        grow(&self.failed_isr_updates, counts.failed_isr_updates);
        grow(&self.fetched, counts.fetched_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_shows_what_the_shard_counted_and_never_counts_it_twice() {
        let families = ReplicaFamilies::default();
        let mut registry = Registry::with_prefix("highwater");
        families.register(&mut registry);
        let counts = ReplicaCounts {
            leaders: 3,
            under_replicated: 2,
            isr_shrinks: 4,
            ..ReplicaCounts::default()
        };
        for _ in 0..2 {
            families.refresh(&ShardLabels { shard: 1 }, &counts);
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "highwater_leader_count{shard=\"1\"} 3",
            "highwater_under_replicated_partitions{shard=\"1\"} 2",
            "highwater_isr_shrinks_total{shard=\"1\"} 4",
            "highwater_replica_fetch_bytes_total{shard=\"1\"} 0",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}

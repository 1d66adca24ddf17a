//! Metrics of transactions: what each shard coordinates, and what is left open in the partitions it
//! leads. Brought up to date before a scrape. Decides nothing.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::metrics::ShardLabels;

type Gauges = Family<ShardLabels, Gauge>;

/// What one shard has of transactions now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionCounts {
    /// Transactional ids that it coordinates.
    pub ids: u64,
    /// Those with a transaction open.
    pub ongoing: u64,
    /// Those whose transaction is decided and not yet known to all of its partitions.
    pub completing: u64,
    /// Led partitions with a transaction open for longer than any may be.
    pub late_partitions: u64,
}

/// The metric families of transactions.
#[derive(Clone, Default)]
pub struct TransactionFamilies {
    ids: Gauges,
    ongoing: Gauges,
    completing: Gauges,
    late_partitions: Gauges,
}

impl TransactionFamilies {
    pub fn register(&self, registry: &mut Registry) {
        let mut gauge = |name: &str, help: &str, family: &Gauges| {
            registry.register(name, help, family.clone());
        };
        gauge(
            "transactional_ids",
            "Transactional ids coordinated",
            &self.ids,
        );
        gauge(
            "transactions_ongoing",
            "Transactions open at their coordinator",
            &self.ongoing,
        );
        gauge(
            "transactions_completing",
            "Transactions decided whose markers are not all written",
            &self.completing,
        );
        gauge(
            "partitions_with_late_transactions_count",
            "Led partitions with a transaction open for over transaction.max.timeout.ms and five minutes",
            &self.late_partitions,
        );
    }

    /// Brings the families up to what the shard has.
    pub fn refresh(&self, labels: &ShardLabels, counts: &TransactionCounts) {
        let set = |family: &Gauges, value: u64| {
            family.get_or_create(labels).set(value as i64);
        };
        set(&self.ids, counts.ids);
        set(&self.ongoing, counts.ongoing);
        set(&self.completing, counts.completing);
        set(&self.late_partitions, counts.late_partitions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_shows_what_is_open_now() {
        let families = TransactionFamilies::default();
        let mut registry = Registry::with_prefix("highwater");
        families.register(&mut registry);
        let labels = ShardLabels { shard: 1 };
        for ongoing in [4, 3] {
            let counts = TransactionCounts {
                ids: 5,
                ongoing,
                ..TransactionCounts::default()
            };
            families.refresh(&labels, &counts);
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "highwater_transactional_ids{shard=\"1\"} 5",
            "highwater_transactions_ongoing{shard=\"1\"} 3",
            "highwater_transactions_completing{shard=\"1\"} 0",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}

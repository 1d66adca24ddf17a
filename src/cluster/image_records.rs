//! An image as records, for a snapshot: applied in this order to nothing they make the image again.
//! The order is Kafka's. Pure.

use super::Image;
use crate::cluster::features::METADATA_VERSION;
use crate::cluster::record::MetadataRecord;
use crate::wire::Str;
use crate::wire::messages::config_record::ConfigRecord;
use crate::wire::messages::feature_level_record::FeatureLevelRecord;
use crate::wire::messages::producer_ids_record::ProducerIdsRecord;
use crate::wire::messages::topic_record::TopicRecord;

impl Image {
    /// See the module's words.
    pub fn records(&self) -> Vec<MetadataRecord> {
        let mut records = Vec::new();
        let (first, others): (Vec<_>, Vec<_>) = self
            .finalized_features()
            .partition(|(name, _)| *name == METADATA_VERSION);
        for (name, level) in first.into_iter().chain(others) {
            records.push(MetadataRecord::from(FeatureLevelRecord {
                name: Str::from(name),
                feature_level: level,
                ..Default::default()
            }));
        }
        for broker in self.brokers() {
            records.push(MetadataRecord::from(broker.to_record()));
        }
        let is_controller =
            |record: &&MetadataRecord| matches!(record, MetadataRecord::RegisterController(_));
        records.extend(self.kept.values().filter(is_controller).cloned());
        for topic in self.topics() {
            records.push(MetadataRecord::from(TopicRecord {
                name: topic.name.clone(),
                topic_id: topic.id,
                ..Default::default()
            }));
            for (index, partition) in topic.partitions() {
                let record = partition.to_record(topic.id, index);
                records.push(MetadataRecord::from(record));
            }
        }
        for ((kind, resource), settings) in self.configs() {
            for (name, value) in settings {
                records.push(MetadataRecord::from(ConfigRecord {
                    resource_type: kind.0,
                    resource_name: Str::from(resource.as_str()),
                    name: Str::from(name.as_str()),
                    value: Some(Str::from(value.as_str())),
                    ..Default::default()
                }));
            }
        }
        let (quotas, others): (Vec<_>, Vec<_>) = self
            .kept
            .values()
            .filter(|record| !is_controller(record))
            .partition(|record| matches!(record, MetadataRecord::ClientQuota(_)));
        records.extend(quotas.into_iter().cloned());
        if self.next_producer_id > 0 {
            records.push(MetadataRecord::from(ProducerIdsRecord {
                broker_id: -1,
                broker_epoch: -1,
                next_producer_id: self.next_producer_id,
                ..Default::default()
            }));
        }
        records.extend(others.into_iter().cloned());
        records
    }
}

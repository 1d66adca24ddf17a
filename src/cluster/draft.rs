//! A change of the metadata while it is being decided: records, and the image they lead to, so
//! that what is decided later in one request sees what was decided before. Pure.

use super::configs;
use super::features::ELIGIBLE_LEADER_REPLICAS;
use super::image::{Image, ResourceType};
use super::partition_change::{Election, PartitionChange, Rules};
use super::record::MetadataRecord;
use super::topics::{PartitionRegistration, Topic};
use crate::config::BrokerConfig;
use crate::types::{NodeId, PartitionId, Uuid};

/// See the module's words.
pub(super) struct Draft<'a> {
    pub config: &'a BrokerConfig,
    image: Image,
    records: Vec<MetadataRecord>,
}

impl<'a> Draft<'a> {
    pub fn new(image: &Image, config: &'a BrokerConfig) -> Draft<'a> {
        Draft {
            config,
            image: image.clone(),
            records: Vec::new(),
        }
    }

    /// The image with everything that has been decided.
    pub fn image(&self) -> &Image {
        &self.image
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn push(&mut self, record: impl Into<MetadataRecord>) {
        let record = record.into();
        let offset = self.image.offset() + 1;
        // The controller applies all records again before it writes them and refuses the change
        // if one contradicts: nothing is lost by going on here.
        if let Err(error) = self.image.apply(offset, &record) {
            tracing::error!(%error, "a decision contradicts the metadata");
        }
        self.records.push(record);
    }

    pub fn into_records(self) -> Vec<MetadataRecord> {
        self.records
    }

    pub fn partition(&self, id: PartitionId) -> Option<(&Topic, &PartitionRegistration)> {
        let topic = self.image.topic_by_id(id.topic)?;
        Some((topic, topic.partition(id.index)?))
    }

    /// The partitions of which `which` is true, in the order of topics.
    pub fn partitions(&self, which: impl Fn(&PartitionRegistration) -> bool) -> Vec<PartitionId> {
        let mut found = Vec::new();
        for topic in self.image.topics() {
            for (index, partition) in topic.partitions() {
                if which(partition) {
                    let topic = topic.id;
                    found.push(PartitionId { topic, index });
                }
            }
        }
        found
    }

    /// Whether a replica that is not in sync may lead.
    pub fn allows_unclean(&self, topic: &Topic) -> bool {
        let own = self.image.config(ResourceType::TOPIC, &topic.name);
        let value = configs::layers(&self.image, self.config).topic_value(
            "unclean.leader.election.enable",
            &own.cloned().unwrap_or_default(),
        );
        value.eq_ignore_ascii_case("true")
    }

    /// `min.insync.replicas` of a topic, as far as it has so many replicas.
    pub fn min_in_sync(&self, topic: &Topic) -> usize {
        let own = self.image.config(ResourceType::TOPIC, &topic.name);
        let wanted = configs::layers(&self.image, self.config)
            .min_in_sync(&own.cloned().unwrap_or_default());
        let replicas = topic.partition(0).map_or(1, |first| first.replicas.len());
        wanted.min(replicas)
    }

    pub fn keeps_eligible(&self) -> bool {
        self.image.feature(ELIGIBLE_LEADER_REPLICAS) > 0
    }

    /// Changes a partition. `lives` is asked in place of the image whether a broker takes part.
    /// The record that was written, if anything changes.
    pub fn change(
        &mut self,
        id: PartitionId,
        lives: &dyn Fn(&Image, NodeId) -> bool,
        set: impl FnOnce(&mut PartitionChange<'_>),
    ) -> Option<PartitionRegistration> {
        let (topic, before) = self.partition(id)?;
        let may_lead = |node: NodeId, directory: Uuid| {
            lives(&self.image, node)
                && self
                    .image
                    .broker(node)
                    .is_some_and(|broker| broker.has_online_dir(directory))
        };
        let rules = Rules {
            may_lead: &may_lead,
            min_in_sync: self.min_in_sync(topic),
            keeps_eligible: self.keeps_eligible(),
        };
        let mut change = PartitionChange::of(before);
        set(&mut change);
        let record = change.record(id.topic, id.index, &rules)?;
        let after = before.after(&record);
        self.push(record);
        Some(after)
    }

    /// The election that is allowed for a partition when its leader goes.
    pub fn election(&self, id: PartitionId) -> Election {
        match self.partition(id) {
            Some((topic, _)) if self.allows_unclean(topic) => Election::Unclean,
            _ => Election::Online,
        }
    }
}

/// Brokers take part as the image says.
pub(super) fn as_registered(image: &Image, node: NodeId) -> bool {
    image.can_lead(node)
}

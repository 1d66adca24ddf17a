//! The cluster's metadata at one offset of the metadata log: what every shard decides by. Cheap
//! to clone and never changed once published; the control executor applies records to a copy and
//! sends that to the shards. Pure; never reads the log itself.

use super::brokers::Broker;
use super::record::MetadataRecord;
use super::topics::{PartitionRegistration, Topic};
use crate::types::{LeaderEpoch, NodeId, Uuid};
use crate::wire::Str;
use crate::wire::messages::client_quota_record::ClientQuotaRecord;
use crate::wire::messages::register_controller_record::RegisterControllerRecord;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a configuration record is about (ConfigRecord.resource_type, as DescribeConfigs has it).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceType(pub i8);

impl ResourceType {
    pub const TOPIC: ResourceType = ResourceType(2);
    pub const BROKER: ResourceType = ResourceType(4);
    pub const BROKER_LOGGER: ResourceType = ResourceType(8);
    pub const CLIENT_METRICS: ResourceType = ResourceType(16);
    pub const GROUP: ResourceType = ResourceType(32);
}

/// A configured resource; the cluster-wide default of brokers has the name "".
pub type ConfigResource = (ResourceType, String);

/// The settings of one resource, by name.
pub type ConfigMap = BTreeMap<String, String>;

/// Records this broker keeps for the tools and for later, in the order of the log, by their key:
/// quotas, credentials, tokens, access control entries, controllers.
type Kept = BTreeMap<String, MetadataRecord>;

/// A record contradicts the image: the log is not one that a controller wrote.
#[derive(Debug, thiserror::Error)]
#[error("{record} at offset {offset}: {what}")]
pub struct ApplyError {
    pub record: &'static str,
    pub offset: i64,
    pub what: String,
}

/// See the module's words.
#[derive(Clone, Debug)]
pub struct Image {
    /// The offset of the last record applied; -1 before the first.
    offset: i64,
    topics: Arc<BTreeMap<Str, Arc<Topic>>>,
    names: Arc<ahash::AHashMap<Uuid, Str>>,
    configs: Arc<BTreeMap<ConfigResource, ConfigMap>>,
    brokers: Arc<BTreeMap<NodeId, Broker>>,
    features: Arc<BTreeMap<String, i16>>,
    kept: Arc<Kept>,
    next_producer_id: i64,
}

impl Default for Image {
    /// Nothing has been applied.
    fn default() -> Image {
        Image {
            offset: -1,
            topics: Arc::default(),
            names: Arc::default(),
            configs: Arc::default(),
            brokers: Arc::default(),
            features: Arc::default(),
            kept: Arc::default(),
            next_producer_id: 0,
        }
    }
}

impl Image {
    /// The offset of the last record applied.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Whether another image says the same: what stands between them in the log changed nothing.
    pub fn says_the_same(&self, other: &Image) -> bool {
        Arc::ptr_eq(&self.topics, &other.topics)
            && Arc::ptr_eq(&self.names, &other.names)
            && Arc::ptr_eq(&self.configs, &other.configs)
            && Arc::ptr_eq(&self.brokers, &other.brokers)
            && Arc::ptr_eq(&self.features, &other.features)
            && Arc::ptr_eq(&self.kept, &other.kept)
            && self.next_producer_id == other.next_producer_id
    }

    /// Whether `newer` takes a replica from `node` that it has here: its topic is gone or was made
    /// anew, or it has moved away.
    pub fn loses_replica(&self, newer: &Image, node: NodeId) -> bool {
        if Arc::ptr_eq(&self.topics, &newer.topics) {
            return false;
        }
        self.topics.values().any(|topic| {
            let now = newer.topics.get(&topic.name);
            if now.is_some_and(|now| Arc::ptr_eq(now, topic)) {
                return false;
            }
            let now = now.filter(|now| now.id == topic.id);
            topic.partitions().any(|(index, was)| {
                let stays = now.and_then(|now| now.partition(index));
                let stays = stays.is_some_and(|is| is.replicas.contains(&node));
                was.replicas.contains(&node) && !stays
            })
        })
    }

    pub fn topic_by_name(&self, name: &str) -> Option<&Topic> {
        self.topics.get(name).map(|topic| &**topic)
    }

    pub fn topic_by_id(&self, id: Uuid) -> Option<&Topic> {
        self.topic_by_name(self.names.get(&id)?)
    }

    /// By name.
    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.topics.values().map(|topic| &**topic)
    }

    pub fn partition_count(&self) -> usize {
        self.topics
            .values()
            .map(|topic| topic.partition_count() as usize)
            .sum()
    }

    /// The leader of a partition and its epoch; `None` without a partition or a leader.
    pub fn leader(&self, topic: Uuid, index: i32) -> Option<(NodeId, LeaderEpoch)> {
        let partition = self.topic_by_id(topic)?.partition(index)?;
        (partition.leader.0 >= 0).then_some((partition.leader, partition.leader_epoch))
    }

    /// Whether nothing is new about the brokers since `earlier`.
    pub fn has_brokers_of(&self, earlier: &Image) -> bool {
        Arc::ptr_eq(&self.brokers, &earlier.brokers)
    }

    /// Brokers, fenced ones included, by id.
    pub fn brokers(&self) -> impl Iterator<Item = &Broker> {
        self.brokers.values()
    }

    pub fn broker(&self, id: NodeId) -> Option<&Broker> {
        self.brokers.get(&id)
    }

    /// Whether a broker is registered and not fenced.
    pub fn is_alive(&self, id: NodeId) -> bool {
        self.brokers.get(&id).is_some_and(|broker| !broker.fenced)
    }

    /// Whether a broker may be given leaderships: alive and not shutting down.
    pub fn can_lead(&self, id: NodeId) -> bool {
        self.brokers.get(&id).is_some_and(Broker::is_active)
    }

    /// The live brokers on a listener: id, host, port, rack.
    pub fn endpoints<'a>(
        &'a self,
        listener: &'a str,
    ) -> impl Iterator<Item = (NodeId, &'a str, u16, Option<&'a str>)> {
        self.brokers
            .values()
            .filter(|broker| !broker.fenced)
            .filter_map(move |broker| {
                let (host, port) = broker.endpoint(listener)?;
                Some((broker.id, host, port, broker.rack.as_deref()))
            })
    }

    /// Whether a broker or a controller of this id is registered.
    pub fn is_node(&self, id: NodeId) -> bool {
        self.brokers.contains_key(&id) || self.controller(id).is_some()
    }

    /// A controller as it is registered.
    pub fn controller(&self, id: NodeId) -> Option<&RegisterControllerRecord> {
        self.controllers().find(|one| one.controller_id == id.0)
    }

    /// The registered controllers.
    pub fn controllers(&self) -> impl Iterator<Item = &RegisterControllerRecord> {
        self.kept.values().filter_map(|record| match record {
            MetadataRecord::RegisterController(controller) => Some(controller),
            _ => None,
        })
    }

    /// The clients' quotas as they were written, one record each.
    pub(super) fn quota_records(&self) -> impl Iterator<Item = &ClientQuotaRecord> {
        self.kept.values().filter_map(|record| match record {
            MetadataRecord::ClientQuota(quota) => Some(quota),
            _ => None,
        })
    }

    /// Whether nothing is new about what is kept, clients' quotas among it, since `earlier`.
    pub fn has_kept_of(&self, earlier: &Image) -> bool {
        Arc::ptr_eq(&self.kept, &earlier.kept)
    }

    /// The settings of a resource; none if it has no record.
    pub fn config(&self, kind: ResourceType, name: &str) -> Option<&ConfigMap> {
        self.configs.get(&(kind, name.to_owned()))
    }

    pub fn configs(&self) -> impl Iterator<Item = (&ConfigResource, &ConfigMap)> {
        self.configs.iter()
    }

    /// Feature levels other than 0, by name.
    pub fn finalized_features(&self) -> impl Iterator<Item = (&str, i16)> {
        self.features
            .iter()
            .map(|(name, level)| (name.as_str(), *level))
    }

    /// The level of a feature; 0 is "off".
    pub fn feature(&self, name: &str) -> i16 {
        self.features.get(name).copied().unwrap_or(0)
    }

    /// The first producer id that is in no block yet.
    pub fn next_producer_id(&self) -> i64 {
        self.next_producer_id
    }

    /// Applies one record that stands at `offset`.
    pub fn apply(&mut self, offset: i64, record: &MetadataRecord) -> Result<(), ApplyError> {
        self.apply_inner(offset, record)
            .map_err(|what| ApplyError {
                record: record.name(),
                offset,
                what,
            })?;
        self.offset = offset;
        Ok(())
    }

    /// The image now stands for the log up to `offset`, with nothing new in it.
    pub(super) fn set_offset(&mut self, offset: i64) {
        self.offset = offset;
    }

    fn apply_inner(&mut self, offset: i64, record: &MetadataRecord) -> Result<(), String> {
        match record {
            MetadataRecord::Topic(topic) => {
                let name = topic.name.detached();
                Arc::make_mut(&mut self.names).insert(topic.topic_id, name.clone());
                let new = Arc::new(Topic::new(name.clone(), topic.topic_id));
                if Arc::make_mut(&mut self.topics).insert(name, new).is_some() {
                    return Err(format!("topic {} exists", topic.name));
                }
            }
            MetadataRecord::Partition(partition) => {
                let registration = PartitionRegistration::from_record(partition);
                self.topic_mut(partition.topic_id)?
                    .set(partition.partition_id, registration);
            }
            MetadataRecord::PartitionChange(change) => {
                self.topic_mut(change.topic_id)?.change(change)?;
            }
            MetadataRecord::RemoveTopic(removed) => {
                let name = Arc::make_mut(&mut self.names)
                    .remove(&removed.topic_id)
                    .ok_or_else(|| format!("no topic {}", removed.topic_id))?;
                Arc::make_mut(&mut self.topics).remove(&name);
                Arc::make_mut(&mut self.configs).remove(&(ResourceType::TOPIC, name.to_string()));
            }
            MetadataRecord::Config(config) => {
                let configs = Arc::make_mut(&mut self.configs);
                let key = (
                    ResourceType(config.resource_type),
                    config.resource_name.to_string(),
                );
                let map = configs.entry(key.clone()).or_default();
                match &config.value {
                    Some(value) => {
                        map.insert(config.name.to_string(), value.to_string());
                    }
                    None => {
                        map.remove(&*config.name);
                    }
                }
                if map.is_empty() {
                    configs.remove(&key);
                }
            }
            MetadataRecord::FeatureLevel(feature) => {
                let features = Arc::make_mut(&mut self.features);
                match feature.feature_level {
                    0 => features.remove(&*feature.name),
                    level => features.insert(feature.name.to_string(), level),
                };
            }
            MetadataRecord::ProducerIds(ids) => self.next_producer_id = ids.next_producer_id,
            MetadataRecord::ClearElr(clear) => {
                for topic in Arc::make_mut(&mut self.topics).values_mut() {
                    if clear.topic_name.is_empty() || clear.topic_name == topic.name {
                        Arc::make_mut(topic).clear_elr();
                    }
                }
            }
            MetadataRecord::RegisterBroker(registration) => {
                let broker = Broker::from_record(registration, offset);
                Arc::make_mut(&mut self.brokers).insert(broker.id, broker);
            }
            MetadataRecord::UnregisterBroker(gone) => {
                Arc::make_mut(&mut self.brokers).remove(&NodeId(gone.broker_id));
            }
            MetadataRecord::BrokerRegistrationChange(change) => {
                self.broker_mut(change.broker_id)?.change(change);
            }
            MetadataRecord::FenceBroker(fence) => self.broker_mut(fence.id)?.fenced = true,
            MetadataRecord::UnfenceBroker(unfence) => self.broker_mut(unfence.id)?.fenced = false,
            MetadataRecord::NoOp(_)
            | MetadataRecord::ZkMigrationState(_)
            | MetadataRecord::BeginTransaction(_)
            | MetadataRecord::EndTransaction(_)
            | MetadataRecord::AbortTransaction(_) => {}
            kept => self.keep(kept),
        }
        Ok(())
    }

    fn topic_mut(&mut self, id: Uuid) -> Result<&mut Topic, String> {
        let missing = || format!("no topic {id}");
        let name = self.names.get(&id).ok_or_else(missing)?;
        let topic = Arc::make_mut(&mut self.topics)
            .get_mut(name)
            .ok_or_else(missing)?;
        Ok(Arc::make_mut(topic))
    }

    fn broker_mut(&mut self, id: i32) -> Result<&mut Broker, String> {
        Arc::make_mut(&mut self.brokers)
            .get_mut(&NodeId(id))
            .ok_or_else(|| format!("broker {id} is not registered"))
    }

    /// Keeps or removes a record that nothing here acts on yet.
    fn keep(&mut self, record: &MetadataRecord) {
        let kept = Arc::make_mut(&mut self.kept);
        match record {
            MetadataRecord::ClientQuota(quota) => {
                let key = format!("quota {:?} {}", super::client_quotas::of(quota), quota.key);
                if quota.remove {
                    kept.remove(&key)
                } else {
                    kept.insert(key, record.clone())
                };
            }
            MetadataRecord::UserScramCredential(scram) => {
                kept.insert(
                    format!("scram {} {}", scram.mechanism, scram.name),
                    record.clone(),
                );
            }
            MetadataRecord::RemoveUserScramCredential(scram) => {
                kept.remove(&format!("scram {} {}", scram.mechanism, scram.name));
            }
            MetadataRecord::DelegationToken(token) => {
                kept.insert(format!("token {}", token.token_id), record.clone());
            }
            MetadataRecord::RemoveDelegationToken(token) => {
                kept.remove(&format!("token {}", token.token_id));
            }
            MetadataRecord::AccessControlEntry(entry) => {
                kept.insert(format!("acl {}", entry.id), record.clone());
            }
            MetadataRecord::RemoveAccessControlEntry(entry) => {
                kept.remove(&format!("acl {}", entry.id));
            }
            MetadataRecord::RegisterController(controller) => {
                kept.insert(
                    format!("controller {}", controller.controller_id),
                    record.clone(),
                );
            }
            MetadataRecord::UnregisterController(controller) => {
                kept.remove(&format!("controller {}", controller.controller_id));
            }
            _ => {}
        }
    }
}

#[path = "image_records.rs"]
mod records;

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;

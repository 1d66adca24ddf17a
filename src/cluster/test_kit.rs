//! What the tests share: a small cluster as an image that records are applied to, and a real
//! directory on a real ring.

use super::features;
use super::image::Image;
use super::record::MetadataRecord;
use super::sessions::Sessions;
use super::topics::PartitionRegistration;
use crate::config::{BrokerConfig, properties};
use crate::rt::{Instant, RingPlan, run_ring};
use crate::types::{NodeId, PartitionId, Uuid};
use crate::wire::messages::config_record::ConfigRecord;
use crate::wire::messages::feature_level_record::FeatureLevelRecord;
use crate::wire::messages::partition_record::PartitionRecord;
use crate::wire::messages::register_broker_record::RegisterBrokerRecord;
use crate::wire::messages::topic_record::TopicRecord;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

/// Runs `test` on a ring's control executor, with a directory of its own.
pub fn on_ring<F>(test: impl Fn(PathBuf) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    run_ring(RingPlan::default(), move |executor| {
        let (test, path) = (test.clone(), path.clone());
        async move {
            if executor.is_control() {
                test(path).await;
            }
        }
    })
    .unwrap();
}

pub const TOPIC: Uuid = Uuid::from_halves(0, 7777);
pub const TIMEOUT: Duration = Duration::from_millis(9000);

pub fn part(index: i32) -> PartitionId {
    PartitionId {
        topic: TOPIC,
        index,
    }
}

/// The directory of a broker of [`Model::with_brokers`].
pub fn directory(node: i32) -> Uuid {
    Uuid::from_halves(4, 1000 + node as u64)
}

pub fn nodes(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().map(|id| NodeId(*id)).collect()
}

/// See the file's words.
pub struct Model {
    pub image: Image,
    pub config: BrokerConfig,
    pub sessions: Sessions,
    pub now: Instant,
}

impl Model {
    /// Brokers 1 to `count`, taking part, on a controller with the id 1.
    pub fn with_brokers(count: i32) -> Model {
        let config =
            BrokerConfig::from_properties(properties::parse("f", "node.id=1").unwrap()).unwrap();
        let mut model = Model {
            image: Image::default(),
            config,
            sessions: Sessions::new(TIMEOUT),
            now: Instant(1_000_000_000),
        };
        model.level(features::METADATA_VERSION, 33);
        for id in 1..=count {
            model.broker(id, false);
        }
        let (image, now) = (model.image.clone(), model.now);
        model.sessions.begin(&image, NodeId(1), now);
        model
    }

    pub fn with_eligible(mut self) -> Model {
        self.level(features::ELIGIBLE_LEADER_REPLICAS, 1);
        self
    }

    pub fn level(&mut self, name: &str, level: i16) {
        self.apply_one(FeatureLevelRecord {
            name: name.into(),
            feature_level: level,
            ..Default::default()
        });
    }

    pub fn broker(&mut self, id: i32, fenced: bool) {
        let epoch = self.image.offset() + 1;
        self.apply_one(RegisterBrokerRecord {
            broker_id: id,
            broker_epoch: epoch,
            incarnation_id: Uuid::from_halves(9, id as u64),
            fenced,
            log_dirs: vec![directory(id)],
            ..Default::default()
        });
    }

    /// A setting of the topic "t", or of all brokers.
    pub fn set(&mut self, topic: bool, name: &str, value: &str) {
        self.apply_one(ConfigRecord {
            resource_type: if topic { 2 } else { 4 },
            resource_name: if topic { "t".into() } else { "".into() },
            name: name.into(),
            value: Some(value.into()),
            ..Default::default()
        });
    }

    /// The topic "t" with one more partition.
    pub fn partition(&mut self, replicas: &[i32], isr: &[i32], leader: i32) -> i32 {
        self.partition_as(PartitionRecord {
            replicas: replicas.to_vec(),
            isr: isr.to_vec(),
            leader,
            ..Default::default()
        })
    }

    pub fn partition_as(&mut self, record: PartitionRecord) -> i32 {
        if self.image.topic_by_id(TOPIC).is_none() {
            self.apply_one(TopicRecord {
                name: "t".into(),
                topic_id: TOPIC,
                ..Default::default()
            });
        }
        let index = self.image.topic_by_id(TOPIC).unwrap().partition_count();
        let directories = record.replicas.iter().map(|id| directory(*id)).collect();
        self.apply_one(PartitionRecord {
            partition_id: index,
            topic_id: TOPIC,
            leader_epoch: 5,
            partition_epoch: 10,
            directories,
            ..record
        });
        index
    }

    pub fn apply_one(&mut self, record: impl Into<MetadataRecord>) {
        self.apply(&[record.into()]);
    }

    pub fn apply(&mut self, records: &[MetadataRecord]) {
        for record in records {
            self.image.apply(self.image.offset() + 1, record).unwrap();
        }
    }

    pub fn of(&self, index: i32) -> &PartitionRegistration {
        let topic = self.image.topic_by_id(TOPIC).unwrap();
        topic.partition(index).unwrap()
    }

    /// Leader, in-sync set and eligible replicas in one line.
    pub fn told(&self, index: i32) -> (i32, Vec<i32>, Vec<i32>) {
        let plain = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect();
        let partition = self.of(index);
        (
            partition.leader.0,
            plain(&partition.isr),
            plain(&partition.elr),
        )
    }

    pub fn epoch(&self, id: i32) -> i64 {
        self.image.broker(NodeId(id)).unwrap().epoch.0
    }
}

//! Makes a shard's replicas follow the metadata image: opens the logs of new partitions, passes on
//! changed settings, and takes down what was deleted. Runs on the shard, one image at a time, in
//! order. Never decides where a partition belongs.

use super::Shard;
use crate::cluster::{
    ConfigMap, Image, OFFSETS_TOPIC, PartitionRegistration, ResourceType, Topic, configs,
};
use crate::log::dir::Checkpoints;
use crate::log::journal::Journals;
use crate::log::{Log, LogOpen, ProducerLimits, RecoveryReport};
use crate::replica::leader::Leader;
use crate::replica::partition::Partition;
use crate::rt;
use crate::types::{Offset, PartitionId, Uuid};
use crate::wire::Str;
use ahash::AHashSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// What a shard must know of a log directory to open logs in it.
#[derive(Debug)]
pub struct DirFacts {
    pub path: PathBuf,
    /// It was shut down cleanly.
    pub clean: bool,
    pub checkpoints: Checkpoints,
    /// The partitions that lie in it.
    pub present: AHashSet<(String, i32)>,
    /// What the flush journals of an earlier life say.
    pub journals: Arc<Journals>,
}

/// A partition that the image gives to this shard.
struct Wanted<'a> {
    id: PartitionId,
    topic: &'a Topic,
    registration: &'a PartitionRegistration,
}

impl Shard {
    /// Brings the shard to `image`. Returns when its new partitions can be used and its deleted
    /// ones are gone.
    pub async fn apply_image(self: &Rc<Self>, image: Arc<Image>) {
        let before = self.image();
        let wanted = self.wanted(&image);
        let new: Vec<_> = wanted
            .iter()
            .filter(|new| self.partition(new.id).is_none())
            .collect();
        let opens = new
            .iter()
            .map(|new| self.how_to_open(&image, new))
            .collect();
        for (new, opened) in new.into_iter().zip(self.logs.open_all(opens).await) {
            match opened {
                Ok((log, report)) => {
                    tell_recovery(&log, &report);
                    self.lead(&image, new, log);
                }
                Err(error) => {
                    // What a journal has of it must still be there when it can be opened.
                    self.dirs.iter().for_each(|dir| dir.journals.keep());
                    tracing::error!(topic = %new.topic.name, partition = new.id.index, %error, "partition cannot be opened");
                }
            }
        }
        self.set_image(image.clone());
        self.update_settings(&before, &image);
        let kept: AHashSet<PartitionId> = wanted.into_iter().map(|wanted| wanted.id).collect();
        let gone: Vec<_> = self
            .partitions()
            .into_iter()
            .filter(|partition| !kept.contains(&partition.id))
            .collect();
        let deleted: Vec<(Uuid, Str)> = before
            .topics()
            .filter(|topic| image.topic_by_id(topic.id).is_none())
            .map(|topic| (topic.id, topic.name.clone()))
            .collect();
        for partition in gone {
            self.take_down(&partition).await;
        }
        if !deleted.is_empty() {
            for coordinator in self.groups.all() {
                coordinator.tell(|state| state.on_topics_deleted(&deleted, super::groups::clock()));
            }
        }
    }

    /// The partitions of the image that have a replica on this shard.
    fn wanted<'a>(&self, image: &'a Image) -> Vec<Wanted<'a>> {
        let mut wanted = Vec::new();
        for topic in image.topics() {
            for (index, registration) in topic.partitions() {
                let id = PartitionId {
                    topic: topic.id,
                    index,
                };
                if self.owner(id) == self.place() && registration.replicas.contains(&self.node.node)
                {
                    wanted.push(Wanted {
                        id,
                        topic,
                        registration,
                    });
                }
            }
        }
        wanted
    }

    fn how_to_open(&self, image: &Image, new: &Wanted<'_>) -> LogOpen {
        let (topic, index) = (new.topic, new.id.index);
        let key = (topic.name.to_string(), index);
        let dir = self
            .dirs
            .iter()
            .find(|dir| dir.present.contains(&key))
            .unwrap_or_else(|| self.roomiest(&topic.name, index));
        LogOpen {
            log_dir: dir.path.clone(),
            topic: topic.name.to_string(),
            partition: index,
            topic_id: topic.id,
            config: configs::layers(image, &self.node.config).log_config(&settings(image, topic)),
            clean_shutdown: dir.clean,
            recovery_point: dir
                .checkpoints
                .recovery_point
                .get(&key)
                .copied()
                .unwrap_or(Offset::ZERO),
            log_start: dir.checkpoints.log_start.get(&key).copied(),
            now_ms: rt::wall_ms(),
            producer_limits: ProducerLimits {
                expiration_ms: self.node.config.producer_id_expiration_ms,
                ..ProducerLimits::default()
            },
        }
    }

    /// The directory for a new partition: they take turns by name, which spreads them evenly
    /// without asking the other shards.
    fn roomiest(&self, topic: &str, index: i32) -> &DirFacts {
        let turn = topic.bytes().fold(index as usize, |sum, byte| {
            sum.wrapping_add(usize::from(byte))
        });
        &self.dirs[turn % self.dirs.len()]
    }

    /// Becomes the partition's leader with what its log holds.
    fn lead(self: &Rc<Self>, image: &Image, new: &Wanted<'_>, log: Rc<Log>) {
        let Wanted {
            id,
            topic,
            registration,
        } = *new;
        let key = (topic.name.to_string(), id.index);
        log.start_epoch(registration.leader_epoch);
        let end = log.log_end();
        let high_watermark = self
            .dirs
            .iter()
            .find_map(|dir| dir.checkpoints.high_watermark.get(&key).copied())
            .unwrap_or(Offset::ZERO)
            .clamp(log.log_start(), end);
        let leader = Leader::new(
            registration.leader_epoch,
            end,
            self.node.node,
            registration.replicas.clone(),
            registration.isr.clone(),
            configs::layers(image, &self.node.config).min_in_sync(&settings(image, topic)),
            high_watermark,
        );
        let partition = Partition::new(
            id,
            topic.name.clone(),
            log,
            leader,
            registration.partition_epoch,
        );
        let (shard, weak) = (Rc::downgrade(self), Rc::downgrade(&partition));
        partition.log.on_progress(move || {
            if let (Some(shard), Some(partition)) = (shard.upgrade(), weak.upgrade()) {
                shard.progressed(&partition);
            }
        });
        partition.advance();
        if partition.log.counted() < partition.log.log_end() {
            // What a recovery found counts once it is flushed.
            let log = partition.log.clone();
            rt::spawn(async move {
                if let Err(error) = log.flush().await {
                    tracing::error!(topic = %log.topic(), partition = log.partition(), %error, "recovered log cannot be flushed");
                }
            });
        }
        self.add_partition(partition.clone());
        if topic.name == OFFSETS_TOPIC {
            self.groups.take(self, partition);
        }
    }

    /// Passes changed settings on to the logs.
    fn update_settings(&self, before: &Image, image: &Image) {
        let layers = configs::layers(image, &self.node.config);
        let kind = ResourceType::BROKER;
        let own = self.node.node.0.to_string();
        let all = before.config(kind, "") != image.config(kind, "")
            || before.config(kind, &own) != image.config(kind, &own);
        for partition in self.partitions() {
            let name = &partition.topic;
            let kind = ResourceType::TOPIC;
            if all || before.config(kind, name) != image.config(kind, name) {
                let own = image.config(kind, name).cloned().unwrap_or_default();
                partition.log.update_config(layers.log_config(&own));
                partition.set_min_in_sync(layers.min_in_sync(&own));
            }
        }
    }

    /// Ends a partition whose topic is deleted: whoever waits is answered, the directory gets its
    /// doomed name now and goes after `file.delete.delay.ms`.
    async fn take_down(self: &Rc<Self>, partition: &Rc<Partition>) {
        self.remove_partition(partition.id);
        partition.mark_gone();
        self.check_waiting(partition.id, true);
        if partition.topic == OFFSETS_TOPIC {
            self.groups.release(partition.id.index);
        }
        if let Err(error) = self.logs.delete(&partition.topic, partition.id.index).await {
            tracing::error!(topic = %partition.topic, partition = partition.id.index, %error, "directory cannot be doomed");
        }
    }
}

fn tell_recovery(log: &Log, report: &RecoveryReport) {
    if report.bytes_taken_back > 0 {
        tracing::info!(
            topic = %log.topic(), partition = log.partition(), bytes = report.bytes_taken_back,
            "batches taken back from the journal"
        );
    }
    if report.bytes_checked > 0 {
        tracing::info!(
            topic = %log.topic(), partition = log.partition(), bytes = report.bytes_checked,
            segments = report.segments_checked, took_ms = report.took.as_millis() as u64, "log recovered"
        );
    }
}

fn settings(image: &Image, topic: &Topic) -> ConfigMap {
    image
        .config(ResourceType::TOPIC, &topic.name)
        .cloned()
        .unwrap_or_default()
}

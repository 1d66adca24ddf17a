//! Makes a shard's replicas follow the metadata image: opens the logs of new partitions, passes on
//! changed settings, and takes down what was deleted. Runs on the shard, one image at a time, in
//! order. Never decides where a partition belongs.
//!
//! A partition whose log cannot be opened is *unserved*: it answers KAFKA_STORAGE_ERROR. If its
//! directory failed, that is for good; if the disk was only full, it is tried again.

use super::Shard;
use super::control::Control;
use super::mesh::LocalFuture;
use crate::cluster::directories;
use crate::cluster::{ConfigMap, Image, PartitionRegistration, ResourceType, Topic, configs};
use crate::config::layers::Layers;
use crate::log::checkpoint::OffsetMap;
use crate::log::dir::{Checkpoints, DirError};
use crate::log::journal::Journals;
use crate::log::{Log, LogError, LogOpen, RecoveryReport};
use crate::replica::leader::LeaderSettings;
use crate::replica::partition::Partition;
use crate::rt;
use crate::types::{Offset, PartitionId, Uuid};
use crate::wire::Str;
use ahash::{AHashMap, AHashSet};
use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long partitions wait that could not be opened on a full disk: twice as long after each try, for
/// each reads again what was not closed, and takes what room there is.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(20);

/// What a shard must know of a log directory to open logs in it.
#[derive(Debug)]
pub struct DirFacts {
    /// `directory.id`.
    pub id: Uuid,
    pub path: PathBuf,
    /// It was shut down cleanly.
    pub clean: bool,
    pub checkpoints: Checkpoints,
    /// The partitions that lie in it, each with the topic it is of: a topic made anew under the
    /// same name has nothing here, and the checkpoints say nothing of it.
    pub present: AHashMap<(String, i32), Uuid>,
    /// The copies of partitions that were on their way here: topic, and name of the directory.
    pub futures: AHashMap<(String, i32), (Uuid, String)>,
    /// What the flush journals of an earlier life say.
    pub journals: Arc<Journals>,
}

impl DirFacts {
    fn has(&self, key: &(String, i32), topic: Uuid) -> bool {
        self.present.get(key) == Some(&topic)
    }

    /// Why the directory is lost when the journals of an earlier life cannot be removed: what is cut from
    /// now on is not noted against them.
    pub fn no_end_of_journals(&self, source: io::Error) -> LogError {
        let cause = DirError::Io {
            what: "remove the journals",
            path: self.path.clone(),
            source,
        };
        cause.as_log_error()
    }

    /// What a checkpoint of the start says of a partition.
    fn checkpointed(
        &self,
        checkpoint: &OffsetMap,
        key: &(String, i32),
        topic: Uuid,
    ) -> Option<Offset> {
        let known = self.has(key, topic);
        known.then(|| checkpoint.get(key).copied()).flatten()
    }
}

/// The log directories at the start of the process.
#[derive(Debug)]
pub struct Directories {
    pub online: Vec<DirFacts>,
    /// Those that could not be used, each with what was wrong.
    pub offline: Vec<(PathBuf, LogError)>,
}

/// The partitions of this shard that have no open log, each with the directory it lies in if that
/// is known.
#[derive(Default)]
pub(super) struct Unserved {
    partitions: RefCell<AHashMap<PartitionId, Option<PathBuf>>>,
    /// A task waits to try them again.
    retrying: Cell<bool>,
    /// How long the last ones waited, if their try was in vain.
    pause: Cell<Duration>,
}

impl Unserved {
    pub(super) fn contains(&self, id: PartitionId) -> bool {
        self.partitions.borrow().contains_key(&id)
    }
}

/// A partition that the image gives to this shard.
pub(super) struct Wanted<'a> {
    pub id: PartitionId,
    pub topic: &'a Topic,
    pub registration: &'a PartitionRegistration,
}

impl Shard {
    /// Ends the partitions that `image` takes from this shard. Every shard does so, and the
    /// checkpoints are written, before any of them applies that image: a topic made anew under the
    /// same name must find neither its predecessor's files nor what was noted of them.
    pub async fn make_room(self: &Rc<Self>, image: &Image) {
        let _turn = self.apply_turn.acquire(1).await;
        self.room_made_for.set(image.offset());
        let kept: AHashSet<PartitionId> = self.wanted(image).iter().map(|one| one.id).collect();
        let gone: Vec<_> = self
            .partitions()
            .into_iter()
            .filter(|partition| !kept.contains(&partition.id))
            .collect();
        for partition in gone {
            self.take_down(&partition).await;
        }
        self.unserved.partitions.borrow_mut().retain(|id, _| {
            let stays = kept.contains(id);
            if !stays {
                let dirs = self.dirs.online.iter();
                dirs.for_each(|dir| dir.journals.settled(*id));
            }
            stays
        });
        self.end_journals().await;
    }

    /// Removes the journals of an earlier life that the last log which waited for space has now
    /// taken back.
    async fn end_journals(&self) {
        let mut dirs = self.dirs.online.iter();
        if dirs.any(|dir| dir.journals.may_be_removed()) {
            // Where a log was said to start may be noted nowhere else.
            self.write_checkpoints().await;
        }
        for dir in &self.dirs.online {
            if self.logs.failure_of(&dir.path).is_none()
                && let Err(error) = dir.journals.remove_if_settled().await
            {
                let cause = dir.no_end_of_journals(error);
                self.logs.fail_directory(&dir.path, &cause);
            }
        }
    }

    /// Brings the shard to `image`. Returns when its new partitions can be used; false, with
    /// nothing done, if room was made for a newer one, which will come.
    pub async fn apply_image(self: &Rc<Self>, image: Arc<Image>) -> bool {
        let _turn = self.apply_turn.acquire(1).await;
        if image.offset() < self.room_made_for.get() {
            return false;
        }
        let before = self.image();
        let wanted = self.wanted(&image);
        self.open_new(&before, &image, &wanted).await;
        self.set_image(image.clone());
        self.transactions.on_image(&image);
        self.update_settings(&before, &image);
        self.take_roles(&before, &image, &wanted).await;
        let deleted: Vec<(Uuid, Str)> = before
            .topics()
            .filter(|topic| image.topic_by_id(topic.id).is_none())
            .map(|topic| (topic.id, topic.name.clone()))
            .collect();
        if !deleted.is_empty() {
            for coordinator in self.groups.all() {
                coordinator.tell(|state| state.on_topics_deleted(&deleted, super::groups::clock()));
            }
        }
        true
    }

    /// Opens the logs of the partitions that have none open yet.
    async fn open_new(self: &Rc<Self>, before: &Image, image: &Image, wanted: &[Wanted<'_>]) {
        let mut new = Vec::new();
        let mut opens = Vec::new();
        for wanted in wanted {
            if self.partition(wanted.id).is_some() {
                continue;
            }
            if let Some(open) = self.how_to_open(before, image, wanted) {
                self.warn_of_missing(before, wanted);
                new.push(wanted);
                opens.push(open);
            } else {
                self.unserved
                    .partitions
                    .borrow_mut()
                    .entry(wanted.id)
                    .or_insert(None);
            }
        }
        let dirs: Vec<PathBuf> = opens.iter().map(|open| open.log_dir.clone()).collect();
        let vouched: Vec<Offset> = opens.iter().map(LogOpen::vouched_for).collect();
        let opened = self.logs.open_all(opens).await;
        let is_below = |(opened, vouched): (&Result<(Rc<Log>, _), _>, &Offset)| {
            opened
                .as_ref()
                .is_ok_and(|(log, _)| log.log_end() < *vouched)
        };
        let cut_below = opened.iter().zip(&vouched).any(is_below);
        let mut placed = Vec::new();
        for ((new, dir), opened) in new.into_iter().zip(dirs).zip(opened) {
            match opened {
                Ok((log, report)) => {
                    self.unserved.partitions.borrow_mut().remove(&new.id);
                    let dirs = self.dirs.online.iter();
                    dirs.for_each(|dir| dir.journals.opened(new.id));
                    tell_recovery(&log, &report);
                    self.host(image, new, log);
                    self.forget_preferred(new.id);
                    if let Some(partition) = self.partition(new.id) {
                        self.resume_move(&partition).await;
                    }
                    let registered = new.registration.directory(self.node.node);
                    let lies_in = self.dirs.online.iter().find(|facts| facts.path == dir);
                    let lies_in = lies_in.filter(|facts| facts.id != registered);
                    placed.extend(lies_in.map(|facts| (new.id, facts.id)));
                }
                Err(error) => self.not_opened(new, dir, &error),
            }
        }
        if cut_below {
            // A recovery has cut below what the checkpoints vouch for. What is appended there from
            // now on must not be believed unseen.
            self.write_checkpoints().await;
        }
        self.end_journals().await;
        self.tell_placed(placed);
    }

    /// Has the controller told where replicas lie that it has not placed itself, or that lie
    /// elsewhere (KIP-858).
    fn tell_placed(self: &Rc<Self>, placed: Vec<(PartitionId, Uuid)>) {
        if placed.is_empty() {
            return;
        }
        let shard = self.clone();
        rt::spawn(async move {
            let tell = move |control: Rc<Control>| -> LocalFuture<()> {
                Box::pin(async move { control.assign_directories(placed).await })
            };
            // Control is gone only at the end of the process.
            let _ = shard.mesh().call_control(shard.control_place(), tell).await;
        });
    }

    /// A partition that is older than this process and lies nowhere begins empty: perhaps it was
    /// never written, perhaps a disk was replaced. Kafka does the same, without a word.
    fn warn_of_missing(&self, before: &Image, wanted: &Wanted<'_>) {
        let key = (wanted.topic.name.to_string(), wanted.id.index);
        let at_start = before.offset() < 0;
        let lies_somewhere = self
            .dirs
            .online
            .iter()
            .any(|dir| dir.has(&key, wanted.id.topic));
        if at_start && !lies_somewhere {
            tracing::warn!(topic = %key.0, partition = key.1, "no log directory holds this partition, it begins empty");
        }
    }

    /// A log that cannot be opened costs its directory, as in Kafka: what is wrong with one file
    /// of a disk may be wrong with all. Only a full disk comes right by itself.
    fn not_opened(self: &Rc<Self>, new: &Wanted<'_>, dir: PathBuf, error: &LogError) {
        tracing::error!(topic = %new.topic.name, partition = new.id.index, %error, "partition cannot be opened");
        if !matches!(error, LogError::TopicId { .. }) {
            // What a journal has of it must still be there when it can be opened.
            let facts = self.dirs.online.iter().find(|facts| facts.path == dir);
            facts.inspect(|facts| facts.journals.expect(new.id));
        }
        match error {
            error if error.is_no_space() => self.retry_later(),
            LogError::TopicId { .. } => {}
            error => self.logs.fail_directory(&dir, error),
        }
        self.unserved
            .partitions
            .borrow_mut()
            .insert(new.id, Some(dir));
    }

    /// The partitions that lie in a directory that is online and have no log open: it cannot be
    /// opened, or that is still to come. Directory, topic and index.
    pub(super) fn unopened_in_dirs(&self) -> Vec<(&DirFacts, String, i32)> {
        let beginning = self.image().offset() < 0;
        let unserved = self.unserved.partitions.borrow();
        let mut found = Vec::new();
        for dir in &self.dirs.online {
            for (key, topic) in &dir.present {
                let id = PartitionId {
                    topic: *topic,
                    index: key.1,
                };
                let waits = match unserved.get(&id) {
                    Some(path) => path.as_ref() == Some(&dir.path),
                    None => beginning && self.owner(id) == self.place(),
                };
                if waits && self.partition(id).is_none() {
                    found.push((dir, key.0.clone(), key.1));
                }
            }
        }
        found
    }

    fn retry_later(self: &Rc<Self>) {
        if self.unserved.retrying.replace(true) {
            return;
        }
        let unserved = &self.unserved;
        let pause = (unserved.pause.get() * 2).clamp(RETRY_PAUSE, RETRY_PAUSE_MAX);
        unserved.pause.set(pause);
        let shard = self.clone();
        rt::spawn(async move {
            rt::select2(rt::sleep(pause), shard.drained()).await;
            shard.unserved.retrying.set(false);
            if !shard.is_draining() {
                let image = shard.image();
                shard.apply_image(image).await;
            }
            if !shard.unserved.retrying.get() {
                shard.unserved.pause.set(Duration::ZERO);
            }
        });
    }

    /// A log directory failed, here or under another shard: its partitions answer
    /// KAFKA_STORAGE_ERROR, and what it coordinates nobody does.
    pub fn directory_failed(self: &Rc<Self>, dir: &std::path::Path, cause: &LogError) {
        self.logs.take_directory_offline(dir, cause);
        for partition in self.partitions() {
            if partition.log.is_offline() {
                self.stop_coordinating(&partition);
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

    /// `None` if the partition's directory is offline, or may be.
    fn how_to_open(&self, before: &Image, image: &Image, new: &Wanted<'_>) -> Option<LogOpen> {
        let (topic, index) = (new.topic, new.id.index);
        let key = (topic.name.to_string(), index);
        let dir = self.directory_of(before, new, &key)?;
        let tried = self.unserved.contains(new.id);
        let layers = configs::layers(image, &self.node.config);
        Some(LogOpen {
            log_dir: dir.path.clone(),
            topic: topic.name.to_string(),
            partition: index,
            topic_id: topic.id,
            config: layers.log_config(&settings(image, topic)),
            // What a first attempt left behind half done is not believed.
            clean_shutdown: dir.clean && !tried,
            recovery_point: dir
                .checkpointed(&dir.checkpoints.recovery_point, &key, topic.id)
                .unwrap_or(Offset::ZERO),
            first_dirty: dir.checkpointed(&dir.checkpoints.cleaner, &key, topic.id),
            log_start: dir.checkpointed(&dir.checkpoints.log_start, &key, topic.id),
            now_ms: rt::wall_ms(),
            producer_limits: layers.producer_limits(),
        })
    }

    /// Where a partition's log lies or is to be made. Where its registration names no directory of
    /// ours, a new one goes to any that is online; one that was there before this process may lie
    /// in a directory that is not.
    fn directory_of(
        &self,
        before: &Image,
        new: &Wanted<'_>,
        key: &(String, i32),
    ) -> Option<&DirFacts> {
        let is_online = |dir: &&DirFacts| self.logs.failure_of(&dir.path).is_none();
        let dirs = &self.dirs.online;
        if let Some(dir) = dirs.iter().find(|dir| dir.has(key, new.id.topic)) {
            return Some(dir).filter(is_online);
        }
        // The log that its copy was made from has more, and is in a directory that is offline.
        let is_copied =
            |dir: &DirFacts| dir.futures.get(key).is_some_and(|of| of.0 == new.id.topic);
        if dirs.iter().any(is_copied) {
            return None;
        }
        // Before what the controller has chosen, as in Kafka: it is told.
        if let Some(path) = self.preferred_dir(new.id)
            && let Some(dir) = dirs.iter().find(|dir| dir.path == path)
            && is_online(&dir)
        {
            return Some(dir);
        }
        let registered = new.registration.directory(self.node.node);
        if let Some(dir) = dirs.iter().find(|dir| dir.id == registered) {
            return Some(dir).filter(is_online);
        }
        let is_new = before.offset() >= 0 && before.topic_by_id(new.topic.id).is_none();
        let may_be_hidden = !is_new && !self.dirs.offline.is_empty();
        if directories::is_directory(registered) || may_be_hidden {
            return None;
        }
        // By name they take turns, which spreads them evenly without asking the other shards.
        let online: Vec<&DirFacts> = dirs.iter().filter(is_online).collect();
        let turn = key.0.bytes().fold(key.1 as usize, |sum, byte| {
            sum.wrapping_add(usize::from(byte))
        });
        online.get(turn % online.len().max(1)).copied()
    }

    /// Holds the partition with what its log holds, without a role yet.
    fn host(self: &Rc<Self>, image: &Image, new: &Wanted<'_>, log: Rc<Log>) {
        let Wanted { id, topic, .. } = *new;
        let key = (topic.name.to_string(), id.index);
        let end = log.log_end();
        let high_watermark = self
            .dirs
            .online
            .iter()
            .find_map(|dir| dir.checkpointed(&dir.checkpoints.high_watermark, &key, topic.id))
            .unwrap_or(Offset::ZERO)
            .clamp(log.log_start(), end);
        let layers = configs::layers(image, &self.node.config);
        let leading = LeaderSettings {
            local: self.node.node,
            min_in_sync: layers.min_in_sync(&settings(image, topic)),
            lag_max: Duration::from_millis(self.node.config.replica_lag_time_max_ms),
        };
        let partition = Partition::new(id, topic.name.clone(), log, leading, high_watermark);
        self.take_throttled(&layers, &partition, &settings(image, topic));
        let (shard, weak) = (Rc::downgrade(self), Rc::downgrade(&partition));
        partition.log.on_progress(move || {
            if let (Some(shard), Some(partition)) = (shard.upgrade(), weak.upgrade()) {
                shard.progressed(&partition);
            }
        });
        if partition.log.counted() < partition.log.log_end() {
            // What a recovery found counts once it is flushed.
            let log = partition.log.clone();
            rt::spawn(async move {
                if let Err(error) = log.flush().await {
                    tracing::error!(topic = %log.topic(), partition = log.partition(), %error, "recovered log cannot be flushed");
                }
            });
        }
        self.add_partition(partition);
    }

    /// Passes changed settings on to the logs.
    fn update_settings(&self, before: &Image, image: &Image) {
        if !image.has_kept_of(before) {
            self.quotas.take(image);
        }
        let layers = configs::layers(image, &self.node.config);
        let kind = ResourceType::BROKER;
        let own = self.node.node.0.to_string();
        // At the start also what the property file alone says.
        let all = before.offset() < 0
            || before.config(kind, "") != image.config(kind, "")
            || before.config(kind, &own) != image.config(kind, &own);
        if all {
            let settings = layers.cleaner_settings(self.node.config.shards);
            self.logs.cleaner().set_settings(settings);
            self.set_throttle_rates(&layers);
        }
        let limits = layers.producer_limits();
        self.verifications.set_enabled(limits.verify_transactions);
        for partition in self.partitions() {
            let name = &partition.topic;
            let kind = ResourceType::TOPIC;
            if all || before.config(kind, name) != image.config(kind, name) {
                let own = image.config(kind, name).cloned().unwrap_or_default();
                partition.log.update_config(layers.log_config(&own));
                partition.log.set_producer_limits(limits);
                partition.set_min_in_sync(layers.min_in_sync(&own));
                self.take_throttled(&layers, &partition, &own);
            }
        }
    }

    fn take_throttled(&self, layers: &Layers<'_>, partition: &Partition, own: &ConfigMap) {
        let leader = layers.topic_value("leader.replication.throttled.replicas", own);
        let follower = layers.topic_value("follower.replication.throttled.replicas", own);
        self.set_throttled(partition, &leader, &follower);
    }

    /// Ends a partition whose topic is deleted: whoever waits is answered, the directory gets its
    /// doomed name now and goes after `file.delete.delay.ms`.
    async fn take_down(self: &Rc<Self>, partition: &Rc<Partition>) {
        self.remove_partition(partition.id);
        partition.mark_gone();
        self.unfollow(partition, None);
        self.end_move(partition.id).await;
        self.check_waiting(partition.id, true);
        self.stop_coordinating(partition);
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

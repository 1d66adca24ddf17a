//! The log directories of the process: taken at its start, given up one by one when they fail. On
//! the control executor, which alone writes their checkpoints and markers. Never opens a
//! partition's log; never retries a directory that has failed.
//!
//! As in Kafka a directory that cannot be used is offline and the others serve; without one that
//! can be used, or without the one of the metadata log, the broker does not run.

use super::apply::{DirFacts, Directories};
use crate::cluster::Image;
use crate::config::BrokerConfig;
use crate::config::layers::Layers;
use crate::log::dir::{DirError, LogDir, MetaProperties};
use crate::log::journal::Journals;
use crate::log::names::PartitionDir;
use crate::log::{LogError, SegmentIo};
use crate::replica::relocation::{Remains, Verdict};
use crate::rt;
use crate::types::{NodeId, Uuid};
use ahash::{AHashMap, AHashSet};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why the broker cannot run with the directories there are; one line for a person.
#[derive(Debug, thiserror::Error)]
pub enum DirectoriesError {
    #[error(transparent)]
    Directory(#[from] DirError),
    #[error("{0}")]
    Unusable(String),
}

fn unusable<T>(why: String) -> Result<T, DirectoriesError> {
    Err(DirectoriesError::Unusable(why))
}

/// Whether the settings ask for what the directory's file system has not.
async fn refuses_direct(config: &BrokerConfig, dir: &LogDir) -> Result<bool, DirError> {
    let layers = Layers {
        config,
        broker: None,
        cluster: None,
    };
    let wanted = layers.log_config(&BTreeMap::new()).segment_io == SegmentIo::Direct;
    if !wanted {
        return Ok(false);
    }
    match dir.takes_direct_io().await {
        Ok(takes) => Ok(!takes),
        // Logs know how to wait for space.
        Err(error) if error.is_no_space() => Ok(false),
        Err(error) => Err(error),
    }
}

/// One entry of `log.dirs`.
struct Entry {
    path: PathBuf,
    /// Locked as long as the process lives, also after a failure: what was under way may still
    /// reach it. `None` if it could not be locked.
    dir: Option<LogDir>,
    /// `directory.id`, once read.
    id: Cell<Option<Uuid>>,
    failure: RefCell<Option<LogError>>,
}

impl Entry {
    fn online(&self) -> Option<&LogDir> {
        self.dir
            .as_ref()
            .filter(|_| self.failure.borrow().is_none())
    }

    fn give_up(&self, error: &DirError) {
        tracing::error!(dir = %self.path.display(), %error, "log directory is offline");
        *self.failure.borrow_mut() = Some(error.as_log_error());
    }
}

/// See the module's words.
pub struct LogDirs {
    entries: Vec<Entry>,
    metadata_dir: PathBuf,
}

impl LogDirs {
    /// Makes and locks every directory of the settings.
    pub async fn take(config: &BrokerConfig) -> Result<LogDirs, DirectoriesError> {
        let mut entries = Vec::with_capacity(config.log_dirs.len());
        for path in &config.log_dirs {
            let locked = LogDir::lock(path).await;
            let (dir, failed) = match locked {
                Ok(dir) => {
                    let refused = refuses_direct(config, &dir).await;
                    if let Ok(true) = refused {
                        return unusable(format!(
                            "{}: highwater.segment.io=direct, but its file system has no O_DIRECT",
                            path.display()
                        ));
                    }
                    (Some(dir), refused.err())
                }
                // Somebody else's is no failed disk: two brokers on one directory end both.
                Err(error @ DirError::Locked { .. }) => return Err(error.into()),
                Err(error) => (None, Some(error)),
            };
            let entry = Entry {
                path: path.clone(),
                dir,
                id: Cell::new(None),
                failure: RefCell::new(None),
            };
            if let Some(error) = failed {
                entry.give_up(&error);
            }
            entries.push(entry);
        }
        let dirs = LogDirs {
            entries,
            metadata_dir: config.metadata_log_dir.clone(),
        };
        dirs.check()?;
        Ok(dirs)
    }

    /// Reads the directories' identities, and gives one to those that have none: a node alone
    /// formats itself. Returns the cluster's id.
    pub async fn identify(&self, config: &BrokerConfig) -> Result<String, DirectoriesError> {
        let mut metas = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let Some(dir) = entry.online() else { continue };
            match dir.read_meta().await {
                Ok(meta) => metas.push((entry, dir, meta)),
                Err(error) => entry.give_up(&error),
            }
        }
        self.check()?;
        let known = metas.iter().find_map(|(_, _, meta)| meta.as_ref());
        let cluster_id = match known {
            Some(meta) => meta.cluster_id.clone(),
            None if metas.len() < self.entries.len() => {
                return unusable(
                    "no readable meta.properties: the directories that are offline may belong to a cluster"
                        .into(),
                );
            }
            None if !config.quorum.is_alone(config.node_id) => {
                return unusable(format!(
                    "{} is not formatted: a node of a cluster gets its identity from `highwater format`",
                    self.entries[0].path.display()
                ));
            }
            None => {
                let mut bytes = [0; 16];
                rt::fill_random(&mut bytes);
                Uuid(bytes).to_string()
            }
        };
        let mut ids = AHashSet::new();
        for (entry, dir, meta) in metas {
            let meta = match meta {
                Some(meta) => meta,
                None => {
                    let meta = MetaProperties::generate(cluster_id.clone(), config.node_id);
                    if let Err(error) = dir.write_meta(&meta).await {
                        entry.give_up(&error);
                        continue;
                    }
                    meta
                }
            };
            let path = entry.path.display();
            if meta.cluster_id != cluster_id {
                return unusable(format!(
                    "{path}: meta.properties belongs to cluster {}, other directories to {cluster_id}",
                    meta.cluster_id
                ));
            }
            if meta.node_id != config.node_id {
                return unusable(format!(
                    "{path}: meta.properties belongs to node {}, node.id is {}",
                    meta.node_id.0, config.node_id.0
                ));
            }
            if !ids.insert(meta.directory_id) {
                return unusable(format!(
                    "{path}: directory.id {} is also that of another directory: one is a copy",
                    meta.directory_id
                ));
            }
            entry.id.set(Some(meta.directory_id));
        }
        self.check()?;
        Ok(cluster_id)
    }

    /// What the shards must know of the directories. Leftovers of deleted topics go; partitions that
    /// the metadata does not know, or that have no replica here any more, are set aside as stray.
    pub async fn read(&self, image: &Image, node: NodeId) -> Result<Directories, DirectoriesError> {
        let mut read = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let (Some(dir), Some(id)) = (entry.online(), entry.id.get()) else {
                continue;
            };
            match read_one(dir, id, image, node).await {
                Ok(facts) => read.push((entry, facts)),
                Err(error) => entry.give_up(&error),
            }
        }
        let some_offline = self.entries.iter().any(|entry| entry.online().is_none());
        self.settle_moves(&mut read, image, node, some_offline)
            .await;
        read.retain(|(entry, _)| entry.online().is_some());
        let online = read.into_iter().map(|(_, facts)| facts).collect();
        self.check()?;
        Ok(Directories {
            online,
            offline: self.offline(),
        })
    }

    /// Of every partition that was on its way from one directory to another one log is left, and at
    /// most one copy.
    async fn settle_moves(
        &self,
        read: &mut [(&Entry, DirFacts)],
        image: &Image,
        node: NodeId,
        some_offline: bool,
    ) {
        let mut keys: BTreeSet<(String, i32)> = BTreeSet::new();
        let mut seen: AHashSet<(String, i32)> = AHashSet::new();
        for (_, facts) in read.iter() {
            keys.extend(facts.futures.keys().cloned());
            let twice = facts
                .present
                .keys()
                .filter(|key| !seen.insert((*key).clone()));
            keys.extend(twice.cloned());
        }
        for key in keys {
            let places = |holds: &dyn Fn(&DirFacts) -> bool| -> Vec<usize> {
                let all = read.iter().enumerate();
                all.filter(|(_, (_, facts))| holds(facts))
                    .map(|(place, _)| place)
                    .collect()
            };
            let topic = image.topic_by_name(&key.0);
            let registered = topic.and_then(|topic| topic.partition(key.1));
            let registered = registered.map(|partition| partition.directory(node));
            let remains = Remains {
                named: &places(&|facts| facts.present.contains_key(&key)),
                copies: &places(&|facts| facts.futures.contains_key(&key)),
                registered: places(&|facts| Some(facts.id) == registered)
                    .first()
                    .copied(),
                some_offline,
            };
            let verdict = remains.verdict();
            for (place, (entry, facts)) in read.iter_mut().enumerate() {
                if let Some(dir) = entry.online()
                    && let Err(error) = settle_move(dir, facts, &key, place, &verdict).await
                {
                    entry.give_up(&error);
                }
            }
        }
    }

    /// The broker runs while there is a directory, and that of the metadata log.
    pub fn check(&self) -> Result<(), DirectoriesError> {
        let failed = |path: &Path| {
            let entry = self.entries.iter().find(|entry| entry.path == path)?;
            entry.failure.borrow().clone()
        };
        if let Some(cause) = failed(&self.metadata_dir) {
            return unusable(format!(
                "the metadata log directory {} has failed, the broker cannot go on: {cause}",
                self.metadata_dir.display()
            ));
        }
        if self.entries.iter().all(|entry| entry.online().is_none()) {
            let all: Vec<String> = self
                .entries
                .iter()
                .map(|entry| entry.path.display().to_string())
                .collect();
            return unusable(format!("all log dirs in {} have failed", all.join(", ")));
        }
        Ok(())
    }

    /// Takes a directory offline; false if it was, or is none of ours.
    pub fn fail(&self, path: &Path, cause: &LogError) -> bool {
        let entry = self.entries.iter().find(|entry| entry.path == path);
        let Some(entry) = entry.filter(|entry| entry.online().is_some()) else {
            return false;
        };
        *entry.failure.borrow_mut() = Some(cause.clone());
        true
    }

    pub fn is_offline(&self, path: &Path) -> bool {
        self.online().all(|dir| dir.path() != path)
    }

    pub fn online(&self) -> impl Iterator<Item = &LogDir> {
        self.entries.iter().filter_map(Entry::online)
    }

    /// `directory.id` of those online.
    pub fn online_ids(&self) -> Vec<Uuid> {
        let online = self.entries.iter().filter(|entry| entry.online().is_some());
        online.filter_map(|entry| entry.id.get()).collect()
    }

    /// `directory.id` of the one with the metadata log; zero if that is none of `log.dirs`.
    pub fn metadata_id(&self) -> Uuid {
        let entry = self
            .entries
            .iter()
            .find(|entry| entry.path == self.metadata_dir);
        entry.and_then(|entry| entry.id.get()).unwrap_or(Uuid::ZERO)
    }

    /// `directory.id` of those that have failed, as far as it is known.
    pub fn offline_ids(&self) -> Vec<Uuid> {
        let offline = self.entries.iter().filter(|entry| entry.online().is_none());
        offline.filter_map(|entry| entry.id.get()).collect()
    }

    /// The broker epoch under which every directory was closed cleanly; -1 if one was not, or not
    /// together with the others.
    pub async fn previous_epoch(&self) -> i64 {
        let mut epochs = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let marker = match entry.online() {
                Some(dir) => dir.read_clean_marker().await.ok().flatten(),
                None => None,
            };
            epochs.push(marker.and_then(|marker| marker.broker_epoch).unwrap_or(-1));
        }
        match epochs.first() {
            Some(first) if epochs.iter().all(|epoch| epoch == first) => *first,
            _ => -1,
        }
    }

    /// Every directory, and whether it is offline.
    pub fn states(&self) -> impl Iterator<Item = (&Path, bool)> {
        self.entries
            .iter()
            .map(|entry| (entry.path.as_path(), entry.online().is_none()))
    }

    fn offline(&self) -> Vec<(PathBuf, LogError)> {
        let offline = self.entries.iter().filter_map(|entry| {
            let cause = entry.failure.borrow().clone()?;
            Some((entry.path.clone(), cause))
        });
        offline.collect()
    }
}

impl Directories {
    /// The partitions of which only a copy on its way is here.
    pub fn hidden(&self) -> AHashSet<(String, i32)> {
        let copies = self.online.iter().flat_map(|dir| dir.futures.keys());
        let lies =
            |key: &(String, i32)| self.online.iter().any(|dir| dir.present.contains_key(key));
        copies.filter(|key| !lies(key)).cloned().collect()
    }

    /// Where each partition lies, by `directory.id`.
    pub fn found(&self) -> AHashMap<(String, i32), Uuid> {
        let all = self.online.iter();
        all.flat_map(|dir| dir.present.keys().map(|key| (key.clone(), dir.id)))
            .collect()
    }
}

/// Carries out what was decided of a partition, in one directory.
async fn settle_move(
    dir: &LogDir,
    facts: &mut DirFacts,
    key: &(String, i32),
    place: usize,
    verdict: &Verdict,
) -> Result<(), DirError> {
    let (topic, partition) = (&key.0, key.1);
    let path = dir.path().display();
    if verdict.aside.contains(&place) {
        let aside = dir.make_stray(topic, partition).await?;
        tracing::warn!(dir = %path, topic, partition, aside, "partition has moved to another directory, set aside");
        facts.present.remove(key);
    }
    if verdict.promote == Some(place)
        && let Some((topic_id, copy)) = facts.futures.remove(key)
    {
        tracing::warn!(dir = %path, topic, partition, "partition is nowhere, its copy takes its place");
        dir.promote(&copy, topic, partition).await?;
        facts.present.insert(key.clone(), topic_id);
    }
    if verdict.delete.contains(&place)
        && let Some((_, copy)) = facts.futures.remove(key)
    {
        tracing::info!(dir = %path, copy, "copy that nobody goes on with removed");
        dir.remove_copy(&copy).await?;
    }
    Ok(())
}

async fn read_one(
    dir: &LogDir,
    id: Uuid,
    image: &Image,
    node: NodeId,
) -> Result<DirFacts, DirError> {
    let clean = dir.take_clean_marker().await?.is_some();
    let removed = dir.remove_doomed().await?;
    if removed > 0 {
        tracing::info!(dir = %dir.path().display(), removed, "directories of deleted topics removed");
    }
    let mut checkpoints = dir.read_checkpoints().await?;
    let mut present = AHashMap::new();
    let mut futures: AHashMap<(String, i32), (Uuid, String)> = AHashMap::new();
    let (mut names, mut kinds) = (Vec::new(), Vec::new());
    for (name, kind) in dir.partitions().await? {
        if matches!(
            kind,
            PartitionDir::Live { .. } | PartitionDir::Future { .. }
        ) {
            names.push(name);
            kinds.push(kind);
        }
    }
    let topic_ids = dir.topic_ids_of(&names).await?;
    // The topic of that name, if it has a replica of the partition here.
    let topic_here = |name: &str, partition: i32| {
        image.topic_by_name(name).filter(|topic| {
            let registered = topic.partition(partition);
            registered.is_some_and(|registered| registered.replicas.contains(&node))
        })
    };
    for ((name, topic_id), kind) in names.into_iter().zip(topic_ids).zip(kinds) {
        let (topic, partition) = match kind {
            PartitionDir::Live { topic, partition } => (topic, partition),
            PartitionDir::Future { topic, partition } => {
                let key = (topic, partition);
                let known = topic_here(&key.0, partition);
                match known.filter(|known| topic_id == Some(known.id)) {
                    Some(known) if !futures.contains_key(&key) => {
                        futures.insert(key, (known.id, name));
                    }
                    // Only a copy, and of nothing that there is.
                    _ => dir.remove_copy(&name).await?,
                }
                continue;
            }
            _ => continue,
        };
        let known =
            topic_here(&topic, partition).filter(|known| topic_id.is_none_or(|id| id == known.id));
        if let Some(known) = known {
            present.insert((topic, partition), known.id);
            continue;
        }
        match dir.make_stray(&topic, partition).await {
            Ok(aside) => {
                tracing::warn!(dir = %dir.path().display(), name, aside, "no replica of this broker, set aside");
            }
            // A full disk may have no room for the new name; the next start tries again.
            Err(error) if error.is_no_space() => {
                tracing::warn!(dir = %dir.path().display(), name, %error, "no replica of this broker");
            }
            Err(error) => return Err(error),
        }
    }
    // A partition that is made here later shall not find what was noted of one that had its name.
    let is_here = |key: &(String, i32)| present.contains_key(key) || futures.contains_key(key);
    match dir.forget_others(&mut checkpoints, is_here).await {
        // The next checkpoint that there is room for leaves them out.
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "checkpoints not written for lack of space");
        }
        other => other?,
    }
    let path = dir.path();
    let journals = Journals::read(path).await.map_err(|source| DirError::Io {
        what: "read the journals",
        path: path.to_owned(),
        source,
    })?;
    Ok(DirFacts {
        journals: Arc::new(journals),
        id,
        path: dir.path().to_owned(),
        clean,
        checkpoints,
        present,
        futures,
    })
}

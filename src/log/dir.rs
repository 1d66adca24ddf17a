//! Owns one log directory (an entry of `log.dirs`): its lock, identity, clean-shutdown marker,
//! checkpoint files and the list of what lies in it. On the control executor, or on the shard
//! that writes the directory's checkpoints. It never opens a partition's log.

use std::io;
use std::path::{Path, PathBuf};

use crate::rt;
use crate::rt::fs::OpenOptions;
use crate::types::{NodeId, Offset, Uuid};

use super::checkpoint::{self, OffsetMap};
use super::error::LogError;
use super::names::{self, PartitionDir};
use super::write_queue::is_no_space;

const LOCK_FILE: &str = ".lock";
const META_FILE: &str = "meta.properties";
const CLEAN_SHUTDOWN_FILE: &str = ".kafka_cleanshutdown";

/// What went wrong with a directory as a whole.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    #[error("{} is in use by another process: {source}", path.display())]
    Locked { path: PathBuf, source: io::Error },
    #[error("{what} of {}: {source}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}: {reason}", path.display())]
    Meta { path: PathBuf, reason: String },
}

impl DirError {
    /// The file system is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, DirError::Io { source, .. } if is_no_space(source))
    }

    /// As the failure of the directory's logs.
    pub fn as_log_error(&self) -> LogError {
        let (path, source) = match self {
            DirError::Locked { path, source } | DirError::Io { path, source, .. } => {
                (path, io::Error::new(source.kind(), source.to_string()))
            }
            DirError::Meta { path, reason } => (path, io::Error::other(reason.clone())),
        };
        let what = match self {
            DirError::Io { what, .. } => what,
            _ => "use",
        };
        LogError::storage(what, path.clone(), source)
    }
}

/// `meta.properties`, version 1 (KIP-858).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaProperties {
    pub cluster_id: String,
    pub node_id: NodeId,
    pub directory_id: Uuid,
}

/// The marker of a clean stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanShutdown {
    /// The broker epoch that was stopped; `None` for a marker that does not say.
    pub broker_epoch: Option<i64>,
}

/// The offset checkpoints that brokers keep per directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoints {
    pub recovery_point: OffsetMap,
    pub high_watermark: OffsetMap,
    pub log_start: OffsetMap,
    pub cleaner: OffsetMap,
}

/// What one shard knows about one log, for whoever writes the directory's checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFacts {
    pub topic: String,
    pub partition: i32,
    pub recovery_point: Offset,
    /// `None` while the log start is the first segment's base: Kafka leaves such logs out.
    pub log_start: Option<Offset>,
    /// Where the log is dirty from; `None` while it was never compacted.
    pub first_dirty: Option<Offset>,
}

/// A locked log directory.
pub struct LogDir {
    path: PathBuf,
    /// Held until the directory is dropped; the kernel releases it with the process.
    _lock: rt::fs::FileLock,
}

impl LogDir {
    /// Creates the directory where it is missing and takes its lock.
    pub async fn lock(path: &Path) -> Result<LogDir, DirError> {
        let io = |what| {
            move |source| DirError::Io {
                what,
                path: path.to_owned(),
                source,
            }
        };
        rt::fs::create_dir_all(path).await.map_err(io("create"))?;
        if let Some(parent) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            rt::fs::sync_dir(parent).await.map_err(io("sync"))?;
        }
        let lock = rt::fs::lock_file(&path.join(LOCK_FILE))
            .await
            .map_err(|source| {
                if source.kind() == io::ErrorKind::WouldBlock {
                    DirError::Locked {
                        path: path.to_owned(),
                        source,
                    }
                } else {
                    DirError::Io {
                        what: "lock",
                        path: path.to_owned(),
                        source,
                    }
                }
            })?;
        Ok(LogDir {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Whether files here can be written with O_DIRECT.
    ///
    /// # Errors
    /// No file can be made.
    pub async fn takes_direct_io(&self) -> Result<bool, DirError> {
        let path = self.path.join(names::DIRECT_IO_PROBE);
        let opened = rt::fs::File::open(&path, OpenOptions::CREATE.direct()).await;
        let takes = match opened {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => false,
            Err(source) => {
                let what = "write to";
                return Err(DirError::Io { what, path, source });
            }
        };
        match rt::fs::remove_file(&path).await {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                let what = "remove a file of";
                Err(DirError::Io { what, path, source })
            }
            _ => Ok(takes),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory's identity; `None` if it was never formatted.
    pub async fn read_meta(&self) -> Result<Option<MetaProperties>, DirError> {
        let path = self.path.join(META_FILE);
        match rt::fs::read(&path).await {
            Ok(bytes) => MetaProperties::decode(&bytes)
                .map(Some)
                .map_err(|reason| DirError::Meta { path, reason }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DirError::Io {
                what: "read",
                path,
                source,
            }),
        }
    }

    pub async fn write_meta(&self, meta: &MetaProperties) -> Result<(), DirError> {
        self.write(META_FILE, meta.encode()).await
    }

    /// The clean-shutdown marker, if there is one.
    pub async fn read_clean_marker(&self) -> Result<Option<CleanShutdown>, DirError> {
        let path = self.path.join(CLEAN_SHUTDOWN_FILE);
        match rt::fs::read(&path).await {
            Ok(bytes) => Ok(Some(decode_clean_marker(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DirError::Io {
                what: "read",
                path,
                source,
            }),
        }
    }

    /// Reads and removes the clean-shutdown marker. It must be gone before any log is opened:
    /// a crash from here on is an unclean stop.
    pub async fn take_clean_marker(&self) -> Result<Option<CleanShutdown>, DirError> {
        let Some(marker) = self.read_clean_marker().await? else {
            return Ok(None);
        };
        let path = self.path.join(CLEAN_SHUTDOWN_FILE);
        let io = |what| {
            let path = path.clone();
            move |source| DirError::Io { what, path, source }
        };
        rt::fs::remove_file(&path).await.map_err(io("remove"))?;
        rt::fs::sync_dir(&self.path).await.map_err(io("sync"))?;
        Ok(Some(marker))
    }

    /// Written last on a clean stop, after every log of the directory was closed.
    pub async fn write_clean_marker(&self, broker_epoch: i64) -> Result<(), DirError> {
        let text = format!("{{\"version\":0,\"brokerEpoch\":{broker_epoch}}}");
        self.write(CLEAN_SHUTDOWN_FILE, text.into_bytes()).await
    }

    /// Reads the checkpoints; a missing or damaged one counts as empty.
    pub async fn read_checkpoints(&self) -> Result<Checkpoints, DirError> {
        let read = async |name: &'static str| {
            let path = self.path.join(name);
            checkpoint::read(&path)
                .await
                .map_err(|source| DirError::Io {
                    what: "read",
                    path,
                    source,
                })
        };
        Ok(Checkpoints {
            recovery_point: read(checkpoint::RECOVERY_POINT).await?,
            high_watermark: read(checkpoint::HIGH_WATERMARK).await?,
            log_start: read(checkpoint::LOG_START).await?,
            cleaner: read(checkpoint::CLEANER).await?,
        })
    }

    /// Writes the recovery-point, log-start and cleaner checkpoints from what all shards reported.
    pub async fn write_log_checkpoints(
        &self,
        facts: impl IntoIterator<Item = CheckpointFacts>,
    ) -> Result<(), DirError> {
        let (mut recovery, mut start) = (OffsetMap::new(), OffsetMap::new());
        let mut dirty = OffsetMap::new();
        for fact in facts {
            let key = (fact.topic, fact.partition);
            if let Some(log_start) = fact.log_start {
                start.insert(key.clone(), log_start);
            }
            if let Some(first_dirty) = fact.first_dirty {
                dirty.insert(key.clone(), first_dirty);
            }
            recovery.insert(key, fact.recovery_point);
        }
        self.write(checkpoint::RECOVERY_POINT, checkpoint::encode(&recovery))
            .await?;
        self.write(checkpoint::LOG_START, checkpoint::encode(&start))
            .await?;
        self.write(checkpoint::CLEANER, checkpoint::encode(&dirty))
            .await
    }

    /// Takes what is said of partitions that are not here out of the checkpoints and their files.
    pub async fn forget_others(
        &self,
        checkpoints: &mut Checkpoints,
        is_here: impl Fn(&(String, i32)) -> bool,
    ) -> Result<(), DirError> {
        for (name, offsets) in [
            (checkpoint::RECOVERY_POINT, &mut checkpoints.recovery_point),
            (checkpoint::HIGH_WATERMARK, &mut checkpoints.high_watermark),
            (checkpoint::LOG_START, &mut checkpoints.log_start),
            (checkpoint::CLEANER, &mut checkpoints.cleaner),
        ] {
            let before = offsets.len();
            offsets.retain(|key, _| is_here(key));
            if offsets.len() < before {
                self.write(name, checkpoint::encode(offsets)).await?;
            }
        }
        Ok(())
    }

    /// Writes the high-watermark checkpoint from what all shards reported.
    pub async fn write_high_watermarks(&self, marks: &OffsetMap) -> Result<(), DirError> {
        self.write(checkpoint::HIGH_WATERMARK, checkpoint::encode(marks))
            .await
    }

    /// The partition directories that lie here, by name; what is no partition is left out.
    pub async fn partitions(&self) -> Result<Vec<(String, PartitionDir)>, DirError> {
        let io = |source| DirError::Io {
            what: "list",
            path: self.path.clone(),
            source,
        };
        let mut found = Vec::new();
        for entry in rt::fs::read_dir(&self.path).await.map_err(io)? {
            let reserved = entry.name == names::METADATA_TOPIC_DIR
                || entry.name == names::REMOTE_INDEX_CACHE_DIR;
            if !entry.is_dir || reserved {
                continue;
            }
            if let Some(dir) = names::parse_partition_dir(&entry.name) {
                found.push((entry.name, dir));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// Removes what an earlier life had doomed (`-delete`). Returns how many directories went.
    pub async fn remove_doomed(&self) -> Result<usize, DirError> {
        let mut removed = 0;
        for (name, dir) in self.partitions().await? {
            if dir == PartitionDir::Delete {
                let path = self.path.join(name);
                rt::fs::remove_dir_all(&path)
                    .await
                    .map_err(|source| DirError::Io {
                        what: "remove",
                        path: path.clone(),
                        source,
                    })?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// The topic ids that partition directories were created for, in their order; `None` for one
    /// that does not say.
    pub async fn topic_ids_of(&self, dir_names: &[String]) -> Result<Vec<Option<Uuid>>, DirError> {
        let names = dir_names.iter();
        let paths: Vec<PathBuf> = names
            .map(|name| self.path.join(name).join(names::PARTITION_METADATA))
            .collect();
        let read = rt::fs::read_many(paths.clone()).await;
        let ids = read.into_iter().zip(paths).map(|(read, path)| match read {
            Ok(bytes) => match checkpoint::decode_partition_metadata(&bytes) {
                Ok(id) => Ok(Some(id)),
                Err(error) => Err(DirError::Meta {
                    path,
                    reason: error.to_string(),
                }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DirError::Io {
                what: "read",
                path,
                source,
            }),
        });
        ids.collect()
    }

    /// Sets a partition directory aside because this broker is no replica of it. Returns the new
    /// name.
    pub async fn make_stray(&self, topic: &str, partition: i32) -> Result<String, DirError> {
        let from = self.path.join(names::partition_dir(topic, partition));
        let name = names::stray_dir(topic, partition, random_id());
        let io = |source| DirError::Io {
            what: "rename",
            path: from.clone(),
            source,
        };
        rt::fs::rename(&from, &self.path.join(&name))
            .await
            .map_err(io)?;
        rt::fs::sync_dir(&self.path).await.map_err(io)?;
        Ok(name)
    }

    /// Gives the copy of a partition, which has no other log, the partition's name.
    pub async fn promote(&self, copy: &str, topic: &str, partition: i32) -> Result<(), DirError> {
        let from = self.path.join(copy);
        let to = self.path.join(names::partition_dir(topic, partition));
        let renamed = super::relocate::rename_dir(&from, &to).await;
        renamed.map_err(|source| DirError::Io {
            what: "rename",
            path: from,
            source,
        })
    }

    /// Removes the copy of a partition that nobody goes on with.
    pub async fn remove_copy(&self, copy: &str) -> Result<(), DirError> {
        let path = self.path.join(copy);
        let removed = rt::fs::remove_dir_all(&path).await;
        removed.map_err(|source| DirError::Io {
            what: "remove",
            path,
            source,
        })
    }

    async fn write(&self, name: &str, bytes: Vec<u8>) -> Result<(), DirError> {
        let path = self.path.join(name);
        checkpoint::write_atomic(&path, bytes)
            .await
            .map_err(|source| DirError::Io {
                what: "write",
                path,
                source,
            })
    }
}

impl MetaProperties {
    /// An identity for a directory that has none: a fresh directory id that is none of Kafka's
    /// reserved ones and does not begin with a dash (it would read as an option).
    pub fn generate(cluster_id: String, node_id: NodeId) -> MetaProperties {
        let directory_id = loop {
            let id = random_id();
            let reserved = id.0[..15].iter().all(|&b| b == 0);
            if !reserved && !id.to_string().starts_with('-') {
                break id;
            }
        };
        MetaProperties {
            cluster_id,
            node_id,
            directory_id,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        format!(
            "#\n#\ncluster.id={}\ndirectory.id={}\nnode.id={}\nversion=1\n",
            self.cluster_id, self.directory_id, self.node_id.0
        )
        .into_bytes()
    }

    /// Reads Java properties text; version 0 files (with `broker.id`) are refused.
    pub fn decode(bytes: &[u8]) -> Result<MetaProperties, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
        let value = |name: &str| {
            text.lines()
                .map(str::trim)
                .filter(|l| !l.starts_with(['#', '!']))
                .find_map(|line| {
                    let (key, value) = line.split_once(['=', ':'])?;
                    (key.trim() == name).then(|| value.trim().replace('\\', ""))
                })
        };
        let required = |name: &str| value(name).ok_or_else(|| format!("{name} is missing"));
        let version = required("version")?;
        if version != "1" {
            return Err(format!("version {version} is not supported, only 1 is"));
        }
        let node_id = required("node.id")?;
        let directory_id = required("directory.id")?;
        Ok(MetaProperties {
            cluster_id: required("cluster.id")?,
            node_id: NodeId(
                node_id
                    .parse()
                    .map_err(|_| format!("node.id is {node_id:?}"))?,
            ),
            directory_id: Uuid::parse(&directory_id)
                .ok_or_else(|| format!("directory.id is {directory_id:?}"))?,
        })
    }
}

/// An empty or unparsable marker (older brokers wrote such) still says "clean".
fn decode_clean_marker(bytes: &[u8]) -> CleanShutdown {
    let broker_epoch = serde_json::from_slice::<serde_json::Value>(bytes)
        .ok()
        .and_then(|json| json.get("brokerEpoch").and_then(serde_json::Value::as_i64));
    CleanShutdown { broker_epoch }
}

/// A random (version 4) id.
pub fn random_id() -> Uuid {
    let mut bytes = [0; 16];
    rt::fill_random(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_written_by_java_reads_back() {
        let text = b"#\n#Sun Nov 29 15:00:00 UTC 2026\nnode.id=3\ndirectory.id=AAAAAAAAAAEAAAAAAAAACQ\nversion=1\ncluster.id=x\\:y\n";
        let meta = MetaProperties::decode(text).unwrap();
        assert_eq!(meta.node_id, NodeId(3));
        assert_eq!(meta.cluster_id, "x:y");
        assert_eq!(meta.directory_id, Uuid::from_halves(1, 9));
        let again = MetaProperties {
            cluster_id: "abc".into(),
            ..meta
        };
        assert_eq!(MetaProperties::decode(&again.encode()), Ok(again));
    }

    #[test]
    fn an_identity_of_another_version_or_without_a_field_is_refused() {
        assert!(MetaProperties::decode(b"version=0\nbroker.id=1\n").is_err());
        let error = MetaProperties::decode(b"version=1\ncluster.id=a\nnode.id=1\n").unwrap_err();
        assert_eq!(error, "directory.id is missing");
        let text = b"version=1\ncluster.id=a\nnode.id=one\ndirectory.id=AAAAAAAAAAEAAAAAAAAACQ";
        assert!(MetaProperties::decode(text).is_err());
    }

    #[test]
    fn an_unreadable_marker_still_means_clean() {
        let marker = decode_clean_marker(b"{\"version\":0,\"brokerEpoch\":17}");
        assert_eq!(marker.broker_epoch, Some(17));
        assert_eq!(decode_clean_marker(b"").broker_epoch, None);
        assert_eq!(decode_clean_marker(b"\x00junk").broker_epoch, None);
    }
}

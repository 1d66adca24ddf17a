//! Owns what the journals of a directory say after an unclean stop: reading them, knowing which logs
//! have not taken back yet what is said of them, and removing the files when none is left. Control
//! reads them, once, before any log is opened; after that the shards share it, each for its own logs.
//! It never changes a log.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::{AHashMap, AHashSet};
use bytes::{Bytes, BytesMut};

use crate::rt;
use crate::rt::fs::{File, OpenOptions};
use crate::types::{PartitionId, Uuid};

use super::file::parse_name;
use super::frame::{self, BLOCK_BYTES, Entry};
use super::replay::Replay;

/// Piece of a journal that is read at once.
const READ_BYTES: usize = 1 << 20;

/// Largest file that is taken for a journal: more than the setting allows to make.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// What the journals of one directory say. The files stay until every log that they say something
/// of has it in its segments, flushed: also those that a full disk lets open only later. A log that
/// is cut while they stay notes first that they say nothing of it any more.
#[derive(Debug, Default)]
pub struct Journals {
    /// Shared by the shards; taken when a log is opened or cut, and never for long.
    owed: Mutex<Owed>,
    /// By the journals' ids, oldest first.
    files: Vec<(Uuid, PathBuf)>,
    turn: u64,
    /// A shard makes its new journal, see [`Journals::begin_making`].
    is_making: AtomicBool,
}

/// What has not been taken back yet.
#[derive(Debug, Default)]
struct Owed {
    /// Oldest first, with the journals that tell it.
    partitions: AHashMap<PartitionId, Arc<Vec<(Uuid, Entry)>>>,
    /// Logs that could not be opened, and are expected to be.
    late: AHashSet<PartitionId>,
    was_late: bool,
    /// All others were opened.
    started: bool,
    /// Whom the files say something of, taken back or not; empty once they are gone.
    told: AHashSet<PartitionId>,
    removed: bool,
    /// For good: their removal has reached the disk.
    gone: bool,
}

impl Journals {
    /// Reads every journal in `log_dir`.
    ///
    /// # Errors
    /// A file cannot be read. What is not a whole frame is no error: a torn last frame was never
    /// counted by anybody.
    pub async fn read(log_dir: &Path) -> io::Result<Journals> {
        let mut by_turn = BTreeMap::new();
        for entry in rt::fs::read_dir(log_dir).await? {
            if let Some((turn, id)) = parse_name(&entry.name) {
                by_turn.insert((turn, id), log_dir.join(&entry.name));
            }
        }
        let mut found = Journals::default();
        let mut partitions: AHashMap<_, Vec<_>> = AHashMap::new();
        for ((turn, id), path) in by_turn {
            found.turn = found.turn.max(turn);
            let bytes = read_whole(&path).await?;
            let mut frames = BTreeMap::new();
            let mut position = 0;
            while position < bytes.len() {
                let taken = match frame::decode(&bytes.slice(position..)) {
                    Some((stamp, entries, taken)) if stamp.journal == id => {
                        frames.insert(stamp.sequence, (stamp.needed_from, entries));
                        taken
                    }
                    _ => BLOCK_BYTES,
                };
                position += taken as usize;
            }
            let (frames, lost) = last_run(frames);
            tracing::info!(file = %path.display(), frames = frames.len(), "journal read");
            if !lost.is_empty() {
                tracing::error!(
                    file = %path.display(), first = lost.start, last = lost.end - 1,
                    "these frames of the journal are damaged, or were given up in its last moment: \
                     what they made durable may be lost"
                );
            }
            for entry in frames.into_iter().flatten() {
                let told = partitions.entry(entry.partition).or_default();
                // Not as a part of the whole file, which would stay in memory with it.
                told.push((id, entry.detached()));
            }
            found.files.push((id, path));
        }
        found.owed = Mutex::new(Owed {
            told: partitions.keys().copied().collect(),
            partitions: partitions
                .into_iter()
                .map(|(id, told)| (id, Arc::new(told)))
                .collect(),
            ..Owed::default()
        });
        Ok(found)
    }

    /// The highest turn of them; 0 if there is none.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Whether there were any at the start.
    pub fn are_there(&self) -> bool {
        !self.files.is_empty()
    }

    /// Their ids.
    pub(super) fn ids(&self) -> BTreeSet<Uuid> {
        self.files.iter().map(|(id, _)| *id).collect()
    }

    /// What they say of a partition, but for those that are `left` behind, until it is
    /// [`Journals::settled`].
    pub(super) fn of(&self, partition: PartitionId, left: &BTreeSet<Uuid>) -> Option<Replay> {
        let told = self.owed().partitions.get(&partition).cloned()?;
        let mut replay = None;
        for (journal, entry) in told.iter().filter(|(journal, _)| !left.contains(journal)) {
            let Some((_, path)) = self.files.iter().find(|(id, _)| id == journal) else {
                continue;
            };
            let replay: &mut Replay = replay.get_or_insert_default();
            replay.enter(entry.clone(), path);
        }
        replay
    }

    /// Whether a start after a crash would find them and what they say of a partition.
    pub(super) fn would_tell(&self, partition: PartitionId) -> bool {
        self.owed().told.contains(&partition)
    }

    /// Whether they say something of a partition that it has not taken back.
    pub fn mentions(&self, partition: PartitionId) -> bool {
        self.owed().partitions.contains_key(&partition)
    }

    /// Whether no start will find them any more, if there were any.
    pub(super) fn are_gone(&self) -> bool {
        self.files.is_empty() || self.owed().gone
    }

    pub(super) fn was_any_late(&self) -> bool {
        self.owed().was_late
    }

    /// Makes the shards look one after the other whether there is room for a new journal; false while
    /// another does.
    pub(super) fn begin_making(&self) -> bool {
        !self.is_making.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end_making(&self) {
        self.is_making.store(false, Ordering::Release);
    }

    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A log could not be opened: if they say something of it the files stay until it is
    /// [`Journals::settled`].
    pub fn expect(&self, partition: PartitionId) {
        let mut owed = self.owed();
        if owed.partitions.contains_key(&partition) {
            owed.late.insert(partition);
            owed.was_late = true;
        }
    }

    /// A log was opened, perhaps in another directory than this one.
    pub fn opened(&self, partition: PartitionId) {
        self.owed().late.remove(&partition);
    }

    /// What they say of a partition is in its segments and flushed, or nobody wants it any more.
    pub fn settled(&self, partition: PartitionId) {
        let mut owed = self.owed();
        owed.partitions.remove(&partition);
        owed.late.remove(&partition);
    }

    /// Every log was opened, but for those that are expected. What is said of others is of none
    /// that there is.
    ///
    /// # Errors
    /// The files cannot be removed.
    pub async fn started(&self) -> io::Result<()> {
        {
            let mut owed = self.owed();
            let Owed {
                partitions, late, ..
            } = &mut *owed;
            partitions.retain(|id, _| late.contains(id));
            owed.started = true;
        }
        self.remove_if_settled().await
    }

    /// Whether nobody is expected any more and the files are there.
    pub fn may_be_removed(&self) -> bool {
        let owed = self.owed();
        self.are_there() && owed.started && owed.late.is_empty() && !owed.removed
    }

    /// Removes the files once nobody is expected any more.
    ///
    /// # Errors
    /// They cannot be removed.
    pub async fn remove_if_settled(&self) -> io::Result<()> {
        {
            let mut owed = self.owed();
            if !owed.started || !owed.late.is_empty() || owed.removed {
                return Ok(());
            }
            owed.removed = true;
        }
        for (_, path) in &self.files {
            rt::fs::remove_file(path).await?;
        }
        if let Some(log_dir) = self.files.first().and_then(|(_, path)| path.parent()) {
            rt::fs::sync_dir(log_dir).await?;
        }
        let mut owed = self.owed();
        owed.told.clear();
        owed.gone = true;
        Ok(())
    }
}

async fn read_whole(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path, OpenOptions::READ).await?;
    let len = file.len()?;
    if len > FILE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: {len} bytes are no journal", path.display()),
        ));
    }
    let mut whole = BytesMut::with_capacity(len as usize);
    while (whole.len() as u64) < len {
        let bytes = file.read_at(whole.len() as u64, READ_BYTES).await?;
        if bytes.is_empty() {
            break;
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.freeze())
}

/// The longest unbroken run of frames that ends in the highest number, and the numbers of those
/// before it that the last one says are needed.
fn last_run(mut frames: BTreeMap<u64, (u64, Vec<Entry>)>) -> (Vec<Vec<Entry>>, Range<u64>) {
    let mut run = Vec::new();
    let mut needed_from = u64::MAX;
    let mut first = None;
    while let Some((sequence, (needed, entries))) = frames.pop_last() {
        if first.is_some_and(|first| sequence + 1 != first) {
            break;
        }
        if first.is_none() {
            needed_from = needed;
        }
        first = Some(sequence);
        run.push(entries);
    }
    run.reverse();
    let first = first.unwrap_or_default();
    (run, needed_from.min(first)..first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_unbroken_run_of_frames_counts_and_what_it_lacks_is_told() {
        let run = |sequences: &[u64], needed| {
            let frames = sequences.iter().map(|one| (*one, (needed, Vec::new())));
            let (run, lost) = last_run(frames.collect());
            (run.len(), lost)
        };
        assert_eq!(run(&[1, 2, 3, 5, 6], 5), (2, 5..5));
        assert_eq!(run(&[1, 2, 3, 5, 6], 2), (2, 2..5));
        assert_eq!(run(&[5, 6], 6), (2, 5..5));
        assert_eq!(run(&[], 0), (0, 0..0));
    }
}

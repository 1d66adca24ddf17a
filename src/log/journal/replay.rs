//! Owns what the journals of a directory say after an unclean stop, and how a log takes back what
//! its segments lack of it. Reading is control's, once, before any log is opened; taking back is
//! the log's shard's, while it opens the log. It never changes a record that a segment holds.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::{AHashMap, AHashSet};
use bytes::{Bytes, BytesMut};

use crate::rt;
use crate::rt::fs::{File, OpenOptions};
use crate::types::{Offset, PartitionId};
use crate::wire::batch::Batch;

use super::super::error::{LogError, StorageFailure};
use super::super::log::{Log, Status};
use super::file::parse_name;
use super::frame::{self, BLOCK_BYTES, Change, Entry};

/// Piece of a journal that is read at once.
const READ_BYTES: usize = 1 << 20;

/// Largest file that is taken for a journal: more than the setting allows to make.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// Bytes taken back between two looks at the writer, so that its queue stays short.
const REPLAY_AT_ONCE_BYTES: u64 = 8 << 20;

/// What the journals of one directory say. The files stay until every log that they say something
/// of has it in its segments, flushed: also those that a full disk lets open only later.
///
/// While they stay, what is cut of logs that are open is told to the new journal, if there is one: on a
/// full disk there may be none. A start after that may find such a log as it was before the cut: its
/// leader's epochs then tell it to cut again.
#[derive(Debug, Default)]
pub struct Journals {
    /// Shared by the shards, as each opens its logs; never on the path of a record.
    owed: Mutex<Owed>,
    files: Vec<PathBuf>,
    turn: u64,
}

/// What has not been taken back yet.
#[derive(Debug, Default)]
struct Owed {
    partitions: AHashMap<PartitionId, Arc<Replay>>,
    /// Logs that could not be opened, and are expected to be.
    late: AHashSet<PartitionId>,
    /// All others were opened.
    started: bool,
    removed: bool,
}

/// What the journals say of one partition, oldest first.
#[derive(Debug, Default)]
pub struct Replay {
    /// Nothing below counts.
    start: Option<Offset>,
    /// The log was emptied to begin here.
    over: Option<Offset>,
    batches: Vec<Batch>,
}

impl Journals {
    /// Reads every journal in `log_dir`.
    ///
    /// # Errors
    /// A file cannot be read. What is not a whole frame is no error: a torn last frame was never
    /// counted by anybody.
    pub async fn read(log_dir: &Path) -> io::Result<Journals> {
        let mut found = Journals::default();
        let mut partitions = AHashMap::new();
        let mut by_turn = BTreeMap::new();
        for entry in rt::fs::read_dir(log_dir).await? {
            if let Some((turn, id)) = parse_name(&entry.name) {
                by_turn.insert((turn, id), log_dir.join(&entry.name));
            }
        }
        for ((turn, id), path) in by_turn {
            found.turn = found.turn.max(turn);
            let bytes = read_whole(&path).await?;
            let mut frames = BTreeMap::new();
            let mut position = 0;
            while position < bytes.len() {
                let taken = match frame::decode(&bytes.slice(position..)) {
                    Some((stamp, entries, taken)) if stamp.journal == id => {
                        frames.insert(stamp.sequence, entries);
                        taken
                    }
                    _ => BLOCK_BYTES,
                };
                position += taken as usize;
            }
            let frames = last_run(frames);
            tracing::info!(file = %path.display(), frames = frames.len(), "journal read");
            for entry in frames.into_iter().flatten() {
                enter(&mut partitions, entry, &path);
            }
            found.files.push(path);
        }
        let partitions = partitions.into_iter();
        found.owed = Mutex::new(Owed {
            partitions: partitions
                .map(|(id, replay)| (id, Arc::new(replay)))
                .collect(),
            ..Owed::default()
        });
        Ok(found)
    }

    /// The highest turn of them; 0 if there is none.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// What they say of a partition, until it is [`Journals::settled`].
    pub(super) fn of(&self, partition: PartitionId) -> Option<Arc<Replay>> {
        self.owed().partitions.get(&partition).cloned()
    }

    /// Whether they say something of a partition that it has not taken back.
    pub fn mentions(&self, partition: PartitionId) -> bool {
        self.owed().partitions.contains_key(&partition)
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
        for path in &self.files {
            rt::fs::remove_file(path).await?;
        }
        match self.files.first().and_then(|path| path.parent()) {
            Some(log_dir) => rt::fs::sync_dir(log_dir).await,
            None => Ok(()),
        }
    }
}

fn enter(partitions: &mut AHashMap<PartitionId, Replay>, entry: Entry, path: &Path) {
    let Entry {
        partition, offset, ..
    } = entry;
    let replay = partitions.entry(partition).or_default();
    match entry.change {
        Change::Batches(parts) => {
            for part in parts {
                replay.take_batches(part, path);
            }
        }
        Change::Cut => replay.cut(offset),
        Change::StartOver => {
            replay.batches.clear();
            replay.start = Some(offset);
            replay.over = Some(offset);
        }
        Change::LogStart => {
            replay.batches.retain(|batch| batch.last_offset() >= offset);
            replay.start = replay.start.max(Some(offset));
        }
    }
}

impl Replay {
    fn take_batches(&mut self, mut bytes: Bytes, path: &Path) {
        while !bytes.is_empty() {
            let (batch, rest) = match Batch::parse(&bytes) {
                Ok(parsed) => parsed,
                Err(error) => {
                    // The frame's checksum holds: nothing but a fault of ours writes such bytes.
                    tracing::error!(file = %path.display(), %error, "journal holds what is no batch");
                    return;
                }
            };
            // A second telling of an offset can only follow a cut.
            self.cut(batch.base_offset());
            self.batches.push(batch);
            bytes = rest;
        }
    }

    fn cut(&mut self, offset: Offset) {
        while let Some(last) = self.batches.last()
            && last.last_offset() >= offset
        {
            self.batches.pop();
        }
    }
}

impl Log {
    /// Takes back what the journal says and the segments lack; the bytes appended. Called before
    /// anything else may append.
    ///
    /// Only what continues the log exactly is taken: a gap, or an epoch older than the log's
    /// last, means that the segments hold another history since.
    ///
    /// # Errors
    /// The storage.
    pub(in crate::log) async fn take_back_journal(&self, now_ms: i64) -> Result<u64, LogError> {
        self.taking_back.set(true);
        let taken = self.take_back(now_ms).await;
        self.taking_back.set(false);
        taken
    }

    async fn take_back(&self, now_ms: i64) -> Result<u64, LogError> {
        let log_dir = self.dir().parent().map(Path::to_owned).unwrap_or_default();
        let Some(left) = self.shard.journals.left_in(&log_dir) else {
            return Ok(0);
        };
        let Some(replay) = left.of(self.id()) else {
            return Ok(0);
        };
        // What a checkpoint told of the log start holds as well.
        let start = replay.start.unwrap_or_default().max(self.log_start());
        if let Some(over) = replay.over
            && self.log_start() < self.log_end()
            && self.log_end() <= over
        {
            // The files had not followed. A log start that is only moved may be forgotten, and what was
            // given up would be there again.
            self.truncate_fully_and_start_at(over).await?;
        }
        let (mut bytes, mut unwritten) = (0, 0);
        let mut upto = Offset::ZERO;
        for batch in &replay.batches {
            if self.log_end() < upto {
                self.check_holds(upto).await?;
            }
            let (base, end) = (batch.base_offset(), self.log_end());
            if batch.last_offset() < end {
                continue;
            }
            let is_empty = self.log_start() == end;
            if base != end && (is_empty || (base > end && base <= start)) {
                // Whatever is missing before it was deleted.
                self.truncate_fully_and_start_at(base).await?;
                upto = base;
            }
            let epoch = batch.partition_leader_epoch();
            let older = self.latest_epoch().is_some_and(|latest| epoch < latest);
            if base != self.log_end() || older {
                tracing::error!(
                    dir = %self.dir().display(), log_end = %end, batch = %base, epoch = epoch.0,
                    "the journal does not continue the log, the rest of it is not taken"
                );
                break;
            }
            let whole = batch.clone().into_bytes();
            if let Err(error) = self.append_as_follower(whole, epoch, now_ms) {
                self.check_holds(upto).await?;
                return Err(match error {
                    super::super::FollowError::Log(error) => error,
                    other => LogError::Damaged {
                        path: self.dir().to_path_buf(),
                        position: 0,
                        what: other.to_string(),
                    },
                });
            }
            upto = self.log_end();
            bytes += batch.total_size() as u64;
            unwritten += batch.total_size() as u64;
            if unwritten >= REPLAY_AT_ONCE_BYTES {
                self.check_holds(upto).await?;
                unwritten = 0;
            }
        }
        self.check_holds(upto).await?;
        if start > self.log_end() {
            self.truncate_fully_and_start_at(start).await?;
        } else {
            self.delete_records_to(start)?;
        }
        Ok(bytes)
    }

    /// What the journal said of this log is in its segments, and flushed.
    pub(in crate::log) fn journal_settled(&self) {
        let log_dir = self.dir().parent().map(Path::to_owned).unwrap_or_default();
        if let Some(left) = self.shard.journals.left_in(&log_dir) {
            left.settled(self.id());
        }
    }

    /// Returns when everything is written. On a full disk the writer cuts off what does not fit, but
    /// what is taken back was acknowledged once: the journal must be there for another try.
    async fn check_holds(&self, upto: Offset) -> Result<(), LogError> {
        loop {
            let moved = {
                let state = self.state();
                if state.queue.is_idle() && !matches!(state.status, Status::Truncating) {
                    break;
                }
                self.progress.wait()
            };
            moved.await;
        }
        self.check_usable()?;
        if self.log_end() >= upto {
            return Ok(());
        }
        Err(LogError::NoSpace(StorageFailure {
            what: "take back from the journal",
            path: self.dir().to_path_buf(),
            source: Arc::new(io::ErrorKind::StorageFull.into()),
        }))
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

/// The longest unbroken run of frames that ends in the highest number.
fn last_run(mut frames: BTreeMap<u64, Vec<Entry>>) -> Vec<Vec<Entry>> {
    let mut run = Vec::new();
    let mut next = None;
    while let Some((sequence, entries)) = frames.pop_last() {
        if next.is_some_and(|next| sequence + 1 != next) {
            break;
        }
        next = Some(sequence);
        run.push(entries);
    }
    run.reverse();
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Uuid;
    use crate::wire::batch_builder::BatchBuilder;
    use smallvec::SmallVec;

    fn id() -> PartitionId {
        PartitionId {
            topic: Uuid::from_halves(1, 1),
            index: 0,
        }
    }

    fn batch(base: i64) -> Bytes {
        let mut builder = BatchBuilder::new();
        for _ in 0..2 {
            builder.append(1, None, Some(b"value"), &[]).unwrap();
        }
        let mut bytes = builder.build().unwrap().to_vec();
        bytes[..8].copy_from_slice(&base.to_be_bytes());
        Bytes::from(bytes)
    }

    fn replayed(changes: Vec<(i64, Change)>) -> (Option<i64>, Vec<i64>) {
        let mut partitions = AHashMap::new();
        for (offset, change) in changes {
            let entry = Entry {
                partition: id(),
                offset: Offset(offset),
                change,
            };
            enter(&mut partitions, entry, Path::new("journal"));
        }
        let replay = &partitions[&id()];
        let bases = replay.batches.iter().map(|b| b.base_offset().0).collect();
        (replay.start.map(|start| start.0), bases)
    }

    fn batches(bases: &[i64]) -> (i64, Change) {
        let parts: SmallVec<[Bytes; 2]> = bases.iter().map(|base| batch(*base)).collect();
        (bases[0], Change::Batches(parts))
    }

    #[test]
    fn what_was_cut_or_deleted_after_it_was_told_is_not_raised_again() {
        let told = replayed(vec![batches(&[0, 2, 4]), (3, Change::Cut), batches(&[2])]);
        assert_eq!(told, (None, vec![0, 2]), "the batch across the cut is gone");
        let told = replayed(vec![
            batches(&[0, 2]),
            (7, Change::StartOver),
            batches(&[7]),
        ]);
        assert_eq!(told, (Some(7), vec![7]));
        let told = replayed(vec![batches(&[0, 2, 4]), (3, Change::LogStart)]);
        assert_eq!(told, (Some(3), vec![2, 4]), "3 is in the batch at 2");
    }

    #[test]
    fn only_the_last_unbroken_run_of_frames_counts() {
        let frames = [1, 2, 3, 5, 6].map(|sequence| (sequence, Vec::new()));
        assert_eq!(last_run(BTreeMap::from(frames)).len(), 2);
        assert!(last_run(BTreeMap::new()).is_empty());
    }
}

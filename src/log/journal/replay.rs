//! Owns what the journals say of one partition after an unclean stop, and how its log takes back
//! what its segments lack of it: on the log's shard, while it is opened. It never changes a record
//! that a segment holds.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::types::Offset;
use crate::wire::batch::Batch;

use super::super::error::{LogError, StorageFailure};
use super::super::log::{Log, Status};
use super::frame::{Change, Entry};

/// Bytes taken back between two looks at the writer, so that its queue stays short.
const REPLAY_AT_ONCE_BYTES: u64 = 8 << 20;

/// What the journals say of one partition, oldest first.
#[derive(Debug, Default)]
pub struct Replay {
    /// Nothing below counts.
    start: Option<Offset>,
    /// The log was emptied to begin here.
    over: Option<Offset>,
    batches: Vec<Batch>,
}

impl Replay {
    /// Takes in what a journal tells next.
    pub(super) fn enter(&mut self, entry: Entry, path: &Path) {
        let offset = entry.offset;
        match entry.change {
            Change::Batches(parts) => {
                for part in parts {
                    self.take_batches(part, path);
                }
            }
            Change::Cut => self.cut(offset),
            Change::StartOver => {
                self.batches.clear();
                self.start = Some(offset);
                self.over = Some(offset);
            }
            Change::LogStart => {
                self.batches.retain(|batch| batch.last_offset() >= offset);
                self.start = self.start.max(Some(offset));
            }
        }
    }

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
    /// Takes back what the journal says and the segments lack; the bytes appended, `None` if it says
    /// nothing. Called before anything else may append.
    ///
    /// Only what continues the log exactly is taken: a gap, or an epoch older than the log's
    /// last, means that the segments hold another history since.
    ///
    /// # Errors
    /// The storage.
    pub(in crate::log) async fn take_back_journal(
        &self,
        now_ms: i64,
    ) -> Result<Option<u64>, LogError> {
        self.taking_back.set(true);
        let taken = self.take_back(now_ms).await;
        self.taking_back.set(false);
        taken
    }

    async fn take_back(&self, now_ms: i64) -> Result<Option<u64>, LogError> {
        let log_dir = self.dir().parent().map(Path::to_owned).unwrap_or_default();
        let Some(left) = self.shard.journals.left_in(&log_dir) else {
            return Ok(None);
        };
        let told = left.of(self.id(), &self.settled_journals.borrow());
        let Some(replay) = told else {
            return Ok(None);
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
            let was_deleted = base > end && base <= start;
            if was_deleted || (base < end && is_empty) {
                // Nothing is missing before it. Where that was not told, something is: a log that
                // began behind it would take its followers there.
                self.truncate_fully_and_start_at(base).await?;
                upto = base;
            }
            let epoch = batch.partition_leader_epoch();
            let older = self.latest_epoch().is_some_and(|latest| epoch < latest);
            if base != self.log_end() || older {
                tracing::error!(
                    dir = %self.dir().display(), log_end = %end, batch = %base, epoch = epoch.0,
                    batches = replay.batches.len(), last = %replay.batches.last().map_or(end, Batch::last_offset),
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
        Ok(Some(bytes))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{PartitionId, Uuid};
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
        let mut replay = Replay::default();
        for (offset, change) in changes {
            let entry = Entry {
                partition: id(),
                offset: Offset(offset),
                change,
            };
            replay.enter(entry, Path::new("journal"));
        }
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
}

//! Owns the note in a partition's directory that names the journals of earlier lives which say nothing
//! of it any more: they stay for another log, and what has been cut of this one since must not be
//! raised by the next start. On the log's shard, before a cut and when a directory is made.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::types::{PartitionId, Uuid};

use super::super::checkpoint::{self, CheckpointError};
use super::super::error::{LogError, StorageFailure};
use super::super::leftovers;
use super::super::log::Log;
use super::super::names::SETTLED_JOURNALS;
use super::super::shard::LogShard;
use super::super::write_queue::is_no_space;

/// Text in the form of Kafka's checkpoints, an id a line.
fn encode(journals: &BTreeSet<Uuid>) -> Vec<u8> {
    let mut text = format!("0\n{}\n", journals.len());
    for id in journals {
        text.push_str(&format!("{id}\n"));
    }
    text.into_bytes()
}

fn decode(bytes: &[u8]) -> Result<BTreeSet<Uuid>, CheckpointError> {
    let lines = checkpoint::lines(bytes)?.into_iter();
    lines
        .map(|(number, line)| {
            Uuid::parse(line).ok_or_else(|| CheckpointError::line(number, line, "id of a journal"))
        })
        .collect()
}

/// A damaged note is reported and taken for one that names none.
fn read(dir: &Path, note: &[u8]) -> BTreeSet<Uuid> {
    decode(note).unwrap_or_else(|error| {
        let path = dir.join(SETTLED_JOURNALS);
        tracing::warn!(
            file = %path.display(), bytes = note.len(), %error,
            "damaged note of settled journals, all of it is ignored"
        );
        BTreeSet::new()
    })
}

async fn write(dir: &Path, journals: &BTreeSet<Uuid>) -> io::Result<()> {
    checkpoint::write_atomic(&dir.join(SETTLED_JOURNALS), encode(journals)).await
}

/// The journals that the note found in a partition's directory names. It goes when they are gone.
pub(in crate::log) async fn found(
    shard: &LogShard,
    dir: &Path,
    note: Option<Vec<u8>>,
) -> io::Result<BTreeSet<Uuid>> {
    let Some(bytes) = note else {
        return Ok(BTreeSet::new());
    };
    let settled = read(dir, &bytes);
    let left = dir.parent().and_then(|dir| shard.journals.left_in(dir));
    if left.is_none_or(|left| left.ids().is_disjoint(&settled)) {
        leftovers::remove(&dir.join(SETTLED_JOURNALS)).await?;
    }
    Ok(settled)
}

/// Notes, in the directory of a log that is made, which journals speak of another one: of a replica
/// that was here once and has come back.
pub(in crate::log) async fn of_new(
    shard: &LogShard,
    dir: &Path,
    id: PartitionId,
) -> io::Result<BTreeSet<Uuid>> {
    let left = dir.parent().and_then(|dir| shard.journals.left_in(dir));
    let Some(left) = left.filter(|left| left.would_tell(id)) else {
        return Ok(BTreeSet::new());
    };
    let settled = left.ids();
    write(dir, &settled).await?;
    Ok(settled)
}

impl Log {
    /// Sees to it that no journal of an earlier life raises again what is to be cut. By who holds
    /// the log's upkeep.
    ///
    /// # Errors
    /// The storage; `NoSpace` on a full disk: nothing may be cut.
    pub(in crate::log) async fn leave_old_journals(&self) -> Result<(), LogError> {
        let log_dir = self.dir().parent().map(Path::to_owned).unwrap_or_default();
        let found = match self.shard.journals.left_in(&log_dir) {
            // What a replay cuts it will cut again.
            Some(left) if !self.taking_back.get() && left.would_tell(self.id()) => left.ids(),
            _ => return Ok(()),
        };
        if found.is_subset(&self.settled_journals.borrow()) {
            return Ok(());
        }
        match write(&self.dir(), &found).await {
            Ok(()) => {
                *self.settled_journals.borrow_mut() = found;
                Ok(())
            }
            Err(error) if is_no_space(&error) => Err(LogError::NoSpace(StorageFailure {
                what: "note settled journals",
                path: self.dir().to_path_buf(),
                source: Arc::new(error),
            })),
            Err(error) => Err(self.fail("note settled journals", error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back_as_written_and_a_damaged_one_names_none() {
        let journals: BTreeSet<Uuid> = [Uuid::from_halves(1, 2), Uuid::from_halves(3, 4)].into();
        let bytes = encode(&journals);
        assert_eq!(decode(&bytes), Ok(journals.clone()));
        let dir = Path::new("/data/orders-0");
        assert_eq!(read(dir, &bytes), journals);
        for cut in 0..bytes.len() - 1 {
            assert!(read(dir, &bytes[..cut]).is_empty(), "{cut}");
        }
        let wrong = decode(b"0\n1\norders\n").unwrap_err().to_string();
        assert_eq!(wrong, "line 3 is \"orders\", which is no id of a journal");
    }
}

//! Owns giving back the space of files that nobody reads any more, piece by piece. On the log's
//! shard, behind everything that waits. It never touches a file that a reader may still have open:
//! that is what `file.delete.delay.ms` is for, and without a delay a file goes in one piece.
//!
//! A file system frees a large file in one transaction, and mounted with `discard` it tells the
//! device of all of it when that transaction commits: measured, 112 MiB of one compaction pass kept
//! the device for 8 ms, and every flush with it. Cut off in pieces it is many short waits instead.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::rt;
use crate::rt::fs::{File, OpenOptions};

use super::flush::Flusher;
use super::leftovers;

/// Cut off at a time. Of 4 MiB the thread that cuts held its core for 0.4 to 0.9 ms, which the shard may
/// want, and the device above was then away for 1.2 ms; of this it is 0.13 to 0.18 ms.
const PIECE_BYTES: u64 = 512 << 10;
/// Between two pieces: a segment of 1 GiB is gone after some five seconds.
const PAUSE: Duration = Duration::from_millis(2);
/// A shorter delay than this lets nobody finish reading.
const DELAY_MIN: Duration = Duration::from_secs(1);

/// Files under the names they were given when they left the log.
#[derive(Default)]
pub(super) struct Doomed {
    paths: Vec<PathBuf>,
    /// The large ones among them, open: the next compaction may give their names to others.
    large: Vec<File>,
}

impl Doomed {
    pub(super) fn add(&mut self, path: PathBuf) {
        self.paths.push(path);
    }

    /// `file` lies under one of the names and has this size.
    pub(super) fn keep_open(&mut self, file: File, bytes: u64) {
        if bytes > PIECE_BYTES {
            self.large.push(file);
        }
    }

    /// Space is wanted more than rest: whatever nobody else has open is free once it is unlinked.
    pub(super) fn let_go(&mut self) {
        self.large.clear();
    }

    /// Removes the files `delay` from now.
    pub(super) async fn remove_after(self, delay: Duration, flusher: Rc<Flusher>) {
        rt::sleep(delay).await;
        for path in &self.paths {
            flusher.gap().await;
            if let Err(error) = leftovers::remove(path).await {
                // The next start removes it.
                tracing::warn!(file = %path.display(), %error, "deleted segment not unlinked");
            }
        }
        if delay < DELAY_MIN {
            return;
        }
        for file in self.large {
            if let Err(error) = shrink(&file, &flusher).await {
                // Closing it frees the rest.
                tracing::debug!(%error, "a deleted segment's space goes in one piece");
            }
        }
    }
}

/// Removes a partition's directory that was doomed `delay` ago with all that is in it.
///
/// # Errors
/// The storage.
pub(super) async fn remove_dir(dir: &Path, delay: Duration, flusher: &Flusher) -> io::Result<()> {
    if delay >= DELAY_MIN {
        let entries = rt::fs::read_dir(dir).await?;
        for entry in entries.iter().filter(|entry| entry.len > PIECE_BYTES) {
            let path = dir.join(&entry.name);
            let file = File::open(path, OpenOptions::READ_WRITE).await?;
            shrink(&file, flusher).await?;
        }
    }
    rt::fs::remove_dir_all(dir).await
}

/// Cuts all but the first piece off.
async fn shrink(file: &File, flusher: &Flusher) -> io::Result<()> {
    let mut len = file.len()?;
    while len > PIECE_BYTES {
        len -= PIECE_BYTES;
        flusher.gap().await;
        file.set_len(len).await?;
        rt::sleep(PAUSE).await;
    }
    Ok(())
}

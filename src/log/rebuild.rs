//! Owns bringing a log's producer state up to a given offset from its snapshots and batches:
//! when the log is opened, and when its tail was cut. On the log's shard. It never writes the
//! state anywhere but into memory, and never looks past that offset.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::rt;
use crate::types::Offset;

use super::error::about;
use super::leftovers;
use super::names::{self, FileKind};
use super::producers::Producers;
use super::scan::{ScanError, Scanner};
use super::segment::Segment;

/// What the state is built from.
pub(super) struct Rebuild<'a> {
    pub dir: &'a Path,
    /// Offsets of the snapshot files there are, ascending.
    pub snapshots: Vec<Offset>,
    /// All segments up to the end, ascending.
    pub segments: &'a [Rc<Segment>],
    pub end: Offset,
    pub now_ms: i64,
}

impl Rebuild<'_> {
    /// Loads the latest usable snapshot at or below the end and replays from there. Returns the
    /// snapshots that were removed: those past the end describe what is gone or may be cut.
    pub(super) async fn run(self, producers: &mut Producers) -> io::Result<Vec<Offset>> {
        let mut removed = Vec::new();
        let mut from = None;
        for offset in self.snapshots.iter().rev().copied() {
            let path = self
                .dir
                .join(names::segment_file(offset, FileKind::Snapshot));
            if offset <= self.end {
                let bytes = rt::fs::read(&path).await.map_err(about(&path))?;
                match producers.load(&bytes, offset, self.now_ms) {
                    Ok(()) => {
                        from = Some(offset);
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(
                            file = %path.display(), bytes = bytes.len(), %error,
                            "damaged producer snapshot removed, the state is read from batches"
                        );
                    }
                }
            }
            leftovers::remove(&path).await?;
            removed.push(offset);
        }
        if from.is_none() {
            producers.reset(self.segments.first().map_or(self.end, |first| first.base()));
        }
        self.replay(from.unwrap_or_default(), producers).await?;
        Ok(removed)
    }

    fn path_of(&self, segment: &Segment) -> PathBuf {
        let name = names::segment_file(segment.base(), FileKind::Log);
        self.dir.join(name)
    }

    async fn replay(&self, from: Offset, producers: &mut Producers) -> io::Result<()> {
        for (at, segment) in self.segments.iter().enumerate() {
            let next_base = self.segments.get(at + 1).map(|next| next.base());
            let passed = from >= self.end
                || segment.base() >= self.end
                || next_base.is_some_and(|next| next <= from);
            let Some(handles) = segment.handles().filter(|_| !passed) else {
                continue;
            };
            let start = segment.floor_position(from).unwrap_or(0);
            let mut scanner = Scanner::new(handles.reader, start, segment.written());
            loop {
                match scanner.next().await {
                    Ok(Some((_, batch))) if batch.base_offset() >= self.end => break,
                    Ok(Some((_, batch))) if batch.last_offset() < from => {}
                    Ok(Some((_, batch))) => {
                        producers.replay(&batch);
                    }
                    Ok(None) => break,
                    Err(ScanError::Io(error)) => {
                        return Err(about(&self.path_of(segment))(error));
                    }
                    Err(ScanError::Damaged { position, error }) => {
                        // Below what is checked now; reported again when somebody reads it.
                        tracing::warn!(
                            file = %self.path_of(segment).display(), position, %error,
                            "damaged batch, producer state is not read from what follows in the file"
                        );
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Offsets of the producer snapshots in a directory, ascending.
pub(super) async fn list_snapshots(dir: &Path) -> io::Result<Vec<Offset>> {
    let mut offsets: Vec<Offset> = rt::fs::read_dir(dir)
        .await?
        .iter()
        .filter_map(|entry| names::parse_segment_file(&entry.name))
        .filter(|file| {
            file.kind == FileKind::Snapshot && file.state == super::names::FileState::Live
        })
        .map(|file| file.base)
        .collect();
    offsets.sort();
    Ok(offsets)
}

//! One segment file of the metadata log and where its batches lie: every so often a position is
//! remembered, from there on the batches' own lengths lead. Runs on the executor of the log.

use super::{MetadataLogError, io_error};
use crate::cluster::replay::ReplayError;
use crate::log::names::{FileKind, segment_file};
use crate::rt;
use crate::rt::fs::{File, OpenOptions};
use crate::types::Offset;
use crate::wire::batch::{BatchError, BatchView};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Bytes between two remembered positions: what is read to find an offset (16 KiB, some hundred
/// small batches).
const MARK_BYTES: u64 = 16 << 10;

/// See the module's words. Clones see the file as it was, for reading.
#[derive(Clone)]
pub(super) struct Segment {
    pub(super) base: Offset,
    pub(super) file: File,
    pub(super) size: u64,
    /// Blocks are set aside up to here.
    pub(super) reserved: u64,
    /// Wall time at which it was made or opened, milliseconds.
    pub(super) begun_ms: i64,
    /// Offsets of some batches with their positions.
    marks: Rc<Vec<(Offset, u64)>>,
}

impl Segment {
    pub(super) async fn create(home: &Path, base: Offset) -> Result<Segment, MetadataLogError> {
        let segment = Segment::open(home, base).await?;
        let synced = rt::fs::sync_dir(home).await;
        synced.map_err(io_error("cannot sync", home))?;
        Ok(segment)
    }

    /// Opens the file, made if it is missing; what is in it has still to be [`added`](Self::add).
    pub(super) async fn open(home: &Path, base: Offset) -> Result<Segment, MetadataLogError> {
        let path = path(home, base);
        let file = File::open(&path, OpenOptions::CREATE)
            .await
            .map_err(io_error("cannot open", &path))?;
        Ok(Segment {
            base,
            file,
            size: 0,
            reserved: 0,
            begun_ms: rt::wall_ms(),
            marks: Rc::default(),
        })
    }

    /// A batch of so many bytes stands at the end.
    pub(super) fn add(&mut self, offset: Offset, bytes: u64) {
        let is_far = |last: &(Offset, u64)| self.size - last.1 >= MARK_BYTES;
        if self.marks.last().is_none_or(is_far) {
            Rc::make_mut(&mut self.marks).push((offset, self.size));
        }
        self.size += bytes;
    }

    /// The file ends at `position` now, where `offset` would follow.
    pub(super) fn cut(&mut self, offset: Offset, position: u64) {
        Rc::make_mut(&mut self.marks).retain(|mark| mark.0 < offset);
        self.size = position;
        self.reserved = position;
    }

    /// Where the batch that begins at `offset` lies, or would; `None` if it lies within one.
    pub(super) async fn position_of(
        &self,
        home: &Path,
        offset: Offset,
    ) -> Result<Option<u64>, MetadataLogError> {
        let found = self.seek(home, offset).await?;
        Ok(found.and_then(|(begin, position, _)| (begin == offset).then_some(position)))
    }

    /// The batch that holds `offset` or begins behind it: its offset, its position, and the bytes
    /// that were read from there on.
    async fn seek(
        &self,
        home: &Path,
        offset: Offset,
    ) -> Result<Option<(Offset, u64, Bytes)>, MetadataLogError> {
        let at = self.marks.partition_point(|mark| mark.0 <= offset);
        let Some((_, from)) = at.checked_sub(1).and_then(|at| self.marks.get(at)) else {
            return Ok(None);
        };
        let to = self.marks.get(at).map_or(self.size, |next| next.1);
        let path = path(home, self.base);
        let bytes = self.file.read_at(*from, (to - from) as usize).await;
        let bytes = bytes.map_err(io_error("cannot read", &path))?;
        let mut position = *from;
        let mut rest = &bytes[..];
        let mut next = None;
        while !rest.is_empty() {
            let (batch, behind) =
                BatchView::parse(rest).map_err(|source| bad(&path, position, source))?;
            if batch.last_offset() >= offset {
                let skipped = (position - from) as usize;
                return Ok(Some((
                    batch.base_offset(),
                    position,
                    bytes.slice(skipped..),
                )));
            }
            position += batch.total_size() as u64;
            next = Some(batch.last_offset().next());
            rest = behind;
        }
        Ok(next.map(|next| (next, position, Bytes::new())))
    }

    /// See [`MetadataLog::read`](super::MetadataLog::read).
    pub(super) async fn read(
        &self,
        home: &Path,
        offset: Offset,
        end: Offset,
        max_bytes: usize,
    ) -> Result<Bytes, MetadataLogError> {
        let Some((_, position, mut bytes)) = self.seek(home, offset).await? else {
            return Ok(Bytes::new());
        };
        let wanted = (max_bytes as u64).min(self.size - position) as usize;
        let path = path(home, self.base);
        if bytes.len() < wanted {
            let read = self.file.read_at(position, wanted).await;
            bytes = read.map_err(io_error("cannot read", &path))?;
        }
        let mut whole = 0;
        let mut rest = &bytes[..];
        loop {
            let batch = match BatchView::parse(rest) {
                Ok((batch, behind)) => {
                    rest = behind;
                    batch
                }
                Err(BatchError::Partial { .. }) => break,
                Err(source) => return Err(bad(&path, position + whole as u64, source)),
            };
            let size = batch.total_size();
            if batch.base_offset() >= end || (whole > 0 && whole + size > max_bytes) {
                break;
            }
            whole += size;
            if whole >= max_bytes {
                break;
            }
        }
        Ok(bytes.slice(..whole))
    }
}

fn path(home: &Path, base: Offset) -> PathBuf {
    home.join(segment_file(base, FileKind::Log))
}

fn bad(path: &Path, position: u64, source: BatchError) -> MetadataLogError {
    MetadataLogError::Replay {
        path: path.to_owned(),
        source: ReplayError::Batch { position, source },
    }
}

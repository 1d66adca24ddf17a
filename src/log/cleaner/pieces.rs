//! Owns the walk over a segment file in pieces of whole batches, each as large as the read buffer
//! or as its one batch. On the log's shard. Nothing is read ahead: a pass has time, and what it
//! reads must not push out what others want. It never looks into a batch.

use std::io;

use bytes::Bytes;

use crate::rt::fs::File;
use crate::wire::batch::{BatchError, BatchView};

/// Why a walk ended before the end of the file.
#[derive(Debug)]
pub enum PieceError {
    Io(io::Error),
    /// No whole batch where the walk stands.
    Damaged(BatchError),
}

/// Walks `[position, end)` of a file.
pub struct Pieces {
    file: File,
    position: u64,
    end: u64,
    piece_bytes: usize,
}

impl Pieces {
    pub fn new(file: File, position: u64, end: u64, piece_bytes: usize) -> Pieces {
        Pieces {
            file,
            position,
            end,
            piece_bytes: piece_bytes.max(1),
        }
    }

    /// Where the next piece begins.
    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn is_at_end(&self) -> bool {
        self.position >= self.end
    }

    /// The next whole batches; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, PieceError> {
        let mut wanted = self.piece_bytes;
        while !self.is_at_end() {
            let left = self.end - self.position;
            let len = left.min(wanted as u64) as usize;
            let read = self.file.read_beside(self.position, len).await;
            let bytes = read.map_err(PieceError::Io)?;
            match whole_batches(&bytes) {
                Ok(whole) => {
                    self.position += whole as u64;
                    return Ok(Some(bytes.slice(..whole)));
                }
                Err(BatchError::Partial { needed, .. })
                    if bytes.len() == len && needed > len && needed as u64 <= left =>
                {
                    wanted = needed;
                }
                Err(error) => return Err(PieceError::Damaged(error)),
            }
        }
        Ok(None)
    }
}

/// Bytes of the whole batches at the start of `bytes`, at least one.
fn whole_batches(bytes: &[u8]) -> Result<usize, BatchError> {
    let mut rest = bytes;
    loop {
        match BatchView::parse(rest) {
            Ok((_, tail)) => rest = tail,
            // What is wrong with a later batch is found when its turn comes.
            Err(_) if rest.len() < bytes.len() => return Ok(bytes.len() - rest.len()),
            Err(error) => return Err(error),
        }
        if rest.is_empty() {
            return Ok(bytes.len());
        }
    }
}

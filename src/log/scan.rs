//! Owns the walk over the batches of a segment file from a position on: recovery, replay of
//! producer state, lookups by time and the search for a cut all go through it. On the log's
//! shard; reads through the ring in chunks, with the next chunk on its way while the current one
//! is worked on. It never decides what a damaged batch means.

use std::io;

use bytes::{Bytes, BytesMut};

use crate::rt;
use crate::rt::fs::File;
use crate::wire::batch::{Batch, BatchError};

/// Bytes per read. With one read ahead this keeps a device busy while the other chunk is checked.
const CHUNK_BYTES: usize = 1 << 20;

/// The first read of a walk that ends soon: an index interval and a batch of the usual size. Each
/// further one is twice as long.
const SHORT_CHUNK_BYTES: usize = 16 << 10;

/// Why a walk ended before the end of the file.
#[derive(Debug)]
pub enum ScanError {
    Io(io::Error),
    /// No whole batch at this position: cut short, zeros, or something else altogether.
    Damaged {
        position: u64,
        error: BatchError,
    },
}

/// Walks batches in `[position, end)` of a file.
pub struct Scanner {
    file: File,
    /// Where the next batch begins.
    position: u64,
    end: u64,
    /// Bytes from `position` on that are in memory.
    buffer: Bytes,
    ahead: Option<rt::Task<io::Result<Bytes>>>,
    /// Where the read ahead begins.
    ahead_at: u64,
    read_ahead: bool,
    chunk_bytes: usize,
}

impl Scanner {
    /// For a walk over a long range: the next chunk is read ahead.
    pub fn new(file: File, position: u64, end: u64) -> Scanner {
        Scanner {
            file,
            position,
            end,
            buffer: Bytes::new(),
            ahead: None,
            ahead_at: position,
            read_ahead: true,
            chunk_bytes: CHUNK_BYTES,
        }
    }

    /// For a walk that ends soon: nothing is read ahead, and little at first.
    pub fn short(file: File, position: u64, end: u64) -> Scanner {
        Scanner {
            read_ahead: false,
            chunk_bytes: SHORT_CHUNK_BYTES,
            ..Scanner::new(file, position, end)
        }
    }

    /// The next batch and its position; `None` at the end. Lengths and magic are checked, the
    /// CRC is not.
    pub async fn next(&mut self) -> Result<Option<(u64, Batch)>, ScanError> {
        loop {
            let left = (self.end - self.position) as usize;
            if left == 0 {
                return Ok(None);
            }
            let wanted = match Batch::parse(&self.buffer) {
                Ok((batch, rest)) => {
                    let position = self.position;
                    self.position += batch.total_size() as u64;
                    self.buffer = rest;
                    return Ok(Some((position, batch)));
                }
                // A declared length is believed only as far as the file reaches.
                Err(BatchError::Partial { needed, .. })
                    if needed <= left && self.buffer.len() < left =>
                {
                    needed
                }
                Err(error) => {
                    return Err(ScanError::Damaged {
                        position: self.position,
                        error,
                    });
                }
            };
            let filled = self.fill(wanted).await.map_err(ScanError::Io)?;
            if !filled {
                let available = self.buffer.len();
                let error = BatchError::Partial {
                    needed: wanted,
                    available,
                };
                return Err(ScanError::Damaged {
                    position: self.position,
                    error,
                });
            }
        }
    }

    /// Gets at least `wanted` bytes into the buffer; false if the file is shorter than it was
    /// said to be.
    async fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        let mut joined = BytesMut::new();
        while self.buffer.len() + joined.len() < wanted {
            let have = (self.buffer.len() + joined.len()) as u64;
            let missing = wanted.saturating_sub(have as usize);
            let chunk = self.next_chunk(self.position + have, missing).await?;
            if chunk.is_empty() {
                return Ok(false);
            }
            if self.buffer.is_empty() && joined.is_empty() {
                self.buffer = chunk;
            } else {
                if joined.is_empty() {
                    joined.reserve(self.buffer.len() + chunk.len());
                }
                joined.extend_from_slice(&chunk);
            }
        }
        if !joined.is_empty() {
            let mut all = BytesMut::with_capacity(self.buffer.len() + joined.len());
            all.extend_from_slice(&self.buffer);
            all.extend_from_slice(&joined);
            self.buffer = all.freeze();
        }
        Ok(true)
    }

    async fn next_chunk(&mut self, at: u64, missing: usize) -> io::Result<Bytes> {
        let len = chunk_len(at, self.end, self.chunk_bytes.max(missing.min(CHUNK_BYTES)));
        self.chunk_bytes = (self.chunk_bytes * 2).min(CHUNK_BYTES);
        let chunk = match self.ahead.take() {
            Some(task) if self.ahead_at == at => task.await?,
            _ => self.file.read_at(at, len).await?,
        };
        let next = at + chunk.len() as u64;
        if self.read_ahead && !chunk.is_empty() && next < self.end {
            let (file, len) = (self.file.clone(), chunk_len(next, self.end, CHUNK_BYTES));
            self.ahead_at = next;
            self.ahead = Some(rt::spawn(async move { file.read_at(next, len).await }));
        }
        Ok(chunk)
    }
}

fn chunk_len(at: u64, end: u64, most: usize) -> usize {
    end.saturating_sub(at).min(most as u64) as usize
}

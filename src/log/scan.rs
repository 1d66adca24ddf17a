//! Owns the walk over the batches of a segment file from a position on: recovery, replay of
//! producer state, lookups by time and the search for a cut all go through it. On the log's
//! shard; reads through the ring in chunks, with the next chunk on its way while the current one
//! is worked on. It never decides what a damaged batch means.

use std::io;

use bytes::{Bytes, BytesMut};

use crate::rt;
use crate::rt::fs::File;
use crate::wire::batch::{Batch, BatchError};

use super::segment::Segment;

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
    /// Bytes from `position` on that are in memory: these first,
    buffer: Bytes,
    /// and behind them these. Two pieces, because only a batch that lies across the edge of two
    /// chunks is copied together.
    behind: Bytes,
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
            behind: Bytes::new(),
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
        if self.buffer.is_empty() {
            self.buffer = std::mem::take(&mut self.behind);
            if self.buffer.is_empty() {
                self.buffer = self.next_chunk(self.position, wanted).await?;
            }
            if self.buffer.len() >= wanted || self.buffer.is_empty() {
                return Ok(!self.buffer.is_empty());
            }
        }
        // Grows with what is read: a damaged length must not reserve memory.
        let mut joined = BytesMut::from(&self.buffer[..]);
        while joined.len() < wanted {
            if self.behind.is_empty() {
                let (at, missing) = (self.position + joined.len() as u64, wanted - joined.len());
                self.behind = self.next_chunk(at, missing).await?;
            }
            if self.behind.is_empty() {
                break;
            }
            let more = (wanted - joined.len()).min(self.behind.len());
            joined.extend_from_slice(&self.behind.split_to(more));
        }
        let filled = joined.len() >= wanted;
        self.buffer = joined.freeze();
        Ok(filled)
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

impl Segment {
    /// Learns from the first batch what `segment.ms` counts from, where that is not known. Damage is
    /// none of its business.
    pub(super) async fn find_first_timestamp(&self) -> io::Result<()> {
        let (None, Some(handles)) = (self.first_timestamp(), self.handles()) else {
            return Ok(());
        };
        match Scanner::short(handles.reader, 0, self.written())
            .next()
            .await
        {
            Ok(Some((_, batch))) => self.adopt_first_timestamp(batch.max_timestamp()),
            Ok(None) | Err(ScanError::Damaged { .. }) => {}
            Err(ScanError::Io(error)) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::{batch_of, on_shard};
    use crate::rt::fs::OpenOptions;

    /// Batches of many sizes, so that each edge of a chunk falls elsewhere: into a header, into a
    /// body, between two batches.
    #[test]
    fn batches_across_the_edges_of_chunks_come_out_as_they_were_written() {
        on_shard(|dir| async move {
            let mut random = fastrand::Rng::with_seed(11);
            let path = dir.join("segment");
            let (mut bytes, mut sizes) = (Vec::new(), Vec::new());
            while bytes.len() < 5 * CHUNK_BYTES {
                // Now and then one larger than two chunks.
                let len = match random.u32(..60) {
                    0 => 5 * CHUNK_BYTES / 2,
                    1..=20 => random.usize(..200_000),
                    _ => random.usize(..300),
                };
                let batch = batch_of(&[1], len);
                sizes.push((bytes.len() as u64, batch.len()));
                bytes.extend_from_slice(&batch);
            }
            // One that ends exactly at an edge.
            let gap = CHUNK_BYTES - bytes.len() % CHUNK_BYTES;
            if gap > 200 {
                let empty = batch_of(&[1], gap - 100).len() - (gap - 100);
                let batch = batch_of(&[1], gap - empty);
                sizes.push((bytes.len() as u64, batch.len()));
                bytes.extend_from_slice(&batch);
            }
            std::fs::write(&path, &bytes).unwrap();
            for ahead in [false, true] {
                let file = File::open(&path, OpenOptions::READ).await.unwrap();
                let end = bytes.len() as u64;
                let mut scanner = Scanner::new(file, 0, end);
                scanner.read_ahead = ahead;
                let mut found = Vec::new();
                while let Some((position, batch)) = scanner.next().await.unwrap() {
                    batch.check_crc().unwrap();
                    found.push((position, batch.total_size()));
                }
                assert_eq!(found, sizes);
            }
            // Cut inside the last batch, and a file shorter than it was said to be.
            let last = sizes[sizes.len() - 1].0;
            for (len, said) in [(last + 30, last + 30), (last + 30, bytes.len() as u64)] {
                std::fs::write(&path, &bytes[..len as usize]).unwrap();
                let file = File::open(&path, OpenOptions::READ).await.unwrap();
                let mut scanner = Scanner::new(file, 0, said);
                let damaged = loop {
                    match scanner.next().await {
                        Ok(Some(_)) => {}
                        Ok(None) => panic!("the cut was not seen"),
                        Err(ScanError::Damaged { position, .. }) => break position,
                        Err(ScanError::Io(error)) => panic!("{error}"),
                    }
                };
                assert_eq!(damaged, last);
            }
        });
    }
}

//! Cuts a connection's byte stream into request frames (int32 size, then that many bytes).
//! Owns the connection's read buffer; never allocates for a frame before its size has passed the
//! limit and the shard has room for one more request.

use crate::rt::net::ReadHalf;
use crate::shard::budget::{Budget, Charge};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::rc::Rc;

/// How much is read at once while frames are small: several pipelined requests arrive in one
/// system call.
const READ_CHUNK: usize = 16 * 1024;

/// The first buffer of a connection: all that one holds which is opened and left alone. It grows
/// with what arrives at once.
const READ_CHUNK_MIN: usize = 1024;

/// The part of a chunk that is read into before there is another: less of it would cut what arrives
/// at once into two reads too often, more of it would leave too much of each chunk unused.
const SPARE_SHARE: usize = 4;

/// A frame's size prefix.
const PREFIX: usize = 4;

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer closed its side between two frames.
    #[error("closed by the peer")]
    Closed,
    /// The peer closed its side inside a frame.
    #[error("closed by the peer inside a frame: {have} of {want} bytes had arrived")]
    Torn { have: usize, want: usize },
    /// The size prefix is negative or over `socket.request.max.bytes`.
    #[error("frame of {size} bytes is outside 0..={limit} (socket.request.max.bytes)")]
    Size { size: i32, limit: usize },
    #[error("read failed: {0}")]
    Io(#[from] io::Error),
}

/// A whole request, with the charge that accounts for its memory until its answer has left.
pub struct Frame {
    pub body: Bytes,
    pub charge: Charge,
}

/// The reading side of one connection.
pub struct FrameReader {
    socket: ReadHalf,
    buffer: BytesMut,
    /// What the next buffer of small frames holds.
    chunk: usize,
    limit: usize,
    budget: Rc<Budget>,
}

impl FrameReader {
    /// `limit` is `socket.request.max.bytes`; `budget` is the shard's request memory in bytes.
    pub fn new(socket: ReadHalf, limit: usize, budget: Rc<Budget>) -> FrameReader {
        FrameReader {
            socket,
            buffer: BytesMut::new(),
            chunk: READ_CHUNK_MIN,
            limit,
            budget,
        }
    }

    /// The reader of a connection that another shard has read before: `begun` has arrived already.
    pub fn go_on(self, begun: BytesMut) -> FrameReader {
        FrameReader {
            buffer: begun,
            ..self
        }
    }

    /// The socket, and what has arrived of the next frame.
    pub fn into_parts(self) -> (ReadHalf, BytesMut) {
        (self.socket, self.buffer)
    }

    /// The next frame, waiting for its bytes and for memory. Dropping the future between frames
    /// loses nothing: what was read stays in the buffer.
    pub async fn next(&mut self) -> Result<Frame, FrameError> {
        let size = self.size().await?;
        self.budget.room().await;
        let mut charge = self.budget.charge();
        charge.grow(size.min(self.buffer.len() - PREFIX) as u64);
        self.fill(PREFIX + size, Some(&mut charge)).await?;
        self.buffer.advance(PREFIX);
        let body = self.buffer.split_to(size).freeze();
        Ok(Frame { body, charge })
    }

    /// Whether another whole frame is already in the buffer, so that replies may wait for it.
    pub fn has_whole_frame(&self) -> bool {
        match self.buffer.first_chunk::<PREFIX>() {
            Some(prefix) => {
                let size = i32::from_be_bytes(*prefix);
                size >= 0 && self.buffer.len() - PREFIX >= size as usize
            }
            None => false,
        }
    }

    fn spare(&self) -> usize {
        self.buffer.capacity() - self.buffer.len()
    }

    async fn size(&mut self) -> Result<usize, FrameError> {
        self.fill(PREFIX, None).await?;
        let size = match self.buffer.first_chunk::<PREFIX>() {
            Some(prefix) => i32::from_be_bytes(*prefix),
            None => return Err(FrameError::Closed),
        };
        match usize::try_from(size) {
            Ok(size) if size <= self.limit => Ok(size),
            _ => Err(FrameError::Size {
                size,
                limit: self.limit,
            }),
        }
    }

    /// Reads until `want` bytes are in the buffer, charging those of the frame as they arrive.
    async fn fill(
        &mut self,
        want: usize,
        mut charge: Option<&mut Charge>,
    ) -> Result<(), FrameError> {
        while self.buffer.len() < want {
            let missing = want - self.buffer.len();
            // The exact rest of a large frame, so that the frame ends its allocation and the
            // record batch in it is not tied to a neighbour; a chunk while frames are small, and
            // of that the next frames take what is left. Untouched pages of a large reservation
            // are not resident: a peer that announces much and sends little costs address space,
            // not memory.
            if missing > READ_CHUNK {
                self.buffer.reserve(missing);
            } else if self.spare() < missing.max(self.chunk / SPARE_SHARE) {
                self.buffer.reserve(self.chunk.max(missing));
            }
            let spare = self.spare();
            let read = self.socket.read_towards(&mut self.buffer, missing).await?;
            if read == spare {
                self.chunk = (2 * self.chunk).min(READ_CHUNK);
            }
            if let Some(charge) = charge.as_deref_mut() {
                charge.grow(read.min(missing) as u64);
            }
            if read == 0 {
                let have = self.buffer.len();
                return Err(if have == 0 && charge.is_none() {
                    FrameError::Closed
                } else {
                    FrameError::Torn { have, want }
                });
            }
        }
        Ok(())
    }
}

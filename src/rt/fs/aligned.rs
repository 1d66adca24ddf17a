//! Buffers that direct I/O accepts.
//!
//! Owned by one executor. Under the ring body the memory comes from the area registered with the
//! kernel while there is room in it.

use std::ops::{Deref, DerefMut};

use crate::rt::current::{Current, current};
use crate::rt::{ring, sim};

/// A zeroed buffer aligned to 4096 bytes, for [`super::File::write_aligned_at`].
pub struct AlignedBuf(pub(in crate::rt) AlignedBody);

pub(in crate::rt) enum AlignedBody {
    Ring(ring::file::DmaBuf),
    Sim(sim::AlignedVec),
}

impl AlignedBuf {
    /// Memory alignment of every buffer, in bytes; also a file alignment every device accepts.
    pub const ALIGN: usize = 4096;

    /// A buffer of `len` bytes, rounded up to a multiple of [`AlignedBuf::ALIGN`].
    pub fn zeroed(len: usize) -> AlignedBuf {
        let len = len.max(1).next_multiple_of(Self::ALIGN);
        match current() {
            Current::Ring(_) => AlignedBuf(AlignedBody::Ring(ring::file::DmaBuf::zeroed(len))),
            Current::Sim(_) => AlignedBuf(AlignedBody::Sim(sim::AlignedVec::zeroed(len))),
        }
    }

    /// A buffer that holds `pieces` one after the other, zeros behind up to the next multiple of
    /// [`AlignedBuf::ALIGN`].
    pub fn gathered(pieces: &[&[u8]]) -> AlignedBuf {
        let filled: usize = pieces.iter().map(|piece| piece.len()).sum();
        let len = filled.max(1).next_multiple_of(Self::ALIGN);
        let mut buf = match current() {
            Current::Ring(_) => AlignedBuf(AlignedBody::Ring(ring::file::DmaBuf::unset(len))),
            Current::Sim(_) => AlignedBuf(AlignedBody::Sim(sim::AlignedVec::zeroed(len))),
        };
        let mut at = 0;
        for piece in pieces {
            buf[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        buf[filled..].fill(0);
        buf
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            AlignedBody::Ring(buf) => buf.as_slice(),
            AlignedBody::Sim(buf) => buf.as_slice(),
        }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            AlignedBody::Ring(buf) => buf.as_mut_slice(),
            AlignedBody::Sim(buf) => buf.as_mut_slice(),
        }
    }
}

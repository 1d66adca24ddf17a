//! Memory that cold reads go into, and that leaves for the socket as it is.
//!
//! Any thread: the bytes travel to another shard with the answer and come home from there when
//! the last slice of them is dropped. Buffers are used again: fresh memory costs a page fault for
//! each 4 KiB, which is as much time as the read takes from the device.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::AlignedBuf;

/// A bounded number of buffers of one size; clones are the same store.
#[derive(Clone)]
pub struct ReadBuffers {
    store: Arc<Store>,
}

struct Store {
    buffer_bytes: usize,
    buffers_max: usize,
    // A lock for two moves of a pointer, on the way of cold reads only.
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    free: Vec<Vec<u8>>,
    out: usize,
}

/// One buffer, aligned for direct I/O in memory and length.
pub struct ReadBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
    home: Option<Arc<Store>>,
}

fn aligned(len: usize) -> usize {
    len.max(1).next_multiple_of(AlignedBuf::ALIGN)
}

impl ReadBuffers {
    /// At most `buffers_max` buffers of `buffer_bytes` each, made when they are wanted.
    pub fn new(buffer_bytes: usize, buffers_max: usize) -> ReadBuffers {
        ReadBuffers {
            store: Arc::new(Store {
                buffer_bytes: buffer_bytes.next_multiple_of(AlignedBuf::ALIGN),
                buffers_max,
                shelf: Mutex::default(),
            }),
        }
    }

    /// A buffer for `len` bytes, rounded up to the alignment, its contents whatever they were;
    /// `None` if all buffers are out. Memory that has to be made for it is no larger than that, and
    /// is kept only if it is a whole buffer.
    pub fn take(&self, len: usize) -> Option<ReadBuffer> {
        let len = aligned(len).min(self.store.buffer_bytes);
        let memory = {
            let mut shelf = self.store.shelf();
            if shelf.out == self.store.buffers_max {
                return None;
            }
            shelf.out += 1;
            shelf.free.pop()
        };
        let memory = memory.unwrap_or_else(|| vec![0; len + AlignedBuf::ALIGN]);
        let mut buffer = ReadBuffer::of(memory, len);
        buffer.home = Some(self.store.clone());
        Some(buffer)
    }

    /// Bytes that are out: being read into, kept, or on their way to a client.
    pub fn bytes_out(&self) -> u64 {
        self.store.shelf().out as u64 * self.store.buffer_bytes as u64
    }

    /// Gives the memory of the buffers that are at home back to the system.
    pub fn release_free(&self) {
        let free = std::mem::take(&mut self.store.shelf().free);
        drop(free);
    }
}

impl Store {
    fn shelf(&self) -> std::sync::MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadBuffer {
    /// A buffer of its own, of at least `len` bytes.
    pub fn lone(len: usize) -> ReadBuffer {
        let len = aligned(len);
        ReadBuffer::of(vec![0; len + AlignedBuf::ALIGN], len)
    }

    fn of(memory: Vec<u8>, len: usize) -> ReadBuffer {
        let start = memory.as_ptr().align_offset(AlignedBuf::ALIGN);
        ReadBuffer {
            memory,
            start,
            len,
            home: None,
        }
    }

    /// Uses only the first `len` bytes, rounded up to the alignment.
    pub fn shorten(&mut self, len: usize) {
        self.len = self.len.min(aligned(len));
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// Bytes of `range`; the memory goes home with their last slice.
    pub fn freeze(self, range: Range<usize>) -> Bytes {
        Bytes::from_owner(self).slice(range)
    }
}

impl AsRef<[u8]> for ReadBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let mut shelf = home.shelf();
            shelf.out -= 1;
            if self.memory.len() == home.buffer_bytes + AlignedBuf::ALIGN {
                shelf.free.push(std::mem::take(&mut self.memory));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_out_until_the_last_slice_of_it_is_gone_also_on_another_thread() {
        let buffers = ReadBuffers::new(5000, 2);
        let mut first = buffers.take(8192).unwrap();
        assert_eq!(first.len(), 8192);
        assert!(first.as_ref().as_ptr().addr().is_multiple_of(4096));
        first.as_mut_slice()[10..13].copy_from_slice(b"abc");
        let second = buffers.take(8192).unwrap();
        assert!(buffers.take(1).is_none());
        let slice = first.freeze(10..13);
        let copy = slice.clone();
        drop(slice);
        assert_eq!(buffers.bytes_out(), 2 * 8192);
        std::thread::spawn(move || {
            assert_eq!(&copy[..], b"abc");
            drop(second);
        })
        .join()
        .unwrap();
        assert_eq!(buffers.bytes_out(), 0);
        let mut again = buffers.take(100_000).unwrap();
        assert_eq!(again.len(), 8192);
        again.shorten(1);
        assert_eq!(again.len(), 4096);
        buffers.release_free();
        assert_eq!(ReadBuffer::lone(4097).len(), 8192);
        assert_eq!(buffers.take(1).unwrap().len(), 4096);
        assert_eq!(buffers.take(8192).unwrap().len(), 8192);
    }
}

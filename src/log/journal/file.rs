//! Owns one journal file: where the next frame goes, which frames are still needed, and the one
//! write and one fdatasync that make a frame durable. One per shard and log directory, on that
//! shard; one frame at a time. It never knows what an entry means.
//!
//! The file is a ring of blocks, preallocated and written with zeros before its first use, so that
//! no frame changes anything but its data: the file system has nothing to record with the flush.
//! A frame never wraps: what is left before the file's end is skipped. Frames are numbered without
//! a gap; a reader takes the longest unbroken run that ends in the highest number, so what an
//! earlier turn around the ring left behind is either older than the run or a true part of it. The
//! last frame says how far back frames were needed: a run that begins later has lost some.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};

use crate::rt;
use crate::rt::fs::{AlignedBuf, File, OpenOptions};
use crate::types::Uuid;

use super::super::dir::random_id;
use super::frame::{self, BLOCK_BYTES, Entry, FRAME_BYTES_MAX, Stamp};

const NAME_PREFIX: &str = "highwater-journal-";

/// Pieces in which the file is written with zeros: large enough for the device's full speed, small
/// enough that a shard's other writes get between.
const FILL_BYTES: u64 = 1 << 20;

/// Smallest file of use: room for two of the largest frames in each half, so that one half can be
/// flushed behind while the other fills.
pub const JOURNAL_BYTES_MIN: u64 = 4 * FRAME_BYTES_MAX;

/// A journal file that takes frames.
pub(super) struct JournalFile {
    path: PathBuf,
    file: File,
    id: Uuid,
    place: RefCell<Place>,
    sequence: Cell<u64>,
    /// Number of the first frame that is still needed.
    needed_from: Cell<u64>,
}

/// What was told up to a moment: where it ends, and the number of the first frame behind it.
#[derive(Clone, Copy)]
pub(super) struct Head {
    position: u64,
    sequence: u64,
}

/// Where frames lie, as positions that only grow; the file offset is the rest by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    size: u64,
    /// End of the last frame.
    head: u64,
    /// Start of the first frame that is still needed.
    tail: u64,
}

impl Place {
    /// Where a frame of `len` bytes would begin; `None` if what is still needed leaves no room.
    fn place_for(&self, len: u64) -> Option<u64> {
        let left = self.size - self.head % self.size;
        let begin = if left < len {
            self.head + left
        } else {
            self.head
        };
        (begin + len - self.tail <= self.size).then_some(begin)
    }
}

impl JournalFile {
    /// Makes a file of `size` bytes, whole and on the device when this returns. `turn` is above
    /// that of every journal an earlier life of the broker left.
    ///
    /// # Errors
    /// The storage's. What was made of the file is removed again.
    pub async fn create(log_dir: &Path, turn: u64, size: u64) -> io::Result<JournalFile> {
        let id = random_id();
        let path = log_dir.join(name_of(turn, id));
        let file = File::open(&path, OpenOptions::CREATE_NEW.direct()).await?;
        let size = size / BLOCK_BYTES * BLOCK_BYTES;
        if let Err(error) = fill(&file, log_dir, size).await {
            drop(file);
            // A full disk needs the space back; on a broken one the next start removes it.
            let _ = rt::fs::remove_file(&path).await;
            return Err(error);
        }
        Ok(JournalFile {
            path,
            file,
            id,
            place: RefCell::new(Place {
                size,
                head: 0,
                tail: 0,
            }),
            sequence: Cell::new(1),
            needed_from: Cell::new(1),
        })
    }

    /// Whether a frame of `len` bytes fits beside what is still needed.
    pub fn has_room(&self, len: u64) -> bool {
        len <= FRAME_BYTES_MAX && self.place.borrow().place_for(len).is_some()
    }

    /// Bytes between the first frame that is still needed and the last.
    pub fn live_bytes(&self) -> u64 {
        let place = self.place.borrow();
        place.head - place.tail
    }

    pub fn size(&self) -> u64 {
        self.place.borrow().size
    }

    /// Where the next frame will begin or later: what to give [`JournalFile::release`] once all
    /// that was told before is in the segments.
    pub fn head(&self) -> Head {
        Head {
            position: self.place.borrow().head,
            sequence: self.sequence.get(),
        }
    }

    /// Frames before `head` are not needed any more.
    pub fn release(&self, head: Head) {
        let mut place = self.place.borrow_mut();
        let position = head.position;
        assert!(
            position <= place.head,
            "released to {position} in {place:?}"
        );
        place.tail = place.tail.max(position);
        let needed_from = self.needed_from.get().max(head.sequence);
        self.needed_from.set(needed_from);
    }

    /// Writes a frame and makes it durable; its bytes. Only one at a time, and only where
    /// [`JournalFile::has_room`] said so.
    ///
    /// # Errors
    /// The storage's: the journal must not be used again.
    pub async fn write(&self, entries: &[Entry]) -> io::Result<u64> {
        let len = frame::frame_size(entries);
        let begin = self.place.borrow().place_for(len);
        let begin = begin.ok_or(io::ErrorKind::StorageFull)?;
        let stamp = Stamp {
            journal: self.id,
            sequence: self.sequence.get(),
            needed_from: self.needed_from.get(),
        };
        let mut buffer = AlignedBuf::zeroed(len as usize);
        frame::encode(stamp, entries, &mut buffer);
        let size = {
            let mut place = self.place.borrow_mut();
            place.head = begin + len;
            place.size
        };
        self.sequence.set(stamp.sequence + 1);
        self.file.write_aligned_at(begin % size, buffer).await.0?;
        self.file.sync_data().await?;
        Ok(len)
    }

    /// Removes the file: everything it told is in the segments, and they are flushed.
    pub async fn remove(&self) -> io::Result<()> {
        rt::fs::remove_file(&self.path).await?;
        match self.path.parent() {
            Some(log_dir) => rt::fs::sync_dir(log_dir).await,
            None => Ok(()),
        }
    }
}

async fn fill(file: &File, log_dir: &Path, size: u64) -> io::Result<()> {
    file.preallocate(size, false).await?;
    let mut zeros = AlignedBuf::zeroed(FILL_BYTES as usize);
    let mut position = 0;
    while position < size {
        if size - position < FILL_BYTES {
            zeros = AlignedBuf::zeroed((size - position) as usize);
        }
        let len = zeros.len() as u64;
        let (written, buffer) = file.write_aligned_at(position, zeros).await;
        written?;
        zeros = buffer;
        position += len;
    }
    file.sync_all().await?;
    rt::fs::sync_dir(log_dir).await
}

fn name_of(turn: u64, id: Uuid) -> String {
    use std::fmt::Write;
    let mut name = format!("{NAME_PREFIX}{turn:010}-");
    for byte in id.0 {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Turn and id of a journal file, by its name.
pub(super) fn parse_name(name: &str) -> Option<(u64, Uuid)> {
    let (turn, id) = name.strip_prefix(NAME_PREFIX)?.split_once('-')?;
    if id.len() != 32 || !id.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&id[2 * at..2 * at + 2], 16).ok()?;
    }
    Some((turn.parse().ok()?, Uuid(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_never_wraps_and_never_covers_what_is_still_needed() {
        let mut place = Place {
            size: 100,
            head: 0,
            tail: 0,
        };
        assert_eq!(place.place_for(60), Some(0));
        place.head = 60;
        assert_eq!(place.place_for(40), Some(60));
        assert_eq!(place.place_for(41), None, "it would cover the first frame");
        place.tail = 60;
        assert_eq!(place.place_for(60), Some(100), "behind the end: at 0 again");
        assert_eq!(place.place_for(61), None, "the skipped end counts");
        place.head = 160;
        place.tail = 160;
        assert_eq!(place.place_for(100), None);
        assert_eq!(place.place_for(40), Some(160));
    }

    #[test]
    fn a_journals_name_tells_its_turn_and_id() {
        let id = Uuid::from_halves(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
        assert_eq!(parse_name(&name_of(12, id)), Some((12, id)));
        for name in [
            "highwater-journal-1-0",
            "highwater-journal-x-0123456789abcdef0123456789abcdef",
            "orders-0",
            "highwater-journal-1-é123456789abcdef0123456789abcde",
        ] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}

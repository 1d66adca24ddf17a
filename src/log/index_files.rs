//! Owns the index files of sealed segments as a reader finds them, and the bound on how much of them
//! a shard keeps in memory. On the shard that owns the logs. It never writes one: the segment does.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::rc::{Rc, Weak};

use crate::rt::fs::{File, OpenOptions};
use crate::types::Offset;

use super::config::LogConfig;
use super::error::about;
use super::index::{IndexDamage, OffsetIndex, TIME_ENTRY_BYTES, TimeIndex, decode_time_entry};
use super::names::{FileKind, segment_file};
use super::segment::Segment;

/// Bounds the index memory of a shard's sealed segments: the one loaded longest ago leaves first.
pub struct IndexBudget {
    limit_bytes: u64,
    loaded: RefCell<VecDeque<(Weak<Segment>, u64)>>,
    bytes: Cell<u64>,
}

impl IndexBudget {
    pub fn new(limit_bytes: u64) -> IndexBudget {
        IndexBudget {
            limit_bytes,
            loaded: RefCell::default(),
            bytes: Cell::new(0),
        }
    }

    /// Charges a sealed segment whose indexes are in memory.
    pub fn charge(&self, segment: &Rc<Segment>) {
        let cost = segment.index_bytes() + 64;
        self.loaded
            .borrow_mut()
            .push_back((Rc::downgrade(segment), cost));
        self.bytes.set(self.bytes.get() + cost);
        // The last one charged is about to be used; it stays in the account and goes next time.
        while self.bytes.get() > self.limit_bytes && self.loaded.borrow().len() > 1 {
            let Some((oldest, cost)) = self.loaded.borrow_mut().pop_front() else {
                break;
            };
            self.bytes.set(self.bytes.get() - cost);
            if let Some(oldest) = oldest.upgrade()
                && !Rc::ptr_eq(&oldest, segment)
            {
                oldest.unload_indexes();
            }
        }
    }
}

/// Entries that take some milliseconds to check: the files of a whole segment of 1 GiB. Fewer than
/// this are checked on the spot.
const DECODE_HERE_BYTES: usize = 64 << 10;

/// Reads `.index` and `.timeindex`; damaged contents are `InvalidData`.
pub async fn read_index_files(base: Offset, dir: &Path) -> io::Result<(OffsetIndex, TimeIndex)> {
    let index = dir.join(segment_file(base, FileKind::OffsetIndex));
    let offsets = crate::rt::fs::read(&index).await.map_err(about(&index))?;
    let time_index = dir.join(segment_file(base, FileKind::TimeIndex));
    let times = crate::rt::fs::read(&time_index)
        .await
        .map_err(about(&time_index))?;
    if offsets.len() + times.len() <= DECODE_HERE_BYTES {
        decode_index_files(base, dir, &offsets, &times)
    } else {
        let dir = dir.to_owned();
        crate::rt::blocking(move || decode_index_files(base, &dir, &offsets, &times)).await
    }
}

/// The contents of `.index` and `.timeindex`; damaged ones are `InvalidData`.
pub fn decode_index_files(
    base: Offset,
    dir: &Path,
    offsets: &[u8],
    times: &[u8],
) -> io::Result<(OffsetIndex, TimeIndex)> {
    let damaged = |kind| {
        let path = dir.join(segment_file(base, kind));
        move |error: IndexDamage| about(&path)(io::Error::new(io::ErrorKind::InvalidData, error))
    };
    let offsets = OffsetIndex::decode(base, offsets).map_err(damaged(FileKind::OffsetIndex))?;
    let times = TimeIndex::decode(base, times).map_err(damaged(FileKind::TimeIndex))?;
    Ok((offsets, times))
}

/// The last entry of a trimmed `.timeindex`, without reading the rest.
pub async fn read_last_time_entry(base: Offset, dir: &Path) -> io::Result<Option<(i64, Offset)>> {
    let path = dir.join(segment_file(base, FileKind::TimeIndex));
    last_time_entry(base, &path).await.map_err(about(&path))
}

async fn last_time_entry(base: Offset, path: &Path) -> io::Result<Option<(i64, Offset)>> {
    let len = crate::rt::fs::file_len(path).await?;
    if len % TIME_ENTRY_BYTES as u64 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "time index has a partial entry",
        ));
    }
    if len == 0 {
        return Ok(None);
    }
    let file = File::open(path, OpenOptions::READ).await?;
    let raw = file
        .read_at(len - TIME_ENTRY_BYTES as u64, TIME_ENTRY_BYTES)
        .await?;
    if raw.len() != TIME_ENTRY_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "time index shrank",
        ));
    }
    let entry = decode_time_entry(&raw);
    // A first record of 1970 is the one entry that looks like reserved space, if it is the only one.
    let reserved = entry.timestamp == 0 && entry.relative == 0 && len > TIME_ENTRY_BYTES as u64;
    if reserved || entry.timestamp < 0 {
        let reason = "time index was not cut to its entries";
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok(Some((
        entry.timestamp,
        Offset(base.0 + i64::from(entry.relative)),
    )))
}

impl Segment {
    /// Reads a sealed segment's indexes into memory and charges them to the shard's bound.
    pub async fn load_indexes(
        self: &Rc<Segment>,
        dir: &Path,
        config: &LogConfig,
        budget: &IndexBudget,
    ) -> io::Result<()> {
        if self.indexes_resident() {
            return Ok(());
        }
        let read = read_index_files(self.base(), dir).await;
        if self.is_replaced() {
            // Whoever still reads it looks through it from its beginning.
            let (offsets, times) = (OffsetIndex::new(self.base()), TimeIndex::new(self.base()));
            self.adopt_indexes(offsets, times, config);
            return Ok(());
        }
        let (offsets, times) = read?;
        if let Some(position) = offsets.last_position().map(u64::from)
            && position >= self.written()
        {
            let reason = format!("it points to {position}, past the end of the segment");
            let path = dir.join(segment_file(self.base(), FileKind::OffsetIndex));
            let error = io::Error::new(io::ErrorKind::InvalidData, reason);
            return Err(about(&path)(error));
        }
        if !self.indexes_resident() {
            self.adopt_indexes(offsets, times, config);
            budget.charge(self);
        }
        Ok(())
    }
}

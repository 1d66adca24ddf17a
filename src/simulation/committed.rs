//! What is committed, as the disks of the brokers have it while they run: each replica is read on as
//! its high watermark advances and held against what another had below its own. So replicas are
//! compared all the time, and what was committed once is never another record later.
//!
//! A world of one broker has nothing to compare.

use crate::log::Log;
use crate::replica::partition::Partition;
use crate::rt::sim::Disk;
use crate::types::PartitionId;
use crate::wire::batch::Batch;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// How much of a file is read at once: many times a batch.
const CHUNK: usize = 64 << 10;

/// A committed batch: the offset after it, and a digest of its bytes.
type Digest = (i64, u32);

/// How far a replica was read.
struct Cursor {
    log: Weak<Log>,
    next: i64,
    file: String,
    position: u64,
}

/// See the module's words.
#[derive(Default)]
pub(super) struct Committed {
    books: BTreeMap<PartitionId, BTreeMap<i64, Digest>>,
    cursors: BTreeMap<(usize, PartitionId), Cursor>,
    batches: u64,
}

impl Committed {
    /// Batches that were held against another replica's.
    pub(super) fn compared(&self) -> u64 {
        self.batches
    }

    /// Reads a node's replica on; what differs from the others.
    pub(super) fn read_on(
        &mut self,
        node: usize,
        disk: &Disk,
        partition: &Partition,
    ) -> Option<String> {
        let log = &partition.log;
        let end = partition.high_watermark().min(log.written()).0;
        if log.is_offline() || partition.is_gone() {
            return None;
        }
        let key = (node, partition.id);
        let known = self.cursors.remove(&key).filter(|cursor| {
            // Cut in between, or begun anew: it is read from its start again.
            let same = cursor.log.as_ptr() == Rc::as_ptr(log) && cursor.log.strong_count() > 0;
            same && cursor.next >= log.log_start().0 && cursor.next <= end
        });
        let begin = || Cursor {
            log: Rc::downgrade(log),
            next: log.log_start().0,
            file: String::new(),
            position: 0,
        };
        let again = known.is_some();
        let mut cursor = known.unwrap_or_else(begin);
        let mut outcome = self.read_to(&mut cursor, end, disk, partition);
        if outcome.is_err() && again {
            // It may have been cut and written again since it was looked at.
            cursor = begin();
            outcome = self.read_to(&mut cursor, end, disk, partition);
        }
        self.cursors.insert(key, cursor);
        outcome.err()
    }

    fn read_to(
        &mut self,
        cursor: &mut Cursor,
        end: i64,
        disk: &Disk,
        partition: &Partition,
    ) -> Result<(), String> {
        let dir = partition.log.dir();
        while cursor.next < end {
            let names = disk.list(&*dir).unwrap_or_default();
            let base_of = |name: &str| name.strip_suffix(".log")?.parse::<i64>().ok();
            let holds = |name: &&String| base_of(name).is_some_and(|base| base <= cursor.next);
            // Names sort like the offsets in them.
            let Some(file) = names.iter().rev().find(holds) else {
                return Err(format!("no segment holds offset {}", cursor.next));
            };
            if *file != cursor.file {
                cursor.file.clone_from(file);
                cursor.position = 0;
            }
            let bytes = disk.read_at(dir.join(file), cursor.position, CHUNK);
            let mut rest = Bytes::from(bytes.unwrap_or_default());
            let before = cursor.position;
            while cursor.next < end {
                let Ok((batch, tail)) = Batch::parse(&rest) else {
                    break;
                };
                let bytes = &rest[..rest.len() - tail.len()];
                let (base, next) = (batch.base_offset().0, batch.last_offset().next().0);
                if next > cursor.next {
                    if base != cursor.next {
                        return Err(format!("offset {base} where {} should be", cursor.next));
                    }
                    self.hold(partition.id, base, (next, crc32c::crc32c(bytes)))?;
                    cursor.next = next;
                }
                cursor.position += bytes.len() as u64;
                rest = tail;
            }
            if cursor.position == before {
                return Err(format!("offset {} cannot be read", cursor.next));
            }
        }
        Ok(())
    }

    /// Holds a batch against what is known to be committed.
    fn hold(&mut self, id: PartitionId, base: i64, digest: Digest) -> Result<(), String> {
        let book = self.books.entry(id).or_default();
        let last = book.range(..=base).next_back();
        match last.map(|(known, digest)| (*known, *digest)) {
            Some(known) if known == (base, digest) => self.batches += 1,
            Some((known, (next, _))) if next > base || known == base => {
                return Err(format!(
                    "{base}..{} is not the batch {known}..{next} committed before",
                    digest.0
                ));
            }
            _ => {
                if let Some((known, _)) = book.range(base..).next() {
                    return Err(format!(
                        "{base}..{} where batch {known} was committed before",
                        digest.0
                    ));
                }
                book.insert(base, digest);
            }
        }
        Ok(())
    }
}

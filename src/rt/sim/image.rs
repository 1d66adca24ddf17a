//! The contents of one simulated file, twice: as the processes see it and as the device has it.
//!
//! Sparse pages, so that a preallocated segment costs nothing. What has been written and not
//! synced is known per 512-byte sector; a power loss decides for each of them.

use std::collections::{BTreeMap, BTreeSet};

use super::kernel::Kernel;

/// A device writes a sector whole or not at all.
pub(super) const SECTOR: u64 = 512;
const PAGE: u64 = 4096;

#[derive(Clone, Default)]
struct Pages {
    pages: BTreeMap<u64, Box<[u8]>>,
    len: u64,
}

impl Pages {
    fn write(&mut self, position: u64, mut bytes: &[u8]) {
        let mut at = position;
        while !bytes.is_empty() {
            let offset = (at % PAGE) as usize;
            let count = bytes.len().min(PAGE as usize - offset);
            let page = self
                .pages
                .entry(at / PAGE)
                .or_insert_with(|| vec![0; PAGE as usize].into_boxed_slice());
            page[offset..offset + count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            at += count as u64;
        }
        self.len = self.len.max(at);
    }

    fn read(&self, position: u64, len: usize) -> Vec<u8> {
        let end = position.saturating_add(len as u64).min(self.len);
        let mut out = vec![0; end.saturating_sub(position) as usize];
        let mut done = 0;
        while done < out.len() {
            let at = position + done as u64;
            let offset = (at % PAGE) as usize;
            let count = (out.len() - done).min(PAGE as usize - offset);
            if let Some(page) = self.pages.get(&(at / PAGE)) {
                out[done..done + count].copy_from_slice(&page[offset..offset + count]);
            }
            done += count;
        }
        out
    }

    fn cut(&mut self, len: u64) {
        self.pages.retain(|page, _| page * PAGE < len);
        if let Some(page) = self.pages.get_mut(&(len / PAGE)) {
            page[(len % PAGE) as usize..].fill(0);
        }
        self.len = len;
    }

    fn sector(&self, sector: u64) -> [u8; SECTOR as usize] {
        let mut out = [0; SECTOR as usize];
        let at = sector * SECTOR;
        if let Some(page) = self.pages.get(&(at / PAGE)) {
            let offset = (at % PAGE) as usize;
            out.copy_from_slice(&page[offset..offset + SECTOR as usize]);
        }
        out
    }

    fn set_sector(&mut self, sector: u64, bytes: &[u8; SECTOR as usize]) {
        let at = sector * SECTOR;
        let page = self
            .pages
            .entry(at / PAGE)
            .or_insert_with(|| vec![0; PAGE as usize].into_boxed_slice());
        let offset = (at % PAGE) as usize;
        page[offset..offset + SECTOR as usize].copy_from_slice(bytes);
    }
}

/// A sync that has begun: what it will have made durable when it ends.
pub(super) struct SyncPlan {
    sectors: Vec<u64>,
    version: u64,
}

#[derive(Default)]
pub(super) struct Image {
    volatile: Pages,
    durable: Pages,
    /// Sectors that differ, with the version of the last write to each.
    unsynced: BTreeMap<u64, u64>,
    version: u64,
}

impl Image {
    pub(super) fn len(&self) -> u64 {
        self.volatile.len
    }

    pub(super) fn read(&self, position: u64, len: usize) -> Vec<u8> {
        self.volatile.read(position, len)
    }

    pub(super) fn write(&mut self, position: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.touch(
            self.volatile.len.min(position),
            position + bytes.len() as u64,
            position,
        );
        self.volatile.write(position, bytes);
    }

    /// Marks `[from, to)` as changed; below `dense_from` only what the device holds otherwise.
    fn touch(&mut self, from: u64, to: u64, dense_from: u64) {
        self.version += 1;
        let version = self.version;
        for sector in dense_from / SECTOR..to.div_ceil(SECTOR) {
            self.unsynced.insert(sector, version);
        }
        let pages: BTreeSet<u64> = self
            .durable
            .pages
            .range(from / PAGE..dense_from.div_ceil(PAGE).max(from / PAGE))
            .map(|(page, _)| *page)
            .collect();
        for page in pages {
            for sector in page * PAGE / SECTOR..(page + 1) * PAGE / SECTOR {
                if sector * SECTOR + SECTOR > from && sector * SECTOR < dense_from {
                    self.unsynced.insert(sector, version);
                }
            }
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        let old = self.volatile.len;
        if len < old {
            self.volatile.cut(len);
            self.unsynced.retain(|sector, _| sector * SECTOR < len);
            if !len.is_multiple_of(SECTOR) {
                self.version += 1;
                self.unsynced.insert(len / SECTOR, self.version);
            }
        } else {
            // Zeros in between; they matter where the device still has older bytes.
            self.touch(old, len, len);
            self.volatile.len = len;
        }
    }

    pub(super) fn begin_sync(&self) -> SyncPlan {
        SyncPlan {
            sectors: self.unsynced.keys().copied().collect(),
            version: self.version,
        }
    }

    pub(super) fn finish_sync(&mut self, plan: &SyncPlan) {
        for sector in &plan.sectors {
            self.durable
                .set_sector(*sector, &self.volatile.sector(*sector));
            if self
                .unsynced
                .get(sector)
                .is_some_and(|version| *version <= plan.version)
            {
                self.unsynced.remove(sector);
            }
        }
        self.durable.cut(self.volatile.len);
    }

    /// A failed sync: the kernel forgets that the pages were dirty. They are still read, and they
    /// may or may not be on the device.
    pub(super) fn fail_sync(&mut self, plan: &SyncPlan, kernel: &Kernel) {
        for sector in &plan.sectors {
            if kernel.one_in(2) {
                self.durable
                    .set_sector(*sector, &self.volatile.sector(*sector));
            }
            self.unsynced.remove(sector);
        }
    }

    /// What a power loss leaves: everything synced; of the rest each sector the new or the old
    /// contents, and a length between the old one and the new one.
    pub(super) fn lose_power(&mut self, kernel: &Kernel) {
        let (old_len, new_len) = (self.durable.len, self.volatile.len);
        let len = match kernel.below(4) {
            0 => old_len,
            1 => {
                let (low, high) = (old_len.min(new_len), old_len.max(new_len));
                (kernel.between(low, high) / SECTOR * SECTOR).clamp(low, high)
            }
            _ => new_len,
        };
        // Often all or nothing reaches the device, sometimes a mixture.
        let odds = match kernel.below(4) {
            0 => 0,
            1 => 100,
            _ => kernel.between(1, 99),
        };
        let sectors: Vec<u64> = self.unsynced.keys().copied().collect();
        for sector in sectors {
            if kernel.below(100) < odds {
                self.durable
                    .set_sector(sector, &self.volatile.sector(sector));
            }
        }
        self.durable.cut(len);
        self.volatile = self.durable.clone();
        self.unsynced.clear();
    }

    /// Written pages, in bytes: what the file takes on the disk.
    pub(super) fn used(&self) -> u64 {
        self.volatile.pages.len() as u64 * PAGE
    }
}

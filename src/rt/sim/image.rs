//! The contents of one simulated file, twice: as the processes see it and as the device has it.
//!
//! Sparse pages, so that a preallocated segment costs nothing. What has been written and not
//! synced is known per 512-byte sector; a power loss decides for each of them.

use std::collections::BTreeMap;

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
        let wanted = end.saturating_sub(position) as usize;
        let mut out = Vec::with_capacity(wanted);
        while out.len() < wanted {
            let at = position + out.len() as u64;
            let offset = (at % PAGE) as usize;
            let count = (wanted - out.len()).min(PAGE as usize - offset);
            match self.pages.get(&(at / PAGE)) {
                Some(page) => out.extend_from_slice(&page[offset..offset + count]),
                None => out.resize(out.len() + count, 0),
            }
        }
        out
    }

    fn cut(&mut self, len: u64) {
        drop(self.pages.split_off(&len.div_ceil(PAGE)));
        if let Some(page) = self.pages.get_mut(&(len / PAGE)) {
            page[(len % PAGE) as usize..].fill(0);
        }
        self.len = len;
    }

    /// Takes over the sectors of a page that `mask` names, one bit each from the lowest on.
    fn copy_sectors(&mut self, page: u64, mask: u8, from: &Pages) {
        let own = self
            .pages
            .entry(page)
            .or_insert_with(|| vec![0; PAGE as usize].into_boxed_slice());
        let theirs = from.pages.get(&page);
        for at in sectors_of(mask) {
            let bytes = at * SECTOR as usize..(at + 1) * SECTOR as usize;
            match theirs {
                Some(theirs) => own[bytes.clone()].copy_from_slice(&theirs[bytes]),
                None => own[bytes].fill(0),
            }
        }
    }
}

const SECTORS: usize = (PAGE / SECTOR) as usize;

/// The version of the last write to each sector of a page; 0 if the device has it.
type Versions = [u64; SECTORS];

fn sectors_of(mask: u8) -> impl Iterator<Item = usize> {
    (0..SECTORS).filter(move |at| mask & 1 << at != 0)
}

fn changed(versions: &Versions) -> u8 {
    let bits = versions.iter().enumerate();
    bits.fold(0, |mask, (at, version)| mask | u8::from(*version > 0) << at)
}

/// A sync that has begun: what it will have made durable when it ends.
pub(super) struct SyncPlan {
    /// Pages and their sectors.
    pages: Vec<(u64, u8)>,
    version: u64,
}

#[derive(Default)]
pub(super) struct Image {
    volatile: Pages,
    durable: Pages,
    /// By page, the sectors that differ.
    unsynced: BTreeMap<u64, Versions>,
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
        self.mark(dense_from / SECTOR, to.div_ceil(SECTOR));
        let below = from / PAGE..dense_from.div_ceil(PAGE).max(from / PAGE);
        let held: Vec<u64> = self
            .durable
            .pages
            .range(below)
            .map(|(page, _)| *page)
            .collect();
        for page in held {
            let first = (page * PAGE).max(from / SECTOR * SECTOR) / SECTOR;
            let end = ((page + 1) * PAGE).min(dense_from).div_ceil(SECTOR);
            self.mark(first, end);
        }
    }

    /// Marks sectors as written in this version.
    fn mark(&mut self, first: u64, end: u64) {
        let mut at = first;
        while at < end {
            let page = at / SECTORS as u64;
            let next = ((page + 1) * SECTORS as u64).min(end);
            let from = (at % SECTORS as u64) as usize;
            let versions = self.unsynced.entry(page).or_default();
            versions[from..from + (next - at) as usize].fill(self.version);
            at = next;
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        let old = self.volatile.len;
        if len < old {
            self.volatile.cut(len);
            drop(self.unsynced.split_off(&len.div_ceil(PAGE)));
            if let Some(versions) = self.unsynced.get_mut(&(len / PAGE)) {
                versions[(len % PAGE).div_ceil(SECTOR) as usize..].fill(0);
            }
            if !len.is_multiple_of(SECTOR) {
                self.version += 1;
                self.mark(len / SECTOR, len / SECTOR + 1);
            }
        } else {
            // Zeros in between; they matter where the device still has older bytes.
            self.touch(old, len, len);
            self.volatile.len = len;
        }
    }

    pub(super) fn begin_sync(&self) -> SyncPlan {
        let pages = self.unsynced.iter();
        SyncPlan {
            pages: pages
                .map(|(page, versions)| (*page, changed(versions)))
                .collect(),
            version: self.version,
        }
    }

    pub(super) fn finish_sync(&mut self, plan: &SyncPlan) {
        for (page, mask) in &plan.pages {
            if *mask > 0 {
                self.durable.copy_sectors(*page, *mask, &self.volatile);
            }
            self.synced(*page, *mask, plan.version);
        }
        self.durable.cut(self.volatile.len);
    }

    /// Sectors of a page need no sync, unless they were written after `version`.
    fn synced(&mut self, page: u64, mask: u8, version: u64) {
        let Some(versions) = self.unsynced.get_mut(&page) else {
            return;
        };
        for at in sectors_of(mask) {
            if versions[at] <= version {
                versions[at] = 0;
            }
        }
        if changed(versions) == 0 {
            self.unsynced.remove(&page);
        }
    }

    /// A failed sync: the kernel forgets that the pages were dirty. They are still read, and they
    /// may or may not be on the device.
    pub(super) fn fail_sync(&mut self, plan: &SyncPlan, kernel: &Kernel) {
        for (page, mask) in &plan.pages {
            let reached = by_chance(*mask, || kernel.one_in(2));
            if reached > 0 {
                self.durable.copy_sectors(*page, reached, &self.volatile);
            }
            self.synced(*page, *mask, u64::MAX);
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
        for (page, versions) in &self.unsynced {
            let reached = by_chance(changed(versions), || kernel.below(100) < odds);
            if reached > 0 {
                self.durable.copy_sectors(*page, reached, &self.volatile);
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

/// Of some sectors those for which `reaches` says so, asked in their order.
fn by_chance(mask: u8, mut reaches: impl FnMut() -> bool) -> u8 {
    sectors_of(mask).fold(0, |reached, at| reached | u8::from(reaches()) << at)
}

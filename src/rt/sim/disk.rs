//! A node's simulated disk: a tree of names and files, each as the processes see it and as the
//! device has it, and the faults it may show.
//!
//! A file's contents are durable after a sync of the file, a name after a sync of its directory. A
//! power loss keeps of each directory's unsynced changes a prefix, so a rename is atomic but may
//! not have happened. A process kill loses nothing that was written.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::image::Image;
use super::kernel::Kernel;
use super::tree::{Dir, Fs, Ino, Inode, ROOT};

/// What a disk without a set capacity reports, in bytes.
const CAPACITY_DEFAULT: u64 = 1 << 40;

/// How often an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fault {
    #[default]
    Never,
    Always,
    /// One in so many, by the seed.
    OneIn(u64),
}

#[derive(Default)]
struct Faults {
    writes: Fault,
    syncs: Fault,
    reads: Fault,
    /// Only below this path; everywhere if `None`.
    under: Option<PathBuf>,
    capacity: Option<u64>,
    lying_sync: bool,
    /// One write in so many is cut short; 0: none.
    short_writes_one_in: u64,
}

pub(super) struct DiskState {
    pub(super) kernel: Rc<Kernel>,
    pub(super) fs: RefCell<Fs>,
    faults: RefCell<Faults>,
    slowness: Cell<u64>,
}

pub(super) fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl DiskState {
    pub(super) fn new(kernel: &Rc<Kernel>) -> DiskState {
        let fs = Fs {
            inodes: BTreeMap::from([(ROOT, Inode::Dir(Dir::default()))]),
            next_ino: ROOT + 1,
            next_pair: 0,
            locks: BTreeSet::new(),
            gone: 0,
        };
        DiskState {
            kernel: kernel.clone(),
            fs: RefCell::new(fs),
            faults: RefCell::default(),
            slowness: Cell::new(1),
        }
    }

    /// Nanoseconds that an operation takes which a healthy disk does in `low..=high`.
    pub(super) fn delay_ns(&self, path: &Path, low: u64, high: u64) -> u64 {
        let factor = if self.is_struck(path) {
            self.slowness.get()
        } else {
            1
        };
        self.kernel.between(low, high).saturating_mul(factor)
    }

    /// Whether faults are to be found at this path.
    fn is_struck(&self, path: &Path) -> bool {
        let faults = self.faults.borrow();
        let under = faults.under.as_ref();
        under.is_none_or(|under| path.starts_with(under))
    }

    fn strikes(&self, fault: Fault, path: &Path) -> bool {
        let hit = match fault {
            Fault::Never => false,
            Fault::Always => true,
            Fault::OneIn(n) => self.kernel.one_in(n),
        };
        hit && self.is_struck(path)
    }

    pub(super) fn check_write(&self, path: &Path) -> io::Result<()> {
        let fault = self.faults.borrow().writes;
        if self.strikes(fault, path) {
            Err(eio())
        } else {
            Ok(())
        }
    }

    pub(super) fn check_read(&self, path: &Path) -> io::Result<()> {
        let fault = self.faults.borrow().reads;
        if self.strikes(fault, path) {
            Err(eio())
        } else {
            Ok(())
        }
    }

    pub(super) fn check_sync(&self, path: &Path) -> io::Result<()> {
        let fault = self.faults.borrow().syncs;
        if self.strikes(fault, path) {
            Err(eio())
        } else {
            Ok(())
        }
    }

    pub(super) fn lies(&self) -> bool {
        self.faults.borrow().lying_sync
    }

    /// How much of a write of `len` bytes is taken.
    pub(super) fn accepted(&self, len: usize) -> usize {
        let one_in = self.faults.borrow().short_writes_one_in;
        if one_in > 0 && len > 1 && self.kernel.one_in(one_in) {
            1 + self.kernel.below(len as u64 - 1) as usize
        } else {
            len
        }
    }

    /// # Errors
    /// `StorageFull` if `more` bytes do not fit.
    pub(super) fn check_room(&self, more: u64) -> io::Result<()> {
        match self.faults.borrow().capacity {
            Some(capacity) if self.used() + more > capacity => {
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of what has a name or is open; a removed file counts no more, although its name may
    /// come back after a power loss.
    pub(super) fn used(&self) -> u64 {
        let fs = self.fs.borrow();
        let mut named = BTreeSet::new();
        let mut queue = vec![ROOT];
        while let Some(ino) = queue.pop() {
            if let Some(Inode::Dir(dir)) = fs.inodes.get(&ino) {
                queue.extend(dir.entries.values().filter(|ino| named.insert(**ino)));
            }
        }
        let used = |(ino, inode): (&Ino, &Inode)| match inode {
            Inode::File { image, opens } if *opens > 0 || named.contains(ino) => image.used(),
            Inode::File { .. } | Inode::Dir(_) => 0,
        };
        fs.inodes.iter().map(used).sum()
    }

    pub(super) fn space(&self) -> (u64, u64) {
        let total = self.faults.borrow().capacity.unwrap_or(CAPACITY_DEFAULT);
        (total, total.saturating_sub(self.used()))
    }

    pub(super) fn close(&self, ino: Ino) {
        let mut fs = self.fs.borrow_mut();
        if let Some(Inode::File { opens, .. }) = fs.inodes.get_mut(&ino) {
            *opens = opens.saturating_sub(1);
            if *opens == 0 {
                fs.let_go();
            }
        }
    }

    /// The contents of an open file.
    pub(super) fn image<R>(&self, ino: Ino, f: impl FnOnce(&mut Image) -> R) -> io::Result<R> {
        match self.fs.borrow_mut().inodes.get_mut(&ino) {
            Some(Inode::File { image, .. }) => Ok(f(image)),
            _ => Err(eio()),
        }
    }

    /// The contents of a file that somebody knows by its number alone, if it is still there.
    pub(super) fn image_by_number<R>(
        &self,
        ino: Ino,
        f: impl FnOnce(&mut Image) -> R,
    ) -> io::Result<R> {
        let mut fs = self.fs.borrow_mut();
        if fs.gone > 0 {
            fs.collect();
        }
        drop(fs);
        self.image(ino, f)
    }

    pub(super) fn lock(&self, ino: Ino) -> bool {
        self.fs.borrow_mut().locks.insert(ino)
    }

    pub(super) fn unlock(&self, ino: Ino) {
        self.fs.borrow_mut().locks.remove(&ino);
    }

    /// The process is gone: its handles and locks with it, nothing that was written.
    pub(super) fn end_process(&self) {
        let mut fs = self.fs.borrow_mut();
        fs.locks.clear();
        for inode in fs.inodes.values_mut() {
            if let Inode::File { opens, .. } = inode {
                *opens = 0;
            }
        }
        fs.collect();
    }

    pub(super) fn lose_power(&self) {
        self.end_process();
        let kernel = &self.kernel;
        let mut fs = self.fs.borrow_mut();
        let mut kept: BTreeMap<Ino, usize> = BTreeMap::new();
        for (ino, inode) in &fs.inodes {
            if let Inode::Dir(dir) = inode {
                kept.insert(*ino, kernel.below(dir.pending.len() as u64 + 1) as usize);
            }
        }
        fs.keep_pairs_whole(&mut kept);
        for (ino, inode) in &mut fs.inodes {
            match inode {
                Inode::Dir(dir) => {
                    let count = kept.get(ino).copied().unwrap_or(0);
                    for change in dir.pending.drain(..).take(count) {
                        change.apply(&mut dir.durable);
                    }
                    dir.entries = dir.durable.clone();
                }
                Inode::File { image, .. } => image.lose_power(kernel),
            }
        }
        fs.collect();
    }
}

/// A node's disk as a test sees it: faults to set, contents to look at.
#[derive(Clone)]
pub struct Disk(pub(super) Rc<DiskState>);

impl Disk {
    /// Writes (and creations, renames, removals) fail with EIO.
    pub fn fail_writes(&self, fault: Fault) {
        self.0.faults.borrow_mut().writes = fault;
    }

    /// Syncs fail with EIO; what they should have covered may be lost although it is still read.
    pub fn fail_syncs(&self, fault: Fault) {
        self.0.faults.borrow_mut().syncs = fault;
    }

    /// Reads fail with EIO.
    pub fn fail_reads(&self, fault: Fault) {
        self.0.faults.borrow_mut().reads = fault;
    }

    /// Faults and slowness strike only below `path`: one log directory of several.
    pub fn limit_faults_to(&self, path: impl AsRef<Path>) {
        self.0.faults.borrow_mut().under = Some(path.as_ref().to_owned());
    }

    /// Syncs report success and do nothing.
    pub fn set_lying_sync(&self, lying: bool) {
        self.0.faults.borrow_mut().lying_sync = lying;
    }

    /// Page-cache writes are cut short, one in so many; 0 for none.
    pub fn set_short_writes(&self, one_in: u64) {
        self.0.faults.borrow_mut().short_writes_one_in = one_in;
    }

    /// Size of the disk in bytes; writes beyond it fail with ENOSPC.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.faults.borrow_mut().capacity = bytes;
    }

    /// Everything takes so many times as long; 1 is healthy.
    pub fn set_slowness(&self, factor: u64) {
        self.0.slowness.set(factor.max(1));
    }

    /// Takes all faults back.
    pub fn heal(&self) {
        *self.0.faults.borrow_mut() = Faults::default();
        self.0.slowness.set(1);
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.0.used()
    }

    /// A file's contents as the processes see them; `None` if there is no such file.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let ino = self.0.lookup(path.as_ref()).ok()?;
        let read = |image: &mut Image| image.read(0, image.len() as usize);
        self.0.image(ino, read).ok()
    }

    /// A part of a file as the processes see it, short at its end; `None` if there is no such file.
    pub fn read_at(&self, path: impl AsRef<Path>, position: u64, len: usize) -> Option<Vec<u8>> {
        let ino = self.0.lookup(path.as_ref()).ok()?;
        self.0.image(ino, |image| image.read(position, len)).ok()
    }

    /// Names in a directory, sorted; `None` if there is none.
    pub fn list(&self, path: impl AsRef<Path>) -> Option<Vec<String>> {
        let entries = self.0.read_dir(path.as_ref()).ok()?;
        Some(entries.into_iter().map(|entry| entry.0).collect())
    }

    /// Overwrites part of a file behind everybody's back: bit rot.
    pub fn corrupt(&self, path: impl AsRef<Path>, position: u64, bytes: &[u8]) -> bool {
        match self.0.lookup(path.as_ref()) {
            Ok(ino) => self
                .0
                .image(ino, |image| image.write(position, bytes))
                .is_ok(),
            Err(_) => false,
        }
    }
}

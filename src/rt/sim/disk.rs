//! A node's simulated disk: a tree of names and files, each as the processes see it and as the
//! device has it, and the faults it may show.
//!
//! A file's contents are durable after a sync of the file, a name after a sync of its directory. A
//! power loss keeps of each directory's unsynced changes a prefix, so a rename is atomic but may
//! not have happened. A process kill loses nothing that was written.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use super::image::Image;
use super::kernel::Kernel;

pub(super) type Ino = u64;
const ROOT: Ino = 0;
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
    fs: RefCell<Fs>,
    faults: RefCell<Faults>,
    slowness: Cell<u64>,
}

struct Fs {
    inodes: BTreeMap<Ino, Inode>,
    next_ino: Ino,
    next_pair: u64,
    locks: BTreeSet<Ino>,
}

enum Inode {
    File { image: Image, opens: usize },
    Dir(Dir),
}

#[derive(Default)]
struct Dir {
    entries: BTreeMap<String, Ino>,
    durable: BTreeMap<String, Ino>,
    /// Changes since the last sync, in order.
    pending: Vec<DirChange>,
}

struct DirChange {
    unlink: Option<String>,
    link: Option<(String, Ino)>,
    /// The other half of a rename between directories.
    pair: Option<u64>,
}

impl DirChange {
    fn apply(&self, entries: &mut BTreeMap<String, Ino>) {
        if let Some(name) = &self.unlink {
            entries.remove(name);
        }
        if let Some((name, ino)) = &self.link {
            entries.insert(name.clone(), *ino);
        }
    }
}

impl Dir {
    fn change(&mut self, change: DirChange) {
        change.apply(&mut self.entries);
        self.pending.push(change);
    }
}

fn kind(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

pub(super) fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// The names on the way to `path`, which is taken from the root.
fn names(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(utf8(name)?),
            Component::ParentDir => {
                names.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(names)
}

fn utf8(name: &OsStr) -> io::Result<&str> {
    name.to_str()
        .ok_or_else(|| kind(io::ErrorKind::InvalidInput))
}

impl Fs {
    fn dir(&self, ino: Ino) -> io::Result<&Dir> {
        match self.inodes.get(&ino) {
            Some(Inode::Dir(dir)) => Ok(dir),
            Some(Inode::File { .. }) => Err(kind(io::ErrorKind::NotADirectory)),
            None => Err(kind(io::ErrorKind::NotFound)),
        }
    }

    fn dir_mut(&mut self, ino: Ino) -> io::Result<&mut Dir> {
        match self.inodes.get_mut(&ino) {
            Some(Inode::Dir(dir)) => Ok(dir),
            Some(Inode::File { .. }) => Err(kind(io::ErrorKind::NotADirectory)),
            None => Err(kind(io::ErrorKind::NotFound)),
        }
    }

    fn walk(&self, names: &[&str]) -> io::Result<Ino> {
        let mut at = ROOT;
        for name in names {
            let entry = self.dir(at)?.entries.get(*name);
            at = *entry.ok_or_else(|| kind(io::ErrorKind::NotFound))?;
        }
        Ok(at)
    }

    fn lookup(&self, path: &Path) -> io::Result<Ino> {
        self.walk(&names(path)?)
    }

    /// The directory that holds the last name of `path`, and that name.
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(Ino, &'p str)> {
        let mut names = names(path)?;
        let name = names
            .pop()
            .ok_or_else(|| kind(io::ErrorKind::InvalidInput))?;
        let parent = self.walk(&names)?;
        self.dir(parent)?;
        Ok((parent, name))
    }

    fn add(&mut self, inode: Inode) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.inodes.insert(ino, inode);
        ino
    }

    fn is_dir(&self, ino: Ino) -> bool {
        matches!(self.inodes.get(&ino), Some(Inode::Dir(_)))
    }

    /// Forgets what no name, durable name or open handle leads to.
    fn collect(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut queue = vec![ROOT];
        while let Some(ino) = queue.pop() {
            if let Some(Inode::Dir(dir)) = self.inodes.get(&ino) {
                let pending = dir
                    .pending
                    .iter()
                    .filter_map(|c| c.link.as_ref().map(|l| &l.1));
                for next in dir
                    .entries
                    .values()
                    .chain(dir.durable.values())
                    .chain(pending)
                {
                    if reached.insert(*next) {
                        queue.push(*next);
                    }
                }
            }
        }
        self.inodes.retain(|ino, inode| {
            reached.contains(ino) || matches!(inode, Inode::File { opens, .. } if *opens > 0)
        });
    }
}

impl DiskState {
    pub(super) fn new(kernel: &Rc<Kernel>) -> DiskState {
        let fs = Fs {
            inodes: BTreeMap::from([(ROOT, Inode::Dir(Dir::default()))]),
            next_ino: ROOT + 1,
            next_pair: 0,
            locks: BTreeSet::new(),
        };
        DiskState {
            kernel: kernel.clone(),
            fs: RefCell::new(fs),
            faults: RefCell::default(),
            slowness: Cell::new(1),
        }
    }

    /// Nanoseconds that an operation takes which a healthy disk does in `low..=high`.
    pub(super) fn delay_ns(&self, low: u64, high: u64) -> u64 {
        self.kernel
            .between(low, high)
            .saturating_mul(self.slowness.get())
    }

    fn strikes(&self, fault: Fault, path: &Path) -> bool {
        let hit = match fault {
            Fault::Never => false,
            Fault::Always => true,
            Fault::OneIn(n) => self.kernel.one_in(n),
        };
        hit && self
            .faults
            .borrow()
            .under
            .as_ref()
            .is_none_or(|under| path.starts_with(under))
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

    /// Opens or makes a file and counts the handle.
    pub(super) fn open(&self, path: &Path, create: bool, new: bool) -> io::Result<Ino> {
        let mut fs = self.fs.borrow_mut();
        let ino = match fs.lookup(path) {
            Ok(_) if new => return Err(kind(io::ErrorKind::AlreadyExists)),
            Ok(ino) => ino,
            Err(error) if error.kind() == io::ErrorKind::NotFound && (create || new) => {
                let (parent, name) = fs.parent(path)?;
                let ino = fs.add(Inode::File {
                    image: Image::default(),
                    opens: 0,
                });
                fs.dir_mut(parent)?.change(DirChange {
                    unlink: None,
                    link: Some((name.to_owned(), ino)),
                    pair: None,
                });
                ino
            }
            Err(error) => return Err(error),
        };
        match fs.inodes.get_mut(&ino) {
            Some(Inode::File { opens, .. }) => {
                *opens += 1;
                Ok(ino)
            }
            _ => Err(kind(io::ErrorKind::IsADirectory)),
        }
    }

    pub(super) fn close(&self, ino: Ino) {
        let mut fs = self.fs.borrow_mut();
        if let Some(Inode::File { opens, .. }) = fs.inodes.get_mut(&ino) {
            *opens = opens.saturating_sub(1);
            if *opens == 0 {
                fs.collect();
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

    pub(super) fn lookup(&self, path: &Path) -> io::Result<Ino> {
        self.fs.borrow().lookup(path)
    }

    pub(super) fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let names = names(path)?;
        let mut fs = self.fs.borrow_mut();
        let mut at = ROOT;
        for name in names {
            at = match fs.dir(at)?.entries.get(name) {
                Some(ino) if fs.is_dir(*ino) => *ino,
                Some(_) => return Err(kind(io::ErrorKind::AlreadyExists)),
                None => {
                    let ino = fs.add(Inode::Dir(Dir::default()));
                    fs.dir_mut(at)?.change(DirChange {
                        unlink: None,
                        link: Some((name.to_owned(), ino)),
                        pair: None,
                    });
                    ino
                }
            };
        }
        Ok(())
    }

    /// Name, whether it is a directory, length.
    pub(super) fn read_dir(&self, path: &Path) -> io::Result<Vec<(String, bool, u64)>> {
        let fs = self.fs.borrow();
        let dir = fs.dir(fs.lookup(path)?)?;
        let entry = |(name, ino): (&String, &Ino)| match fs.inodes.get(ino) {
            Some(Inode::File { image, .. }) => (name.clone(), false, image.len()),
            _ => (name.clone(), true, 0),
        };
        Ok(dir.entries.iter().map(entry).collect())
    }

    pub(super) fn file_len(&self, path: &Path) -> io::Result<u64> {
        let fs = self.fs.borrow();
        match fs.inodes.get(&fs.lookup(path)?) {
            Some(Inode::File { image, .. }) => Ok(image.len()),
            _ => Ok(0),
        }
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut fs = self.fs.borrow_mut();
        let ino = fs.lookup(from)?;
        let (from_dir, from_name) = fs.parent(from)?;
        let (to_dir, to_name) = fs.parent(to)?;
        let replaced = fs.dir(to_dir)?.entries.get(to_name).copied();
        if let Some(replaced) = replaced {
            if replaced == ino {
                return Ok(());
            }
            match (fs.is_dir(ino), fs.is_dir(replaced)) {
                (false, true) => return Err(kind(io::ErrorKind::IsADirectory)),
                (true, false) => return Err(kind(io::ErrorKind::NotADirectory)),
                (true, true) if !fs.dir(replaced)?.entries.is_empty() => {
                    return Err(kind(io::ErrorKind::DirectoryNotEmpty));
                }
                _ => {}
            }
        }
        let (unlink, link) = (Some(from_name.to_owned()), Some((to_name.to_owned(), ino)));
        if from_dir == to_dir {
            fs.dir_mut(from_dir)?.change(DirChange {
                unlink,
                link,
                pair: None,
            });
        } else {
            let pair = Some(fs.next_pair);
            fs.next_pair += 1;
            fs.dir_mut(from_dir)?.change(DirChange {
                unlink,
                link: None,
                pair,
            });
            fs.dir_mut(to_dir)?.change(DirChange {
                unlink: None,
                link,
                pair,
            });
        }
        Ok(())
    }

    pub(super) fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut fs = self.fs.borrow_mut();
        let ino = fs.lookup(path)?;
        if fs.is_dir(ino) {
            return Err(kind(io::ErrorKind::IsADirectory));
        }
        let (parent, name) = fs.parent(path)?;
        let unlink = Some(name.to_owned());
        fs.dir_mut(parent)?.change(DirChange {
            unlink,
            link: None,
            pair: None,
        });
        fs.collect();
        Ok(())
    }

    pub(super) fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut fs = self.fs.borrow_mut();
        let ino = fs.lookup(path)?;
        let (parent, name) = fs.parent(path)?;
        // From the leaves up, each removal a change of its own.
        fn empty(fs: &mut Fs, ino: Ino) -> io::Result<()> {
            let entries: Vec<(String, Ino)> = fs
                .dir(ino)?
                .entries
                .iter()
                .map(|(name, ino)| (name.clone(), *ino))
                .collect();
            for (name, child) in entries {
                if fs.is_dir(child) {
                    empty(fs, child)?;
                }
                let unlink = Some(name);
                fs.dir_mut(ino)?.change(DirChange {
                    unlink,
                    link: None,
                    pair: None,
                });
            }
            Ok(())
        }
        empty(&mut fs, ino)?;
        let unlink = Some(name.to_owned());
        fs.dir_mut(parent)?.change(DirChange {
            unlink,
            link: None,
            pair: None,
        });
        fs.collect();
        Ok(())
    }

    pub(super) fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let lies = self.lies();
        let mut fs = self.fs.borrow_mut();
        let ino = fs.lookup(path)?;
        let dir = fs.dir_mut(ino)?;
        if !lies {
            dir.durable = dir.entries.clone();
            dir.pending.clear();
        }
        Ok(())
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

impl Fs {
    /// A file that left its old directory has arrived in the new one.
    fn keep_pairs_whole(&self, kept: &mut BTreeMap<Ino, usize>) {
        loop {
            let mut gone = BTreeSet::new();
            for (ino, inode) in &self.inodes {
                if let Inode::Dir(dir) = inode {
                    let changes = dir.pending.iter().take(kept[ino]);
                    gone.extend(
                        changes
                            .filter(|c| c.unlink.is_some())
                            .filter_map(|c| c.pair),
                    );
                }
            }
            let mut changed = false;
            for (ino, inode) in &self.inodes {
                if let Inode::Dir(dir) = inode {
                    let needed = dir.pending.iter().rposition(|change| {
                        change.link.is_some() && change.pair.is_some_and(|p| gone.contains(&p))
                    });
                    if let Some(needed) = needed
                        && kept[ino] <= needed
                    {
                        kept.insert(*ino, needed + 1);
                        changed = true;
                    }
                }
            }
            if !changed {
                return;
            }
        }
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

    /// Faults strike only below `path`: one log directory of several.
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

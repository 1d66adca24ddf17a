//! The tree of names on a simulated disk, as the processes see it and as the device has it.
//!
//! A name is durable after a sync of its directory; unsynced changes are kept in order, so that a
//! power loss can keep a prefix of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path};

use super::image::Image;

pub(super) type Ino = u64;
pub(super) const ROOT: Ino = 0;

pub(super) struct Fs {
    pub(super) inodes: BTreeMap<Ino, Inode>,
    pub(super) next_ino: Ino,
    pub(super) next_pair: u64,
    pub(super) locks: BTreeSet<Ino>,
    /// Names and last handles that went since the last collection.
    pub(super) gone: usize,
}

/// Collections walk over everything there is: so many names and handles go before the next one.
const GONE_MAX: usize = 64;

pub(super) enum Inode {
    File { image: Image, opens: usize },
    Dir(Dir),
}

#[derive(Default)]
pub(super) struct Dir {
    pub(super) entries: BTreeMap<String, Ino>,
    pub(super) durable: BTreeMap<String, Ino>,
    /// Changes since the last sync, in order.
    pub(super) pending: Vec<DirChange>,
}

pub(super) struct DirChange {
    pub(super) unlink: Option<String>,
    pub(super) link: Option<(String, Ino)>,
    /// The other half of a rename between directories.
    pub(super) pair: Option<u64>,
}

impl DirChange {
    pub(super) fn apply(&self, entries: &mut BTreeMap<String, Ino>) {
        if let Some(name) = &self.unlink {
            entries.remove(name);
        }
        if let Some((name, ino)) = &self.link {
            entries.insert(name.clone(), *ino);
        }
    }
}

impl Dir {
    pub(super) fn change(&mut self, change: DirChange) {
        change.apply(&mut self.entries);
        self.pending.push(change);
    }
}

pub(super) fn kind(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

/// The names on the way to `path`, which is taken from the root.
pub(super) fn names(path: &Path) -> io::Result<Vec<&str>> {
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
    pub(super) fn dir(&self, ino: Ino) -> io::Result<&Dir> {
        match self.inodes.get(&ino) {
            Some(Inode::Dir(dir)) => Ok(dir),
            Some(Inode::File { .. }) => Err(kind(io::ErrorKind::NotADirectory)),
            None => Err(kind(io::ErrorKind::NotFound)),
        }
    }

    pub(super) fn dir_mut(&mut self, ino: Ino) -> io::Result<&mut Dir> {
        match self.inodes.get_mut(&ino) {
            Some(Inode::Dir(dir)) => Ok(dir),
            Some(Inode::File { .. }) => Err(kind(io::ErrorKind::NotADirectory)),
            None => Err(kind(io::ErrorKind::NotFound)),
        }
    }

    pub(super) fn walk(&self, names: &[&str]) -> io::Result<Ino> {
        let mut at = ROOT;
        for name in names {
            let entry = self.dir(at)?.entries.get(*name);
            at = *entry.ok_or_else(|| kind(io::ErrorKind::NotFound))?;
        }
        Ok(at)
    }

    pub(super) fn lookup(&self, path: &Path) -> io::Result<Ino> {
        self.walk(&names(path)?)
    }

    /// The directory that holds the last name of `path`, and that name.
    pub(super) fn parent<'p>(&self, path: &'p Path) -> io::Result<(Ino, &'p str)> {
        let mut names = names(path)?;
        let name = names
            .pop()
            .ok_or_else(|| kind(io::ErrorKind::InvalidInput))?;
        let parent = self.walk(&names)?;
        self.dir(parent)?;
        Ok((parent, name))
    }

    pub(super) fn add(&mut self, inode: Inode) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.inodes.insert(ino, inode);
        ino
    }

    pub(super) fn is_dir(&self, ino: Ino) -> bool {
        matches!(self.inodes.get(&ino), Some(Inode::Dir(_)))
    }

    /// A name or the last handle of a file is gone, and the file with it, perhaps.
    pub(super) fn let_go(&mut self) {
        self.gone += 1;
        if self.gone > GONE_MAX {
            self.collect();
        }
    }

    /// Forgets what no name, durable name or open handle leads to.
    pub(super) fn collect(&mut self) {
        self.gone = 0;
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

impl Fs {
    /// A file that left its old directory has arrived in the new one.
    pub(super) fn keep_pairs_whole(&self, kept: &mut BTreeMap<Ino, usize>) {
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

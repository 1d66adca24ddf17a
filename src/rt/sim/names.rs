//! Path operations on a simulated disk: what each does to the tree of names. Instant; `path` adds
//! the time they take.

use std::io;
use std::path::Path;

use super::disk::DiskState;
use super::image::Image;
use super::tree::{Dir, DirChange, Fs, Ino, Inode, ROOT, kind, names};

impl DiskState {
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
        fs.let_go();
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
        fs.let_go();
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
}

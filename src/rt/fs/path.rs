//! Operations by path, and locks. All off the executor.

use std::io;
use std::path::{Path, PathBuf};

use crate::rt::blocking::blocking_io;
use crate::rt::current::{Current, current};
use crate::rt::ring::path as real;
use crate::rt::sim::{self, path as simulated};

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DirEntry {
    /// File name without the directory; bytes that are not UTF-8 are replaced.
    pub name: String,
    pub is_dir: bool,
    /// Length in bytes; 0 for directories.
    pub len: u64,
    /// Last change of its contents, milliseconds since 1970; `None` where nobody keeps it.
    pub modified_ms: Option<i64>,
}

/// Room on the file system of a path, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    pub total: u64,
    /// Free for us, without the reserve of the superuser.
    pub free: u64,
}

/// An exclusive lock on a file (flock), held until it is dropped. It binds every process that
/// asks for it, and ends with this process however that ends.
pub struct FileLock(#[allow(dead_code)] LockBody);

#[allow(dead_code)] // held for their Drop
enum LockBody {
    Ring(std::fs::File),
    Sim(sim::Lock),
}

/// Makes the directory and its parents; fine if it exists. Durable after [`sync_dir`] of the
/// parent.
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || std::fs::create_dir_all(path)).await,
        Current::Sim(executor) => simulated::create_dir_all(&executor, &path).await,
    }
}

/// What is in the directory, sorted by name.
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<Vec<DirEntry>> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || real::read_dir(&path)).await,
        Current::Sim(executor) => simulated::read_dir(&executor, &path).await,
    }
}

/// What is in the directory, sorted by name, and with it the contents of the files that `pick`
/// names by their place in the list; all of it in one hop. A file that is gone by then is `None`.
pub async fn read_dir_with(
    path: impl AsRef<Path>,
    pick: fn(&[DirEntry]) -> Vec<usize>,
) -> io::Result<Vec<(DirEntry, Option<Vec<u8>>)>> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || real::read_dir_with(&path, pick)).await,
        Current::Sim(executor) => simulated::read_dir_with(&executor, &path, pick).await,
    }
}

/// Whole files, in the order of their paths: for thousands of small ones, of which each would
/// otherwise cost a hop.
pub async fn read_many(paths: Vec<PathBuf>) -> Vec<io::Result<Vec<u8>>> {
    match current() {
        Current::Ring(_) => {
            let pieces = paths.chunks(READ_MANY_PIECE).map(|piece| {
                let piece = piece.to_vec();
                blocking_io(move || {
                    piece
                        .iter()
                        .map(|path| real::read(path))
                        .collect::<Vec<_>>()
                })
            });
            crate::rt::join_all(pieces)
                .await
                .into_iter()
                .flatten()
                .collect()
        }
        Current::Sim(executor) => {
            let mut all = Vec::with_capacity(paths.len());
            for path in &paths {
                all.push(simulated::read(&executor, path).await);
            }
            all
        }
    }
}

/// Files that [`read_many`] reads in one job: a few milliseconds, after which others may use the
/// thread.
const READ_MANY_PIECE: usize = 256;

/// Renames a file or directory, replacing a file at `to`. Durable after [`sync_dir`] of both
/// parents.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
    match current() {
        Current::Ring(_) => blocking_io(move || std::fs::rename(from, to)).await,
        Current::Sim(executor) => simulated::rename(&executor, &from, &to).await,
    }
}

/// Unlinks a file; open descriptors of it go on working.
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || std::fs::remove_file(path)).await,
        Current::Sim(executor) => simulated::remove_file(&executor, &path).await,
    }
}

/// Removes a directory with all that is in it.
pub async fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || std::fs::remove_dir_all(path)).await,
        Current::Sim(executor) => simulated::remove_dir_all(&executor, &path).await,
    }
}

/// The whole file.
///
/// # Errors
/// `FileTooLarge` above [`READ_WHOLE_MAX`]: whole files are checkpoints and markers, never logs.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || real::read(&path)).await,
        Current::Sim(executor) => simulated::read(&executor, &path).await,
    }
}

/// Largest file [`read`] takes, in bytes.
pub const READ_WHOLE_MAX: u64 = 1 << 30;

/// Replaces the file by one with these contents, so that a crash at any moment leaves the old or
/// the new one: temporary file, fsync, rename, fsync of the directory.
pub async fn write_atomic(path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> io::Result<()> {
    let (path, bytes) = (path.as_ref().to_owned(), bytes.into());
    match current() {
        Current::Ring(_) => blocking_io(move || real::write_atomic(&path, &bytes)).await,
        Current::Sim(executor) => simulated::write_atomic(&executor, &path, bytes).await,
    }
}

/// Makes the names in the directory durable.
pub async fn sync_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || real::sync_dir(&path)).await,
        Current::Sim(executor) => simulated::sync_dir(&executor, &path).await,
    }
}

/// Whether there is anything at the path.
pub async fn exists(path: impl AsRef<Path>) -> io::Result<bool> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || path.try_exists()).await,
        Current::Sim(executor) => simulated::exists(&executor, &path).await,
    }
}

/// Length of a file in bytes.
pub async fn file_len(path: impl AsRef<Path>) -> io::Result<u64> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || std::fs::metadata(path).map(|m| m.len())).await,
        Current::Sim(executor) => simulated::file_len(&executor, &path).await,
    }
}

/// Takes the lock file at `path` (made if missing) without waiting.
///
/// # Errors
/// `WouldBlock` if somebody else holds it.
pub async fn lock_file(path: impl AsRef<Path>) -> io::Result<FileLock> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => blocking_io(move || real::lock_file(&path))
            .await
            .map(|file| FileLock(LockBody::Ring(file))),
        Current::Sim(executor) => simulated::lock_file(&executor, &path)
            .await
            .map(|lock| FileLock(LockBody::Sim(lock))),
    }
}

/// Room on the file system that holds `path`.
pub async fn space(path: impl AsRef<Path>) -> io::Result<Space> {
    let path = path.as_ref().to_owned();
    match current() {
        Current::Ring(_) => {
            blocking_io(move || {
                let (total, free) = crate::rt::ring::sys::space(&path)?;
                Ok(Space { total, free })
            })
            .await
        }
        Current::Sim(executor) => {
            let (total, free) = simulated::space(&executor, &path).await;
            Ok(Space { total, free })
        }
    }
}

impl std::fmt::Debug for FileLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileLock")
    }
}

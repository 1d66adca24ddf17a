//! Path operations on a simulated disk, each with the time a thread and a disk take.

use std::io;
use std::path::Path;
use std::rc::Rc;

use super::exec::{Executor, IoDelay};
use super::file::{File, Lock};
use crate::rt::fs::{DirEntry, OpenOptions};
use crate::rt::ring::path::{parent, temporary_name};

async fn delay(executor: &Executor, path: &Path) {
    let delay = executor.node.disk.delay_ns(path, 20_000, 400_000);
    IoDelay::new(&executor.kernel, delay).await;
}

async fn delay_to_change(executor: &Executor, path: &Path) -> io::Result<()> {
    delay(executor, path).await;
    executor.kernel.note(20, path.as_os_str().len() as u64);
    executor.node.disk.check_write(path)
}

pub(crate) async fn create_dir_all(executor: &Executor, path: &Path) -> io::Result<()> {
    delay_to_change(executor, path).await?;
    executor.node.disk.create_dir_all(path)
}

pub(crate) async fn read_dir(executor: &Executor, path: &Path) -> io::Result<Vec<DirEntry>> {
    delay(executor, path).await;
    executor.node.disk.check_read(path)?;
    let entries = executor.node.disk.read_dir(path)?;
    Ok(entries
        .into_iter()
        .map(|(name, is_dir, len)| DirEntry {
            name,
            is_dir,
            len,
            modified_ms: None,
        })
        .collect())
}

pub(crate) async fn read_dir_with(
    executor: &Rc<Executor>,
    path: &Path,
    pick: fn(&[DirEntry]) -> Vec<usize>,
) -> io::Result<Vec<(DirEntry, Option<Vec<u8>>)>> {
    let entries = read_dir(executor, path).await?;
    let picked = pick(&entries);
    let mut found: Vec<_> = entries.into_iter().map(|entry| (entry, None)).collect();
    for at in picked {
        let (entry, contents) = &mut found[at];
        match read(executor, &path.join(&entry.name)).await {
            Ok(bytes) => *contents = Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

pub(crate) async fn rename(executor: &Executor, from: &Path, to: &Path) -> io::Result<()> {
    delay_to_change(executor, from).await?;
    executor.node.disk.rename(from, to)
}

pub(crate) async fn remove_file(executor: &Executor, path: &Path) -> io::Result<()> {
    delay_to_change(executor, path).await?;
    executor.node.disk.remove_file(path)
}

pub(crate) async fn remove_dir_all(executor: &Executor, path: &Path) -> io::Result<()> {
    delay_to_change(executor, path).await?;
    executor.node.disk.remove_dir_all(path)
}

pub(crate) async fn read(executor: &Rc<Executor>, path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(executor, path, OpenOptions::READ).await?;
    let len = file.len()? as usize;
    Ok(file.read_at(0, len).await?.into())
}

pub(crate) async fn write_atomic(
    executor: &Rc<Executor>,
    path: &Path,
    bytes: Vec<u8>,
) -> io::Result<()> {
    let temporary = temporary_name(path)?;
    let file = File::open(executor, &temporary, OpenOptions::CREATE.truncate()).await?;
    for (index, chunk) in bytes.chunks(crate::rt::fs::WRITE_NOW_MAX).enumerate() {
        let mut done = 0;
        while done < chunk.len() {
            let position = (index * crate::rt::fs::WRITE_NOW_MAX + done) as u64;
            done += file.write_now(position, &[io::IoSlice::new(&chunk[done..])])?;
        }
    }
    file.sync().await?;
    rename(executor, &temporary, path).await?;
    sync_dir(executor, parent(path)).await
}

pub(crate) async fn sync_dir(executor: &Executor, path: &Path) -> io::Result<()> {
    let disk = &executor.node.disk;
    IoDelay::new(&executor.kernel, disk.delay_ns(path, 60_000, 2_500_000)).await;
    executor.kernel.note(21, path.as_os_str().len() as u64);
    disk.check_sync(path)?;
    disk.sync_dir(path)
}

pub(crate) async fn exists(executor: &Executor, path: &Path) -> io::Result<bool> {
    delay(executor, path).await;
    match executor.node.disk.lookup(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) async fn file_len(executor: &Executor, path: &Path) -> io::Result<u64> {
    delay(executor, path).await;
    executor.node.disk.file_len(path)
}

pub(crate) async fn lock_file(executor: &Executor, path: &Path) -> io::Result<Lock> {
    delay(executor, path).await;
    Lock::take(executor, path)
}

pub(crate) async fn space(executor: &Executor, path: &Path) -> (u64, u64) {
    delay(executor, path).await;
    executor.node.disk.space()
}

//! Files: what was written is read back, names and lengths are what they should be.

use std::io::{ErrorKind, IoSlice};

use bytes::Bytes;
use highwater::rt::fs::{
    self, AlignedBuf, File, OpenOptions, ReadBuffer, ReadBuffers, WRITE_NOW_MAX,
};

use crate::support::{Env, on_both_bodies};

on_both_bodies!(
    written_bytes_come_back,
    reads_are_short_only_at_the_end,
    large_vectored_writes_keep_their_order,
    cached_reads_agree_with_reads,
    reads_past_the_cache_agree_with_reads,
    lengths_follow_writes_and_cuts,
    preallocation_keeps_or_sets_the_length,
    direct_files_take_aligned_writes_only,
    open_options_mean_what_they_say,
    renames_replace_and_open_files_live_on,
    atomic_writes_leave_no_temporary,
    directories_list_what_is_in_them,
    a_lock_excludes_and_is_released_by_drop,
    missing_paths_are_not_found,
    syncs_of_many_files_overlap,
    space_is_reported,
);

fn pattern(len: usize, seed: u8) -> Bytes {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

async fn written_bytes_come_back(env: Env) {
    let path = env.dir.join("a");
    let file = File::open(&path, OpenOptions::CREATE).await.unwrap();
    let written = file
        .write_now(0, &[IoSlice::new(b"hello "), IoSlice::new(b"world")])
        .unwrap();
    assert_eq!(written, 11);
    assert_eq!(file.read_at(0, 11).await.unwrap(), &b"hello world"[..]);
    assert_eq!(file.write_now(6, &[IoSlice::new(b"there")]).unwrap(), 5);
    file.begin_write_back(0..11).unwrap();
    file.sync_data().await.unwrap();
    file.sync_all().await.unwrap();
    file.begin_write_back(5..11).unwrap();
    drop(file);
    let again = File::open(&path, OpenOptions::READ).await.unwrap();
    assert_eq!(again.read_at(0, 100).await.unwrap(), &b"hello there"[..]);
    assert_eq!(fs::read(&path).await.unwrap(), b"hello there");
    assert_eq!(fs::file_len(&path).await.unwrap(), 11);
}

async fn reads_are_short_only_at_the_end(env: Env) {
    let file = File::open(env.dir.join("a"), OpenOptions::CREATE)
        .await
        .unwrap();
    let data = pattern(3_000_001, 1);
    file.write_all_at(0, vec![data.clone()]).await.unwrap();
    assert_eq!(file.read_at(0, data.len()).await.unwrap(), data);
    assert_eq!(
        file.read_at(5, 2_500_000).await.unwrap(),
        data.slice(5..2_500_005)
    );
    assert_eq!(
        file.read_at(3_000_000, 4096).await.unwrap(),
        data.slice(3_000_000..)
    );
    assert_eq!(file.read_at(3_000_001, 10).await.unwrap().len(), 0);
    assert_eq!(file.read_at(9_000_000, 10).await.unwrap().len(), 0);
    assert_eq!(file.read_at(0, 0).await.unwrap().len(), 0);
}

async fn large_vectored_writes_keep_their_order(env: Env) {
    let file = File::open(env.dir.join("a"), OpenOptions::CREATE)
        .await
        .unwrap();
    // More parts than one call takes, an empty one, and parts above the chunk limit.
    let mut parts: Vec<Bytes> = (0..3000).map(|i| pattern(100 + i % 7, i as u8)).collect();
    parts.insert(5, Bytes::new());
    parts.push(pattern(WRITE_NOW_MAX * 2 + 17, 9));
    parts.push(pattern(1, 200));
    let expected: Vec<u8> = parts.concat();
    file.write_all_at(13, parts).await.unwrap();
    let got = file.read_at(13, expected.len() + 1).await.unwrap();
    assert!(got == expected, "the parts came out different");
    assert_eq!(file.read_at(0, 13).await.unwrap(), vec![0u8; 13]);
}

async fn cached_reads_agree_with_reads(env: Env) {
    let file = File::open(env.dir.join("a"), OpenOptions::CREATE)
        .await
        .unwrap();
    let data = pattern(300_000, 3);
    file.write_all_at(0, vec![data.clone()]).await.unwrap();
    // Just written, so in memory; but the page cache may drop pages at any time.
    if let Some(read) = file.try_read_cached(1000, 200_000) {
        assert_eq!(read.unwrap(), data.slice(1000..201_000));
    }
    if let Some(read) = file.try_read_cached(299_990, 200) {
        assert_eq!(read.unwrap(), data.slice(299_990..));
    }
}

async fn reads_past_the_cache_agree_with_reads(env: Env) {
    let path = env.dir.join("a");
    let file = File::open(&path, OpenOptions::CREATE).await.unwrap();
    let data = pattern(300_001, 3);
    file.write_all_at(0, vec![data.clone()]).await.unwrap();
    // Dirty pages count too, and the name may be gone or another file's.
    fs::rename(&path, env.dir.join("b")).await.unwrap();
    File::open(&path, OpenOptions::CREATE).await.unwrap();
    let buffers = ReadBuffers::new(128 << 10, 1);
    for position in [0, 4096, 128 << 10, 290_816, 303_104] {
        let buffer = buffers.take(128 << 10).unwrap();
        let (read, buffer) = file.read_past_cache(position, buffer, 0..128 << 10).await;
        let read = read.unwrap();
        let want = data.slice((position as usize).min(data.len())..);
        assert_eq!(read, want.len().min(128 << 10));
        assert_eq!(buffer.freeze(0..read), want.slice(..read));
    }
    let (read, buffer) = file
        .read_past_cache(100, buffers.take(128 << 10).unwrap(), 0..4096)
        .await;
    assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidInput);
    drop(buffer);
    // A part of the buffer, the rest of it untouched; never past its end.
    let mut buffer = ReadBuffer::lone(12 << 10);
    buffer.as_mut_slice().fill(7);
    let (read, buffer) = file.read_past_cache(8192, buffer, 4096..8192).await;
    assert_eq!(read.unwrap(), 4096);
    let whole = buffer.freeze(0..12 << 10);
    assert_eq!(whole.slice(4096..8192), data.slice(8192..12_288));
    assert!(whole[..4096].iter().chain(&whole[8192..]).all(|b| *b == 7));
    for wrong in [1..4096, 0..8192] {
        let (read, _) = file.read_past_cache(0, ReadBuffer::lone(4096), wrong).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    // Overwritten bytes are seen at once.
    file.write_now(5000, &[IoSlice::new(b"new")]).unwrap();
    let (read, buffer) = file
        .read_past_cache(4096, ReadBuffer::lone(4096), 0..4096)
        .await;
    assert_eq!(read.unwrap(), 4096);
    assert_eq!(&buffer.freeze(904..907)[..], b"new");
    let direct = File::open(env.dir.join("b"), OpenOptions::READ.direct())
        .await
        .unwrap();
    file.sync_data().await.unwrap();
    let (read, buffer) = direct
        .read_past_cache(0, ReadBuffer::lone(4096), 0..4096)
        .await;
    assert_eq!(read.unwrap(), 4096);
    assert_eq!(buffer.freeze(0..4096), data.slice(..4096));
}

async fn lengths_follow_writes_and_cuts(env: Env) {
    let path = env.dir.join("a");
    let file = File::open(&path, OpenOptions::CREATE).await.unwrap();
    assert_eq!(file.len().unwrap(), 0);
    file.write_now(100, &[IoSlice::new(b"x")]).unwrap();
    assert_eq!(file.len().unwrap(), 101);
    file.set_len(50).await.unwrap();
    assert_eq!(file.len().unwrap(), 50);
    file.set_len(60).await.unwrap();
    assert_eq!(file.read_at(0, 100).await.unwrap(), vec![0u8; 60]);
    assert_eq!(fs::file_len(&path).await.unwrap(), 60);
    // A second handle sees the same file.
    let other = File::open(&path, OpenOptions::READ_WRITE.truncate())
        .await
        .unwrap();
    assert_eq!(other.len().unwrap(), 0);
    assert_eq!(file.len().unwrap(), 0);
}

async fn preallocation_keeps_or_sets_the_length(env: Env) {
    let file = File::open(env.dir.join("a"), OpenOptions::CREATE)
        .await
        .unwrap();
    file.write_now(0, &[IoSlice::new(b"abc")]).unwrap();
    file.preallocate(1 << 20, true).await.unwrap();
    assert_eq!(file.len().unwrap(), 3);
    file.preallocate(1 << 20, false).await.unwrap();
    assert_eq!(file.len().unwrap(), 1 << 20);
    assert_eq!(file.read_at(0, 5).await.unwrap(), &b"abc\0\0"[..]);
    // Never shortens.
    file.preallocate(4096, false).await.unwrap();
    assert_eq!(file.len().unwrap(), 1 << 20);
}

async fn direct_files_take_aligned_writes_only(env: Env) {
    let path = env.dir.join("d");
    let file = File::open(&path, OpenOptions::CREATE.direct())
        .await
        .unwrap();
    assert!(file.is_direct());
    assert!(file.alignment() >= 512 || file.alignment() == 1);
    let mut buf = AlignedBuf::zeroed(5000);
    assert_eq!(buf.len(), 8192);
    assert_eq!(buf.as_ptr() as usize % AlignedBuf::ALIGN, 0);
    buf.copy_from_slice(&pattern(8192, 5));
    let (result, mut buf) = file.write_aligned_at(0, buf).await;
    result.unwrap();
    assert_eq!(
        &buf[..],
        &pattern(8192, 5)[..],
        "the buffer comes back unchanged"
    );
    buf.fill(7);
    let (result, buf) = file.write_aligned_at(4096, buf).await;
    result.unwrap();
    let (result, _) = file.write_aligned_at(100, buf).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(
        file.write_now(0, &[IoSlice::new(b"x")]).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    file.sync_data().await.unwrap();
    // Unaligned reads are fine.
    assert_eq!(
        file.read_at(10, 100).await.unwrap(),
        pattern(8192, 5).slice(10..110)
    );
    assert_eq!(file.read_at(4090, 12).await.unwrap()[6..], [7; 6]);
    assert_eq!(file.len().unwrap(), 12288);
    // A buffered handle of the same file sees it.
    let buffered = File::open(&path, OpenOptions::READ).await.unwrap();
    assert_eq!(buffered.read_at(8192, 5000).await.unwrap(), vec![7u8; 4096]);
}

async fn open_options_mean_what_they_say(env: Env) {
    let path = env.dir.join("a");
    let missing = File::open(&path, OpenOptions::READ_WRITE)
        .await
        .unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let file = File::open(&path, OpenOptions::CREATE_NEW).await.unwrap();
    file.write_now(0, &[IoSlice::new(b"abc")]).unwrap();
    let exists = File::open(&path, OpenOptions::CREATE_NEW)
        .await
        .unwrap_err();
    assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
    let kept = File::open(&path, OpenOptions::CREATE).await.unwrap();
    assert_eq!(kept.len().unwrap(), 3);
    let read_only = File::open(&path, OpenOptions::READ).await.unwrap();
    assert!(read_only.write_now(0, &[IoSlice::new(b"x")]).is_err());
    let no_parent = File::open(env.dir.join("no/a"), OpenOptions::CREATE)
        .await
        .unwrap_err();
    assert_eq!(no_parent.kind(), ErrorKind::NotFound);
}

async fn renames_replace_and_open_files_live_on(env: Env) {
    let (a, b) = (env.dir.join("a"), env.dir.join("b"));
    let file = File::open(&a, OpenOptions::CREATE).await.unwrap();
    file.write_now(0, &[IoSlice::new(b"new")]).unwrap();
    fs::write_atomic(&b, *b"old").await.unwrap();
    fs::rename(&a, &b).await.unwrap();
    assert!(!fs::exists(&a).await.unwrap());
    assert_eq!(fs::read(&b).await.unwrap(), b"new");
    file.write_now(3, &[IoSlice::new(b"er")]).unwrap();
    assert_eq!(fs::read(&b).await.unwrap(), b"newer");
    fs::remove_file(&b).await.unwrap();
    assert_eq!(file.read_at(0, 10).await.unwrap(), &b"newer"[..]);
    assert!(!fs::exists(&b).await.unwrap());
    // Directories rename with what is in them.
    fs::create_dir_all(env.dir.join("t-0")).await.unwrap();
    fs::write_atomic(env.dir.join("t-0/x"), *b"1")
        .await
        .unwrap();
    let inside = File::open(env.dir.join("t-0/x"), OpenOptions::READ_WRITE)
        .await
        .unwrap();
    fs::rename(env.dir.join("t-0"), env.dir.join("t-0.delete"))
        .await
        .unwrap();
    inside.write_now(1, &[IoSlice::new(b"2")]).unwrap();
    assert_eq!(fs::read(env.dir.join("t-0.delete/x")).await.unwrap(), b"12");
    fs::sync_dir(&env.dir).await.unwrap();
}

async fn atomic_writes_leave_no_temporary(env: Env) {
    let path = env.dir.join("checkpoint");
    for round in 0..3u8 {
        fs::write_atomic(&path, vec![round; 100]).await.unwrap();
        assert_eq!(fs::read(&path).await.unwrap(), vec![round; 100]);
    }
    let names: Vec<String> = fs::read_dir(&env.dir)
        .await
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert_eq!(names, ["checkpoint"]);
}

async fn directories_list_what_is_in_them(env: Env) {
    fs::create_dir_all(env.dir.join("x/y/z")).await.unwrap();
    fs::create_dir_all(env.dir.join("x/y/z")).await.unwrap();
    fs::write_atomic(env.dir.join("x/file"), vec![1; 42])
        .await
        .unwrap();
    let entries = fs::read_dir(env.dir.join("x")).await.unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(
        (entries[0].name.as_str(), entries[0].is_dir, entries[0].len),
        ("file", false, 42)
    );
    assert_eq!((entries[1].name.as_str(), entries[1].is_dir), ("y", true));
    fs::remove_dir_all(env.dir.join("x")).await.unwrap();
    assert!(!fs::exists(env.dir.join("x")).await.unwrap());
    assert!(fs::read_dir(&env.dir).await.unwrap().is_empty());
}

async fn a_lock_excludes_and_is_released_by_drop(env: Env) {
    let path = env.dir.join(".lock");
    let lock = fs::lock_file(&path).await.unwrap();
    let second = fs::lock_file(&path).await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::WouldBlock);
    drop(lock);
    fs::lock_file(&path).await.unwrap();
}

async fn missing_paths_are_not_found(env: Env) {
    let path = env.dir.join("nope");
    assert_eq!(
        fs::read(&path).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        fs::file_len(&path).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        fs::remove_file(&path).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        fs::read_dir(&path).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let renamed = fs::rename(&path, env.dir.join("b")).await.unwrap_err();
    assert_eq!(renamed.kind(), ErrorKind::NotFound);
    let written = fs::write_atomic(path.join("x"), *b"1").await.unwrap_err();
    assert_eq!(written.kind(), ErrorKind::NotFound);
}

async fn syncs_of_many_files_overlap(env: Env) {
    let mut syncs = Vec::new();
    for i in 0..32u8 {
        let path = env.dir.join(i.to_string());
        let file = File::open(path, OpenOptions::CREATE).await.unwrap();
        file.write_now(0, &[IoSlice::new(&[i; 1000])]).unwrap();
        syncs.push(async move {
            file.sync_data().await.unwrap();
            file.read_at(999, 2).await.unwrap()
        });
    }
    let read = highwater::rt::join_all(syncs).await;
    assert!(
        read.iter()
            .enumerate()
            .all(|(i, bytes)| bytes[..] == [i as u8])
    );
}

async fn space_is_reported(env: Env) {
    let space = fs::space(&env.dir).await.unwrap();
    assert!(space.total >= space.free && space.free > 0, "{space:?}");
}

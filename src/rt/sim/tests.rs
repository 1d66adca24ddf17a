//! The simulator itself: replay, time, power loss, faults, the network.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{ErrorKind, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::{Fault, World};
use crate::rt;
use crate::rt::fs::{self, AlignedBuf, File, OpenOptions};
use crate::rt::net::{Listener, Stream};

const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 9092;

/// Two brokers that talk and write; returns what happened as the hash of the trace.
fn busy_world(seed: u64) -> (u64, u64, Duration) {
    let world = World::new(seed);
    for id in 0..2u8 {
        world
            .add_node(&format!("node-{id}"))
            .start(2, move |index| async move {
                if index.is_control() {
                    return;
                }
                if index.index == 0 {
                    serve().await;
                    return;
                }
                for round in 0..10u8 {
                    let peer = rt::net::resolve(&format!("node-{}", 1 - id), PORT)
                        .await
                        .unwrap()[0];
                    if let Ok(stream) = Stream::connect(peer).await {
                        let (mut read, mut write) = stream.split();
                        let message = Bytes::from(vec![round; 5000]);
                        let _ = write.write_all(&[message.into()]).await;
                        let _ = write.shutdown().await;
                        let mut buf = BytesMut::new();
                        while read.read(&mut buf).await.unwrap_or(0) > 0 {}
                    }
                    let file = File::open("/log", OpenOptions::CREATE).await.unwrap();
                    file.write_now(u64::from(round) * 100, &[IoSlice::new(&[round; 100])])
                        .unwrap();
                    file.sync_data().await.unwrap();
                    rt::sleep(Duration::from_millis(rt::random_below(20))).await;
                }
            });
    }
    world.run_for(SECOND);
    world.node(1).lose_power();
    world.run_for(SECOND);
    (world.trace_hash(), world.steps(), world.elapsed())
}

async fn serve() {
    let mut listener = Listener::bind(([0, 0, 0, 0], PORT).into()).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        drop(rt::spawn(async move {
            let (mut read, mut write) = stream.split();
            let mut buf = BytesMut::new();
            while read.read(&mut buf).await.unwrap_or(0) > 0 {}
            let _ = write.write_all(&[buf.freeze().into()]).await;
        }));
    }
}

#[test]
fn the_same_seed_replays_exactly() {
    for seed in 0..20 {
        assert_eq!(busy_world(seed), busy_world(seed), "seed {seed}");
    }
    let hashes: std::collections::BTreeSet<u64> = (0..20).map(|seed| busy_world(seed).0).collect();
    assert_eq!(hashes.len(), 20, "different seeds did the same");
}

/// Runs `main` to its end on one node of a new world.
fn on_a_node<F: Future<Output = ()> + 'static>(
    seed: u64,
    prepare: impl FnOnce(&super::NodeHandle),
    main: impl Fn() -> F + 'static,
) -> World {
    let world = World::new(seed);
    let node = world.add_node("a");
    prepare(&node);
    node.start(1, move |index| {
        let run = (!index.is_control()).then(&main);
        async move {
            if let Some(run) = run {
                run.await;
            }
        }
    });
    assert!(world.run_to_end(SECOND * 60), "seed {seed} did not end");
    world
}

#[test]
fn an_hour_of_sleep_takes_no_time() {
    let started = std::time::Instant::now();
    let world = on_a_node(
        1,
        |_| {},
        || async {
            let before = rt::now();
            rt::sleep(SECOND * 50).await;
            assert!(before.elapsed() >= SECOND * 50);
            assert!(before.elapsed() < SECOND * 51);
        },
    );
    assert!(world.elapsed() > SECOND * 49);
    assert!(started.elapsed() < SECOND * 5);
}

#[test]
fn clocks_drift_apart() {
    let world = World::new(3);
    let times = Rc::new(RefCell::new(vec![]));
    for (name, drift, skew) in [("slow", -100_000, 0), ("fast", 100_000, 5000)] {
        let node = world.add_node(name);
        node.set_clock(drift, skew);
        let times = times.clone();
        node.start(1, move |index| {
            let times = times.clone();
            async move {
                if !index.is_control() {
                    let wall = rt::wall_ms();
                    rt::sleep(SECOND * 10).await;
                    times.borrow_mut().push((name, wall, rt::wall_ms() - wall));
                }
            }
        });
    }
    assert!(world.run_until(SECOND * 10, || times.borrow().len() == 1));
    assert_eq!(times.borrow()[0].0, "fast");
    assert!(world.elapsed() < Duration::from_millis(9200));
    assert!(world.run_to_end(SECOND * 10));
    let times = times.borrow();
    assert!(
        times[0].1 - times[1].1 >= 4999,
        "the wall clocks do not differ: {times:?}"
    );
    assert!((9_990..10_010).contains(&times[0].2), "{times:?}");
}

/// Writes to a log with syncs, loses power at a moment the seed chooses, checks what is left.
#[test]
fn a_power_loss_keeps_what_was_synced_and_may_tear_the_rest() {
    let (mut torn, mut lost, mut kept) = (0, 0, 0);
    for seed in 0..300 {
        let world = World::new(seed);
        let node = world.add_node("a");
        let synced = Rc::new(Cell::new(0u64));
        let written = Rc::new(Cell::new(0u64));
        let (in_synced, in_written) = (synced.clone(), written.clone());
        node.start(1, move |index| {
            let (synced, written) = (in_synced.clone(), in_written.clone());
            async move {
                if index.is_control() {
                    return;
                }
                let file = File::open("/log", OpenOptions::CREATE).await.unwrap();
                fs::sync_dir("/").await.unwrap();
                for block in 0..100u64 {
                    let bytes = [block as u8 + 1; 1536];
                    file.write_now(block * 1536, &[IoSlice::new(&bytes)])
                        .unwrap();
                    written.set((block + 1) * 1536);
                    if block % 4 == 3 {
                        file.sync_data().await.unwrap();
                        synced.set((block + 1) * 1536);
                    } else {
                        rt::sleep(Duration::from_micros(100)).await;
                    }
                }
            }
        });
        world.run_for(Duration::from_millis(3 + seed % 20));
        node.lose_power();
        let left = node.disk().read("/log").unwrap_or_default();
        let (synced, written) = (synced.get() as usize, written.get() as usize);
        assert!(
            left.len() >= synced && left.len() <= written,
            "seed {seed}: {}",
            left.len()
        );
        let good = |at: usize| left[at] == (at / 1536) as u8 + 1;
        assert!((0..synced).all(good), "seed {seed}: synced bytes were lost");
        let wrong = (synced..left.len()).filter(|at| !good(*at)).count();
        assert!(
            (synced..left.len()).all(|at| good(at) || left[at] == 0),
            "seed {seed}"
        );
        match (wrong, left.len()) {
            (0, len) if len == written && written > synced => kept += 1,
            (0, _) => lost += 1,
            _ => torn += 1,
        }
    }
    assert!(
        torn > 20 && lost > 20 && kept > 20,
        "torn {torn}, lost {lost}, kept {kept}"
    );
}

#[test]
fn names_are_durable_after_a_sync_of_their_directory_only() {
    let (mut there, mut gone) = (0, 0);
    for seed in 0..100 {
        let world = on_a_node(
            seed,
            |_| {},
            || async {
                fs::create_dir_all("/d").await.unwrap();
                fs::sync_dir("/").await.unwrap();
                let file = File::open("/d/synced", OpenOptions::CREATE).await.unwrap();
                file.write_now(0, &[IoSlice::new(b"1")]).unwrap();
                file.sync_all().await.unwrap();
                fs::sync_dir("/d").await.unwrap();
                let file = File::open("/d/unsynced", OpenOptions::CREATE)
                    .await
                    .unwrap();
                file.write_now(0, &[IoSlice::new(b"2")]).unwrap();
                file.sync_all().await.unwrap();
            },
        );
        let node = world.node(0);
        node.lose_power();
        assert_eq!(
            node.disk().read("/d/synced").as_deref(),
            Some(&b"1"[..]),
            "seed {seed}"
        );
        match node.disk().read("/d/unsynced").as_deref() {
            None => gone += 1,
            Some(bytes) => {
                assert_eq!(bytes, b"2", "seed {seed}: synced contents were lost");
                there += 1;
            }
        }
    }
    assert!(there > 10 && gone > 10, "there {there}, gone {gone}");
}

#[test]
fn an_atomic_write_is_old_or_new_after_a_power_loss() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..200 {
        let world = World::new(seed);
        let node = world.add_node("a");
        let sure = Rc::new(Cell::new(0u8));
        let in_sure = sure.clone();
        node.start(1, move |index| {
            let sure = in_sure.clone();
            async move {
                if index.is_control() {
                    return;
                }
                for round in 1..100u8 {
                    fs::write_atomic("/checkpoint", vec![round; 2000])
                        .await
                        .unwrap();
                    sure.set(round);
                }
            }
        });
        world.run_for(Duration::from_micros(8_000 + seed * 137));
        node.lose_power();
        let left = node.disk().read("/checkpoint");
        let sure = sure.get();
        match left {
            None => assert_eq!(sure, 0, "seed {seed}: the file is gone"),
            Some(left) => {
                assert_eq!(left.len(), 2000, "seed {seed}");
                assert!(
                    left.iter().all(|byte| *byte == left[0]),
                    "seed {seed}: mixed contents"
                );
                assert!(
                    left[0] == sure || left[0] == sure + 1,
                    "seed {seed}: {}",
                    left[0]
                );
                if left[0] == sure { old += 1 } else { new += 1 }
            }
        }
    }
    assert!(old > 20 && new > 5, "old {old}, new {new}");
}

#[test]
fn a_file_moved_between_directories_is_in_one_of_them_after_a_power_loss() {
    for seed in 0..100 {
        let world = on_a_node(
            seed,
            |_| {},
            || async {
                for dir in ["/a", "/b"] {
                    fs::create_dir_all(dir).await.unwrap();
                }
                fs::sync_dir("/").await.unwrap();
                fs::write_atomic("/a/x", *b"1").await.unwrap();
                fs::rename("/a/x", "/b/x").await.unwrap();
                fs::rename("/b/x", "/a/y").await.unwrap();
            },
        );
        let node = world.node(0);
        node.lose_power();
        let found = ["/a/x", "/b/x", "/a/y"]
            .iter()
            .any(|path| node.disk().read(path).is_some());
        assert!(found, "seed {seed}: the file is in no directory");
    }
}

#[test]
fn a_kill_loses_nothing_written_and_frees_locks() {
    for seed in 0..50 {
        let world = World::new(seed);
        let node = world.add_node("a");
        let written = Rc::new(Cell::new(0u64));
        let lives = Rc::new(Cell::new(0));
        let (in_written, in_lives) = (written.clone(), lives.clone());
        node.start(1, move |index| {
            let (written, lives) = (in_written.clone(), in_lives.clone());
            async move {
                if index.is_control() {
                    return;
                }
                let _lock = fs::lock_file("/.lock")
                    .await
                    .expect("the lock of the last life");
                lives.set(lives.get() + 1);
                let file = File::open("/log", OpenOptions::CREATE).await.unwrap();
                let from = file.len().unwrap();
                assert_eq!(from, written.get(), "bytes were lost by a kill");
                for i in 0.. {
                    file.write_now(from + i * 10, &[IoSlice::new(&[7; 10])])
                        .unwrap();
                    written.set(from + (i + 1) * 10);
                    rt::sleep(Duration::from_micros(300)).await;
                }
            }
        });
        for life in 1..=5 {
            world.run_for(Duration::from_millis(5 + seed % 7));
            assert_eq!(lives.get(), life);
            node.kill();
            assert!(!node.is_running());
            node.restart();
        }
    }
}

#[test]
fn a_lying_sync_loses_what_it_promised() {
    let mut lost = 0;
    for seed in 0..50 {
        let world = on_a_node(
            seed,
            |node| node.disk().set_lying_sync(true),
            || async {
                let file = File::open("/log", OpenOptions::CREATE).await.unwrap();
                file.write_now(0, &[IoSlice::new(&[1; 4096])]).unwrap();
                file.sync_all().await.unwrap();
                fs::sync_dir("/").await.unwrap();
            },
        );
        world.node(0).lose_power();
        let whole = |bytes: Vec<u8>| bytes.len() == 4096 && bytes.iter().all(|b| *b == 1);
        if !world.node(0).disk().read("/log").is_some_and(whole) {
            lost += 1;
        }
    }
    assert!(lost > 10, "{lost} of 50");
}

#[test]
fn faults_strike_where_they_are_set() {
    on_a_node(
        5,
        |node| {
            node.disk().fail_writes(Fault::Always);
            node.disk().fail_syncs(Fault::Always);
            node.disk().limit_faults_to("/bad");
        },
        || async {
            let good = File::open("/good", OpenOptions::CREATE).await.unwrap();
            good.write_now(0, &[IoSlice::new(b"x")]).unwrap();
            good.sync_data().await.unwrap();
            let error = File::open("/bad/file", OpenOptions::CREATE)
                .await
                .unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
            let error = fs::create_dir_all("/bad").await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        },
    );
    on_a_node(
        6,
        |node| node.disk().fail_syncs(Fault::OneIn(2)),
        || async {
            let file = File::open("/log", OpenOptions::CREATE).await.unwrap();
            let mut failed = 0;
            for _ in 0..100 {
                file.write_now(0, &[IoSlice::new(b"x")]).unwrap();
                failed += u32::from(file.sync_data().await.is_err());
            }
            assert!((20..80).contains(&failed), "{failed}");
        },
    );
}

#[test]
fn a_full_disk_says_so() {
    on_a_node(
        7,
        |node| node.disk().set_capacity(Some(100_000)),
        || async {
            let file = File::open("/log", OpenOptions::CREATE).await.unwrap();
            file.write_now(0, &[IoSlice::new(&[1; 65536])]).unwrap();
            let error = file
                .write_now(65536, &[IoSlice::new(&[1; 65536])])
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            let space = fs::space("/").await.unwrap();
            assert_eq!((space.total, space.free), (100_000, 100_000 - 65536));
            fs::remove_file("/log").await.unwrap();
            drop(file);
            assert_eq!(fs::space("/").await.unwrap().free, 100_000);
        },
    );
}

#[test]
fn a_failed_sync_may_lose_what_is_still_read() {
    let mut lost = 0;
    for seed in 0..40 {
        lost += u32::from(failing_sync_run(seed));
    }
    assert!(lost > 5, "{lost}");
}

/// Write, failed sync, successful sync, power loss; true if the bytes were lost.
fn failing_sync_run(seed: u64) -> bool {
    let world = World::new(seed);
    let node = world.add_node("a");
    node.start(1, |index| async move {
        if index.is_control() {
            return;
        }
        let file = File::open("/log", OpenOptions::CREATE).await.unwrap();
        file.set_len(512).await.unwrap();
        file.sync_all().await.unwrap();
        fs::sync_dir("/").await.unwrap();
        file.write_now(0, &[IoSlice::new(&[9; 512])]).unwrap();
        rt::sleep(SECOND).await;
        assert!(file.sync_data().await.is_err());
        rt::sleep(SECOND).await;
        file.sync_data().await.unwrap();
    });
    world.run_for(SECOND / 2);
    node.disk().fail_syncs(Fault::Always);
    world.run_for(SECOND);
    node.disk().heal();
    assert!(world.run_to_end(SECOND * 10));
    node.lose_power();
    node.disk().read("/log").unwrap()[0] != 9
}

#[test]
fn direct_writes_tear_by_sector_when_the_power_goes() {
    let mut torn = 0;
    for seed in 0..100 {
        let world = World::new(seed);
        let node = world.add_node("a");
        node.start(1, |index| async move {
            if index.is_control() {
                return;
            }
            let file = File::open("/j", OpenOptions::CREATE.direct())
                .await
                .unwrap();
            file.preallocate(1 << 20, false).await.unwrap();
            file.sync_all().await.unwrap();
            fs::sync_dir("/").await.unwrap();
            let mut buf = AlignedBuf::zeroed(65536);
            buf.fill(3);
            for block in 0..16 {
                let (result, back) = file.write_aligned_at(block * 65536, buf).await;
                result.unwrap();
                buf = back;
            }
        });
        world.run_for(Duration::from_micros(6_000 + seed * 20));
        node.lose_power();
        let Some(left) = node.disk().read("/j") else {
            continue;
        };
        let sectors: Vec<&[u8]> = left.chunks(512).collect();
        assert!(
            sectors.iter().all(|s| s.iter().all(|b| *b == s[0])),
            "seed {seed}: torn sector"
        );
        let written = sectors.iter().filter(|s| s[0] == 3).count();
        torn += u32::from(!written.is_multiple_of(128));
    }
    assert!(torn > 20, "{torn}");
}

#[test]
fn a_cut_holds_packets_back_until_it_heals() {
    let world = World::new(11);
    let got = Rc::new(Cell::new(0));
    let counter = got.clone();
    world.add_node("server").start(1, move |index| {
        let counter = counter.clone();
        async move {
            if index.is_control() {
                return;
            }
            let mut listener = Listener::bind(([0, 0, 0, 0], PORT).into()).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let (mut read, _write) = stream.split();
            let mut buf = BytesMut::new();
            while let Ok(count) = read.read(&mut buf).await {
                if count == 0 {
                    return;
                }
                counter.set(counter.get() + count);
            }
        }
    });
    world.add_node("client").start(1, |index| async move {
        if index.is_control() {
            return;
        }
        rt::sleep(Duration::from_millis(10)).await;
        let addr = rt::net::resolve("server", PORT).await.unwrap()[0];
        let (_read, mut write) = Stream::connect(addr).await.unwrap().split();
        for _ in 0..100 {
            write
                .write_all(&[Bytes::from(vec![1; 10]).into()])
                .await
                .unwrap();
            rt::sleep(Duration::from_millis(10)).await;
        }
    });
    world.run_for(Duration::from_millis(300));
    let before = got.get();
    assert!(before > 100);
    world.network().cut_one_way(1, 0);
    world.run_for(Duration::from_millis(200));
    let during = got.get();
    assert!(during <= before + 100, "packets passed a cut");
    world.network().heal_all();
    assert!(world.run_until(SECOND * 10, || got.get() == 1000));
}

#[test]
fn peers_of_a_killed_process_hear_of_it_and_of_a_dead_host_they_do_not() {
    for power in [false, true] {
        let world = World::new(12);
        let server = world.add_node("server");
        server.start(1, |index| async move {
            if index.is_control() {
                return;
            }
            let mut listener = Listener::bind(([0, 0, 0, 0], PORT).into()).unwrap();
            let mut streams = vec![];
            loop {
                streams.push(listener.accept().await.unwrap());
            }
        });
        let ended = Rc::new(Cell::new(false));
        let refused = Rc::new(Cell::new(None));
        let (in_ended, in_refused) = (ended.clone(), refused.clone());
        world.add_node("client").start(1, move |index| {
            let (ended, refused) = (in_ended.clone(), in_refused.clone());
            async move {
                if index.is_control() {
                    return;
                }
                rt::sleep(Duration::from_millis(10)).await;
                let addr = rt::net::resolve("server", PORT).await.unwrap()[0];
                let (mut read, _write) = Stream::connect(addr).await.unwrap().split();
                let mut buf = BytesMut::new();
                let end = rt::timeout(SECOND * 5, read.read(&mut buf)).await;
                ended.set(end.is_ok());
                let again = Stream::connect(addr).await;
                refused.set(again.err().map(|error| error.kind()));
            }
        });
        world.run_for(Duration::from_millis(100));
        if power {
            server.lose_power()
        } else {
            server.kill()
        }
        world.run_until(SECOND * 60, || refused.get().is_some());
        assert_eq!(ended.get(), !power);
        let expected = if power {
            ErrorKind::TimedOut
        } else {
            ErrorKind::ConnectionRefused
        };
        assert_eq!(refused.get(), Some(expected));
    }
}

#[test]
fn invariants_are_called_after_every_step() {
    let world = World::new(13);
    let calls = Rc::new(Cell::new(0u64));
    let counter = calls.clone();
    world.on_step(move |world| {
        assert!(world.steps() <= 1000);
        counter.set(counter.get() + 1);
    });
    world.add_node("a").start(1, |_| async {
        for _ in 0..10 {
            rt::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(world.run_to_end(SECOND));
    assert!(calls.get() >= world.steps());
}

#[test]
fn a_dropped_world_frees_its_memory() {
    let world = World::new(14);
    let kernel = Rc::downgrade(&world.shared.kernel);
    world.add_node("server").start(1, |index| async move {
        if !index.is_control() {
            serve().await;
        }
    });
    world.add_node("client").start(1, |index| async move {
        if index.is_control() {
            return;
        }
        rt::sleep(Duration::from_millis(5)).await;
        let addr = rt::net::resolve("server", PORT).await.unwrap()[0];
        let (_read, mut write) = Stream::connect(addr).await.unwrap().split();
        loop {
            write
                .write_all(&[Bytes::from_static(b"on its way").into()])
                .await
                .unwrap();
            rt::sleep(Duration::from_micros(50)).await;
        }
    });
    world.run_for(Duration::from_millis(50));
    world.network().cut(0, 1);
    world.run_for(Duration::from_millis(50));
    drop(world);
    assert!(
        kernel.upgrade().is_none(),
        "something keeps the world alive"
    );
}

//! What only the real body can get wrong: stalls of the scheduler, threads, panics, processor
//! time when idle.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use highwater::rt;
use highwater::rt::net::{Listener, Stream};
use highwater::rt::{RingPlan, RunError, run_ring};

/// A request that is alone on its executor must not wait for the next event. Many short runs with
/// fresh executors, because the stall depends on how the timers meet; a blocking client on a
/// plain thread, so that nothing else wakes the server.
#[test]
fn a_lone_request_does_not_hang() {
    let until = Instant::now() + Duration::from_secs(4);
    let (mut runs, mut requests, mut slow) = (0u32, 0u64, Duration::ZERO);
    while Instant::now() < until {
        let port = Arc::new(Mutex::new(None));
        let client = std::thread::spawn({
            let port = port.clone();
            move || lone_client(&port)
        });
        let plan = RingPlan::default();
        run_ring(plan, move |index| {
            let port = port.clone();
            async move {
                if index.is_control() {
                    return;
                }
                let mut listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
                *port.lock().unwrap() = Some(listener.local_addr());
                let (stream, _) = listener.accept().await.unwrap();
                let (mut read, mut write) = stream.split();
                loop {
                    let mut buf = BytesMut::with_capacity(4096);
                    if read.read(&mut buf).await.unwrap() == 0 {
                        return;
                    }
                    write.write_all(&[buf.freeze().into()]).await.unwrap();
                }
            }
        })
        .unwrap();
        let (done, worst) = client.join().expect("the client got its answers");
        runs += 1;
        requests += done;
        slow = slow.max(worst);
    }
    println!("{requests} requests in {runs} runs, the slowest took {slow:?}");
    assert!(requests > 1000);
    assert!(
        slow < Duration::from_secs(10),
        "a lone request took {slow:?}"
    );
}

fn lone_client(port: &Mutex<Option<std::net::SocketAddr>>) -> (u64, Duration) {
    use std::io::{Read, Write};
    let addr = loop {
        if let Some(addr) = *port.lock().unwrap() {
            break addr;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    // A hang fails the test instead of blocking it.
    stream
        .set_read_timeout(Some(Duration::from_secs(15)))
        .unwrap();
    let until = Instant::now() + Duration::from_millis(300);
    let (mut done, mut worst) = (0, Duration::ZERO);
    let mut buf = [0u8; 64];
    while Instant::now() < until {
        let sent = Instant::now();
        stream.write_all(&buf).unwrap();
        stream.read_exact(&mut buf).unwrap();
        worst = worst.max(sent.elapsed());
        done += 1;
        if done % 50 == 0 {
            std::thread::sleep(Duration::from_micros(done % 1300));
        }
    }
    (done, worst)
}

/// The same over a lane, from a plain thread that wakes the executor from outside.
#[test]
fn a_wake_from_a_thread_is_never_lost() {
    let (to, from) = rt::lane::pair::<u64>(8);
    let from = Arc::new(Mutex::new(Some(from)));
    let seen = Arc::new(AtomicU64::new(0));
    let counter = seen.clone();
    let sender = std::thread::spawn(move || {
        for i in 1..=20_000u64 {
            to.try_send(i).unwrap();
            let sent = Instant::now();
            while counter.load(Ordering::Acquire) != i {
                assert!(
                    sent.elapsed() < Duration::from_secs(10),
                    "wake-up {i} was lost"
                );
                std::hint::spin_loop();
            }
            if i % 64 == 0 {
                std::thread::sleep(Duration::from_micros(i % 500));
            }
        }
    });
    run_ring(RingPlan::default(), move |index| {
        let (from, seen) = (from.clone(), seen.clone());
        async move {
            if !index.is_control() {
                let mut from = from.lock().unwrap().take().unwrap();
                while let Some(value) = from.recv().await {
                    seen.store(value, Ordering::Release);
                }
            }
        }
    })
    .unwrap();
    sender.join().expect("every wake-up arrived");
}

#[test]
fn a_panic_ends_all_executors_and_names_the_thread() {
    let result = run_ring(
        RingPlan {
            shards: 2,
            ..RingPlan::default()
        },
        |index| async move {
            if index.index == 1 {
                rt::sleep(Duration::from_millis(5)).await;
                panic!("shard trouble");
            }
            std::future::pending::<()>().await;
        },
    );
    match result {
        Err(RunError::Panicked { name, message }) => {
            assert_eq!(
                (name.as_str(), message.as_str()),
                ("shard-1", "shard trouble")
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_panic_of_blocking_work_reaches_the_caller() {
    let result = run_ring(RingPlan::default(), |index| async move {
        if !index.is_control() {
            rt::blocking(|| panic!("bad sum")).await;
        }
    });
    assert!(matches!(result, Err(RunError::Panicked { message, .. }) if message == "bad sum"));
}

#[test]
fn tasks_left_behind_are_dropped_with_their_executor() {
    let dropped = Arc::new(AtomicU64::new(0));
    struct CountDrop(Arc<AtomicU64>);
    impl Drop for CountDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let counter = dropped.clone();
    run_ring(RingPlan::default(), move |index| {
        let counter = counter.clone();
        async move {
            if index.is_control() {
                return;
            }
            for _ in 0..10 {
                let guard = CountDrop(counter.clone());
                drop(rt::spawn(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                }));
            }
        }
    })
    .unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 10);
}

#[test]
fn pinned_shards_run_each_on_its_core() {
    let cores = core_affinity::get_core_ids().unwrap_or_default().len();
    if cores < 2 {
        return;
    }
    let plan = RingPlan {
        shards: 2,
        pin: true,
        spin: None,
    };
    run_ring(plan, |index| async move {
        let allowed = core_affinity::get_core_ids().unwrap_or_default();
        if index.is_control() {
            assert!(allowed.len() >= 2, "the control executor is pinned");
            let in_pool = rt::blocking(|| core_affinity::get_core_ids().unwrap_or_default()).await;
            assert!(in_pool.len() >= 2, "pool threads are pinned");
        } else {
            assert_eq!(allowed.len(), 1);
        }
    })
    .unwrap();
}

/// Three idle executors: the guard ticks must cost next to nothing. The best of three seconds
/// counts, for a busy host charges a thread for more than its own work.
#[test]
fn idle_executors_use_no_processor_time() {
    const LIMIT: Duration = Duration::from_millis(10);
    fn used() -> Duration {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        let nanos = stat.split_whitespace().next().unwrap();
        Duration::from_nanos(nanos.parse().unwrap())
    }
    run_ring(
        RingPlan {
            shards: 2,
            ..RingPlan::default()
        },
        |_| async {
            rt::sleep(Duration::from_millis(300)).await;
            let mut least = Duration::MAX;
            for _ in 0..3 {
                let before = used();
                rt::sleep(Duration::from_secs(1)).await;
                least = least.min(used() - before);
                if least < LIMIT {
                    break;
                }
            }
            println!("{least:?} of processor time in an idle second");
            assert!(least < LIMIT, "{least:?} in an idle second");
        },
    )
    .unwrap();
}

/// What is sent before a close arrives, also when the writer drops everything at once.
#[test]
fn bytes_written_before_a_drop_arrive() {
    run_ring(RingPlan::default(), |index| async move {
        if index.is_control() {
            return;
        }
        let mut listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let addr = listener.local_addr();
        for _ in 0..50 {
            let sending = rt::spawn(async move {
                let (_read, mut write) = Stream::connect(addr).await.unwrap().split();
                write
                    .write_all(&[Bytes::from(vec![9; 100_000]).into()])
                    .await
                    .unwrap();
            });
            let (stream, _) = listener.accept().await.unwrap();
            let (mut read, _write) = stream.split();
            let mut buf = BytesMut::with_capacity(200_000);
            while read.read(&mut buf).await.unwrap() > 0 {}
            assert_eq!(buf.len(), 100_000);
            sending.await;
        }
    })
    .unwrap();
}

/// Results and wake-ups that arrive from threads after the task that waited has gone, while it
/// goes, and while it still waits.
#[test]
fn late_wakes_of_finished_tasks_do_no_harm() {
    const TASKS: u64 = 20_000;
    let done = Arc::new(AtomicU64::new(0));
    let counter = done.clone();
    let plan = RingPlan {
        shards: 2,
        ..RingPlan::default()
    };
    run_ring(plan, move |_| {
        let counter = counter.clone();
        async move {
            for batch in 0..TASKS / 100 {
                let tasks: Vec<_> = (0..100)
                    .map(|i| {
                        let counter = counter.clone();
                        rt::spawn(async move {
                            let work = rt::blocking(move || std::hint::black_box(i * 2));
                            let limit = Duration::from_micros(rt::random_below(600) + batch % 7);
                            if let Ok(result) = rt::timeout(limit, work).await {
                                assert_eq!(result, i * 2);
                            }
                            counter.fetch_add(1, Ordering::Relaxed);
                        })
                    })
                    .collect();
                rt::join_all(tasks).await;
            }
        }
    })
    .unwrap();
    assert_eq!(done.load(Ordering::Relaxed), 3 * TASKS);
}

/// Listeners of other programs count, with and without SO_REUSEPORT, before and after ours.
#[test]
fn a_port_of_another_program_is_an_error() {
    run_ring(RingPlan::default(), |index| async move {
        if index.is_control() {
            return;
        }
        let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = plain.local_addr().unwrap();
        let error = Listener::bind(addr).expect_err("the port is taken");
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        drop(plain);

        let sharing = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let sharing = sharing.unwrap();
        sharing.set_reuse_port(true).unwrap();
        let any: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
        sharing.bind(&any.into()).unwrap();
        sharing.listen(1).unwrap();
        let addr = sharing.local_addr().unwrap().as_socket().unwrap();
        let error = Listener::bind(addr).expect_err("the port is taken");
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        drop(sharing);

        let ours = Listener::bind(any).unwrap();
        let error = std::net::TcpListener::bind(ours.local_addr()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    })
    .unwrap();
}

/// A restart finds its port free although connections of the last run linger in TIME_WAIT.
#[test]
fn a_port_can_be_bound_again_after_a_restart() {
    let port = Arc::new(AtomicU64::new(0));
    for _ in 0..3 {
        let port = port.clone();
        run_ring(RingPlan::default(), move |index| {
            let port = port.clone();
            async move {
                if index.is_control() {
                    return;
                }
                let addr = ([127, 0, 0, 1], port.load(Ordering::Relaxed) as u16).into();
                let mut listener = Listener::bind(addr).expect("the port of the last run");
                let addr = listener.local_addr();
                port.store(u64::from(addr.port()), Ordering::Relaxed);
                let client = rt::spawn(async move { Stream::connect(addr).await.unwrap() });
                let (server, _) = listener.accept().await.unwrap();
                // The side that closes first gets the TIME_WAIT: ours.
                drop(server);
                let (mut read, _write) = client.await.split();
                let mut buf = BytesMut::new();
                assert_eq!(read.read(&mut buf).await.unwrap(), 0);
            }
        })
        .unwrap();
    }
}

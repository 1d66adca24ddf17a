//! What does a hop between two executors cost?
//!
//! Floor: the same round trip between two plain threads that spin on two atomics (no sleeping, no
//! futures), printed beside it.
//!
//! Last result on 2 busy shared cores, kernel 6.18, unpinned: round trip with both sides parked
//! 28.6 us (floor 0.47 us; the difference is two eventfd wakes), one way 5.7 M values/s.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use highwater::rt::lane::{LaneReceiver, LaneSender, pair};
use highwater::rt::{self, RingPlan, run_ring};

/// What the driving shard is asked to do: so many rounds, answer with the time they took.
type Order = (u64, mpsc::Sender<Duration>);

const BATCH: u64 = 256;

type Ends = (LaneSender<u64>, LaneReceiver<u64>);

/// Two shards joined by lanes; `drive` runs on the first for every order, `serve` on the second.
/// Dropping the returned sender ends them.
fn shards<D, S>(drive: D, serve: S) -> (mpsc::Sender<Order>, std::thread::JoinHandle<()>)
where
    D: AsyncFn(&mut Ends, u64) + Clone + Send + 'static,
    S: AsyncFn(Ends) + Clone + Send + 'static,
{
    let (to, from_first) = pair(1024);
    let (back, to_first) = pair(1024);
    let first = Arc::new(Mutex::new(Some((to, to_first))));
    let second = Arc::new(Mutex::new(Some((back, from_first))));
    let (orders, inbox) = mpsc::channel::<Order>();
    let inbox = Arc::new(Mutex::new(inbox));
    let thread = std::thread::spawn(move || {
        let plan = RingPlan {
            shards: 2,
            ..RingPlan::default()
        };
        run_ring(plan, move |index| {
            let (first, second, inbox) = (first.clone(), second.clone(), inbox.clone());
            let (drive, serve) = (drive.clone(), serve.clone());
            async move {
                match index.index {
                    0 => {
                        let mut ends = take(&first);
                        loop {
                            let inbox = inbox.clone();
                            let order =
                                rt::blocking(move || inbox.lock().expect("one reader").recv().ok());
                            let Some((rounds, answer)) = order.await else {
                                return;
                            };
                            let start = Instant::now();
                            drive(&mut ends, rounds).await;
                            answer.send(start.elapsed()).expect("the bench waits");
                        }
                    }
                    1 => serve(take(&second)).await,
                    _ => {}
                }
            }
        })
        .expect("the shards end well");
    });
    (orders, thread)
}

fn take(ends: &Mutex<Option<Ends>>) -> Ends {
    ends.lock()
        .expect("not poisoned")
        .take()
        .expect("taken once")
}

fn timed(orders: &mpsc::Sender<Order>, rounds: u64) -> Duration {
    let (answer, result) = mpsc::channel();
    orders.send((rounds, answer)).expect("the shards run");
    result.recv().expect("the shards answer")
}

fn round_trip(c: &mut Criterion) {
    let (orders, thread) = shards(
        async |ends: &mut Ends, rounds| {
            for i in 0..rounds {
                ends.0.send(i).await.expect("the other shard listens");
                black_box(ends.1.recv().await);
            }
        },
        async |mut ends: Ends| {
            while let Some(value) = ends.1.recv().await {
                let _ = ends.0.send(value).await;
            }
        },
    );
    c.bench_function("lane/round trip, both sides parked", |b| {
        b.iter_custom(|rounds| timed(&orders, rounds));
    });
    drop(orders);
    thread.join().expect("no panic");
}

fn throughput(c: &mut Criterion) {
    let (orders, thread) = shards(
        async |ends: &mut Ends, rounds| {
            for round in 0..rounds {
                for i in 0..BATCH {
                    ends.0
                        .send(round * BATCH + i)
                        .await
                        .expect("the other shard listens");
                }
            }
            // All of it has arrived when the last sum comes back.
            ends.0
                .send(u64::MAX)
                .await
                .expect("the other shard listens");
            black_box(ends.1.recv().await);
        },
        async |mut ends: Ends| {
            let mut sum = 0u64;
            while let Some(value) = ends.1.recv().await {
                if value == u64::MAX {
                    let _ = ends.0.send(sum).await;
                } else {
                    sum = sum.wrapping_add(value);
                }
            }
        },
    );
    let mut group = c.benchmark_group("lane");
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("one way, streams of values", |b| {
        b.iter_custom(|rounds| timed(&orders, rounds));
    });
    group.finish();
    drop(orders);
    thread.join().expect("no panic");
}

fn floor(c: &mut Criterion) {
    let ping = Arc::new(AtomicU64::new(0));
    let pong = Arc::new(AtomicU64::new(0));
    let thread = {
        let (ping, pong) = (ping.clone(), pong.clone());
        std::thread::spawn(move || {
            let mut seen = 0;
            loop {
                match ping.load(Ordering::Acquire) {
                    u64::MAX => return,
                    value if value != seen => {
                        seen = value;
                        pong.store(value, Ordering::Release);
                    }
                    _ => std::hint::spin_loop(),
                }
            }
        })
    };
    let mut next = 0;
    c.bench_function("floor/round trip of two spinning threads", |b| {
        b.iter(|| {
            next += 1;
            ping.store(next, Ordering::Release);
            while pong.load(Ordering::Acquire) != next {
                std::hint::spin_loop();
            }
        });
    });
    ping.store(u64::MAX, Ordering::Release);
    thread.join().expect("no panic");
}

criterion_group! {
    name = lane;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(3));
    targets = round_trip, throughput, floor
}
criterion_main!(lane);

//! Lanes between executors: order, backpressure, ends, and no wake-up lost while a side is
//! parked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::rt;
use highwater::rt::lane::{self, LaneReceiver, LaneSender, TrySendError, once, pair};

use crate::support::{Body, Env, on_both_bodies, run_shards};

on_both_bodies!(
    a_full_lane_holds_senders_back_in_order,
    a_lane_ends_on_both_sides,
    a_dropped_send_does_not_block_the_others,
    a_once_delivers_or_ends,
);

macro_rules! cross_executor {
    ($($case:ident),+ $(,)?) => {
        mod cross {
            mod ring { $(#[test] fn $case() { super::super::$case(crate::support::Body::Ring); })+ }
            mod sim {
                // Fewer seeds: these run long.
                $(#[test] fn $case() {
                    for seed in 0..3 {
                        super::super::$case(crate::support::Body::Sim(seed));
                    }
                })+
            }
        }
    };
}

cross_executor!(
    values_cross_in_order_under_backpressure,
    a_parked_receiver_is_woken_every_time,
    a_burst_arrives_whole,
    replies_come_back,
);

async fn a_full_lane_holds_senders_back_in_order(_env: Env) {
    let (sender, mut receiver) = pair::<u32>(2);
    let sender = std::rc::Rc::new(sender);
    let mut tasks = Vec::new();
    for i in 0..6 {
        let sender = sender.clone();
        tasks.push(rt::spawn(async move { sender.send(i).await.unwrap() }));
        rt::yield_now().await;
    }
    assert_eq!(receiver.len(), 2);
    assert_eq!(sender.try_send(99), Err(TrySendError::Full(99)));
    let mut got = Vec::new();
    for _ in 0..6 {
        got.push(receiver.recv().await.unwrap());
    }
    rt::join_all(tasks).await;
    assert_eq!(got, [0, 1, 2, 3, 4, 5]);
}

async fn a_lane_ends_on_both_sides(_env: Env) {
    let (sender, mut receiver) = pair::<u32>(4);
    sender.try_send(1).unwrap();
    drop(sender);
    assert_eq!(receiver.recv().await, Some(1));
    assert_eq!(receiver.recv().await, None);
    let (sender, mut receiver) = pair::<u32>(4);
    let waiting = rt::spawn(async move { receiver.recv().await });
    rt::yield_now().await;
    drop(sender);
    assert_eq!(waiting.await, None);
    let (sender, receiver) = pair::<u32>(1);
    sender.try_send(1).unwrap();
    let waiting = rt::spawn(async move {
        let result = sender.send(2).await;
        assert!(sender.is_closed());
        result
    });
    rt::yield_now().await;
    drop(receiver);
    assert_eq!(waiting.await, Err(lane::Closed(2)));
}

async fn a_dropped_send_does_not_block_the_others(_env: Env) {
    let (sender, mut receiver) = pair::<u32>(1);
    let sender = std::rc::Rc::new(sender);
    sender.try_send(0).unwrap();
    let head = rt::spawn({
        let sender = sender.clone();
        async move { sender.send(1).await.unwrap() }
    });
    rt::yield_now().await;
    let next = rt::spawn({
        let sender = sender.clone();
        async move { sender.send(2).await.unwrap() }
    });
    rt::yield_now().await;
    head.cancel().await;
    assert_eq!(receiver.recv().await, Some(0));
    assert_eq!(receiver.recv().await, Some(2));
    next.await;
    // Room was made for the head, which is dropped before it runs.
    sender.try_send(3).unwrap();
    let head = rt::spawn({
        let sender = sender.clone();
        async move { sender.send(4).await.unwrap() }
    });
    rt::yield_now().await;
    let next = rt::spawn({
        let sender = sender.clone();
        async move { sender.send(5).await.unwrap() }
    });
    rt::yield_now().await;
    assert_eq!(receiver.try_recv(), Some(3));
    head.cancel_detached();
    let got = rt::timeout(Duration::from_secs(1), receiver.recv()).await;
    assert!(matches!(got, Ok(Some(4 | 5))), "{got:?}");
    let second = rt::timeout(Duration::from_secs(1), next).await;
    assert!(second.is_ok(), "the second sender hangs");
}

async fn a_once_delivers_or_ends(_env: Env) {
    let (sender, receiver) = once();
    let waiting = rt::spawn(receiver);
    rt::yield_now().await;
    sender.send(1).unwrap();
    assert_eq!(waiting.await, Some(1));
    let (sender, receiver) = once::<u8>();
    let waiting = rt::spawn(receiver);
    rt::yield_now().await;
    drop(sender);
    assert_eq!(waiting.await, None);
}

/// Lane ends made outside, each taken by one executor.
type Slot<T> = Arc<Mutex<Option<T>>>;

fn slot<T>(value: T) -> Slot<T> {
    Arc::new(Mutex::new(Some(value)))
}

fn take<T>(slot: &Slot<T>) -> T {
    slot.lock().unwrap().take().expect("taken once")
}

fn values_cross_in_order_under_backpressure(body: Body) {
    const COUNT: u64 = 200_000;
    let (sender, receiver) = pair::<u64>(64);
    let (sender, receiver) = (slot(sender), slot(receiver));
    run_shards(body, 2, move |index, _| {
        let (sender, receiver) = (sender.clone(), receiver.clone());
        async move {
            match index.index {
                0 => {
                    let sender = take(&sender);
                    for i in 0..COUNT {
                        sender.send(i).await.unwrap();
                        if i % 1009 == 0 {
                            rt::yield_now().await;
                        }
                    }
                }
                1 => {
                    let mut receiver = take(&receiver);
                    let mut next = 0;
                    while let Some(value) = receiver.recv().await {
                        assert_eq!(value, next);
                        next += 1;
                        if value % 997 == 0 {
                            rt::yield_now().await;
                        }
                    }
                    assert_eq!(next, COUNT);
                }
                _ => {}
            }
        }
    });
}

/// One executor's two lane ends.
type Ends<T, U> = Slot<(LaneSender<T>, LaneReceiver<U>)>;

fn lanes_both_ways<T: Send, U: Send>(capacity: usize) -> (Ends<T, U>, Ends<U, T>) {
    let (to, from_first) = pair::<T>(capacity);
    let (back, to_first) = pair::<U>(capacity);
    (slot((to, to_first)), slot((back, from_first)))
}

/// Ping-pong with pauses of all lengths, so that each side is caught awake, about to park and
/// parked.
fn a_parked_receiver_is_woken_every_time(body: Body) {
    let (first, second) = lanes_both_ways::<u32, u32>(4);
    run_shards(body, 2, move |index, _| {
        let (first, second) = (first.clone(), second.clone());
        async move {
            match index.index {
                0 => {
                    let (to, mut back) = take(&first);
                    for round in 0..4000u32 {
                        match round % 8 {
                            0 => rt::sleep(Duration::from_micros(u64::from(round % 211))).await,
                            1 => spin(Duration::from_nanos(u64::from(round * 37 % 20_000))),
                            _ => {}
                        }
                        to.send(round).await.unwrap();
                        let reply = rt::timeout(Duration::from_secs(10), back.recv()).await;
                        assert_eq!(reply, Ok(Some(round)), "a wake-up was lost");
                    }
                }
                1 => {
                    let (back, mut from) = take(&second);
                    while let Some(round) = from.recv().await {
                        if round % 16 == 3 {
                            spin(Duration::from_nanos(u64::from(round * 53 % 30_000)));
                        }
                        back.send(round).await.unwrap();
                    }
                }
                _ => {}
            }
        }
    });
}

/// Real time on purpose: shifts the two threads against each other. Nothing in the simulator.
fn spin(duration: Duration) {
    let start = std::time::Instant::now();
    while start.elapsed() < duration {
        std::hint::spin_loop();
    }
}

fn a_burst_arrives_whole(body: Body) {
    let (first, second) = lanes_both_ways::<u32, ()>(1024);
    run_shards(body, 2, move |index, _| {
        let (first, second) = (first.clone(), second.clone());
        async move {
            match index.index {
                0 => {
                    let (to, mut back) = take(&first);
                    for burst in 0..200u32 {
                        for i in 0..1000 {
                            to.try_send(burst * 1000 + i).unwrap();
                        }
                        let done = rt::timeout(Duration::from_secs(10), back.recv()).await;
                        assert_eq!(done, Ok(Some(())), "the burst got stuck");
                    }
                }
                1 => {
                    let (back, mut from) = take(&second);
                    let mut next = 0;
                    while let Some(value) = from.recv().await {
                        assert_eq!(value, next);
                        next += 1;
                        if next % 1000 == 0 {
                            back.send(()).await.unwrap();
                        }
                    }
                }
                _ => {}
            }
        }
    });
}

fn replies_come_back(body: Body) {
    let (sender, receiver) = pair::<(u64, lane::OnceSender<u64>)>(16);
    let (sender, receiver) = (slot(sender), slot(receiver));
    run_shards(body, 2, move |index, _| {
        let (sender, receiver) = (sender.clone(), receiver.clone());
        async move {
            match index.index {
                0 => {
                    let sender = std::rc::Rc::new(take(&sender));
                    let tasks: Vec<_> = (0..500u64)
                        .map(|i| {
                            let sender = sender.clone();
                            rt::spawn(async move {
                                let (reply, answer) = once();
                                sender.send((i, reply)).await.unwrap();
                                assert_eq!(answer.await, Some(i * 2));
                            })
                        })
                        .collect();
                    rt::join_all(tasks).await;
                }
                1 => {
                    let mut receiver = take(&receiver);
                    while let Some((value, reply)) = receiver.recv().await {
                        reply.send(value * 2).unwrap();
                    }
                }
                _ => {}
            }
        }
    });
}

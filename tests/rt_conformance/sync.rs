//! The primitives of one executor: nothing is lost, order is kept, dropped waiters do no harm.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use highwater::rt;
use highwater::rt::sync::{Event, Notify, Semaphore, oneshot, queue};

use crate::support::{Env, on_both_bodies};

on_both_bodies!(
    a_oneshot_delivers_or_says_why_not,
    an_event_counts_from_the_call_of_wait,
    a_notification_is_never_lost,
    two_notifications_wake_two,
    a_semaphore_serves_in_order,
    a_dropped_acquire_lets_the_next_go,
    a_request_above_the_budget_runs_alone,
    permits_can_be_given_back_in_parts,
    a_queue_holds_senders_back,
    a_queue_ends_on_both_sides,
);

async fn a_oneshot_delivers_or_says_why_not(_env: Env) {
    let (sender, receiver) = oneshot::channel();
    let waiting = rt::spawn(receiver);
    rt::yield_now().await;
    sender.send(5).unwrap();
    assert_eq!(waiting.await, Ok(5));
    let (sender, receiver) = oneshot::channel::<u8>();
    let waiting = rt::spawn(receiver);
    rt::yield_now().await;
    drop(sender);
    assert_eq!(waiting.await, Err(oneshot::Closed));
    let (sender, receiver) = oneshot::channel();
    drop(receiver);
    assert!(sender.is_closed());
    assert_eq!(sender.send("back"), Err("back"));
}

async fn an_event_counts_from_the_call_of_wait(_env: Env) {
    let event = Event::new();
    event.notify_all();
    let wait = event.wait();
    assert!(
        rt::timeout(Duration::from_millis(1), wait).await.is_err(),
        "an old event counted"
    );
    let wait = event.wait();
    event.notify_all();
    wait.await;
    let woken = Rc::new(Cell::new(0));
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let (event, woken) = (event.clone(), woken.clone());
            rt::spawn(async move {
                event.wait().await;
                woken.set(woken.get() + 1);
            })
        })
        .collect();
    rt::yield_now().await;
    assert_eq!(woken.get(), 0);
    event.notify_all();
    rt::join_all(tasks).await;
    assert_eq!(woken.get(), 10);
}

async fn a_notification_is_never_lost(_env: Env) {
    let notify = Notify::new();
    notify.notify_one();
    notify.notify_one();
    notify.notified().await;
    let second = rt::timeout(Duration::from_millis(1), notify.notified()).await;
    assert!(second.is_err(), "more than one notification was remembered");
    // Given to a waiter that is dropped before it runs: the next one gets it.
    let first = rt::spawn(notify.notified());
    rt::yield_now().await;
    let next = rt::spawn(notify.notified());
    rt::yield_now().await;
    notify.notify_one();
    first.cancel_detached();
    rt::timeout(Duration::from_secs(1), next)
        .await
        .expect("the notification was lost");
}

async fn two_notifications_wake_two(_env: Env) {
    let notify = Notify::new();
    let tasks: Vec<_> = (0..2).map(|_| rt::spawn(notify.notified())).collect();
    rt::yield_now().await;
    notify.notify_one();
    notify.notify_one();
    let both = rt::timeout(Duration::from_secs(1), rt::join_all(tasks)).await;
    assert!(both.is_ok(), "one of two waiters hangs");
}

async fn a_semaphore_serves_in_order(_env: Env) {
    let semaphore = Semaphore::new(10);
    let order = Rc::new(RefCell::new(Vec::new()));
    let held = semaphore.acquire(8).await;
    let mut tasks = Vec::new();
    for wanted in [6u64, 1, 9, 2] {
        let (semaphore, order) = (semaphore.clone(), order.clone());
        tasks.push(rt::spawn(async move {
            let permit = semaphore.acquire(wanted).await;
            order.borrow_mut().push(wanted);
            rt::sleep(Duration::from_millis(1)).await;
            drop(permit);
        }));
        // The order of arrival is what counts; that of tasks is not promised.
        rt::yield_now().await;
    }
    assert!(
        semaphore.try_acquire(1).is_none(),
        "a small request overtook the queue"
    );
    drop(held);
    rt::join_all(tasks).await;
    // The first two fit in together, so either may run first.
    order.borrow_mut()[..2].sort_unstable();
    assert_eq!(*order.borrow(), [1, 6, 9, 2]);
    assert_eq!(semaphore.available(), 10);
}

async fn a_dropped_acquire_lets_the_next_go(_env: Env) {
    let semaphore = Semaphore::new(4);
    let held = semaphore.acquire(2).await;
    let large = rt::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(4).await.count() }
    });
    rt::yield_now().await;
    let small = rt::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(1).await.count() }
    });
    rt::yield_now().await;
    assert!(!small.is_finished());
    large.cancel().await;
    assert_eq!(rt::timeout(Duration::from_secs(1), small).await, Ok(1));
    drop(held);
    // Granted, then dropped before it ran: the permits come back.
    let held = semaphore.acquire(4).await;
    let waiting = rt::spawn({
        let semaphore = semaphore.clone();
        async move { drop(semaphore.acquire(3).await) }
    });
    rt::yield_now().await;
    drop(held);
    waiting.cancel().await;
    assert_eq!(semaphore.available(), 4);
}

async fn a_request_above_the_budget_runs_alone(_env: Env) {
    let semaphore = Semaphore::new(4);
    let permit = semaphore.acquire(1000).await;
    assert_eq!(permit.count(), 4);
    assert!(semaphore.try_acquire(1).is_none());
    drop(permit);
    assert_eq!(semaphore.available(), 4);
}

async fn permits_can_be_given_back_in_parts(_env: Env) {
    let semaphore = Semaphore::new(10);
    let mut permit = semaphore.acquire(6).await;
    permit.give_back(4);
    assert_eq!((permit.count(), semaphore.available()), (2, 8));
    permit.merge(semaphore.try_acquire(3).unwrap());
    assert_eq!((permit.count(), semaphore.available()), (5, 5));
    drop(permit);
    assert_eq!(semaphore.available(), 10);
}

async fn a_queue_holds_senders_back(_env: Env) {
    let (sender, mut receiver) = queue::bounded(3);
    let sent = Rc::new(Cell::new(0));
    let counted = sent.clone();
    let sending = rt::spawn(async move {
        for i in 0..100 {
            sender.send(i).await.unwrap();
            counted.set(i + 1);
        }
    });
    rt::yield_now().await;
    assert_eq!(sent.get(), 3);
    let mut got = Vec::new();
    while let Some(value) = receiver.recv().await {
        got.push(value);
        assert!(sent.get() <= got.len() + 3);
    }
    sending.await;
    assert_eq!(got, (0..100).collect::<Vec<usize>>());
}

async fn a_queue_ends_on_both_sides(_env: Env) {
    let (sender, mut receiver) = queue::bounded(1);
    let second = sender.clone();
    sender.try_send(1).unwrap();
    assert_eq!(second.try_send(2), Err(queue::TrySendError::Full(2)));
    drop(sender);
    drop(second);
    assert_eq!(receiver.recv().await, Some(1));
    assert_eq!(receiver.recv().await, None);
    let (sender, receiver) = queue::bounded(1);
    sender.try_send(1).unwrap();
    let waiting = rt::spawn(async move { sender.send(2).await });
    rt::yield_now().await;
    drop(receiver);
    assert_eq!(waiting.await, Err(queue::Closed(2)));
}

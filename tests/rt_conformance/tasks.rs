//! Tasks and timers: joining, cancelling, order, time-outs, blocking work.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use highwater::rt;

use crate::support::{Env, on_both_bodies};

on_both_bodies!(
    a_task_runs_after_its_spawner_yields,
    joining_gives_the_output,
    a_dropped_handle_lets_the_task_run,
    cancelling_drops_the_future,
    a_task_may_cancel_itself,
    timers_fire_in_order,
    a_dropped_timer_does_not_wake,
    a_timeout_gives_up_and_drops,
    a_deadline_in_the_past_returns_at_once,
    the_clock_never_goes_back,
    the_wall_clock_moves_with_the_time,
    yielding_lets_others_run,
    yielding_lets_timers_fire,
    select_prefers_earlier_arms,
    blocking_work_gives_its_result,
    random_bytes_differ,
);

async fn a_task_runs_after_its_spawner_yields(_env: Env) {
    let ran = Rc::new(Cell::new(false));
    let in_task = ran.clone();
    let task = rt::spawn(async move { in_task.set(true) });
    assert!(!ran.get(), "spawn ran the task inside the call");
    task.await;
    assert!(ran.get());
}

async fn joining_gives_the_output(_env: Env) {
    let tasks: Vec<_> = (0..100u64)
        .map(|i| {
            rt::spawn(async move {
                rt::sleep(Duration::from_micros((100 - i) * 10)).await;
                i * i
            })
        })
        .collect();
    let outputs = rt::join_all(tasks).await;
    assert_eq!(outputs, (0..100).map(|i| i * i).collect::<Vec<u64>>());
}

async fn a_dropped_handle_lets_the_task_run(_env: Env) {
    let done = rt::sync::Event::new();
    let wait = done.wait();
    drop(rt::spawn(async move {
        rt::sleep(Duration::from_millis(1)).await;
        done.notify_all();
    }));
    wait.await;
}

struct SetOnDrop(Rc<Cell<bool>>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

async fn cancelling_drops_the_future(_env: Env) {
    let dropped = Rc::new(Cell::new(false));
    let guard = SetOnDrop(dropped.clone());
    let task = rt::spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    rt::yield_now().await;
    assert!(!task.is_finished());
    assert_eq!(task.cancel().await, None);
    assert!(
        dropped.get(),
        "cancel returned before the future was dropped"
    );
    // A task that never ran is dropped too.
    let dropped = Rc::new(Cell::new(false));
    let guard = SetOnDrop(dropped.clone());
    let task = rt::spawn(async move { drop(guard) });
    assert_eq!(task.cancel().await, None);
    assert!(dropped.get());
    // A finished one gives its output.
    let task = rt::spawn(async { 7 });
    rt::yield_now().await;
    assert!(task.is_finished());
    assert_eq!(task.cancel().await, Some(7));
}

async fn a_task_may_cancel_itself(_env: Env) {
    let handle: Rc<RefCell<Option<rt::Task<()>>>> = Rc::default();
    let dropped = Rc::new(Cell::new(false));
    let (guard, own) = (SetOnDrop(dropped.clone()), handle.clone());
    let task = rt::spawn(async move {
        let _guard = guard;
        let own = own.borrow_mut().take();
        if let Some(own) = own {
            own.cancel_detached();
        }
        std::future::pending::<()>().await;
    });
    *handle.borrow_mut() = Some(task);
    for _ in 0..3 {
        rt::yield_now().await;
    }
    assert!(dropped.get());
}

async fn timers_fire_in_order(_env: Env) {
    let fired = Rc::new(RefCell::new(Vec::new()));
    let start = rt::now();
    let tasks: Vec<_> = [30u64, 10, 20, 40, 15]
        .into_iter()
        .map(|ms| {
            let fired = fired.clone();
            rt::spawn(async move {
                let deadline = start + Duration::from_millis(ms);
                rt::sleep_until(deadline).await;
                assert!(rt::now() >= deadline, "fired early");
                fired.borrow_mut().push(ms);
            })
        })
        .collect();
    rt::join_all(tasks).await;
    assert_eq!(*fired.borrow(), [10, 15, 20, 30, 40]);
}

async fn a_dropped_timer_does_not_wake(_env: Env) {
    let polls = Rc::new(Cell::new(0));
    let counted = polls.clone();
    let task = rt::spawn(async move {
        let mut first = true;
        let mut sleep = Some(Box::pin(rt::sleep(Duration::from_millis(5))));
        std::future::poll_fn(move |cx| {
            counted.set(counted.get() + 1);
            if first {
                first = false;
                if let Some(sleep) = &mut sleep {
                    assert!(sleep.as_mut().poll(cx).is_pending());
                }
                sleep = None;
            }
            std::task::Poll::<()>::Pending
        })
        .await;
    });
    use std::future::Future;
    rt::sleep(Duration::from_millis(20)).await;
    assert_eq!(polls.get(), 1);
    task.cancel().await;
}

async fn a_timeout_gives_up_and_drops(_env: Env) {
    let dropped = Rc::new(Cell::new(false));
    let guard = SetOnDrop(dropped.clone());
    let start = rt::now();
    let limit = Duration::from_millis(10);
    let result = rt::timeout(limit, async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    })
    .await;
    assert_eq!(result, Err(rt::Elapsed));
    assert!(start.elapsed() >= limit);
    assert!(dropped.get());
    assert_eq!(
        rt::timeout(Duration::ZERO, async { 5 }).await,
        Ok(5),
        "a ready future wins"
    );
    let in_time = rt::timeout(Duration::from_secs(5), rt::sleep(Duration::from_millis(1))).await;
    assert_eq!(in_time, Ok(()));
}

async fn a_deadline_in_the_past_returns_at_once(_env: Env) {
    rt::sleep_until(rt::now() - Duration::from_secs(1)).await;
    rt::sleep(Duration::ZERO).await;
    rt::sleep_until_opt(Some(rt::now())).await;
    let never = rt::timeout(Duration::from_millis(2), rt::sleep_until_opt(None)).await;
    assert_eq!(never, Err(rt::Elapsed));
}

async fn the_clock_never_goes_back(_env: Env) {
    let mut last = rt::now();
    for _ in 0..1000 {
        let now = rt::now();
        assert!(now >= last);
        last = now;
    }
    rt::sleep(Duration::from_millis(3)).await;
    assert!(rt::now() - last >= Duration::from_millis(3));
    assert_eq!(last - rt::now(), Duration::ZERO, "differences saturate");
}

async fn the_wall_clock_moves_with_the_time(_env: Env) {
    let before = rt::wall_ms();
    assert!(
        before > 1_600_000_000_000,
        "the wall clock counts from 1970"
    );
    rt::sleep(Duration::from_millis(30)).await;
    let passed = rt::wall_ms() - before;
    assert!((20..10_000).contains(&passed), "{passed} ms for 30");
}

async fn yielding_lets_others_run(_env: Env) {
    let turns = Rc::new(RefCell::new(Vec::new()));
    let tasks: Vec<_> = (0..2)
        .map(|id| {
            let turns = turns.clone();
            rt::spawn(async move {
                for _ in 0..5 {
                    turns.borrow_mut().push(id);
                    rt::yield_now().await;
                }
            })
        })
        .collect();
    rt::join_all(tasks).await;
    let turns = turns.borrow();
    let switches = turns.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(switches >= 4, "one task kept the executor: {turns:?}");
}

async fn yielding_lets_timers_fire(_env: Env) {
    let fired = Rc::new(Cell::new(false));
    let in_task = fired.clone();
    drop(rt::spawn(async move {
        rt::sleep(Duration::from_millis(2)).await;
        in_task.set(true);
    }));
    let start = rt::now();
    while !fired.get() {
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "the timer starves"
        );
        rt::yield_now().await;
    }
}

async fn select_prefers_earlier_arms(_env: Env) {
    assert_eq!(
        rt::select2(async { 1 }, async { 2 }).await,
        rt::Either2::First(1)
    );
    let slow = rt::sleep(Duration::from_millis(50));
    assert_eq!(rt::select2(slow, async { 2 }).await, rt::Either2::Second(2));
    let never = std::future::pending::<()>();
    let never_either = std::future::pending::<()>();
    assert_eq!(
        rt::select3(never, never_either, async { 3 }).await,
        rt::Either3::Third(3)
    );
}

async fn blocking_work_gives_its_result(_env: Env) {
    let sums: Vec<_> = (0..20u64)
        .map(|i| rt::blocking(move || (0..1000 * i).fold(0u64, |a, b| a.wrapping_add(b))))
        .collect();
    let sums = rt::join_all(sums).await;
    assert_eq!(sums[2], (0..2000).sum::<u64>());
    let started = rt::spawn_blocking(|| "eager");
    rt::sleep(Duration::from_millis(1)).await;
    assert_eq!(started.await, "eager");
}

async fn random_bytes_differ(_env: Env) {
    let (mut a, mut b) = ([0u8; 16], [0u8; 16]);
    rt::fill_random(&mut a);
    rt::fill_random(&mut b);
    assert_ne!(a, b);
    assert_ne!(rt::random_u64(), rt::random_u64());
    assert!((0..1000).all(|_| rt::random_below(7) < 7));
    assert_eq!(rt::random_below(0), 0);
}

//! Question: what does one request of a connection cost whose partitions lie on several shards: N
//! values to N other executors at once, and all N answers back?
//!
//! Floor, in the same run: the round trip to one (`fan out/1`); N of them cost N times that if
//! nothing is shared, and about one if the hops overlap. The executors wait between two rounds, as
//! a broker's shards do at low load; `busy` keeps 16 rounds under way.
//! More executors than cores take turns on them: beyond the machine's cores the figures say what
//! the scheduler does, not what a hop costs.
//!
//! Last result (2 virtual cores with nothing else on them, kernel 6.18): asking 1 and 2 waiting
//! executors takes 66 and 84 us, the hops overlap; 4 and 8 take turns on the cores, 144 and 234 us.
//! With 16 rounds under way a round takes 4.1, 6.0, 12 and 21 us.

use std::hint::black_box;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use highwater::rt::lane::{LaneReceiver, LaneSender, pair};
use highwater::rt::{self, RingPlan, join_all, run_ring};

/// So many rounds, answered with the time they took.
type Order = (u64, mpsc::Sender<Duration>);

type Ends = (LaneSender<u64>, LaneReceiver<u64>);

/// Rounds under way at once in the busy case.
const BUSY: u64 = 16;

/// An executor that drives and `others` that answer. Dropping the sender ends them.
fn shards(others: usize, under_way: u64) -> (mpsc::Sender<Order>, std::thread::JoinHandle<()>) {
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..others {
        let (to, at) = pair(1024);
        let (back, from) = pair(1024);
        near.push((to, from));
        far.push(Some((back, at)));
    }
    let near: Arc<Mutex<Option<Vec<Ends>>>> = Arc::new(Mutex::new(Some(near)));
    let far: Arc<Mutex<Vec<Option<Ends>>>> = Arc::new(Mutex::new(far));
    let (orders, inbox) = mpsc::channel::<Order>();
    let inbox = Arc::new(Mutex::new(inbox));
    let thread = std::thread::spawn(move || {
        let plan = RingPlan {
            shards: 1 + others,
            ..RingPlan::default()
        };
        run_ring(plan, move |executor| {
            let (near, far, inbox) = (near.clone(), far.clone(), inbox.clone());
            async move {
                if executor.is_control() {
                    return;
                }
                if executor.index > 0 {
                    let own = far.lock().expect("not poisoned")[executor.index - 1].take();
                    let (back, mut at) = own.expect("taken once");
                    while let Some(value) = at.recv().await {
                        let _ = back.send(value).await;
                    }
                    return;
                }
                let own = near.lock().expect("not poisoned").take();
                let mut ends = own.expect("taken once");
                loop {
                    let inbox = inbox.clone();
                    let order = rt::blocking(move || inbox.lock().expect("one reader").recv().ok());
                    let Some((rounds, answer)) = order.await else {
                        return;
                    };
                    let begun = Instant::now();
                    drive(&mut ends, rounds, under_way).await;
                    answer.send(begun.elapsed()).expect("the bench waits");
                }
            }
        })
        .expect("the shards end well");
    });
    (orders, thread)
}

/// Every round sends to all and is over when all have answered; `under_way` of them at once.
async fn drive(ends: &mut [Ends], rounds: u64, under_way: u64) {
    let mut sent = 0;
    for answered in 0..rounds {
        while sent < rounds && sent < answered + under_way {
            for (to, _) in ends.iter() {
                to.send(sent).await.expect("the other shard listens");
            }
            sent += 1;
        }
        let answers = ends.iter_mut().map(|(_, from)| from.recv());
        black_box(join_all(answers.collect::<Vec<_>>()).await);
    }
}

fn fan_out(c: &mut Criterion) {
    let mut group = c.benchmark_group("fan out");
    for (name, under_way) in [("waiting", 1), ("busy", BUSY)] {
        for others in [1, 2, 4, 8] {
            let (orders, thread) = shards(others, under_way);
            group.bench_function(BenchmarkId::new(name, others), |b| {
                b.iter_custom(|rounds| {
                    let (answer, result) = mpsc::channel();
                    orders.send((rounds, answer)).expect("the shards run");
                    result.recv().expect("the shards answer")
                });
            });
            drop(orders);
            thread.join().expect("no panic");
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(2));
    targets = fan_out
}
criterion_main!(benches);

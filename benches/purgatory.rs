//! Question: what does one operation of the timing wheel and of the purgatory cost, and does it
//! stay flat from a thousand to a million pending?
//!
//! Floor: `floor/slab` does what no wheel can avoid, an insert into and a removal from a slab of
//! the same size at a random place, with the same pending values. Each wheel row moves one timer
//! per iteration with the number pending held constant, deadlines spread over 30 s as request
//! time-outs are. `insert+cancel` and `insert+expire` are both halves together, since the number
//! pending must not drift; `purgatory/...` watches one operation under two keys and completes it.
//!
//! Target: under 100 ns a step, flat in the number pending as far as memory lets it: at a million
//! the timers (48 MB) are beyond the caches and the floor rises with them.
//!
//! Last result (2 virtual cores, Rust 1.95, ns, the median of 20 samples; the last row with nothing
//! else on them, the others shared):
//!
//! | pending | floor | cancel+insert | expire+insert | next_deadline | check+complete+watch | check, not satisfied |
//! |---|---|---|---|---|---|---|
//! | 1 k | 3 | 13 | 134 (30 empty ticks a timer) | 4 | 83 | 6 |
//! | 100 k | 6 | 25 | 37 | 5 | 420 | 21 |
//! | 1 M | 51 | 208 | 220 | 4 | 1,422 | 170 |
//!
//! Per step the wheel stays at about 105 ns at a million pending timers touched in random order,
//! four times the floor's cache misses (a timer, its neighbours, their slots); the purgatory row is
//! one cancel, one insert and two places under two keys of a map that is far beyond the caches.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use highwater::purgatory::{Purgatory, TimerWheel};
use highwater::rt::Instant;
use slab::Slab;
use std::hint::black_box;

const PENDING: [usize; 3] = [1_000, 100_000, 1_000_000];
const MS: u64 = 1_000_000;
/// The span of the deadlines, milliseconds.
const SPAN: u64 = 30_000;

fn at(ms: u64) -> Instant {
    Instant(ms * MS)
}

/// A slab as large as the wheel's entries.
fn floor(c: &mut Criterion) {
    let mut group = c.benchmark_group("floor/slab");
    group.throughput(Throughput::Elements(1));
    for pending in PENDING {
        let mut random = fastrand::Rng::with_seed(1);
        let mut slab = Slab::new();
        let mut keys: Vec<usize> = (0..pending).map(|n| slab.insert([n as u64; 5])).collect();
        group.bench_function(BenchmarkId::new("insert+remove", pending), |b| {
            b.iter(|| {
                let place = random.usize(..pending);
                black_box(slab.remove(keys[place]));
                keys[place] = slab.insert([place as u64; 5]);
            });
        });
    }
    group.finish();
}

fn wheel(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel");
    group.throughput(Throughput::Elements(1));
    for pending in PENDING {
        let mut random = fastrand::Rng::with_seed(2);
        let mut wheel = TimerWheel::new(at(0));
        let mut ids: Vec<_> = (0..pending)
            .map(|n| {
                wheel
                    .insert(at(random.u64(1..SPAN)), n as u32)
                    .expect("far below the limit")
            })
            .collect();
        group.bench_function(BenchmarkId::new("cancel+insert", pending), |b| {
            b.iter(|| {
                let place = random.usize(..pending);
                black_box(wheel.cancel(ids[place]));
                ids[place] = wheel
                    .insert(at(random.u64(1..SPAN)), place as u32)
                    .expect("far below the limit");
            });
        });
        group.bench_function(BenchmarkId::new("next_deadline", pending), |b| {
            b.iter(|| black_box(wheel.next_deadline()));
        });

        // Time goes on evenly: whatever expires is armed again one span later.
        let mut wheel = TimerWheel::new(at(0));
        for n in 0..pending {
            wheel
                .insert(at(random.u64(1..SPAN)), n as u32)
                .expect("far below the limit");
        }
        let mut now = 0;
        let mut fired = Vec::with_capacity(pending);
        group.bench_function(BenchmarkId::new("expire+insert", pending), |b| {
            b.iter_custom(|iterations| {
                let start = std::time::Instant::now();
                let mut moved = 0;
                while moved < iterations {
                    now += 1;
                    wheel.advance(at(now), &mut |n| fired.push(n));
                    moved += fired.len() as u64;
                    for n in fired.drain(..) {
                        black_box(wheel.insert(at(now + SPAN), n).is_ok());
                    }
                }
                // The last tick may have moved more than was asked for.
                start
                    .elapsed()
                    .mul_f64(iterations as f64 / moved.max(1) as f64)
            });
        });
        assert_eq!(wheel.len(), pending);
    }
    group.finish();
}

fn purgatory(c: &mut Criterion) {
    let mut group = c.benchmark_group("purgatory");
    group.throughput(Throughput::Elements(1));
    for pending in PENDING {
        let mut random = fastrand::Rng::with_seed(3);
        let mut purgatory = Purgatory::new(at(0));
        // One pair of keys an operation: a partition has one waiter or a few, not all of them.
        for n in 0..pending as u32 {
            let waits = purgatory.watch(n, &[2 * n, 2 * n + 1], at(random.u64(1..SPAN)));
            assert!(waits.is_ok());
        }
        group.bench_function(BenchmarkId::new("check+complete+watch", pending), |b| {
            b.iter(|| {
                let n = random.u32(..pending as u32);
                for done in purgatory.check(&(2 * n), |_| true) {
                    let deadline = at(random.u64(1..SPAN));
                    let waits = purgatory.watch(done, &[2 * n, 2 * n + 1], deadline);
                    black_box(waits.is_ok());
                }
            });
        });
        group.bench_function(BenchmarkId::new("check unsatisfied", pending), |b| {
            b.iter(|| {
                let n = random.u32(..pending as u32);
                black_box(purgatory.check(&(2 * n), |_| false).len())
            });
        });
        assert_eq!(
            (purgatory.len(), purgatory.watched()),
            (pending, 2 * pending)
        );
    }
    group.finish();
}

criterion_group!(benches, floor, wheel, purgatory);
criterion_main!(benches);

//! The wheel and the purgatory against naive models: the same completions in the same order for
//! random histories. A failing history prints its seed.

use super::{Purgatory, TimerWheel};
use crate::rt::Instant;
use std::time::Duration;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Instant {
    Instant(ms * MS)
}

fn fired(wheel: &mut TimerWheel<u32>, ms: u64) -> Vec<u32> {
    let mut fired = Vec::new();
    wheel.advance(at(ms), &mut |value| fired.push(value));
    fired
}

fn seeds() -> impl Iterator<Item = u64> {
    let base = fastrand::u64(..);
    (0..200).map(move |n| base.wrapping_add(n))
}

/// A distance that visits every level of the wheel.
fn distance(random: &mut fastrand::Rng) -> u64 {
    match random.u8(..8) {
        0 => 0,
        1 => random.u64(1..=64),
        2 => 64,
        3 => random.u64(60..70),
        4 => random.u64(4090..4100),
        5 => random.u64(..300_000),
        6 => random.u64(..20_000_000),
        _ => 1 << random.u32(..40),
    }
}

#[test]
fn a_timer_never_fires_early_and_fires_at_its_tick() {
    for deadline in [
        0,
        1,
        63,
        64,
        65,
        4095,
        4096,
        4097,
        262_143,
        262_144,
        1 << 30,
    ] {
        for start in [0, 1, 63, 64, 1000, 4095] {
            let mut wheel = TimerWheel::new(at(start));
            wheel.insert(at(start + deadline), 7).unwrap();
            if deadline > 0 {
                assert_eq!(
                    fired(&mut wheel, start + deadline - 1),
                    Vec::<u32>::new(),
                    "{start}+{deadline}"
                );
            }
            assert_eq!(
                fired(&mut wheel, start + deadline),
                [7],
                "{start}+{deadline}"
            );
            assert!(wheel.is_empty());
        }
    }
}

#[test]
fn a_fraction_of_a_tick_is_rounded_up() {
    let mut wheel = TimerWheel::new(at(10));
    wheel.insert(Instant(20 * MS + 1), 1).unwrap();
    assert_eq!(fired(&mut wheel, 20), Vec::<u32>::new());
    assert_eq!(fired(&mut wheel, 21), [1]);
}

#[test]
fn past_and_impossible_deadlines_are_kept_in_reach() {
    let mut wheel = TimerWheel::new(at(1000));
    wheel.insert(at(3), 1).unwrap();
    wheel.insert(Instant(u64::MAX), 2).unwrap();
    assert_eq!(wheel.next_deadline(), Some(at(1000)));
    assert_eq!(fired(&mut wheel, 1000), [1]);
    assert_eq!(fired(&mut wheel, 1 << 41), Vec::<u32>::new());
    assert_eq!(wheel.len(), 1);
    wheel.advance(Instant(u64::MAX), &mut |_| {
        panic!("it is due a fraction of a tick later")
    });
    assert_eq!(wheel.next_deadline(), Some(Instant(u64::MAX)));
}

#[test]
fn a_stale_id_cancels_nothing() {
    let mut wheel = TimerWheel::new(at(0));
    let first = wheel.insert(at(5), 1).unwrap();
    assert_eq!(wheel.cancel(first), Some(1));
    let second = wheel.insert(at(5), 2).unwrap();
    assert_eq!(wheel.cancel(first), None, "the slot was reused");
    assert_eq!(wheel.cancel(second), Some(2));
}

#[test]
fn the_wheel_fires_what_a_sorted_list_fires() {
    for seed in seeds() {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut now = random.u64(..1 << 33);
        let mut wheel = TimerWheel::new(at(now));
        // (tick, insertion, id)
        let mut model: Vec<(u64, u32, super::TimerId)> = Vec::new();
        for step in 0..400u32 {
            match random.u8(..10) {
                0..=4 => {
                    let tick = now + distance(&mut random);
                    let id = wheel.insert(at(tick), step).unwrap();
                    model.push((tick, step, id));
                }
                5..=6 if !model.is_empty() => {
                    let (_, value, id) = model.swap_remove(random.usize(..model.len()));
                    assert_eq!(wheel.cancel(id), Some(value), "seed {seed} step {step}");
                }
                _ => {
                    now += distance(&mut random) / 2;
                    let mut due: Vec<_> = model
                        .iter()
                        .filter(|t| t.0 <= now)
                        .map(|t| (t.0, t.1))
                        .collect();
                    due.sort_unstable();
                    model.retain(|t| t.0 > now);
                    let due: Vec<u32> = due.into_iter().map(|(_, value)| value).collect();
                    assert_eq!(fired(&mut wheel, now), due, "seed {seed} step {step}");
                }
            }
            assert_eq!(wheel.len(), model.len(), "seed {seed} step {step}");
            let earliest = model.iter().map(|t| t.0).min();
            match (wheel.next_deadline(), earliest) {
                (Some(next), Some(earliest)) => assert!(
                    next <= at(earliest) && next >= at(now),
                    "seed {seed} step {step}: {next:?} for {earliest}"
                ),
                (None, None) => {}
                other => panic!("seed {seed} step {step}: {other:?}"),
            }
        }
    }
}

#[test]
fn following_next_deadline_alone_fires_every_timer_in_time() {
    for seed in seeds().take(50) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut wheel = TimerWheel::new(at(17));
        let mut deadlines: Vec<u64> = (0..50).map(|_| 17 + distance(&mut random)).collect();
        for (n, deadline) in deadlines.iter().enumerate() {
            wheel.insert(at(*deadline), n as u32).unwrap();
        }
        let mut seen = Vec::new();
        while let Some(next) = wheel.next_deadline() {
            wheel.advance(next, &mut |n| seen.push((next, deadlines[n as usize])));
        }
        for (fired_at, deadline) in &seen {
            assert_eq!(*fired_at, at(*deadline), "seed {seed}");
        }
        assert_eq!(seen.len(), deadlines.len());
        deadlines.clear();
    }
}

/// Satisfied when its count has come down to zero.
#[derive(Debug, PartialEq, Clone)]
struct Op {
    name: u32,
    left: u32,
}

#[test]
fn an_operation_under_several_keys_completes_once_and_leaves_every_list() {
    let mut purgatory = Purgatory::new(at(0));
    purgatory
        .watch(Op { name: 1, left: 1 }, &[1, 2, 2], at(100))
        .unwrap();
    assert_eq!(purgatory.watched(), 3);
    assert_eq!(purgatory.check(&2, |op| op.left == 0), vec![]);
    let done = purgatory.check(&2, |_| true);
    assert_eq!(done.len(), 1);
    assert_eq!(purgatory.watched(), 0);
    assert_eq!(purgatory.check(&1, |_| true), vec![]);
    assert_eq!(purgatory.expire(at(1000)), vec![]);
    assert!(purgatory.is_empty());
}

#[test]
fn an_expired_operation_is_not_completed_again() {
    let mut purgatory = Purgatory::new(at(0));
    let id = purgatory
        .watch(Op { name: 1, left: 1 }, &[1], at(10))
        .unwrap();
    assert_eq!(purgatory.next_deadline(), Some(at(10)));
    assert_eq!(purgatory.expire(at(9)).len(), 0);
    assert_eq!(purgatory.expire(at(10)).len(), 1);
    assert_eq!(purgatory.check(&1, |_| true), vec![]);
    assert_eq!(purgatory.cancel(id), None);
}

#[test]
fn the_purgatory_completes_what_a_list_completes() {
    for seed in seeds() {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut now = 0;
        let mut purgatory = Purgatory::new(at(now));
        let mut model: Vec<(Op, Vec<u8>, u64, super::OpId)> = Vec::new();
        for step in 0..300u32 {
            match random.u8(..10) {
                0..=3 => {
                    let keys: Vec<u8> = (0..random.usize(1..4)).map(|_| random.u8(..5)).collect();
                    let deadline = now + random.u64(..500);
                    let op = Op {
                        name: step,
                        left: random.u32(1..4),
                    };
                    let id = purgatory.watch(op.clone(), &keys, at(deadline)).unwrap();
                    model.push((op, keys, deadline, id));
                }
                4..=7 => {
                    let key = random.u8(..5);
                    let mut asked = Vec::new();
                    let done = purgatory.check(&key, |op| {
                        // Asked once a place: an operation may stand under a key twice.
                        asked.push(op.name);
                        op.left = op.left.saturating_sub(1);
                        op.left == 0
                    });
                    let mut expected = Vec::new();
                    for (op, keys, ..) in &mut model {
                        for _ in keys.iter().filter(|k| **k == key) {
                            if op.left > 0 {
                                op.left -= 1;
                                if op.left == 0 {
                                    expected.push(op.clone());
                                }
                            }
                        }
                    }
                    model.retain(|(op, ..)| op.left > 0);
                    assert_eq!(done, expected, "seed {seed} step {step}");
                }
                8 if !model.is_empty() => {
                    let (op, _, _, id) = model.remove(random.usize(..model.len()));
                    assert_eq!(purgatory.cancel(id), Some(op), "seed {seed} step {step}");
                }
                _ => {
                    now += random.u64(..200);
                    let mut due: Vec<_> = model
                        .iter()
                        .filter(|m| m.2 <= now)
                        .map(|m| (m.2, m.0.name))
                        .collect();
                    due.sort_unstable();
                    model.retain(|m| m.2 > now);
                    let expired: Vec<u32> =
                        purgatory.expire(at(now)).iter().map(|op| op.name).collect();
                    let due: Vec<u32> = due.into_iter().map(|(_, name)| name).collect();
                    assert_eq!(expired, due, "seed {seed} step {step}");
                }
            }
            let places: usize = model.iter().map(|m| m.1.len()).sum();
            assert_eq!(
                (purgatory.len(), purgatory.watched()),
                (model.len(), places),
                "seed {seed} step {step}"
            );
        }
    }
}

#[test]
fn a_long_jump_does_not_walk_the_empty_slots() {
    let mut wheel = TimerWheel::new(at(0));
    for n in 0..1000 {
        wheel
            .insert(at(1 << 38) + Duration::from_millis(n), n as u32)
            .unwrap();
    }
    assert_eq!(fired(&mut wheel, (1 << 38) + 500).len(), 501);
    assert_eq!(fired(&mut wheel, 1 << 39).len(), 499);
}

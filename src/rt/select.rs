//! Waiting for several futures at once: the first of two or three, or all of a list.
//!
//! Any executor. Earlier arguments win when several are ready, so the order is part of the
//! caller's meaning. Losing futures are dropped, pass `Pin<&mut F>` to keep one.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

/// Which of two futures finished first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Either2<A, B> {
    First(A),
    Second(B),
}

/// Which of three futures finished first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Either3<A, B, C> {
    First(A),
    Second(B),
    Third(C),
}

pub async fn select2<A: Future, B: Future>(a: A, b: B) -> Either2<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        if let Poll::Ready(output) = a.as_mut().poll(cx) {
            return Poll::Ready(Either2::First(output));
        }
        b.as_mut().poll(cx).map(Either2::Second)
    })
    .await
}

pub async fn select3<A: Future, B: Future, C: Future>(
    a: A,
    b: B,
    c: C,
) -> Either3<A::Output, B::Output, C::Output> {
    let (mut a, mut b, mut c) = (pin!(a), pin!(b), pin!(c));
    poll_fn(|cx| {
        if let Poll::Ready(output) = a.as_mut().poll(cx) {
            return Poll::Ready(Either3::First(output));
        }
        if let Poll::Ready(output) = b.as_mut().poll(cx) {
            return Poll::Ready(Either3::Second(output));
        }
        c.as_mut().poll(cx).map(Either3::Third)
    })
    .await
}

/// Runs all futures to their end, outputs in their order. Every wake polls all that are not done,
/// so use it for tens of futures; for thousands spawn tasks.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<Option<Pin<Box<F>>>> = futures
        .into_iter()
        .map(|future| Some(Box::pin(future)))
        .collect();
    let mut outputs: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut all_done = true;
        for (slot, output) in pending.iter_mut().zip(&mut outputs) {
            if let Some(future) = slot {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => {
                        *output = Some(value);
                        *slot = None;
                    }
                    Poll::Pending => all_done = false,
                }
            }
        }
        if all_done {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

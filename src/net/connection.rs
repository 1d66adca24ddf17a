//! One connection: reads frames, hands each to the broker in order, writes the answers in order.
//! Lives on the shard that accepted it. Never looks into a request.
//!
//! Two tasks a connection: the reader starts requests strictly one after the other (a request
//! that has started may still wait for its answer, as a produce waits for the high watermark),
//! the writer sends the answers in the order of their requests. The memory charge of a request
//! is held until its answer has left for the socket.

use super::admission::Admitted;
use super::frame::{Frame, FrameError, FrameReader};
use crate::broker::{self, Peer, Reply, Started};
use crate::rt::net::{Stream, WriteHalf};
use crate::shard::budget::{Budget, Charge};
use crate::rt::sync::queue;
use crate::rt::{self, Instant};
use crate::shard::Shard;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

/// What a connection is bound by.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionSettings {
    /// `socket.request.max.bytes`.
    pub request_max_bytes: usize,
    /// `connections.max.idle.ms`; `None` never closes an idle connection.
    pub max_idle: Option<Duration>,
    /// `highwater.connection.max.in.flight`: started requests whose answers have not left yet.
    pub max_in_flight: usize,
}

/// A request whose answer is ready or on its way, in its place in the order of answers.
struct Answer {
    reply: Coming,
    /// Held until the bytes have left.
    charge: Charge,
}

enum Coming {
    Now(Reply),
    Later(Pin<Box<dyn Future<Output = Reply>>>),
}

/// State that the two tasks and the idle watch share.
struct Life {
    last_active: Cell<Instant>,
    in_flight: Cell<usize>,
}

/// Serves one accepted connection until either side closes it. `drain` ends it after the answers
/// that are due.
pub async fn serve(
    shard: Rc<Shard>,
    stream: Stream,
    peer: Rc<Peer>,
    settings: ConnectionSettings,
    budget: Rc<Budget>,
    place: Admitted,
) {
    let (read_half, write_half) = stream.split();
    let (answers, due) = queue::bounded::<Answer>(settings.max_in_flight);
    let life = Rc::new(Life { last_active: Cell::new(rt::now()), in_flight: Cell::new(0) });
    let frames = FrameReader::new(read_half, settings.request_max_bytes, budget);
    let writer = rt::spawn(write_answers(write_half, due, life.clone(), peer.clone()));
    read_requests(&shard, frames, &peer, &settings, &life, answers, &writer).await;
    // The queue's sender is gone: the writer finishes what is due, then closes the socket.
    writer.await;
    drop(place);
}

async fn read_requests(
    shard: &Rc<Shard>,
    mut frames: FrameReader,
    peer: &Rc<Peer>,
    settings: &ConnectionSettings,
    life: &Rc<Life>,
    answers: queue::Sender<Answer>,
    writer: &rt::Task<()>,
) {
    loop {
        let frame = match next_frame(shard, &mut frames, settings, life, writer).await {
            Some(Ok(frame)) => frame,
            Some(Err(FrameError::Closed)) | None => return,
            Some(Err(error)) => {
                tracing::debug!(peer = %peer.remote, %error, "connection closed");
                return;
            }
        };
        let received = rt::now();
        life.last_active.set(received);
        let Frame { body, charge } = frame;
        let (reply, last) = match broker::start(shard, peer, body, received).await {
            Started::Done(reply) => {
                let last = reply.close;
                (Coming::Now(reply), last)
            }
            Started::Waiting(later) => (Coming::Later(later), false),
            Started::Close => return,
        };
        life.in_flight.set(life.in_flight.get() + 1);
        if answers.send(Answer { reply, charge }).await.is_err() || last {
            return;
        }
    }
}

/// The next frame; `None` when the connection is to end (idle for too long, draining, or the
/// writer has failed).
async fn next_frame(
    shard: &Rc<Shard>,
    frames: &mut FrameReader,
    settings: &ConnectionSettings,
    life: &Rc<Life>,
    writer: &rt::Task<()>,
) -> Option<Result<Frame, FrameError>> {
    if frames.has_whole_frame() {
        return Some(frames.next().await);
    }
    if shard.is_draining() || writer.is_finished() {
        return None;
    }
    let mut next = std::pin::pin!(frames.next());
    let mut end = std::pin::pin!(shard.drained());
    loop {
        let idle = settings.max_idle.map(|limit| life.last_active.get() + limit);
        match rt::select3(next.as_mut(), end.as_mut(), rt::sleep_until_opt(idle)).await {
            rt::Either3::First(frame) => return Some(frame),
            rt::Either3::Second(()) => return None,
            rt::Either3::Third(()) => {
                // A request that waits (a long poll) keeps its connection busy.
                if life.in_flight.get() > 0 {
                    life.last_active.set(rt::now());
                } else if idle.is_some_and(|deadline| rt::now() >= deadline) {
                    return None;
                }
            }
        }
    }
}

async fn write_answers(
    mut socket: WriteHalf,
    mut due: queue::Receiver<Answer>,
    life: Rc<Life>,
    peer: Rc<Peer>,
) {
    let mut batch: Vec<(Reply, Charge)> = Vec::new();
    let mut bytes = Vec::new();
    let mut next = due.recv().await;
    while let Some(answer) = next.take() {
        batch.push((resolve(answer.reply).await, answer.charge));
        // Whatever else is ready leaves in the same system call.
        while batch.len() < MAX_ANSWERS_PER_WRITE {
            match due.try_recv() {
                Some(Answer { reply: Coming::Now(reply), charge }) => batch.push((reply, charge)),
                Some(waiting) => {
                    next = Some(waiting);
                    break;
                }
                None => break,
            }
        }
        let mut close = false;
        for (reply, _) in &mut batch {
            bytes.append(&mut reply.take_bytes());
            close |= reply.close;
        }
        let queued_until = rt::now();
        let sent = socket.write_all(&bytes).await;
        bytes.clear();
        let sent_at = rt::now();
        life.last_active.set(sent_at);
        life.in_flight.set(life.in_flight.get() - batch.len());
        for (reply, charge) in batch.drain(..) {
            drop(charge);
            reply.left(queued_until, sent_at);
        }
        if let Err(error) = sent {
            tracing::debug!(peer = %peer.remote, %error, "answer could not be sent");
            return;
        }
        if close {
            break;
        }
        if next.is_none() {
            next = due.recv().await;
        }
    }
    // The peer may be gone already; there is nobody left to tell.
    let _ = socket.shutdown().await;
}

/// Answers gathered into one vectored write: enough to amortise the call, few enough that the
/// first of them does not wait.
const MAX_ANSWERS_PER_WRITE: usize = 64;

async fn resolve(coming: Coming) -> Reply {
    match coming {
        Coming::Now(reply) => reply,
        Coming::Later(later) => later.await,
    }
}

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
use crate::rt;
use crate::rt::net::{Stream, WriteHalf};
use crate::rt::sync::queue;
use crate::shard::Shard;
use crate::shard::budget::Charge;
use crate::shard::connections::Life;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// What a connection is bound by.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionSettings {
    /// `socket.request.max.bytes`.
    pub request_max_bytes: usize,
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

/// Serves one accepted connection until either side closes it.
pub async fn serve(
    shard: Rc<Shard>,
    stream: Stream,
    peer: Rc<Peer>,
    settings: ConnectionSettings,
    place: Admitted,
) {
    let (read_half, write_half) = stream.split();
    let (answers, due) = queue::bounded::<Answer>(settings.max_in_flight);
    let life = shard.connections().open();
    let frames = FrameReader::new(
        read_half,
        settings.request_max_bytes,
        shard.budget().clone(),
    );
    let writer = rt::spawn(write_answers(write_half, due, life.clone(), peer.clone()));
    let end = read_requests(&shard, frames, &peer, &life, answers).await;
    match end {
        // Its answers have nowhere to go.
        End::Idle => drop(writer.cancel().await),
        // The queue's sender is gone: the writer finishes what is due, then closes the socket.
        End::Finished => writer.await,
    }
    shard.connections().closed(&life);
    drop(place);
}

/// Why a connection's reading has ended.
enum End {
    /// Nothing moved for `connections.max.idle.ms`: not even the answers.
    Idle,
    /// Everything else; answers that are due still leave.
    Finished,
}

async fn read_requests(
    shard: &Rc<Shard>,
    mut frames: FrameReader,
    peer: &Rc<Peer>,
    life: &Rc<Life>,
    answers: queue::Sender<Answer>,
) -> End {
    let mut told_to_end = std::pin::pin!(life.told_to_end());
    loop {
        let frame = {
            let next = std::pin::pin!(frames.next());
            match rt::select2(next, told_to_end.as_mut()).await {
                rt::Either2::First(frame) => frame,
                rt::Either2::Second(idle) => return if idle { End::Idle } else { End::Finished },
            }
        };
        let Frame { body, charge } = match frame {
            Ok(frame) => frame,
            Err(FrameError::Closed) => return End::Finished,
            Err(error) => {
                tracing::debug!(peer = %peer.remote, %error, "connection closed");
                return End::Finished;
            }
        };
        let received = rt::now();
        life.touch(received);
        let (reply, last) = match broker::start(shard, peer, body, received).await {
            Started::Done(reply) => {
                let last = reply.close;
                (Coming::Now(reply), last)
            }
            Started::Waiting(later) => (Coming::Later(later), false),
            Started::Close => return End::Finished,
        };
        if answers.send(Answer { reply, charge }).await.is_err() || last {
            return End::Finished;
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
                Some(Answer {
                    reply: Coming::Now(reply),
                    charge,
                }) => batch.push((reply, charge)),
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
        life.touch(sent_at);
        for (reply, charge) in batch.drain(..) {
            drop(charge);
            reply.left(queued_until, sent_at);
        }
        if let Err(error) = sent {
            tracing::debug!(peer = %peer.remote, %error, "answer could not be sent");
            break;
        }
        if close {
            break;
        }
        if next.is_none() {
            next = due.recv().await;
        }
    }
    // Nothing more is answered, so nothing more is to be read.
    life.end(false);
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

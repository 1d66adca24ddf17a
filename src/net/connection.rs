//! One connection: reads frames, hands each to the broker in order, writes the answers in order.
//! Lives on the shard that accepted it, until it moves to the one that owns what its client asks for
//! (`broker::Steering`). Never looks into a request.
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
use crate::shard::mesh::{LocalFuture, Place};
use bytes::BytesMut;
use std::cell::Cell;
use std::future::Future;
use std::io;
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

/// Serves one accepted connection until either side closes it, or it moves to another shard.
pub async fn serve(
    shard: Rc<Shard>,
    stream: Stream,
    peer: Rc<Peer>,
    settings: ConnectionSettings,
    place: Admitted,
) {
    go_on(shard, stream, peer, settings, place, BytesMut::new()).await;
}

async fn go_on(
    shard: Rc<Shard>,
    stream: Stream,
    peer: Rc<Peer>,
    settings: ConnectionSettings,
    place: Admitted,
    begun: BytesMut,
) {
    let (read_half, write_half) = stream.split();
    let (answers, due) = queue::bounded::<Answer>(settings.max_in_flight);
    let life = shard.connections().open();
    let mut frames = FrameReader::new(
        read_half,
        settings.request_max_bytes,
        shard.budget().clone(),
    )
    .go_on(begun);
    let moving = Rc::new(Cell::new(false));
    let writer = write_answers(write_half, due, life.clone(), peer.clone(), moving.clone());
    let writer = rt::spawn(writer);
    let end = read_requests(&shard, &mut frames, &peer, &life, &answers).await;
    moving.set(matches!(end, End::Move(_)));
    // The writer finishes what is due, then closes the socket if it does not move.
    drop(answers);
    match end {
        // Its answers have nowhere to go.
        End::Idle => drop(writer.cancel().await),
        End::Finished => drop(writer.await),
        End::Move(to) => {
            if let Some(socket) = writer.await {
                let handed = hand_over(&shard, to, frames, socket, &peer, settings, place).await;
                if let Err(error) = handed {
                    tracing::debug!(peer = %peer.remote, %error, "connection lost between shards");
                }
            }
            shard.connections().closed(&life);
            return;
        }
    }
    shard.connections().closed(&life);
    drop(place);
}

/// Sends a connection to the shard that owns what its client asks for (see
/// [`crate::broker::Steering`]). Nothing is under way on it.
async fn hand_over(
    shard: &Rc<Shard>,
    to: Place,
    frames: FrameReader,
    socket: WriteHalf,
    peer: &Peer,
    settings: ConnectionSettings,
    place: Admitted,
) -> io::Result<()> {
    let (read_half, begun) = frames.into_parts();
    let handover = Stream::hand_over(read_half, socket)?;
    let (listener, local, remote) = (peer.listener.to_string(), peer.local, peer.remote);
    let (software, moves) = (peer.software(), peer.steering.moves() + 1);
    let arrive = move |shard: Rc<Shard>| -> LocalFuture<()> {
        match Stream::take_over(handover) {
            Ok(stream) => {
                let id = shard.connections().next_id();
                let peer = Peer::new(id, Rc::from(listener), local, remote).moved(software, moves);
                let peer = Rc::new(peer);
                rt::spawn(go_on(shard, stream, peer, settings, place, begun));
            }
            Err(error) => {
                tracing::debug!(peer = %remote, %error, "connection lost between shards");
            }
        }
        Box::pin(std::future::ready(()))
    };
    // If that shard is gone the connection goes with it.
    let _ = shard.mesh().send_shard(to, arrive).await;
    Ok(())
}

/// Why a connection's reading has ended.
enum End {
    /// Nothing moved for `connections.max.idle.ms`: not even the answers.
    Idle,
    /// Everything else; answers that are due still leave.
    Finished,
    /// Another shard goes on with the connection once the answers that are due have left.
    Move(Place),
}

async fn read_requests(
    shard: &Rc<Shard>,
    frames: &mut FrameReader,
    peer: &Rc<Peer>,
    life: &Rc<Life>,
    answers: &queue::Sender<Answer>,
) -> End {
    let mut told_to_end = std::pin::pin!(life.told_to_end());
    let may_move = shard.shards() > 1 && Stream::can_be_handed_over();
    loop {
        if let Some(until) = peer.muted_until() {
            let over = std::pin::pin!(rt::sleep_until_opt(Some(until)));
            match rt::select2(over, told_to_end.as_mut()).await {
                rt::Either2::First(()) => {}
                rt::Either2::Second(idle) => return if idle { End::Idle } else { End::Finished },
            }
        }
        // Never while it is muted: the shard it goes to would not know.
        if may_move
            && let Some(to) = peer.steering.wanted(shard.place())
            && !shard.is_draining()
        {
            return End::Move(to);
        }
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
    moving: Rc<Cell<bool>>,
) -> Option<WriteHalf> {
    let mut batch: Vec<(Reply, Charge)> = Vec::new();
    let mut bytes = Vec::new();
    let mut next = due.recv().await;
    let mut ended = false;
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
            ended = true;
            break;
        }
        if close {
            ended = true;
            break;
        }
        if next.is_none() {
            next = due.recv().await;
        }
    }
    if moving.get() && !ended {
        return Some(socket);
    }
    // Nothing more is answered, so nothing more is to be read.
    life.end(false);
    // The peer may be gone already; there is nobody left to tell.
    let _ = socket.shutdown().await;
    None
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

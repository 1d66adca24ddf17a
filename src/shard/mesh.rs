//! The lanes between executors: every pair has a bounded request lane and a bounded reply lane in
//! each direction, so that requests can never block replies. Runs on every executor; owns the
//! calls that wait for a reply. Never knows what a message means.
//!
//! A message is a job: code together with the values it owns, run on the receiving executor
//! against that executor's state. Jobs from one sender start in the order in which they were sent.
//! A full lane makes the sender wait (backpressure), nothing is dropped.

use crate::rt;
use crate::rt::lane::{self, LaneReceiver, LaneSender, TrySendError};
use crate::rt::sync::oneshot;
use slab::Slab;
use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Jobs that may wait in one lane. A job is small (records travel as reference-counted slices);
/// 1024 cover a burst of every connection of a shard without a wake-up each.
pub const LANE_CAPACITY: usize = 1024;

/// An executor's place in the mesh: shards are 0..n, control is n.
pub type Place = usize;

pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;
type Answer = Box<dyn Any + Send>;
type Job<C> = Box<dyn FnOnce(Rc<C>) -> LocalFuture<Answer> + Send>;

/// A job for a shard or for control, with the number of the call that waits for its answer.
struct Request<S, C> {
    call: usize,
    job: Either<Job<S>, Job<C>>,
}

enum Either<A, B> {
    Shard(A),
    Control(B),
}

struct Reply {
    call: usize,
    answer: Answer,
}

/// The executor that was called has shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the shard has shut down")]
pub struct Gone;

struct Link<S, C> {
    requests: LaneSender<Request<S, C>>,
    replies: LaneSender<Reply>,
}

/// The lanes of one executor before it runs; may be sent to its thread.
pub struct MeshEnd<S, C> {
    place: Place,
    outgoing: Vec<Option<(LaneSender<Request<S, C>>, LaneSender<Reply>)>>,
    incoming: Vec<Option<(LaneReceiver<Request<S, C>>, LaneReceiver<Reply>)>>,
}

/// One executor's side of the mesh. `S` is a shard's state, `C` control's.
pub struct Mesh<S, C> {
    place: Place,
    links: Vec<Option<Link<S, C>>>,
    waiting: RefCell<Slab<oneshot::Sender<Answer>>>,
}

/// Builds the full mesh over `executors` places.
pub fn build<S: 'static, C: 'static>(executors: usize) -> Vec<MeshEnd<S, C>> {
    let mut ends: Vec<MeshEnd<S, C>> = (0..executors)
        .map(|place| MeshEnd {
            place,
            outgoing: (0..executors).map(|_| None).collect(),
            incoming: (0..executors).map(|_| None).collect(),
        })
        .collect();
    for from in 0..executors {
        for to in (0..executors).filter(|to| *to != from) {
            let (request_out, request_in) = lane::pair(LANE_CAPACITY);
            let (reply_out, reply_in) = lane::pair(LANE_CAPACITY);
            ends[from].outgoing[to] = Some((request_out, reply_out));
            ends[to].incoming[from] = Some((request_in, reply_in));
        }
    }
    ends
}

impl<S: 'static, C: 'static> MeshEnd<S, C> {
    pub fn place(&self) -> Place {
        self.place
    }

    /// The sending side, and the receivers to be served by [`serve_shard`] or [`serve_control`]
    /// once the executor's state exists.
    pub fn open(self) -> (Rc<Mesh<S, C>>, Inbox<S, C>) {
        let links = self
            .outgoing
            .into_iter()
            .map(|lanes| lanes.map(|(requests, replies)| Link { requests, replies }))
            .collect();
        let mesh = Rc::new(Mesh {
            place: self.place,
            links,
            waiting: RefCell::new(Slab::new()),
        });
        (
            mesh,
            Inbox {
                lanes: self.incoming,
            },
        )
    }
}

/// The receiving lanes of one executor.
pub struct Inbox<S, C> {
    lanes: Vec<Option<(LaneReceiver<Request<S, C>>, LaneReceiver<Reply>)>>,
}

impl<S: 'static, C: 'static> Mesh<S, C> {
    pub fn place(&self) -> Place {
        self.place
    }

    /// Runs `job` on shard `to` and waits for its answer. Not for the own place: call directly.
    pub async fn call_shard<R: Send + 'static>(
        self: &Rc<Self>,
        to: Place,
        job: impl FnOnce(Rc<S>) -> LocalFuture<R> + Send + 'static,
    ) -> Result<R, Gone> {
        let answer = self.send_shard(to, job).await?;
        answer.wait().await
    }

    /// Like [`Mesh::call_shard`], but returns as soon as the job is in the lane: what is sent
    /// next starts after it.
    pub async fn send_shard<R: Send + 'static>(
        self: &Rc<Self>,
        to: Place,
        job: impl FnOnce(Rc<S>) -> LocalFuture<R> + Send + 'static,
    ) -> Result<Pending<R>, Gone> {
        let job: Job<S> = Box::new(move |state| boxed_answer(job(state)));
        self.send(to, Either::Shard(job)).await
    }

    /// Runs `job` on the control executor and waits for its answer.
    pub async fn call_control<R: Send + 'static>(
        self: &Rc<Self>,
        to: Place,
        job: impl FnOnce(Rc<C>) -> LocalFuture<R> + Send + 'static,
    ) -> Result<R, Gone> {
        let job: Job<C> = Box::new(move |state| boxed_answer(job(state)));
        self.send(to, Either::Control(job)).await?.wait().await
    }

    async fn send<R: Send + 'static>(
        self: &Rc<Self>,
        to: Place,
        job: Either<Job<S>, Job<C>>,
    ) -> Result<Pending<R>, Gone> {
        let link = self.links.get(to).and_then(Option::as_ref).ok_or(Gone)?;
        let (answered, answer) = oneshot::channel();
        let call = self.waiting.borrow_mut().insert(answered);
        let pending = Pending {
            answer,
            kind: std::marker::PhantomData,
        };
        if link.requests.send(Request { call, job }).await.is_err() {
            self.waiting.borrow_mut().try_remove(call);
            return Err(Gone);
        }
        Ok(pending)
    }

    async fn reply(&self, to: Place, reply: Reply) {
        if let Some(link) = self.links.get(to).and_then(Option::as_ref) {
            // The caller's executor is gone: nobody waits any more.
            let _ = link.replies.send(reply).await;
        }
    }

    /// Sends a reply without waiting; gives it back if its lane is full.
    fn try_reply(&self, to: Place, reply: Reply) -> Option<Reply> {
        let link = self.links.get(to).and_then(Option::as_ref)?;
        match link.replies.try_send(reply) {
            Err(TrySendError::Full(reply)) => Some(reply),
            // Closed: the caller's executor is gone and nobody waits any more.
            Ok(()) | Err(TrySendError::Closed(_)) => None,
        }
    }

    fn complete(&self, reply: Reply) {
        let waiter = self.waiting.borrow_mut().try_remove(reply.call);
        if let Some(waiter) = waiter {
            // The caller may have gone away; its answer goes with it.
            let _ = waiter.send(reply.answer);
        }
    }

    /// Calls that wait for a reply now.
    pub fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }
}

/// An answer on its way.
pub struct Pending<R> {
    answer: oneshot::Receiver<Answer>,
    kind: std::marker::PhantomData<R>,
}

impl<R: Send + 'static> Pending<R> {
    pub async fn wait(self) -> Result<R, Gone> {
        let answer = self.answer.await.map_err(|_| Gone)?;
        match answer.downcast::<R>() {
            Ok(answer) => Ok(*answer),
            // A reply carries the number of its call, so its type is the call's.
            Err(_) => unreachable!("an answer of another call's type"),
        }
    }
}

fn boxed_answer<R: Send + 'static>(answer: LocalFuture<R>) -> LocalFuture<Answer> {
    Box::pin(async move { Box::new(answer.await) as Answer })
}

/// Serves the lanes of a shard: one task for each lane and direction.
pub fn serve_shard<S: 'static, C: 'static>(
    mesh: &Rc<Mesh<S, C>>,
    inbox: Inbox<S, C>,
    state: &Rc<S>,
) {
    serve(mesh, inbox, state, |job| match job {
        Either::Shard(job) => Some(job),
        Either::Control(_) => None,
    });
}

/// Serves the lanes of the control executor.
pub fn serve_control<S: 'static, C: 'static>(
    mesh: &Rc<Mesh<S, C>>,
    inbox: Inbox<S, C>,
    state: &Rc<C>,
) {
    serve(mesh, inbox, state, |job| match job {
        Either::Control(job) => Some(job),
        Either::Shard(_) => None,
    });
}

fn serve<S: 'static, C: 'static, T: 'static>(
    mesh: &Rc<Mesh<S, C>>,
    inbox: Inbox<S, C>,
    state: &Rc<T>,
    mine: fn(Either<Job<S>, Job<C>>) -> Option<Job<T>>,
) {
    for (from, lanes) in inbox.lanes.into_iter().enumerate() {
        let Some((mut requests, mut replies)) = lanes else {
            continue;
        };
        let (mesh_in, state) = (mesh.clone(), state.clone());
        rt::spawn(async move {
            while let Some(Request { call, job }) = requests.recv().await {
                let Some(job) = mine(job) else { continue };
                // The synchronous part runs here, in the order of arrival; the rest by itself.
                let mut answer = job(state.clone());
                let mut reply = None;
                // Most answers are ready at once: they need no task of their own. One that is not
                // is polled again by its task, with that task's waker.
                if let Poll::Ready(answer) = answer
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                {
                    reply = mesh_in.try_reply(from, Reply { call, answer });
                    if reply.is_none() {
                        continue;
                    }
                }
                let mesh = mesh_in.clone();
                rt::spawn(async move {
                    let reply = match reply {
                        Some(reply) => reply,
                        None => Reply {
                            call,
                            answer: answer.await,
                        },
                    };
                    mesh.reply(from, reply).await;
                });
            }
        });
        let mesh = mesh.clone();
        rt::spawn(async move {
            while let Some(reply) = replies.recv().await {
                mesh.complete(reply);
            }
        });
    }
}

//! One producer of the load: its connections, and the tasks that carry requests and answers.
//!
//! One executor. Decides nothing: `Outgoing` does. One task makes and sends, and per connection one
//! writes and one reads; what has come together goes out in one call. Never holds a borrow while
//! it waits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::batch::Identity;
use super::context::Context;
use super::link::{self, Answers};
use super::outgoing::Outgoing;
use super::samples::Samples;
use super::schedule::Schedule;
use super::transactor::Transactor;
use crate::client::{Acks, ClientError, Cluster};
use crate::rt::net::{Piece, WriteHalf};
use crate::rt::sync::{Event, Notify};
use crate::rt::{self, Instant};
use crate::types::Uuid;
use crate::wire::messages::init_producer_id_request::InitProducerIdRequest;
use crate::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use crate::wire::{ErrorCode, Records, Str};

/// From this version on the leader adds its partition to the transaction by itself.
const PRODUCE_ADDS_FIRST: i16 = 12;
/// The first version whose request is exactly what is built here.
const PRODUCE_FIRST: i16 = 3;
/// The last version that names topics instead of using their ids.
const PRODUCE_BY_NAME_LAST: i16 = 12;
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// After a failed connection, refresh or identity.
const PAUSE: Duration = Duration::from_millis(100);

/// See the module's words; clones are the same producer.
#[derive(Clone)]
pub(super) struct Producer {
    pub(super) inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub(super) context: std::sync::Arc<Context>,
    cluster: Cluster,
    pub(super) samples: Rc<Samples>,
    pub(super) transactor: Option<Transactor>,
    client_id: Str,
    pub(super) topic: Str,
    topic_id: Cell<Uuid>,
    pub(super) outgoing: RefCell<Outgoing>,
    /// By the number of the broker in `outgoing`.
    links: RefCell<Vec<Option<Rc<Link>>>>,
    connecting: RefCell<Vec<bool>>,
    /// Wakes the task that makes and sends.
    pub(super) bell: Notify,
    refreshing: Cell<bool>,
    identifying: Cell<bool>,
}

struct Link {
    version: i16,
    parts: RefCell<Vec<Piece>>,
    /// Requests in `parts`.
    requests: Cell<usize>,
    bell: Notify,
    over: Cell<bool>,
    ended: Event,
}

impl Link {
    fn end(&self) {
        self.over.set(true);
        self.ended.notify_all();
        self.bell.notify_one();
    }
}

impl Producer {
    /// Producer `number` of the plan, connected to the leaders and with its identity.
    ///
    /// # Errors
    /// When a leader cannot be reached or no identity is to be had.
    pub(super) async fn connect(
        context: std::sync::Arc<Context>,
        cluster: Cluster,
        samples: Rc<Samples>,
        number: usize,
    ) -> Result<Producer, ClientError> {
        let plan = context.plan.clone();
        let view = cluster.view();
        let stamp = plan.is_end_to_end().then_some(context.run);
        let seed = plan.seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let topic_id = view.topic(&plan.topic).map(|topic| topic.id);
        let transactor = match &plan.transactions {
            Some(transactions) => Some(Transactor::connect(&plan, transactions, number).await?),
            None => None,
        };
        let producer = Producer {
            inner: Rc::new(Inner {
                client_id: Str::from(format!("highwater-bench-producer-{number}").as_str()),
                topic: Str::from(plan.topic.as_str()),
                topic_id: Cell::new(topic_id.unwrap_or_default()),
                outgoing: RefCell::new(Outgoing::new(plan, &view, stamp, seed)),
                links: RefCell::default(),
                connecting: RefCell::default(),
                bell: Notify::new(),
                refreshing: Cell::new(false),
                identifying: Cell::new(false),
                context,
                cluster,
                samples,
                transactor,
            }),
        };
        // Which version a connection speaks depends on the transactions.
        producer.init_transactions().await?;
        let unconnected: Vec<usize> = producer.inner.outgoing.borrow().unconnected().collect();
        for broker in unconnected {
            producer.open(broker).await?;
        }
        if producer.inner.context.plan.idempotence && producer.inner.transactor.is_none() {
            let identity = producer.identity().await?;
            producer.inner.outgoing.borrow_mut().identify(identity);
        }
        Ok(producer)
    }

    /// The schedule of the open loop, once the start is known.
    pub(super) fn begin(&self, schedule: Option<Schedule>) {
        self.inner.outgoing.borrow_mut().begin(schedule);
    }

    /// Makes and sends until everything is settled or the run is over.
    pub(super) async fn run(&self) {
        let inner = &self.inner;
        let window = inner.samples.window();
        loop {
            let now = rt::now().as_nanos();
            let late = inner.outgoing.borrow_mut().expire(now, &inner.samples);
            late.into_iter().for_each(|broker| {
                inner.samples.trouble("no answer in time".to_owned());
                self.lost(broker);
            });
            inner
                .outgoing
                .borrow_mut()
                .make(now, rt::wall_ms(), &inner.samples);
            self.transact(now);
            self.send(now);
            self.fulfil();
            if inner.outgoing.borrow().is_finished(now, window.to) {
                break;
            }
            if now >= window.until {
                break;
            }
            let look = inner.outgoing.borrow_mut().next_look(now, window.to);
            let look = look.map(|look| Instant(look.min(window.until)));
            // What became due meanwhile needs no timer.
            if look.is_some_and(|look| look <= rt::now()) {
                rt::yield_now().await;
                continue;
            }
            rt::select2(inner.bell.notified(), rt::sleep_until_opt(look)).await;
        }
        let now = rt::now().as_nanos();
        inner.outgoing.borrow_mut().give_up(now, &inner.samples);
        let links = std::mem::take(&mut *inner.links.borrow_mut());
        links.into_iter().flatten().for_each(|link| link.end());
        self.leave_transactions().await;
    }

    /// Frames all requests that may leave.
    fn send(&self, now: u64) {
        let inner = &self.inner;
        let mut outgoing = inner.outgoing.borrow_mut();
        for broker in 0..outgoing.brokers.len() {
            let link = inner.links.borrow().get(broker).cloned().flatten();
            let Some(link) = link else { continue };
            let mut failed = false;
            while let Some(request) = outgoing.next_request(broker, now) {
                inner.samples.requested(now);
                let correlation = request.correlation;
                let partition_data = request.batches.iter_mut().map(|(at, batch)| {
                    Ok(PartitionProduceData {
                        index: *at as i32,
                        records: Some(Records::from(batch.seal()?)),
                        ..PartitionProduceData::default()
                    })
                });
                let framed = partition_data
                    .collect::<Result<Vec<_>, crate::wire::batch_builder::BuildError>>()
                    .map_err(|error| ClientError::Invalid(error.to_string()))
                    .and_then(|partitions| self.frame(&link, correlation, partitions));
                if let Err(error) = framed {
                    inner.samples.trouble(error.to_string());
                    failed = true;
                    break;
                }
                link.requests.set(link.requests.get() + 1);
            }
            if failed {
                drop(outgoing);
                self.lost(broker);
                return;
            }
            if !link.parts.borrow().is_empty() {
                link.bell.notify_one();
            }
        }
    }

    fn frame(
        &self,
        link: &Link,
        correlation: i32,
        partition_data: Vec<PartitionProduceData>,
    ) -> Result<(), ClientError> {
        let plan = &self.inner.context.plan;
        let timeout = plan.request_timeout.as_millis();
        let transactor = self.inner.transactor.as_ref();
        let request = ProduceRequest {
            transactional_id: transactor.map(|one| one.transactions.id().clone()),
            acks: plan.acks.wire(),
            timeout_ms: i32::try_from(timeout).unwrap_or(i32::MAX),
            topic_data: vec![TopicProduceData {
                name: self.inner.topic.clone(),
                topic_id: self.inner.topic_id.get(),
                partition_data,
                ..TopicProduceData::default()
            }],
            ..ProduceRequest::default()
        };
        let mut parts = link.parts.borrow_mut();
        link::frame(
            &request,
            link.version,
            correlation,
            &self.inner.client_id,
            &mut parts,
        )
    }

    /// Begins what the sending waits for: connections, leaders, an identity.
    fn fulfil(&self) {
        let inner = &self.inner;
        let wishes = inner.outgoing.borrow_mut().wishes();
        let unconnected: Vec<usize> = inner.outgoing.borrow().unconnected().collect();
        for broker in unconnected {
            let mut connecting = inner.connecting.borrow_mut();
            if connecting.len() <= broker {
                connecting.resize(broker + 1, false);
            }
            if std::mem::replace(&mut connecting[broker], true) {
                continue;
            }
            let producer = self.clone();
            drop(rt::spawn(async move {
                if let Err(error) = producer.open(broker).await {
                    producer.inner.samples.trouble(error.to_string());
                    rt::sleep(PAUSE).await;
                    producer.refresh().await;
                }
                producer.inner.connecting.borrow_mut()[broker] = false;
                producer.inner.bell.notify_one();
            }));
        }
        if wishes.refresh && !inner.refreshing.replace(true) {
            let producer = self.clone();
            drop(rt::spawn(async move {
                producer.refresh().await;
                rt::sleep(PAUSE).await;
                producer.inner.refreshing.set(false);
                producer.inner.bell.notify_one();
            }));
        }
        if wishes.identity && !inner.identifying.replace(true) {
            let producer = self.clone();
            drop(rt::spawn(async move {
                match producer.identity().await {
                    Ok(identity) => producer.inner.outgoing.borrow_mut().identify(identity),
                    Err(error) => {
                        producer.inner.samples.trouble(error.to_string());
                        rt::sleep(PAUSE).await;
                    }
                }
                producer.inner.identifying.set(false);
                producer.inner.bell.notify_one();
            }));
        }
    }

    async fn refresh(&self) {
        match self.inner.cluster.refresh().await {
            Ok(view) => {
                if let Some(topic) = view.topic(&self.inner.topic) {
                    self.inner.topic_id.set(topic.id);
                }
                self.inner.outgoing.borrow_mut().lead(&view);
            }
            Err(error) => self.inner.samples.trouble(error.to_string()),
        }
    }

    async fn identity(&self) -> Result<Identity, ClientError> {
        let request = InitProducerIdRequest {
            transactional_id: None,
            transaction_timeout_ms: i32::MAX,
            ..InitProducerIdRequest::default()
        };
        let cluster = &self.inner.cluster;
        let deadline = rt::now() + cluster.config().api_timeout;
        cluster
            .retry_until(deadline, async || {
                let answer = cluster.call_any(&request, Duration::ZERO).await?;
                match ErrorCode(answer.error_code) {
                    ErrorCode::NONE => Ok(Identity {
                        id: answer.producer_id,
                        epoch: answer.producer_epoch,
                    }),
                    code => Err(ClientError::Broker {
                        what: "INIT_PRODUCER_ID".to_owned(),
                        code,
                        message: String::new(),
                    }),
                }
            })
            .await
    }

    // -------------------------------------------------------------------------- connections

    async fn open(&self, broker: usize) -> Result<(), ClientError> {
        let inner = &self.inner;
        let node = inner.outgoing.borrow().brokers[broker].node;
        let mut range = match inner.topic_id.get().is_zero() {
            true => (PRODUCE_FIRST, PRODUCE_BY_NAME_LAST),
            false => (PRODUCE_FIRST, i16::MAX),
        };
        match inner.transactor.as_ref().map(Transactor::is_implicit) {
            Some(true) => range.0 = PRODUCE_ADDS_FIRST,
            Some(false) => range.1 = PRODUCE_ADDS_FIRST - 1,
            None => {}
        }
        let version = inner
            .cluster
            .node(node)
            .await?
            .versions()
            .choose::<ProduceRequest>(range.0, range.1)?;
        let (write, answers) = link::open(&inner.cluster, node, CONNECT_LIMIT).await?;
        let link = Rc::new(Link {
            version,
            parts: RefCell::default(),
            requests: Cell::new(0),
            bell: Notify::new(),
            over: Cell::new(false),
            ended: Event::new(),
        });
        {
            let mut links = inner.links.borrow_mut();
            if links.len() <= broker {
                links.resize(broker + 1, None);
            }
            links[broker] = Some(link.clone());
        }
        inner.outgoing.borrow_mut().brokers[broker].up = true;
        drop(rt::spawn(self.clone().write(broker, link.clone(), write)));
        drop(rt::spawn(self.clone().read(broker, link, answers)));
        Ok(())
    }

    /// The connection is over; what was in flight on it is judged.
    fn lost(&self, broker: usize) {
        let link = self
            .inner
            .links
            .borrow_mut()
            .get_mut(broker)
            .and_then(Option::take);
        let Some(link) = link else { return };
        link.end();
        let now = rt::now().as_nanos();
        let inner = &self.inner;
        inner
            .outgoing
            .borrow_mut()
            .lose(broker, now, &inner.samples);
        inner.bell.notify_one();
    }

    fn lost_with(&self, broker: usize, link: &Link, why: String) {
        if !link.over.get() {
            self.inner.samples.trouble(why);
            self.lost(broker);
        }
    }

    async fn write(self, broker: usize, link: Rc<Link>, mut write: WriteHalf) {
        let ended = link.ended.wait();
        let mut ended = std::pin::pin!(ended);
        while !link.over.get() {
            let parts = std::mem::take(&mut *link.parts.borrow_mut());
            if parts.is_empty() {
                link.bell.notified().await;
                continue;
            }
            let requests = link.requests.take();
            match rt::select2(ended.as_mut(), write.write_all(&parts)).await {
                rt::Either2::First(()) => break,
                rt::Either2::Second(Ok(())) if self.inner.context.plan.acks == Acks::None => {
                    // Nobody answers: handed to the socket is all that is known. Its bytes are
                    // given back with the batches.
                    drop(parts);
                    let now = rt::now().as_nanos();
                    for _ in 0..requests {
                        self.settle(broker, None, now, |_| ErrorCode::NONE);
                    }
                    self.inner.bell.notify_one();
                }
                rt::Either2::Second(Ok(())) => {}
                rt::Either2::Second(Err(error)) => {
                    self.lost_with(broker, &link, format!("connection lost: {error}"));
                }
            }
        }
        write.close_both();
    }

    async fn read(self, broker: usize, link: Rc<Link>, mut answers: Answers) {
        loop {
            let answer = answers.next().await;
            if link.over.get() {
                return;
            }
            let why = match answer {
                Ok((answer, at)) => match self.answered(broker, &link, answer, at) {
                    Ok(()) => continue,
                    Err(error) => error.to_string(),
                },
                Err(error) => format!("connection lost: {error}"),
            };
            self.lost_with(broker, &link, why);
            return;
        }
    }

    fn answered(
        &self,
        broker: usize,
        link: &Link,
        answer: Bytes,
        at: Instant,
    ) -> Result<(), ClientError> {
        let (correlation, response) = link::read_answer::<ProduceRequest>(answer, link.version)?;
        let parts = response
            .responses
            .iter()
            .flat_map(|t| &t.partition_responses);
        let code = |partition: i32| {
            let found = parts.clone().find(|part| part.index == partition);
            // Left out: as if the topic were not known.
            found.map_or(ErrorCode::UNKNOWN_TOPIC_ID, |part| {
                ErrorCode(part.error_code)
            })
        };
        if !self.settle(broker, Some(correlation), at.as_nanos(), code) {
            return Err(ClientError::Invalid(format!(
                "answer {correlation} out of order"
            )));
        }
        self.inner.bell.notify_one();
        Ok(())
    }

    fn settle(
        &self,
        broker: usize,
        correlation: Option<i32>,
        at: u64,
        code: impl Fn(i32) -> ErrorCode,
    ) -> bool {
        let inner = &self.inner;
        let mut outgoing = inner.outgoing.borrow_mut();
        match outgoing.settle(broker, correlation, at, &inner.samples, code) {
            Some(measured) => {
                match &mut outgoing.cycle {
                    // Consumers receive it if it is committed.
                    Some(cycle) => cycle.acknowledged(measured),
                    None => inner.context.acknowledged(measured),
                }
                true
            }
            None => false,
        }
    }
}

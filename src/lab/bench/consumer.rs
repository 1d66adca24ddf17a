//! One consumer of the load: a fetch on its way to each leader, answers walked batch by batch.
//!
//! One executor. Belongs to no group: the plan's consumers share the partitions by number. With
//! producers in the same process the records tell when they were due. A leader that moves or
//! goes is counted, and the fetches begin again where they were.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::content::read_stamp;
use super::context::Context;
use super::link;
use super::samples::{Count, Samples};
use crate::client::{Aborted, Admin, ClientError, Cluster, Isolation, OffsetSpec, TopicPartition};
use crate::rt;
use crate::types::NodeId;
use crate::wire::batch::BatchView;
use crate::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use crate::wire::messages::fetch_response::{FetchResponse, PartitionData};
use crate::wire::{ErrorCode, Str};

/// The first version with sessions, and the last that names topics instead of using their ids.
const FETCH_FIRST: i16 = 7;
const FETCH_BY_NAME_LAST: i16 = 12;
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
/// What a batch may inflate to.
const INFLATED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Where a partition is read.
#[derive(Clone, Copy, Debug)]
struct Position {
    partition: i32,
    offset: i64,
    /// The session does not know it yet.
    moved: bool,
}

/// See the module's words.
pub(super) struct Consumer {
    context: Arc<Context>,
    cluster: Cluster,
    samples: Rc<Samples>,
    client_id: Str,
    topic: Str,
    positions: Vec<Position>,
    /// A leader was lost: all begin again with a fresh view.
    regroup: Cell<bool>,
}

impl Consumer {
    /// Consumer `number` of the plan, with its positions.
    ///
    /// # Errors
    /// When the positions cannot be had.
    pub(super) async fn connect(
        context: Arc<Context>,
        cluster: Cluster,
        samples: Rc<Samples>,
        number: usize,
    ) -> Result<Consumer, ClientError> {
        let plan = context.plan.clone();
        let topic = Str::from(plan.topic.as_str());
        let view = cluster.view();
        let count = view.topic(&topic).map_or(0, |topic| topic.partitions.len());
        let spec = match plan.fetch.from_beginning {
            true => OffsetSpec::Earliest,
            false => OffsetSpec::Latest,
        };
        let wanted: Vec<_> = (0..count)
            .filter(|partition| partition % plan.consumers == number)
            .map(|partition| (TopicPartition::new(topic.clone(), partition as i32), spec))
            .collect();
        let listed = Admin::new(cluster.clone())
            .list_offsets(&wanted, plan.fetch.isolation)
            .await?;
        let mut positions = Vec::with_capacity(listed.len());
        for (key, result) in listed {
            let listed = result.map_err(|code| ClientError::Broker {
                what: format!("offset of {key}"),
                code,
                message: String::new(),
            })?;
            positions.push(Position {
                partition: key.partition,
                offset: listed.offset.map_or(0, |offset| offset.0),
                moved: true,
            });
        }
        positions.sort_by_key(|position| position.partition);
        Ok(Consumer {
            client_id: Str::from(format!("highwater-bench-consumer-{number}").as_str()),
            context,
            cluster,
            samples,
            topic,
            positions,
            regroup: Cell::new(false),
        })
    }

    /// Fetches until there is nothing left to wait for.
    pub(super) async fn run(mut self) {
        while !self.positions.is_empty() && !self.is_over() {
            let view = self.cluster.view();
            let mut groups: Vec<(NodeId, Vec<Position>)> = Vec::new();
            let mut leaderless = Vec::new();
            for position in std::mem::take(&mut self.positions) {
                match view.leader_of(&self.topic, position.partition) {
                    None => leaderless.push(position),
                    Some(leader) => match groups.iter_mut().find(|(node, _)| *node == leader) {
                        Some((_, positions)) => positions.push(position),
                        None => groups.push((leader, vec![position])),
                    },
                }
            }
            self.regroup.set(!leaderless.is_empty());
            let follow = groups
                .into_iter()
                .map(|(leader, positions)| self.follow(leader, positions));
            let followed = rt::join_all(follow).await;
            self.positions = leaderless;
            self.positions.extend(followed.into_iter().flatten());
            if self.is_over() {
                return;
            }
            rt::sleep(PAUSE).await;
            if let Err(error) = self.cluster.refresh().await {
                self.samples.trouble(error.to_string());
            }
        }
    }

    fn is_over(&self) -> bool {
        let window = self.samples.window();
        let now = rt::now().as_nanos();
        match self.context.plan.is_end_to_end() {
            true => now >= window.until || self.context.all_received(),
            false => now >= window.to,
        }
    }

    /// Fetches from one leader until something is wrong anywhere. Returns the positions.
    async fn follow(&self, leader: NodeId, positions: Vec<Position>) -> Vec<Position> {
        let mut fetch = Fetch {
            consumer: self,
            positions,
            session: (
                0,
                if self.context.plan.fetch.sessions {
                    0
                } else {
                    -1
                },
            ),
            scratch: Vec::new(),
            due: Vec::new(),
        };
        if let Err(error) = fetch.run(leader).await {
            self.samples.trouble(format!("fetch: {error}"));
        }
        self.regroup.set(true);
        fetch.positions
    }
}

/// The fetches of one consumer from one leader.
struct Fetch<'a> {
    consumer: &'a Consumer,
    positions: Vec<Position>,
    /// Id and next epoch; epoch 0 asks for a new session, -1 for none.
    session: (i32, i32),
    /// Memory for inflated batches.
    scratch: Vec<u8>,
    due: Vec<u64>,
}

impl Fetch<'_> {
    async fn run(&mut self, leader: NodeId) -> Result<(), ClientError> {
        let consumer = self.consumer;
        let plan = &consumer.context.plan;
        let view = consumer.cluster.view();
        let topic_id = view.topic(&consumer.topic).map(|topic| topic.id);
        let topic_id = topic_id.unwrap_or_default();
        let last = if topic_id.is_zero() {
            FETCH_BY_NAME_LAST
        } else {
            i16::MAX
        };
        let connection = consumer.cluster.node(leader).await?;
        let version = connection
            .versions()
            .choose::<FetchRequest>(FETCH_FIRST, last)?;
        let peer = connection.peer().to_owned();
        let (mut write, mut answers) = link::open(&consumer.cluster, leader, CONNECT_LIMIT).await?;
        let lost = |error: std::io::Error| ClientError::Disconnected {
            peer: peer.clone(),
            reason: error.to_string(),
        };
        let limit = plan.request_timeout + plan.fetch.max_wait;
        let mut correlation = 0_i32;
        while !consumer.regroup.get() && !consumer.is_over() {
            let request = self.request(topic_id);
            let mut parts = Vec::with_capacity(4);
            link::frame(
                &request,
                version,
                correlation,
                &consumer.client_id,
                &mut parts,
            )?;
            let sent = rt::now().as_nanos();
            write.write_all(&parts).await.map_err(lost)?;
            let (answer, at) = match rt::timeout(limit, answers.next()).await {
                Ok(answer) => answer.map_err(lost)?,
                Err(_) => {
                    return Err(ClientError::TimedOut {
                        peer: peer.clone(),
                        api: "FETCH",
                    });
                }
            };
            let (answered, response) = link::read_answer::<FetchRequest>(answer, version)?;
            if answered != correlation {
                let text = format!("answer {answered} to request {correlation}");
                return Err(ClientError::Invalid(text));
            }
            correlation = correlation.wrapping_add(1);
            self.take_in(&response, sent, at.as_nanos())?;
        }
        Ok(())
    }

    fn request(&mut self, topic_id: crate::types::Uuid) -> FetchRequest {
        let plan = &self.consumer.context.plan.fetch;
        let (session_id, session_epoch) = self.session;
        let incremental = session_epoch > 0;
        let partitions: Vec<FetchPartition> = self
            .positions
            .iter_mut()
            .filter(|position| !incremental || position.moved)
            .map(|position| {
                position.moved = false;
                FetchPartition {
                    partition: position.partition,
                    fetch_offset: position.offset,
                    partition_max_bytes: plan.partition_bytes,
                    ..FetchPartition::default()
                }
            })
            .collect();
        let topics = match partitions.is_empty() {
            true => Vec::new(),
            false => vec![FetchTopic {
                topic: self.consumer.topic.clone(),
                topic_id,
                partitions,
                ..FetchTopic::default()
            }],
        };
        FetchRequest {
            max_wait_ms: i32::try_from(plan.max_wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: plan.min_bytes,
            max_bytes: plan.max_bytes,
            isolation_level: plan.isolation as i8,
            session_id,
            session_epoch,
            topics,
            ..FetchRequest::default()
        }
    }

    fn take_in(&mut self, response: &FetchResponse, sent: u64, at: u64) -> Result<(), ClientError> {
        let consumer = self.consumer;
        match ErrorCode(response.error_code) {
            ErrorCode::NONE => {}
            code @ (ErrorCode::FETCH_SESSION_ID_NOT_FOUND
            | ErrorCode::INVALID_FETCH_SESSION_EPOCH) => {
                consumer.samples.trouble(format!("fetch: {}", code.name()));
                self.session = (0, 0);
                return Ok(());
            }
            code => return Err(refused("fetch".to_owned(), code)),
        }
        self.session = match self.session {
            (_, -1) => (0, -1),
            // A broker that has no room for a session answers with none.
            _ if response.session_id == 0 => (0, 0),
            (_, epoch) => (response.session_id, epoch.checked_add(1).unwrap_or(1)),
        };
        let mut arrived = Count {
            requests: 1,
            ..Count::default()
        };
        self.due.clear();
        let mut trouble = None;
        for part in response
            .responses
            .iter()
            .flat_map(|topic| &topic.partitions)
        {
            let known = self
                .positions
                .iter()
                .position(|position| position.partition == part.partition_index);
            let Some(known) = known else { continue };
            match ErrorCode(part.error_code) {
                ErrorCode::NONE => self.read(known, part, &mut arrived)?,
                ErrorCode::OFFSET_OUT_OF_RANGE => {
                    // Deleted meanwhile: go on where the log begins now.
                    let code = ErrorCode::OFFSET_OUT_OF_RANGE;
                    consumer.samples.trouble(format!("fetch: {}", code.name()));
                    let position = &mut self.positions[known];
                    position.offset = part.log_start_offset.max(0);
                    position.moved = true;
                }
                code => {
                    let what = format!("{}-{}", consumer.topic, part.partition_index);
                    trouble = Some(refused(what, code));
                }
            }
        }
        let end_to_end = consumer.context.plan.is_end_to_end();
        let due = end_to_end.then_some(&self.due[..]);
        let measured = consumer.samples.fetched(sent, at, arrived, due);
        consumer.context.received(measured);
        trouble.map_or(Ok(()), Err)
    }

    /// Walks what one partition sent.
    fn read(
        &mut self,
        known: usize,
        part: &PartitionData,
        arrived: &mut Count,
    ) -> Result<(), ClientError> {
        let consumer = self.consumer;
        let plan = &consumer.context.plan;
        let position = &mut self.positions[known];
        let run = plan.is_end_to_end().then_some(consumer.context.run);
        let bytes = part.records.as_ref().map(|records| records.to_bytes());
        let bytes = bytes.unwrap_or_default();
        let mut rest = &bytes[..];
        let committed = plan.fetch.isolation == Isolation::ReadCommitted;
        let mut aborted = committed.then(|| {
            let aborted = part.aborted_transactions.iter().flatten();
            Aborted::new(
                aborted
                    .map(|one| (one.first_offset, one.producer_id))
                    .collect(),
            )
        });
        let damaged = |error: crate::wire::batch::BatchError| {
            ClientError::Invalid(format!(
                "partition {} at offset {}: {error}",
                part.partition_index, part.high_watermark
            ))
        };
        while !rest.is_empty() {
            let batch = match BatchView::parse(rest) {
                Ok((batch, tail)) => {
                    rest = tail;
                    batch
                }
                // The limit of bytes cuts the last batch.
                Err(error) if error.is_partial() => break,
                Err(error) => return Err(damaged(error)),
            };
            let last = batch.last_offset().0;
            let hidden = aborted.as_mut().is_some_and(|aborted| {
                let (transactional, control) = (batch.is_transactional(), batch.is_control());
                aborted.hides(
                    batch.last_offset(),
                    batch.producer_id(),
                    transactional,
                    control,
                )
            });
            if last < position.offset {
                continue;
            }
            if plan.fetch.check_crc {
                batch.check_crc().map_err(damaged)?;
            }
            if batch.is_control() || hidden {
                // Nobody's records.
            } else if plan.fetch.headers_only {
                arrived.records += batch.record_count().max(0) as u64;
                arrived.bytes += batch.total_size() as u64;
            } else {
                let base = batch.base_offset().0;
                let (from, due) = (position.offset, &mut self.due);
                batch
                    .walk(INFLATED_BYTES_MAX, &mut self.scratch, |_, record| {
                        if base.wrapping_add(i64::from(record.offset_delta)) < from {
                            return;
                        }
                        let value = record.value.unwrap_or_default();
                        arrived.records += 1;
                        arrived.bytes += (record.key.map_or(0, <[u8]>::len) + value.len()) as u64;
                        if let Some(run) = run {
                            due.extend(read_stamp(value, run));
                        }
                    })
                    .map_err(damaged)?;
            }
            position.offset = last + 1;
            position.moved = true;
        }
        let end = match committed {
            true => part.last_stable_offset,
            false => part.high_watermark,
        };
        if plan.fetch.rewind && position.offset >= end {
            position.offset = part.log_start_offset.max(0);
            position.moved = true;
        }
        Ok(())
    }
}

fn refused(what: String, code: ErrorCode) -> ClientError {
    ClientError::Broker {
        what,
        code,
        message: String::new(),
    }
}

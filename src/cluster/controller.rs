//! The controller: decides on the newest image, has the quorum agree on the records, and gives the
//! answer once they are applied; one change at a time. Runs on the control executor. What it decides
//! is in the pure files beside it; who may decide, and what has happened, is the quorum's.

use super::features;
use super::image::Image;
use super::metadata_log::{MetadataLogError, bootstrap};
use super::periodic;
use super::quorum::{Quorum, QuorumSettings};
use super::record::MetadataRecord;
use super::sessions::Sessions;
use super::snapshot::RECORDS_PER_BATCH_MAX;
use super::topic_admin::Dice;
use crate::config::BrokerConfig;
use crate::rt::sync::{Event, Semaphore};
use crate::rt::{self, Instant};
use crate::types::{LeaderEpoch, Offset};
use crate::wire::batch_builder::BatchBuilder;
use crate::wire::messages::abort_transaction_record::AbortTransactionRecord;
use crate::wire::messages::begin_transaction_record::BeginTransactionRecord;
use crate::wire::messages::end_transaction_record::EndTransactionRecord;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Producer ids handed out at once (AllocateProducerIds).
pub const PRODUCER_ID_BLOCK: i64 = 1000;

/// How long a controller that found no space to take over waits before it tries again.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(1);

/// See the module's words.
pub struct Controller {
    pub config: Arc<BrokerConfig>,
    dir: PathBuf,
    quorum: Rc<Quorum>,
    /// One change at a time.
    turn: Semaphore,
    /// The epoch this node has taken over in: decisions are possible.
    active: Cell<Option<LeaderEpoch>>,
    /// Rung when this node becomes active or ceases to be.
    moved: Event,
    pub(super) sessions: RefCell<Sessions>,
    cluster_id: RefCell<String>,
    /// When the log was written last.
    written: Cell<Instant>,
}

impl Controller {
    /// Opens the metadata log under `dir` and takes part in the quorum. A node that is its own
    /// quorum is active when this returns: a new log has the features of a new cluster. Others become
    /// active when they are elected.
    pub async fn open(
        dir: &Path,
        config: Arc<BrokerConfig>,
    ) -> Result<Rc<Controller>, MetadataLogError> {
        let settings = QuorumSettings::of(&config);
        let is_alone = settings.is_alone();
        let quorum = Quorum::start(dir, settings).await?;
        let session_ms = periodic::millis(&config, "broker.session.timeout.ms");
        let controller = Rc::new(Controller {
            config,
            sessions: RefCell::new(Sessions::new(session_ms)),
            cluster_id: RefCell::new(String::new()),
            written: Cell::new(rt::now()),
            dir: dir.to_owned(),
            quorum,
            turn: Semaphore::new(1),
            active: Cell::new(None),
            moved: Event::new(),
        });
        if is_alone {
            let epoch = controller.quorum.active_epoch();
            let epoch = epoch.ok_or(MetadataLogError::NotLeader)?;
            controller.take_over(epoch).await?;
        }
        rt::spawn(follow(Rc::downgrade(&controller)));
        Ok(controller)
    }

    pub fn quorum(&self) -> &Rc<Quorum> {
        &self.quorum
    }

    /// Registers who is given each new image.
    pub fn on_publish(&self, publish: impl Fn(Arc<Image>) + 'static) {
        self.quorum.on_publish(publish);
    }

    /// Registers who is told that the metadata log cannot be written any more.
    pub fn on_failure(&self, tell: impl Fn(&MetadataLogError) + 'static) {
        self.quorum.on_failure(tell);
    }

    /// Whether this controller decides for the cluster.
    pub fn is_active(&self) -> bool {
        self.active_epoch().is_some()
    }

    /// Says which cluster this is; brokers of another one are not registered.
    pub fn identify(&self, cluster_id: &str) {
        cluster_id.clone_into(&mut self.cluster_id.borrow_mut());
    }

    pub(super) fn cluster_id(&self) -> String {
        self.cluster_id.borrow().clone()
    }

    /// When the log was written last.
    pub(super) fn written(&self) -> Instant {
        self.written.get()
    }

    /// The epoch in which this controller decides.
    pub fn active_epoch(&self) -> Option<LeaderEpoch> {
        let active = self.active.get()?;
        (self.quorum.active_epoch() == Some(active)).then_some(active)
    }

    /// Rung when this controller becomes active or ceases to be.
    pub fn moved(&self) -> &Event {
        &self.moved
    }

    /// What is committed.
    pub fn image(&self) -> Arc<Image> {
        self.quorum.image()
    }

    /// Decides a change on the current image, has its records committed, applied and published;
    /// gives the answer that was decided with them.
    ///
    /// # Errors
    /// [`MetadataLogError::NotLeader`] if this is not the active controller;
    /// [`MetadataLogError::LeadershipLost`] if it ceased to be meanwhile: then whether the change
    /// happened is not known here.
    pub async fn change<R>(
        &self,
        decide: impl FnOnce(&Image) -> (Vec<MetadataRecord>, R),
    ) -> Result<R, MetadataLogError> {
        self.change_at(|image, _| decide(image)).await
    }

    /// [`change`](Self::change) for who must know the offset that its first record will have.
    pub async fn change_at<R>(
        &self,
        decide: impl FnOnce(&Image, Offset) -> (Vec<MetadataRecord>, R),
    ) -> Result<R, MetadataLogError> {
        let _turn = self.turn.acquire(1).await;
        let epoch = self.quorum.settled().await?;
        if self.active.get() != Some(epoch) {
            return Err(MetadataLogError::NotLeader);
        }
        self.decide(epoch, decide).await
    }

    /// Decides in `epoch`, in which everything before is applied.
    async fn decide<R>(
        &self,
        epoch: LeaderEpoch,
        decide: impl FnOnce(&Image, Offset) -> (Vec<MetadataRecord>, R),
    ) -> Result<R, MetadataLogError> {
        let image = self.image();
        let first = self.quorum.next_offset();
        let (records, answer) = decide(&image, first);
        if records.is_empty() {
            return Ok(answer);
        }
        let records = framed(records);
        // Applied to a copy first: what contradicts the image must not get into the log.
        let mut next = (*image).clone();
        for (at, record) in records.iter().enumerate() {
            next.apply(first.0 + at as i64, record)?;
        }
        let batches = batches(&records, first, epoch, rt::wall_ms())?;
        let size = batches.iter().map(|batch| batch.len() as u64).sum();
        let build = move |offset: Offset, now: LeaderEpoch| match (offset, now) == (first, epoch) {
            true => Ok(batches),
            false => Err(MetadataLogError::NotLeader),
        };
        self.quorum.propose(size, build).await?;
        self.written.set(rt::now());
        Ok(answer)
    }

    /// Brings the metadata of a term that begins into order: ends what an earlier controller left
    /// half done, begins a new cluster, lowers features that are not built here.
    async fn take_over(&self, epoch: LeaderEpoch) -> Result<(), MetadataLogError> {
        let _turn = self.turn.acquire(1).await;
        let settled = || async {
            match self.quorum.settled().await? == epoch {
                true => Ok(()),
                false => Err(MetadataLogError::NotLeader),
            }
        };
        settled().await?;
        if self.quorum.in_transaction() {
            let abort = MetadataRecord::from(AbortTransactionRecord {
                reason: Some("its controller has gone".into()),
                ..Default::default()
            });
            self.decide(epoch, |_, _| (vec![abort], ())).await?;
        }
        // Every cluster has a metadata.version from its first change on.
        if self.image().finalized_features().next().is_none() {
            let mut records = bootstrap(&self.dir, features::initial()).await?;
            records.extend(features::activation(&records, &self.config));
            self.decide(epoch, |_, _| (records, ())).await?;
        }
        let lowered = features::lowered(&self.image())?;
        self.decide(epoch, |_, _| (lowered, ())).await?;
        // Before the first request is decided: a broker that lives must not lose its registration.
        let (image, node) = (self.image(), self.config.node_id);
        self.sessions.borrow_mut().begin(&image, node, rt::now());
        self.active.set(Some(epoch));
        self.moved.notify_all();
        Ok(())
    }
}

/// Takes over whenever this node is elected.
async fn follow(controller: std::rc::Weak<Controller>) {
    loop {
        let Some(controller) = controller.upgrade() else {
            return;
        };
        let changed = controller.quorum.changed().wait();
        if controller.quorum.has_failed() {
            controller.moved.notify_all();
            return;
        }
        let (elected, active) = (controller.quorum.active_epoch(), controller.active.get());
        match elected {
            Some(epoch) if active != Some(epoch) => {
                tracing::info!(epoch = epoch.0, "this controller takes over");
                match controller.take_over(epoch).await {
                    Ok(()) => {}
                    Err(error) if error.is_not_leader() => {
                        tracing::info!(%error, "this controller could not take over");
                    }
                    Err(error) if error.is_no_space() => {
                        tracing::error!(%error, "this controller could not take over");
                        controller.quorum.resign().await;
                        rt::sleep(NO_SPACE_PAUSE).await;
                    }
                    Err(error) => return controller.quorum.fail(&error),
                }
            }
            None if active.is_some() => {
                controller.active.set(None);
                controller.moved.notify_all();
            }
            _ => {
                drop(controller);
                changed.await;
            }
        }
    }
}

/// The records as they will stand in the log: more than fit in one batch become a transaction,
/// for a change happens as a whole or not at all (KIP-868).
fn framed(mut records: Vec<MetadataRecord>) -> Vec<MetadataRecord> {
    if records.len() > RECORDS_PER_BATCH_MAX {
        records.insert(0, MetadataRecord::from(BeginTransactionRecord::default()));
        records.push(MetadataRecord::from(EndTransactionRecord::default()));
    }
    records
}

/// The records as batches that begin at `first`.
fn batches(
    records: &[MetadataRecord],
    first: Offset,
    epoch: LeaderEpoch,
    now_ms: i64,
) -> Result<Vec<Bytes>, MetadataLogError> {
    let mut offset = first;
    let chunks = records.chunks(RECORDS_PER_BATCH_MAX).map(|chunk| {
        let mut batch = BatchBuilder::new();
        (batch.base_offset, batch.leader_epoch) = (offset, epoch);
        for record in chunk {
            batch.append(now_ms, None, Some(&record.encode()?), &[])?;
        }
        offset = Offset(offset.0 + chunk.len() as i64);
        Ok(batch.build()?)
    });
    chunks.collect()
}

/// Random numbers for decisions, from this executor's source.
pub fn dice<R>(decide: impl FnOnce(Dice<'_>) -> R) -> R {
    let mut roll = rt::random_u64;
    decide(Dice(&mut roll))
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;

//! A broker that is no voter keeps its copy of the metadata log: asks, writes down what it is given,
//! applies what is committed. Runs on the control executor, in one task. What to ask and what an
//! answer means is [`super::observer`]'s. Nothing is synced before more is asked for: what a crash
//! takes is fetched again.

use super::observer::{Ask, LogFacts, Observer, ObserverError, Step, Target};
use crate::cluster::image::Image;
use crate::cluster::metadata_log::{Damage, MetadataLog, MetadataLogError, MetadataLogSettings};
use crate::cluster::replay::{Replay, ReplayError};
use crate::cluster::snapshot::{self, SnapshotId};
use crate::rt;
use crate::types::{LeaderEpoch, NodeId, Offset, Uuid};
use crate::wire::batch::Batch;
use crate::wire::messages::fetch_response::FetchResponse;
use crate::wire::messages::fetch_snapshot_response::FetchSnapshotResponse;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// How long a full disk is left alone.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(1);

/// What an observer is given.
#[derive(Clone, Debug)]
pub struct FollowSettings {
    pub node: NodeId,
    /// The directory of the metadata log, as controllers are told it.
    pub directory: Uuid,
    pub cluster_id: String,
    /// The controllers that the settings name.
    pub known: Vec<Target>,
    /// `controller.quorum.retry.backoff.ms`
    pub backoff: Duration,
    pub log: MetadataLogSettings,
}

/// What a controller answered.
pub enum Answer {
    Fetch(Box<FetchResponse>),
    Snapshot(Box<FetchSnapshotResponse>),
}

/// Why an observer does not go on.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error(transparent)]
    Log(#[from] MetadataLogError),
    #[error(transparent)]
    Observer(#[from] ObserverError),
}

type Publish = Box<dyn Fn(Arc<Image>)>;
type OnLeader = Box<dyn Fn(Option<&Target>, LeaderEpoch)>;
type OnFailure = Box<dyn Fn(&FollowError)>;

/// See the module's words.
pub struct Follower {
    image: RefCell<Arc<Image>>,
    leader: RefCell<(Option<Target>, LeaderEpoch)>,
    publish: RefCell<Option<Publish>>,
    on_leader: RefCell<Option<OnLeader>>,
    on_failure: RefCell<Option<OnFailure>>,
}

impl Follower {
    /// Opens the copy under `dir` and follows. `ask` sends one request to a controller and gives its
    /// answer, or `None` if none came in time. The image of the newest snapshot is there at once.
    pub async fn start<F, A>(
        dir: &Path,
        settings: FollowSettings,
        ask: F,
    ) -> Result<Rc<Follower>, MetadataLogError>
    where
        F: Fn(Target, Ask) -> A + 'static,
        A: Future<Output = Option<Answer>> + 'static,
    {
        let opened = MetadataLog::open(dir, settings.log.clone(), Damage::FetchedAgain).await?;
        let first = rt::random_below(settings.known.len().max(1) as u64) as usize;
        let observer = Observer::new(
            settings.node,
            settings.directory,
            &settings.cluster_id,
            settings.known.clone(),
            opened.log.last_epoch(),
            first,
        );
        let follower = Rc::new(Follower {
            image: RefCell::new(Arc::new(opened.replay.image().clone())),
            leader: RefCell::new((None, opened.log.last_epoch())),
            publish: RefCell::new(None),
            on_leader: RefCell::new(None),
            on_failure: RefCell::new(None),
        });
        let copy = Copy {
            bytes_since_snapshot: 0,
            made_ms: rt::wall_ms(),
            log: opened.log,
            replay: opened.replay,
            pending: opened.tail.into(),
        };
        rt::spawn(run(
            Rc::downgrade(&follower),
            observer,
            copy,
            settings.backoff,
            ask,
        ));
        Ok(follower)
    }

    pub fn image(&self) -> Arc<Image> {
        self.image.borrow().clone()
    }

    /// The active controller, as far as it is known.
    pub fn leader(&self) -> (Option<Target>, LeaderEpoch) {
        self.leader.borrow().clone()
    }

    /// Registers who is given each new image, in order.
    pub fn on_publish(&self, publish: impl Fn(Arc<Image>) + 'static) {
        *self.publish.borrow_mut() = Some(Box::new(publish));
    }

    /// Registers who is told when another controller is active, or none is known.
    pub fn on_leader(&self, tell: impl Fn(Option<&Target>, LeaderEpoch) + 'static) {
        *self.on_leader.borrow_mut() = Some(Box::new(tell));
    }

    /// Registers who is told that nothing is followed any more.
    pub fn on_failure(&self, tell: impl Fn(&FollowError) + 'static) {
        *self.on_failure.borrow_mut() = Some(Box::new(tell));
    }

    fn tell_leader(&self, observer: &Observer) {
        let (leader, epoch) = observer.leader();
        let is_known = {
            let known = self.leader.borrow();
            (known.0.as_ref(), known.1) == (leader, epoch)
        };
        if is_known {
            return;
        }
        *self.leader.borrow_mut() = (leader.cloned(), epoch);
        if let Some(tell) = &*self.on_leader.borrow() {
            tell(leader, epoch);
        }
    }

    fn tell_image(&self, copy: &Copy) {
        let new = copy.replay.image();
        if copy.replay.in_transaction() || new.offset() == self.image.borrow().offset() {
            return;
        }
        let image = Arc::new(new.clone());
        *self.image.borrow_mut() = image.clone();
        if let Some(publish) = &*self.publish.borrow() {
            publish(image);
        }
    }
}

/// The log, and what is applied of it.
struct Copy {
    log: MetadataLog,
    replay: Replay,
    /// Batches in the log that are not known to be committed.
    pending: VecDeque<Batch>,
    bytes_since_snapshot: u64,
    made_ms: i64,
}

async fn run<F, A>(
    follower: Weak<Follower>,
    mut observer: Observer,
    mut copy: Copy,
    backoff: Duration,
    ask: F,
) where
    F: Fn(Target, Ask) -> A,
    A: Future<Output = Option<Answer>>,
{
    loop {
        let facts = copy.facts();
        let answer = match observer.target().cloned() {
            Some(target) => ask(target, observer.next(facts)).await,
            None => None,
        };
        let Some(follower) = follower.upgrade() else {
            return;
        };
        let step = match answer {
            Some(Answer::Fetch(response)) => observer.fetched(&response, facts),
            Some(Answer::Snapshot(response)) => observer.snapshot_fetched(&response),
            None => Ok(observer.unanswered()),
        };
        follower.tell_leader(&observer);
        let pause = async {
            let pause = copy.carry_out(step?, &mut observer, backoff).await?;
            if let Some(committed) = observer.high_watermark() {
                copy.apply(committed)?;
            }
            follower.tell_image(&copy);
            copy.make_snapshot().await?;
            Ok::<_, FollowError>(pause)
        };
        match pause.await {
            Ok(Some(pause)) => {
                drop(follower);
                rt::sleep(pause).await;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, "the metadata log is not followed any more");
                if let Some(tell) = &*follower.on_failure.borrow() {
                    tell(&error);
                }
                return;
            }
        }
    }
}

impl Copy {
    fn facts(&self) -> LogFacts {
        LogFacts {
            end: self.log.next_offset(),
            last_epoch: self.log.last_epoch(),
        }
    }

    /// How long to wait before asking again, if at all.
    async fn carry_out(
        &mut self,
        step: Step,
        observer: &mut Observer,
        backoff: Duration,
    ) -> Result<Option<Duration>, FollowError> {
        let done = match step {
            Step::Again => return Ok(None),
            Step::Pause => return Ok(Some(backoff)),
            Step::Append(batches) => {
                let bytes: Vec<Bytes> = batches
                    .iter()
                    .map(|batch| batch.as_bytes().clone())
                    .collect();
                let appended = self.log.append(&bytes, false).await;
                if appended.is_ok() {
                    self.pending.extend(batches);
                }
                appended
            }
            Step::Truncate(offset) if offset < self.replay.next_offset() => {
                return Err(ObserverError::Committed(offset).into());
            }
            Step::Truncate(offset) => {
                let cut = self.log.truncate_to(offset).await;
                if cut.is_ok() {
                    self.pending.retain(|batch| batch.base_offset() < offset);
                }
                cut
            }
            Step::Install(id, bytes) => {
                let replay = match Replay::from_snapshot(bytes.clone(), id.end) {
                    Ok(replay) if id.end >= self.replay.next_offset() => replay,
                    Ok(_) => return Err(ObserverError::Committed(id.end).into()),
                    Err(error) => {
                        tracing::error!(%error, "a controller's snapshot cannot be read");
                        observer.unanswered();
                        return Ok(Some(NO_SPACE_PAUSE));
                    }
                };
                let installed = self.log.install_snapshot(id, bytes, None).await;
                if installed.is_ok() {
                    self.replay = replay;
                    self.pending.clear();
                    self.bytes_since_snapshot = 0;
                    self.made_ms = rt::wall_ms();
                }
                installed
            }
        };
        match done {
            Ok(()) => Ok(None),
            Err(error) if error.is_no_space() => {
                tracing::error!(%error, "no space for the metadata log: it is not followed meanwhile");
                Ok(Some(NO_SPACE_PAUSE))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Applies what is in the log below `committed`.
    fn apply(&mut self, committed: Offset) -> Result<(), MetadataLogError> {
        while let Some(batch) = self.pending.front()
            && batch.last_offset() < committed
        {
            let applied = self.replay.batch(batch);
            applied.map_err(|source| self.unreadable(source))?;
            self.bytes_since_snapshot += batch.total_size() as u64;
            self.pending.pop_front();
        }
        Ok(())
    }

    fn unreadable(&self, source: ReplayError) -> MetadataLogError {
        MetadataLogError::Replay {
            path: self.log.home().to_owned(),
            source,
        }
    }

    async fn make_snapshot(&mut self) -> Result<(), MetadataLogError> {
        let now = rt::wall_ms();
        let is_due = self
            .log
            .is_snapshot_due(self.bytes_since_snapshot, self.made_ms, now);
        let end = self.replay.next_offset();
        let last = Offset(end.0 - 1);
        // With batches behind it that may be taken back a snapshot has no place to end a segment.
        if !is_due || self.replay.in_transaction() || !self.pending.is_empty() {
            return Ok(());
        }
        let Some(epoch) = self.log.epoch_of(last) else {
            return Ok(());
        };
        let id = SnapshotId { end, epoch };
        let bytes = snapshot::encode(&self.replay.image().records(), id, now)?;
        let written = self.log.write_snapshot(id, bytes, None).await;
        self.made_ms = now;
        self.bytes_since_snapshot = 0;
        match written {
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "no space for a metadata snapshot");
                Ok(())
            }
            written => written,
        }
    }
}

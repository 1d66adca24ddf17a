//! The executor beside the shards: owns the broker's life in the cluster, the embedded controller
//! if there is one, and the log directories; passes images on to the shards, writes the
//! directories' checkpoints. Never on the path of a record.

use super::directories::LogDirs;
use super::mesh::{LocalFuture, Mesh};
use super::upkeep::PartitionFacts;
use super::{NodeFacts, Shard};
use crate::client::Exchange;
use crate::cluster::Image;
use crate::cluster::apis::Asker;
use crate::cluster::controller::Controller;
use crate::cluster::life::Life;
use crate::cluster::link::{ActiveController, ControllerLink};
use crate::log::LogError;
use crate::log::checkpoint::OffsetMap;
use crate::log::dir::{DirError, LogDir};
use crate::observe::metrics::{DirectoryLabels, Families};
use crate::rt;
use crate::rt::sync::{Event, Notify, Semaphore, queue};
use crate::wire::ErrorCode;
use crate::wire::api::ApiKey;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Images on their way to one shard. A full queue would mean a shard that has not applied a
/// thousand changes; the controller then waits for it by [`Control::applied`].
const IMAGES_QUEUED_MAX: usize = 1024;

/// Pause before a controller is looked for again for a client's request.
const FORWARD_PAUSE: Duration = Duration::from_millis(50);

/// State of the control executor.
pub struct Control {
    pub node: Arc<NodeFacts>,
    /// Where this node is a controller too.
    pub controller: Option<Rc<Controller>>,
    /// The way to the active controller.
    pub link: ControllerLink,
    pub(super) life: RefCell<Life>,
    /// The broker's life has moved on.
    pub(super) life_moved: Event,
    /// The next heartbeat is wanted now.
    pub(super) heartbeat_due: Notify,
    image: RefCell<Arc<Image>>,
    image_moved: Event,
    /// To the shards, once they take images.
    feeds: RefCell<Vec<queue::Sender<Arc<Image>>>>,
    mesh: Rc<Mesh<Shard, Control>>,
    shards: usize,
    dirs: LogDirs,
    /// Checkpoints are written by one at a time: two would write one temporary file.
    checkpoint_turn: Semaphore,
    room_turn: Semaphore,
    /// The newest image that the shards have made room for.
    room_made_for: RefCell<Arc<Image>>,
    /// Why the broker must stop, once it must.
    must_stop: RefCell<Option<String>>,
    stopping: Event,
    /// By shard: the offset of the image it has applied.
    applied: Vec<Cell<i64>>,
    moved: Event,
}

impl Control {
    pub fn new(
        node: Arc<NodeFacts>,
        controller: Option<Rc<Controller>>,
        mesh: Rc<Mesh<Shard, Control>>,
        shards: usize,
        dirs: LogDirs,
    ) -> Rc<Control> {
        let interval = Duration::from_millis(node.config.broker_heartbeat_interval_ms);
        let control = Rc::new(Control {
            link: ControllerLink::new(node.node, controller.clone()),
            life: RefCell::new(Life::new(node.node, interval)),
            life_moved: Event::new(),
            heartbeat_due: Notify::new(),
            image: RefCell::new(Arc::new(Image::default())),
            image_moved: Event::new(),
            feeds: RefCell::new(Vec::new()),
            node,
            controller: controller.clone(),
            mesh,
            shards,
            dirs,
            checkpoint_turn: Semaphore::new(1),
            room_turn: Semaphore::new(1),
            room_made_for: RefCell::default(),
            must_stop: RefCell::new(None),
            stopping: Event::new(),
            applied: (0..shards).map(|_| Cell::new(-1)).collect(),
            moved: Event::new(),
        });
        if let Some(controller) = controller {
            control.take_image(controller.image());
            let weak = Rc::downgrade(&control);
            controller.on_publish(move |image| {
                if let Some(control) = weak.upgrade() {
                    control.take_image(image);
                }
            });
            let weak = Rc::downgrade(&control);
            controller.on_failure(move |error| {
                if let Some(control) = weak.upgrade() {
                    control.stop(format!("the metadata log has failed: {error}"));
                }
            });
        }
        control
    }

    /// The metadata as this node knows it.
    pub fn image(&self) -> Arc<Image> {
        self.image.borrow().clone()
    }

    /// Newer metadata has come; the shards get it.
    pub fn take_image(&self, image: Arc<Image>) {
        *self.image.borrow_mut() = image.clone();
        self.image_moved.notify_all();
        for feed in &*self.feeds.borrow() {
            if feed.try_send(image.clone()).is_err() {
                tracing::error!("a shard does not take metadata any more");
            }
        }
    }

    /// Waits until the metadata reaches `offset`.
    pub async fn image_at(&self, offset: i64) {
        while self.image.borrow().offset() < offset {
            self.image_moved.wait().await;
        }
    }

    /// Waits until the metadata here says that this broker serves. The controller's word for it comes
    /// by another way and may be earlier.
    pub async fn sees_itself_unfenced(&self) {
        let node = self.node.node;
        let is_unfenced = |image: &Image| image.broker(node).is_some_and(|broker| !broker.fenced);
        while !is_unfenced(&self.image.borrow()) {
            self.image_moved.wait().await;
        }
    }

    /// Takes images to the shards from now on, beginning with the one there is.
    pub fn feed_shards(self: &Rc<Self>) {
        let mut feeds = Vec::with_capacity(self.shards);
        for place in 0..self.shards {
            let (sender, mut images) = queue::bounded::<Arc<Image>>(IMAGES_QUEUED_MAX);
            feeds.push(sender);
            let control = self.clone();
            rt::spawn(async move {
                let mut sent: Option<Arc<Image>> = None;
                while let Some(image) = images.recv().await {
                    // Only the newest of those that wait matters.
                    let mut newest = image;
                    while let Some(newer) = images.try_recv() {
                        newest = newer;
                    }
                    // An idle controller writes records that say only that it lives.
                    if sent
                        .as_ref()
                        .is_some_and(|sent| sent.says_the_same(&newest))
                    {
                        control.has_applied(place, newest.offset());
                        continue;
                    }
                    control.make_room(&newest).await;
                    control.send_image(place, newest.clone()).await;
                    sent = Some(newest);
                }
            });
        }
        *self.feeds.borrow_mut() = feeds;
        self.take_image(self.image());
    }

    /// Where an image takes replicas from this broker, every shard lets go of them and the
    /// checkpoints forget them before any shard takes that image.
    async fn make_room(&self, image: &Arc<Image>) {
        let _turn = self.room_turn.acquire(1).await;
        let before = self.room_made_for.borrow().clone();
        if before.offset() >= image.offset() {
            return;
        }
        if before.loses_replica(image, self.node.node) {
            let wanted = image.clone();
            self.ask_shards(move |shard| -> LocalFuture<()> {
                let image = wanted.clone();
                Box::pin(async move { shard.make_room(&image).await })
            })
            .await;
            self.write_checkpoints(true).await;
        }
        *self.room_made_for.borrow_mut() = image.clone();
    }

    async fn send_image(&self, place: usize, image: Arc<Image>) {
        let offset = image.offset();
        let sent = self
            .mesh
            .call_shard(place, move |shard: Rc<Shard>| -> LocalFuture<bool> {
                Box::pin(async move { shard.apply_image(image).await })
            })
            .await;
        if sent == Ok(true) {
            self.has_applied(place, offset);
        }
    }

    fn has_applied(&self, place: usize, offset: i64) {
        self.applied[place].set(offset);
        self.moved.notify_all();
    }

    /// Whether the shards have begun.
    pub fn is_feeding(&self) -> bool {
        !self.feeds.borrow().is_empty()
    }

    /// The offset up to which every shard has applied the metadata; the image's own before the
    /// shards take any.
    pub fn applied_offset(&self) -> i64 {
        let known = self.image.borrow().offset();
        if !self.is_feeding() {
            return known;
        }
        let applied = self.applied.iter().map(Cell::get).min();
        applied.unwrap_or(known)
    }

    /// Waits until every shard has applied the metadata that this node has now.
    pub async fn applied(&self) {
        let wanted = self.image().offset();
        while self.applied.iter().any(|offset| offset.get() < wanted) {
            self.moved.wait().await;
        }
    }

    /// Who is the active controller now, as far as this node has heard. A new one counts the
    /// sessions of all brokers anew, and hears of this one at once.
    pub fn set_active_controller(&self, active: Option<ActiveController>) {
        if self.link.set_active(active) {
            self.heartbeat_due.notify_one();
        }
    }

    /// Asks the active controller, wherever it is. NOT_CONTROLLER if it cannot be reached.
    pub async fn ask_controller<Q: Exchange>(&self, request: &Q) -> Result<Q::Response, ErrorCode> {
        self.link.ask(request).await
    }

    /// Has the active controller answer a client's request, looking for it until `timeout` while
    /// there is none. One that went away with the request may have carried it out: the next one is
    /// asked all the same, as Kafka's brokers do, and says so (a topic that exists). Then waits until the shards have what it changed, as far as this node has
    /// heard of it. The errors are NOT_CONTROLLER (nobody decides now, or cannot write) and
    /// REQUEST_TIMED_OUT (the change is made, not every shard has it yet).
    pub async fn forward(
        &self,
        asker: &Asker,
        key: ApiKey,
        version: i16,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, ErrorCode> {
        let deadline = rt::now() + timeout;
        let answer = loop {
            let asked = self.link.forward(asker, key, version, body.clone()).await;
            match asked {
                Err(ErrorCode::NOT_CONTROLLER) if rt::now() < deadline => {
                    rt::sleep(FORWARD_PAUSE).await;
                }
                asked => break asked?,
            }
        };
        match rt::timeout(deadline.since(rt::now()), self.applied()).await {
            Ok(()) => Ok(answer),
            Err(_) => Err(ErrorCode::REQUEST_TIMED_OUT),
        }
    }

    /// Runs `job` on every shard; answers of those that still run.
    pub async fn ask_shards<R: Send + 'static>(
        &self,
        job: impl Fn(Rc<Shard>) -> LocalFuture<R> + Clone + Send + 'static,
    ) -> Vec<R> {
        let calls = (0..self.shards).map(|place| self.mesh.call_shard(place, job.clone()));
        rt::join_all(calls).await.into_iter().flatten().collect()
    }

    /// A log directory failed under some shard: every shard takes its logs offline, its partitions
    /// lose their leader. Without a directory that can be used the broker stops.
    pub async fn directory_failed(&self, path: PathBuf, cause: LogError) {
        if !self.dirs.fail(&path, &cause) {
            return;
        }
        tracing::error!(dir = %path.display(), error = %cause, "log directory is offline");
        // First of all nobody may write there any more.
        self.ask_shards(move |shard| -> LocalFuture<()> {
            shard.directory_failed(&path, &cause);
            Box::pin(std::future::ready(()))
        })
        .await;
        if let Err(error) = self.dirs.check() {
            self.stop(error.to_string());
            return;
        }
        // The controller hears of it now: it moves the leaderships.
        self.heartbeat_due.notify_one();
    }

    /// Asks the shards which directories failed while they opened their logs.
    pub async fn collect_failures(&self) {
        let answers = self
            .ask_shards(|shard| -> LocalFuture<BTreeMap<PathBuf, LogError>> {
                Box::pin(std::future::ready(shard.logs.offline_dirs()))
            })
            .await;
        for (path, cause) in answers.into_iter().flatten() {
            self.directory_failed(path, cause).await;
        }
    }

    pub fn dirs(&self) -> &LogDirs {
        &self.dirs
    }

    pub fn stop(&self, why: String) {
        self.must_stop.borrow_mut().get_or_insert(why);
        self.stopping.notify_all();
    }

    /// Why the broker must stop, if it must.
    pub fn must_stop(&self) -> Option<String> {
        self.must_stop.borrow().clone()
    }

    /// Waits until the broker must stop; why.
    pub async fn stopped(&self) -> String {
        loop {
            if let Some(why) = self.must_stop() {
                return why;
            }
            self.stopping.wait().await;
        }
    }

    /// Brings the gauges of the directories up to date, before a scrape.
    pub fn refresh_gauges(&self, families: &Families) {
        let mut count = 0;
        for (path, is_offline) in self.dirs.states() {
            count += i64::from(is_offline);
            let log_directory = path.display().to_string();
            let labels = DirectoryLabels { log_directory };
            let gauge = families.log_directory_offline.get_or_create(&labels);
            gauge.set(i64::from(is_offline));
        }
        families.offline_log_directories.set(count);
    }

    async fn facts(&self) -> BTreeMap<PathBuf, Vec<PartitionFacts>> {
        let answers = self
            .ask_shards(|shard| -> LocalFuture<Vec<PartitionFacts>> {
                Box::pin(std::future::ready(shard.checkpoint_facts()))
            })
            .await;
        let mut by_dir: BTreeMap<PathBuf, Vec<PartitionFacts>> = BTreeMap::new();
        for facts in answers.into_iter().flatten() {
            by_dir.entry(facts.dir.clone()).or_default().push(facts);
        }
        by_dir
    }

    /// Writes every directory's high-watermark checkpoint, and with `recovery` also the
    /// recovery-point and log-start checkpoints. Returns the directories where that failed.
    pub async fn write_checkpoints(&self, recovery: bool) -> Vec<PathBuf> {
        let _turn = self.checkpoint_turn.acquire(1).await;
        let mut by_dir = self.facts().await;
        let mut failed = Vec::new();
        let mut unwritten = Vec::new();
        for dir in self.dirs.online() {
            let facts = by_dir.remove(dir.path()).unwrap_or_default();
            match write_checkpoints(dir, facts, recovery).await {
                Ok(()) => {}
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "checkpoints not written for lack of space");
                    unwritten.push(dir.path().to_owned());
                }
                Err(error) => failed.push((dir.path().to_owned(), error.as_log_error())),
            }
        }
        for (path, cause) in failed {
            unwritten.push(path.clone());
            self.directory_failed(path, cause).await;
        }
        unwritten
    }

    /// Writes the checkpoints at their intervals.
    pub fn start_checkpoints(self: &Rc<Self>) {
        let config = &self.node.config;
        let often = Duration::from_millis(config.high_watermark_checkpoint_interval_ms);
        let seldom = Duration::from_millis(config.log_flush_offset_checkpoint_interval_ms.max(1));
        for (interval, recovery) in [(often, false), (seldom, true)] {
            let control = Rc::downgrade(self);
            rt::spawn(async move {
                loop {
                    rt::sleep(interval).await;
                    let Some(control) = control.upgrade() else {
                        return;
                    };
                    control.write_checkpoints(recovery).await;
                }
            });
        }
    }

    /// Ends the broker, whose leaderships have moved: closes the shards, writes the last
    /// checkpoints and, where everything closed, the marker of a clean stop. A directory that
    /// failed is not touched.
    pub async fn shut_down(&self) {
        let closed = self
            .ask_shards(|shard| -> LocalFuture<Vec<PathBuf>> { Box::pin(shard.shut_down()) })
            .await;
        self.write_checkpoints(true).await;
        if closed.len() < self.shards {
            tracing::warn!("not every shard has closed its logs: the next start will recover");
            return;
        }
        let unclean: BTreeSet<PathBuf> = closed.into_iter().flatten().collect();
        for dir in self.dirs.online() {
            if unclean.contains(dir.path()) {
                tracing::warn!(dir = %dir.path().display(), "not every log closed: the next start will recover");
                continue;
            }
            if let Err(error) = dir.write_clean_marker(self.broker_epoch()).await {
                tracing::error!(%error, "the marker of a clean stop could not be written");
            }
        }
    }

    /// Lets the shards' executors end.
    pub async fn end_shards(&self) {
        self.ask_shards(|shard| -> LocalFuture<()> {
            shard.end();
            Box::pin(std::future::ready(()))
        })
        .await;
    }
}

impl Shard {
    /// [`Control::ask_controller`] from a shard.
    pub async fn ask_controller<Q>(&self, request: Q) -> Result<Q::Response, ErrorCode>
    where
        Q: Exchange + Send + 'static,
        Q::Response: Send,
    {
        let ask = move |control: Rc<Control>| -> LocalFuture<Result<Q::Response, ErrorCode>> {
            Box::pin(async move { control.ask_controller(&request).await })
        };
        let answered = self.mesh().call_control(self.control_place(), ask).await;
        answered.unwrap_or(Err(ErrorCode::NOT_CONTROLLER))
    }

    /// [`Control::forward`] from a shard.
    pub async fn forward(
        &self,
        asker: Asker,
        key: ApiKey,
        version: i16,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, ErrorCode> {
        let ask = move |control: Rc<Control>| -> LocalFuture<Result<Bytes, ErrorCode>> {
            Box::pin(async move { control.forward(&asker, key, version, body, timeout).await })
        };
        let answered = self.mesh().call_control(self.control_place(), ask).await;
        answered.unwrap_or(Err(ErrorCode::NOT_CONTROLLER))
    }
}

async fn write_checkpoints(
    dir: &LogDir,
    facts: Vec<PartitionFacts>,
    recovery: bool,
) -> Result<(), DirError> {
    let marks: OffsetMap = facts
        .iter()
        .map(|facts| {
            let key = (facts.log.topic.clone(), facts.log.partition);
            (key, facts.high_watermark)
        })
        .collect();
    dir.write_high_watermarks(&marks).await?;
    if recovery {
        let logs = facts.into_iter().map(|facts| facts.log);
        dir.write_log_checkpoints(logs).await?;
    }
    Ok(())
}

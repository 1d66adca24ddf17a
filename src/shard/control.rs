//! The executor beside the shards: owns the controller and the log directories, passes images on
//! to the shards, writes the directories' checkpoints. Never on the path of a record.

use super::Shard;
use super::directories::LogDirs;
use super::mesh::{LocalFuture, Mesh};
use super::upkeep::PartitionFacts;
use crate::cluster::apis::{self, Asker};
use crate::cluster::controller::Controller;
use crate::cluster::{Image, directories};
use crate::log::LogError;
use crate::log::checkpoint::OffsetMap;
use crate::log::dir::{DirError, LogDir};
use crate::observe::metrics::{DirectoryLabels, Families};
use crate::rt;
use crate::rt::sync::{Event, Semaphore, queue};
use crate::wire::api::ApiKey;
use crate::wire::{ErrorCode, Message, Reader, Str};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Images on their way to one shard. A full queue would mean a shard that has not applied a
/// thousand changes; the controller then waits for it by [`Control::applied`].
const IMAGES_QUEUED_MAX: usize = 1024;

/// State of the control executor.
pub struct Control {
    pub controller: Rc<Controller>,
    mesh: Rc<Mesh<Shard, Control>>,
    shards: usize,
    dirs: LogDirs,
    /// Checkpoints are written by one at a time: two would write one temporary file.
    checkpoint_turn: Semaphore,
    /// Why the broker must stop, once it must.
    must_stop: RefCell<Option<String>>,
    stopping: Event,
    /// By shard: the offset of the image it has applied.
    applied: Vec<Cell<i64>>,
    moved: Event,
}

impl Control {
    /// Takes the controller's images to the shards from now on.
    pub fn start(
        controller: Rc<Controller>,
        mesh: Rc<Mesh<Shard, Control>>,
        shards: usize,
        dirs: LogDirs,
    ) -> Rc<Control> {
        let control = Rc::new(Control {
            controller: controller.clone(),
            mesh,
            shards,
            dirs,
            checkpoint_turn: Semaphore::new(1),
            must_stop: RefCell::new(None),
            stopping: Event::new(),
            applied: (0..shards).map(|_| Cell::new(-1)).collect(),
            moved: Event::new(),
        });
        let mut queues = Vec::with_capacity(shards);
        for place in 0..shards {
            let (sender, mut images) = queue::bounded::<Arc<Image>>(IMAGES_QUEUED_MAX);
            queues.push(sender);
            let control = control.clone();
            rt::spawn(async move {
                while let Some(image) = images.recv().await {
                    // Only the newest of those that wait matters.
                    let mut newest = image;
                    while let Some(newer) = images.try_recv() {
                        newest = newer;
                    }
                    control.send_image(place, newest).await;
                }
            });
        }
        let first = controller.image();
        let publish = move |image: Arc<Image>| {
            for queue in &queues {
                if queue.try_send(image.clone()).is_err() {
                    tracing::error!("a shard does not take metadata any more");
                }
            }
        };
        publish(first);
        controller.on_publish(publish);
        let weak = Rc::downgrade(&control);
        controller.on_failure(move |error| {
            if let Some(control) = weak.upgrade() {
                control.stop(format!("the metadata log has failed: {error}"));
            }
        });
        control
    }

    async fn send_image(&self, place: usize, image: Arc<Image>) {
        let offset = image.offset();
        let sent = self
            .mesh
            .call_shard(place, move |shard: Rc<Shard>| -> LocalFuture<()> {
                Box::pin(async move { shard.apply_image(image).await })
            })
            .await;
        if sent.is_ok() {
            self.applied[place].set(offset);
            self.moved.notify_all();
        }
    }

    /// Waits until every shard has applied what the controller has now.
    pub async fn applied(&self) {
        let wanted = self.controller.image().offset();
        while self.applied.iter().any(|offset| offset.get() < wanted) {
            self.moved.wait().await;
        }
    }

    /// Asks the active controller, wherever it is. NOT_CONTROLLER if it cannot be reached.
    pub async fn ask_controller<Q: Message, R: Message>(
        &self,
        request: &Q,
    ) -> Result<R, ErrorCode> {
        let version = Q::MAX_VERSION;
        let refused = |error: &dyn std::fmt::Display| {
            tracing::error!(api = Q::NAME, %error, "the controller could not be asked");
            ErrorCode::UNKNOWN_SERVER_ERROR
        };
        let body = request.to_bytes(version).map_err(|error| refused(&error))?;
        let asker = Asker {
            client_id: Str::from_static("highwater"),
            host: "/127.0.0.1".into(),
        };
        let key = ApiKey(Q::API_KEY);
        let answer = apis::answer(&self.controller, &asker, key, version, Reader::new(body)).await;
        let answer = answer.ok_or(ErrorCode::NOT_CONTROLLER)?;
        R::from_bytes(answer, version).map_err(|error| refused(&error))
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
        let (node, online) = (self.controller.config.node_id, self.dirs.online_ids());
        let changed = self
            .controller
            .change(|image| (directories::failed(image, node, &online), ()))
            .await;
        if let Err(error) = changed {
            tracing::error!(%error, "the failure of a log directory could not be registered");
        }
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

    fn stop(&self, why: String) {
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
    /// recovery-point and log-start checkpoints.
    pub async fn write_checkpoints(&self, recovery: bool) {
        let _turn = self.checkpoint_turn.acquire(1).await;
        let mut by_dir = self.facts().await;
        let mut failed = Vec::new();
        for dir in self.dirs.online() {
            let facts = by_dir.remove(dir.path()).unwrap_or_default();
            match write_checkpoints(dir, facts, recovery).await {
                Ok(()) => {}
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "checkpoints not written for lack of space");
                }
                Err(error) => failed.push((dir.path().to_owned(), error.as_log_error())),
            }
        }
        for (path, cause) in failed {
            self.directory_failed(path, cause).await;
        }
    }

    /// Writes the checkpoints at their intervals.
    pub fn start_checkpoints(self: &Rc<Self>) {
        let config = &self.controller.config;
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

    /// Ends the broker: fences it, closes the shards, writes the last checkpoints and, where
    /// everything closed, the marker of a clean stop. A directory that failed is not touched.
    pub async fn shut_down(&self) {
        if let Err(error) = self.controller.fence().await {
            tracing::error!(%error, "the broker could not be fenced");
        }
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
            if let Err(error) = dir.write_clean_marker(self.controller.broker_epoch()).await {
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
    pub async fn ask_controller<Q, R>(&self, request: Q) -> Result<R, ErrorCode>
    where
        Q: Message + Send + 'static,
        R: Message + Send + 'static,
    {
        let ask = move |control: Rc<Control>| -> LocalFuture<Result<R, ErrorCode>> {
            Box::pin(async move { control.ask_controller(&request).await })
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

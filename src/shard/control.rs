//! The executor beside the shards: owns the controller and the log directories, passes images on
//! to the shards, writes the directories' checkpoints. Never on the path of a record.

use super::Shard;
use super::mesh::{LocalFuture, Mesh};
use super::upkeep::PartitionFacts;
use crate::cluster::Image;
use crate::cluster::controller::Controller;
use crate::log::checkpoint::OffsetMap;
use crate::log::dir::LogDir;
use crate::rt;
use crate::rt::sync::{Event, queue};
use std::cell::Cell;
use std::collections::BTreeMap;
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
    dirs: Vec<LogDir>,
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
        dirs: Vec<LogDir>,
    ) -> Rc<Control> {
        let control = Rc::new(Control {
            controller: controller.clone(),
            mesh,
            shards,
            dirs,
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

    /// Runs `job` on every shard; answers of those that still run.
    pub async fn ask_shards<R: Send + 'static>(
        &self,
        job: impl Fn(Rc<Shard>) -> LocalFuture<R> + Clone + Send + 'static,
    ) -> Vec<R> {
        let calls = (0..self.shards).map(|place| self.mesh.call_shard(place, job.clone()));
        rt::join_all(calls).await.into_iter().flatten().collect()
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
        let mut by_dir = self.facts().await;
        for dir in &self.dirs {
            let facts = by_dir.remove(dir.path()).unwrap_or_default();
            let marks: OffsetMap = facts
                .iter()
                .map(|facts| {
                    (
                        (facts.log.topic.clone(), facts.log.partition),
                        facts.high_watermark,
                    )
                })
                .collect();
            let mut written = dir.write_high_watermarks(&marks).await;
            if written.is_ok() && recovery {
                written = dir
                    .write_log_checkpoints(facts.into_iter().map(|facts| facts.log))
                    .await;
            }
            if let Err(error) = written {
                tracing::error!(%error, "checkpoints could not be written");
            }
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
    /// everything closed, the marker of a clean stop.
    pub async fn shut_down(&self) {
        if let Err(error) = self.controller.fence().await {
            tracing::error!(%error, "the broker could not be fenced");
        }
        let closed = self
            .ask_shards(|shard| -> LocalFuture<bool> { Box::pin(shard.shut_down()) })
            .await;
        self.write_checkpoints(true).await;
        if closed.len() < self.shards || closed.contains(&false) {
            tracing::warn!("not every log closed: the next start will recover");
            return;
        }
        for dir in &self.dirs {
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

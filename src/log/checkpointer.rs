//! Owns when the checkpoint files of one log directory are written. One per directory, on
//! whichever executor the broker puts it (the control executor or one shard), because N shards
//! share the file: it asks for their facts as plain data, merges and writes. It never touches a
//! log.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use crate::rt;
use crate::rt::sync::Event;

use super::checkpoint::OffsetMap;
use super::dir::{CheckpointFacts, DirError, LogDir};

/// How often which checkpoint is written.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointIntervals {
    /// `replica.high.watermark.checkpoint.interval.ms`.
    pub high_watermark: Duration,
    /// `log.flush.offset.checkpoint.interval.ms` and
    /// `log.flush.start.offset.checkpoint.interval.ms`.
    pub logs: Duration,
}

impl Default for CheckpointIntervals {
    fn default() -> CheckpointIntervals {
        CheckpointIntervals {
            high_watermark: Duration::from_secs(5),
            logs: Duration::from_secs(60),
        }
    }
}

/// Collects what all shards know of the logs of one directory.
pub trait CollectFacts {
    fn logs(&self) -> impl Future<Output = Vec<CheckpointFacts>>;
    fn high_watermarks(&self) -> impl Future<Output = OffsetMap>;
}

/// Writes one directory's checkpoints.
pub struct Checkpointer<C> {
    dir: Rc<LogDir>,
    collect: C,
    intervals: CheckpointIntervals,
    stopped: Event,
    stopping: std::cell::Cell<bool>,
}

impl<C: CollectFacts> Checkpointer<C> {
    pub fn new(dir: Rc<LogDir>, collect: C, intervals: CheckpointIntervals) -> Rc<Self> {
        Rc::new(Checkpointer {
            dir,
            collect,
            intervals,
            stopped: Event::new(),
            stopping: std::cell::Cell::new(false),
        })
    }

    /// Writes at the intervals until stopped.
    ///
    /// # Errors
    /// The first write that fails: the directory is to be taken offline.
    pub async fn run(&self) -> Result<(), DirError> {
        let mut next_logs = rt::now().saturating_add(self.intervals.logs);
        while !self.stopping.get() {
            let pause = self.intervals.high_watermark.min(self.intervals.logs);
            rt::select2(rt::sleep(pause), self.stopped.wait()).await;
            if self.stopping.get() {
                break;
            }
            self.write_high_watermarks().await?;
            if rt::now() >= next_logs {
                next_logs = rt::now().saturating_add(self.intervals.logs);
                self.write_logs().await?;
            }
        }
        Ok(())
    }

    /// Ends [`Checkpointer::run`].
    pub fn stop(&self) {
        self.stopping.set(true);
        self.stopped.notify_all();
    }

    /// Recovery points and log starts, now.
    pub async fn write_logs(&self) -> Result<(), DirError> {
        let facts = self.collect.logs().await;
        self.dir.write_log_checkpoints(facts).await
    }

    /// High watermarks, now.
    pub async fn write_high_watermarks(&self) -> Result<(), DirError> {
        let marks = self.collect.high_watermarks().await;
        self.dir.write_high_watermarks(&marks).await
    }
}

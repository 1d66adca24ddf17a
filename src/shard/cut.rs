//! Cuts the logs of followers that have left their leaders' histories. Runs on the shard; the
//! checkpoints on disk are lowered first, by control, in one write for all that are cut together.
//! Where to cut is decided by [`crate::replica::follower`].

use super::Shard;
use super::control::Control;
use super::mesh::LocalFuture;
use crate::log::{Log, LogError};
use crate::replica::partition::Partition;
use crate::rt::sync::Permit;
use crate::types::{LeaderEpoch, Offset};
use std::path::PathBuf;
use std::rc::Rc;

/// One log to be cut, as a follower of `epoch` decided.
pub(super) struct Cut {
    pub partition: Rc<Partition>,
    pub epoch: LeaderEpoch,
    pub to: Offset,
    /// Throw everything away and begin at `to`.
    pub start_over: bool,
}

impl Cut {
    fn still_holds(&self) -> bool {
        let epoch = self.partition.as_follower(|follower, _| follower.epoch());
        epoch == Some(self.epoch)
    }

    async fn carry_out(&self) -> Result<(), LogError> {
        let log = &self.partition.log;
        tracing::info!(
            topic = %self.partition.topic, partition = self.partition.id.index, epoch = self.epoch.0,
            to = self.to.0, log_end = log.log_end().0, start_over = self.start_over, "log is cut"
        );
        if self.start_over {
            log.truncate_fully_and_start_at(self.to).await
        } else {
            log.truncate_to(self.to).await
        }
    }
}

impl Shard {
    /// Cuts the logs, each if its follower's decision still holds. Returns the cuts that were not
    /// made.
    pub(super) async fn cut_logs(self: &Rc<Self>, mut cuts: Vec<Cut>) -> Vec<Cut> {
        // Always in the same order: two who need the same partitions do not wait for each other.
        cuts.sort_by_key(|cut| cut.partition.id);
        let mut turns: Vec<Permit> = Vec::with_capacity(cuts.len());
        for cut in &cuts {
            turns.push(cut.partition.turn.acquire(1).await);
        }
        cuts.retain(Cut::still_holds);
        let mut must_write = false;
        for cut in &cuts {
            let at = if cut.start_over { Offset::ZERO } else { cut.to };
            must_write |= cut.partition.log.lower_checkpoints(at);
        }
        let unwritten = if must_write {
            self.write_checkpoints().await
        } else {
            Some(Vec::new())
        };
        let mut failed = Vec::new();
        for cut in cuts {
            let log = cut.partition.log.clone();
            let written = unwritten
                .as_ref()
                .is_some_and(|dirs| is_in_none(&log, dirs));
            let done = written
                && cut.still_holds()
                && {
                    let outcome = cut.carry_out().await;
                    if let Err(error) = &outcome {
                        tracing::error!(topic = %cut.partition.topic, partition = cut.partition.id.index, %error, "log could not be cut");
                    }
                    outcome.is_ok()
                };
            log.free_checkpoints(written && must_write);
            cut.partition
                .as_follower(|follower, log| follower.on_log_changed(log));
            self.check_waiting(cut.partition.id, true);
            if !done {
                failed.push(cut);
            }
        }
        failed
    }

    /// Has the checkpoints written; the directories where that failed, `None` if control is gone.
    pub(super) async fn write_checkpoints(&self) -> Option<Vec<PathBuf>> {
        let write = |control: Rc<Control>| -> LocalFuture<Vec<PathBuf>> {
            Box::pin(async move { control.write_checkpoints(true).await })
        };
        let place = self.control_place();
        self.mesh().call_control(place, write).await.ok()
    }

    /// The same; whether those of this log's directory were.
    pub(super) async fn write_checkpoints_of(&self, log: &Log) -> bool {
        let unwritten = self.write_checkpoints().await;
        unwritten.is_some_and(|dirs| is_in_none(log, &dirs))
    }
}

fn is_in_none(log: &Log, dirs: &[PathBuf]) -> bool {
    let dir = log.dir();
    !dirs.iter().any(|failed| dir.parent() == Some(failed))
}

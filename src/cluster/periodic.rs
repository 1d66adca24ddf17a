//! What the active controller does by itself: fences brokers that are not heard of, looks for
//! leaders where any replica may lead, gives leaderships back to preferred leaders, and writes a
//! record when nothing else is written, so that brokers see it live. Runs on the control executor,
//! from when this node's controller becomes active until it is not.

use super::controller::Controller;
use super::draft::Draft;
use super::fencing;
use super::metadata_log::MetadataLogError;
use super::record::MetadataRecord;
use crate::config::BrokerConfig;
use crate::rt;
use crate::wire::messages::no_op_record::NoOpRecord;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Elections of one change, Kafka's limit: the next ones follow at once.
const ELECTIONS_PER_CHANGE: usize = 1000;
/// How soon more work of the same kind is done when one change did not hold all of it.
const SOON: Duration = Duration::from_millis(10);

/// A setting in milliseconds.
pub(super) fn millis(config: &BrokerConfig, name: &str) -> Duration {
    Duration::from_millis(number(config, name))
}

fn number(config: &BrokerConfig, name: &str) -> u64 {
    let text = config.value(name).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// One time that a controller is active: its tasks end with it, and a controller that becomes
/// active again begins new ones.
struct Duty {
    controller: Weak<Controller>,
    term: u64,
}

impl Duty {
    fn of(controller: &Rc<Controller>) -> Duty {
        Duty {
            term: controller.sessions.borrow().term(),
            controller: Rc::downgrade(controller),
        }
    }

    fn controller(&self) -> Option<Rc<Controller>> {
        let controller = self.controller.upgrade()?;
        let goes_on = controller.is_active() && controller.sessions.borrow().term() == self.term;
        goes_on.then_some(controller)
    }
}

/// Whether the task has more to do now.
type More = bool;

/// Begins the tasks; to be called each time this controller becomes active. The tasks end by themselves when it is not any more.
pub fn start(controller: &Rc<Controller>) {
    let config = controller.config.clone();
    let check = controller.sessions.borrow().check_interval();
    every(controller, check, fence_expired);
    let unclean = millis(&config, "unclean.leader.election.interval.ms");
    every(controller, unclean, elect_unclean);
    let balances = config.value("auto.leader.rebalance.enable");
    if balances.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        let seconds = number(&config, "leader.imbalance.check.interval.seconds");
        let interval = Duration::from_secs(seconds);
        every(controller, interval, elect_preferred);
    }
    let idle = millis(&config, "metadata.max.idle.interval.ms");
    if !idle.is_zero() {
        rt::spawn(write_when_idle(Duty::of(controller), idle));
    }
}

fn every<F>(
    controller: &Rc<Controller>,
    interval: Duration,
    task: impl Fn(Rc<Controller>) -> F + 'static,
) where
    F: Future<Output = Result<More, MetadataLogError>> + 'static,
{
    let duty = Duty::of(controller);
    rt::spawn(async move {
        let mut pause = interval;
        loop {
            let slept = rt::now();
            rt::sleep(pause).await;
            let late = slept.elapsed().saturating_sub(pause);
            let Some(controller) = duty.controller() else {
                return;
            };
            controller.sessions.borrow_mut().was_late(late, rt::now());
            pause = match task(controller).await {
                Ok(true) => SOON,
                Ok(false) => interval,
                // A full disk, or another controller: the next round tells which.
                Err(error) => {
                    tracing::warn!(%error, "the controller's periodic work could not be done");
                    interval
                }
            };
        }
    });
}

async fn fence_expired(controller: Rc<Controller>) -> Result<More, MetadataLogError> {
    let decided = controller.change(|image| {
        let mut sessions = controller.sessions.borrow_mut();
        let Some(node) = sessions.expired(image, rt::now()) else {
            return (Vec::new(), false);
        };
        tracing::warn!(broker = node.0, "broker fenced: its session has run out");
        sessions.forget(node);
        let records = fencing::records_of(image, &controller.config, |draft| {
            fencing::fence(draft, node);
        });
        (records, true)
    });
    decided.await
}

async fn elect_unclean(controller: Rc<Controller>) -> Result<More, MetadataLogError> {
    elect(&controller, fencing::elect_unclean).await
}

async fn elect_preferred(controller: Rc<Controller>) -> Result<More, MetadataLogError> {
    elect(&controller, fencing::elect_preferred).await
}

async fn elect(
    controller: &Controller,
    elect: impl FnOnce(&mut Draft<'_>, usize),
) -> Result<More, MetadataLogError> {
    let decided = controller.change(|image| {
        let records = fencing::records_of(image, &controller.config, |draft| {
            elect(draft, ELECTIONS_PER_CHANGE);
        });
        let more = records.len() >= ELECTIONS_PER_CHANGE;
        (records, more)
    });
    decided.await
}

async fn write_when_idle(duty: Duty, interval: Duration) {
    let mut pause = interval;
    loop {
        rt::sleep(pause).await;
        let Some(controller) = duty.controller() else {
            return;
        };
        let silent = controller.written().elapsed();
        pause = interval.saturating_sub(silent);
        if !pause.is_zero() {
            continue;
        }
        pause = interval;
        // A node that is its own cluster has nobody to show that it lives.
        let own = controller.config.node_id;
        if !controller.image().brokers().any(|broker| broker.id != own) {
            continue;
        }
        let record = MetadataRecord::from(NoOpRecord::default());
        if let Err(error) = controller.change(|_| (vec![record], ())).await {
            tracing::warn!(%error, "the idle controller's record could not be written");
        }
    }
}

#[cfg(test)]
#[path = "periodic_tests.rs"]
mod tests;

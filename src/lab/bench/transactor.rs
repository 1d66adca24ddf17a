//! A load producer's way through its transactions: what `Cycle` decides is carried to the
//! coordinator by the client's own transactions.
//!
//! One executor; a task for each step at the coordinator, on connections of the producer's own, so
//! that producers do not wait behind each other's commits. Never holds a borrow while it waits.

use std::cell::Cell;
use std::time::Duration;

use super::batch::Identity;
use super::plan::Plan;
use super::producer::Producer;
use super::topic::client_config;
use super::transaction::{Ending, TransactionPlan};
use crate::client::{ClientError, Cluster, TopicPartition, Transactions};
use crate::rt;

/// For the abort of what a run leaves open.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// See the module's words.
pub(super) struct Transactor {
    pub(super) transactions: Transactions,
    cluster: Cluster,
    /// A step is at the coordinator.
    busy: Cell<bool>,
}

impl Transactor {
    /// # Errors
    /// When no broker can be reached.
    pub(super) async fn connect(
        plan: &Plan,
        transactions: &TransactionPlan,
        number: usize,
    ) -> Result<Transactor, ClientError> {
        let cluster = Cluster::connect(client_config(plan)).await?;
        let id = format!("{}-{number}", transactions.id_prefix);
        Ok(Transactor {
            transactions: Transactions::new(cluster.clone(), &id, transactions.timeout),
            cluster,
            busy: Cell::new(false),
        })
    }

    /// Whether leaders add their partitions themselves.
    pub(super) fn is_implicit(&self) -> bool {
        self.transactions.with(|state| state.is_implicit())
    }
}

impl Producer {
    /// Before the load: takes the transactional id over.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub(super) async fn init_transactions(&self) -> Result<(), ClientError> {
        let Some(transactor) = &self.inner.transactor else {
            return Ok(());
        };
        let deadline = rt::now() + self.inner.context.plan.api_timeout;
        let identity = transactor.transactions.init(deadline).await?;
        self.go_on(transactor, identity.id, identity.epoch);
        Ok(())
    }

    fn go_on(&self, transactor: &Transactor, id: i64, epoch: i16) {
        let mut outgoing = self.inner.outgoing.borrow_mut();
        outgoing.renew(Identity { id, epoch });
        if let Some(cycle) = &mut outgoing.cycle {
            cycle.speak(!transactor.is_implicit());
        }
    }

    /// After records were made and before they are sent: begins, tells and ends.
    pub(super) fn transact(&self, now: u64) {
        let inner = &self.inner;
        let Some(transactor) = &inner.transactor else {
            return;
        };
        let transactions = &transactor.transactions;
        let mut outgoing = inner.outgoing.borrow_mut();
        if let Some(cycle) = &mut outgoing.cycle
            && let Some(due) = cycle.first_due()
            && !transactions.with(|state| state.is_under_way())
        {
            inner.samples.began(due);
            if let Err(error) = transactions.with(|state| state.begin()) {
                inner.samples.trouble(format!("transaction: {error}"));
                return cycle.die();
            }
            transactions.with(|state| state.sending());
        }
        let end = inner.samples.window().to;
        let ending = outgoing.end_transaction(now, end, &inner.samples);
        let Some(cycle) = &outgoing.cycle else {
            return;
        };
        if transactor.busy.get() {
            return;
        }
        let broken = cycle.broken();
        if !cycle.untold().is_empty() && broken.is_none() {
            transactor.busy.set(true);
            drop(rt::spawn(self.clone().tell(cycle.untold().to_vec())));
        } else if let Some(ending) = ending {
            transactor.busy.set(true);
            if let Some(code) = broken {
                let error = ClientError::Broker {
                    what: "a batch".to_owned(),
                    code,
                    message: String::new(),
                };
                transactions.with(|state| state.batch_failed(&error, true));
            }
            drop(rt::spawn(self.clone().end(ending)));
        }
    }

    /// Tells the coordinator of partitions, where leaders do not.
    async fn tell(self, untold: Vec<usize>) {
        let inner = &self.inner;
        let Some(transactor) = &inner.transactor else {
            return;
        };
        let key = |at: &usize| TopicPartition::new(inner.topic.clone(), *at as i32);
        let keys = untold.iter().map(key).collect();
        let deadline = rt::now() + inner.context.plan.delivery_timeout;
        let result = transactor.transactions.add(keys, deadline).await;
        transactor.busy.set(false);
        if let Some(cycle) = &mut inner.outgoing.borrow_mut().cycle {
            cycle.told(untold.len());
            if let Err(error) = result {
                inner.samples.trouble(error.to_string());
                cycle.fail(error.code());
            }
        }
        inner.bell.notify_one();
    }

    /// Commits or aborts.
    async fn end(self, mut ending: Ending) {
        let inner = &self.inner;
        let Some(transactor) = &inner.transactor else {
            return;
        };
        let transactions = &transactor.transactions;
        let deadline = rt::now() + inner.context.plan.delivery_timeout;
        let mut result = Err(ClientError::Closed);
        // What cannot be committed is aborted; what cannot be aborted is the end.
        let ways: &[bool] = match ending.committed {
            true => &[true, false],
            false => &[false],
        };
        for committed in ways.iter().copied() {
            ending.committed = committed;
            result = match transactions.with(|state| state.finish(committed)) {
                Ok(()) => transactions.end(deadline).await,
                Err(error) => Err(error),
            };
            match &result {
                Ok(_) => break,
                Err(error) => inner.samples.trouble(format!("transaction: {error}")),
            }
        }
        transactor.busy.set(false);
        match result {
            Ok(identity) => {
                inner.samples.ended(ending, rt::now().as_nanos());
                if ending.committed {
                    inner.context.acknowledged(ending.measured);
                }
                if let Some(cycle) = &mut inner.outgoing.borrow_mut().cycle {
                    cycle.ended();
                }
                self.go_on(transactor, identity.id, identity.epoch);
            }
            Err(_) => {
                if let Some(cycle) = &mut inner.outgoing.borrow_mut().cycle {
                    cycle.die();
                }
            }
        }
        inner.bell.notify_one();
    }

    /// After the load: what is still open is aborted, or it would hold consumers up until its
    /// time-out.
    pub(super) async fn leave_transactions(&self) {
        let Some(transactor) = &self.inner.transactor else {
            return;
        };
        let transactions = &transactor.transactions;
        if transactions.with(|state| state.is_under_way()) {
            let aborting = async {
                transactions.with(|state| state.finish(false))?;
                transactions.end(rt::now() + LEAVE_LIMIT).await
            };
            let left = rt::timeout(LEAVE_LIMIT, aborting).await;
            if !matches!(left, Ok(Ok(_))) {
                let text = "a transaction was left open when the run ended";
                self.inner.samples.trouble(text.to_owned());
            }
        }
        transactor.cluster.close();
    }
}

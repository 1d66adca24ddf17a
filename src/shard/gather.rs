//! Asks the owners of many partitions at once: one message a shard, answers in the order of the
//! questions. For the APIs that are not on the path of a record. Runs on the connection's shard.

use super::Shard;
use super::mesh::{Gone, LocalFuture, Place};
use crate::replica::partition::Partition;
use crate::rt;
use crate::types::PartitionId;
use crate::wire::ErrorCode;
use std::collections::BTreeMap;
use std::rc::Rc;

impl Shard {
    /// Runs `ask` for each partition on the shard that owns it. A partition that is not there
    /// answers what [`Shard::missing`] says.
    pub async fn ask_owners<T, R, F>(
        self: &Rc<Self>,
        questions: Vec<(PartitionId, T)>,
        ask: F,
    ) -> Vec<Result<R, ErrorCode>>
    where
        T: Send + 'static,
        R: Send + 'static,
        F: Fn(Rc<Shard>, Rc<Partition>, T) -> LocalFuture<Result<R, ErrorCode>>
            + Clone
            + Send
            + 'static,
    {
        let total = questions.len();
        let mut by_owner: BTreeMap<Place, Vec<(usize, PartitionId, T)>> = BTreeMap::new();
        for (slot, (partition, question)) in questions.into_iter().enumerate() {
            by_owner
                .entry(self.owner(partition))
                .or_default()
                .push((slot, partition, question));
        }
        let calls = by_owner.into_iter().map(|(owner, questions)| {
            let ask = ask.clone();
            self.clone().on(
                owner,
                move |shard: Rc<Shard>| -> LocalFuture<Vec<(usize, Result<R, ErrorCode>)>> {
                    Box::pin(async move {
                        let mut answers = Vec::with_capacity(questions.len());
                        for (slot, id, question) in questions {
                            let answer = match shard.partition(id) {
                                Some(partition) => ask(shard.clone(), partition, question).await,
                                None => Err(shard.missing(id)),
                            };
                            answers.push((slot, answer));
                        }
                        answers
                    })
                },
            )
        });
        let mut answers: Vec<Result<R, ErrorCode>> = Vec::with_capacity(total);
        answers.resize_with(total, || Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        for (slot, answer) in rt::join_all(calls).await.into_iter().flatten().flatten() {
            answers[slot] = answer;
        }
        answers
    }

    /// Runs `job` on every shard, this one included; answers in shard order.
    pub async fn ask_all<R, F>(self: &Rc<Self>, job: F) -> Vec<Result<R, Gone>>
    where
        R: Send + 'static,
        F: Fn(Rc<Shard>) -> LocalFuture<R> + Clone + Send + 'static,
    {
        let calls = (0..self.shards()).map(|place| {
            let job = job.clone();
            self.clone().on(place, move |shard| job(shard))
        });
        rt::join_all(calls).await
    }

    /// Runs `job` on shard `place`, here if it is this one.
    pub async fn on<R: Send + 'static>(
        self: Rc<Self>,
        place: Place,
        job: impl FnOnce(Rc<Shard>) -> LocalFuture<R> + Send + 'static,
    ) -> Result<R, Gone> {
        if place == self.place() {
            Ok(job(self.clone()).await)
        } else {
            self.mesh().call_shard(place, job).await
        }
    }
}

//! The topic of a run: looked up, made if the plan says so, deleted afterwards if it says so.

use super::error::BenchError;
use super::plan::Plan;
use crate::client::{
    Admin, ClientConfig, ClientError, Cluster, Isolation, NewTopic, OffsetSpec, TopicPartition,
};
use crate::rt;
use crate::wire::{ErrorCode, Str};

/// The settings of a client that does what is not load.
pub(super) fn client_config(plan: &Plan) -> ClientConfig {
    ClientConfig {
        client_id: "highwater-bench".to_owned(),
        allow_auto_create_topics: false,
        request_timeout: plan.request_timeout,
        api_timeout: plan.api_timeout,
        ..ClientConfig::new(&plan.bootstrap)
    }
}

/// Makes sure that the topic is there, with leaders.
///
/// # Errors
/// [`BenchError::NoTopic`], [`BenchError::OtherTopic`], or the cluster's.
pub(super) async fn prepare(plan: &Plan) -> Result<(), BenchError> {
    let admin = Admin::connect(client_config(plan)).await?;
    let found = |view: &crate::client::ClusterView| {
        view.topic(&plan.topic).map(|topic| topic.partitions.len())
    };
    let mut made = false;
    let partitions = match (found(&*admin.topics().await?), &plan.make_topic) {
        (Some(partitions), _) => partitions,
        (None, None) => return Err(BenchError::NoTopic(plan.topic.clone())),
        (None, Some(wanted)) => {
            let topic = NewTopic {
                configs: wanted.configs.clone(),
                ..NewTopic::new(&plan.topic, wanted.partitions, wanted.replication_factor)
            };
            match admin.create_topic(&topic, false).await {
                Ok(_) => {}
                // A retried request may find its own work.
                Err(ClientError::Broker { code, .. })
                    if code == ErrorCode::TOPIC_ALREADY_EXISTS => {}
                Err(error) => return Err(error.into()),
            }
            made = true;
            wanted.partitions as usize
        }
    };
    if let Some(wanted) = &plan.make_topic
        && wanted.partitions as usize != partitions
    {
        return Err(BenchError::OtherTopic {
            topic: plan.topic.clone(),
            found: partitions,
            wanted: wanted.partitions,
        });
    }
    leaders(admin.cluster(), plan, partitions).await?;
    if made {
        // A broker may be named as leader a moment before it knows: it answers for its logs once
        // it does.
        let topic = Str::from(plan.topic.as_str());
        let wanted: Vec<_> = (0..partitions as i32)
            .map(|at| (TopicPartition::new(topic.clone(), at), OffsetSpec::Latest))
            .collect();
        admin
            .list_offsets(&wanted, Isolation::ReadUncommitted)
            .await?;
    }
    admin.close();
    Ok(())
}

/// Waits until every partition has a leader in this cluster's view.
pub(super) async fn leaders(
    cluster: &Cluster,
    plan: &Plan,
    partitions: usize,
) -> Result<(), BenchError> {
    let topic = Str::from(plan.topic.as_str());
    let deadline = rt::now() + plan.api_timeout;
    cluster
        .with_topics(std::slice::from_ref(&topic), deadline)
        .await?;
    let led = cluster
        .retry_until(deadline, async || {
            let view = cluster.refresh().await?;
            let led = view.topic(&topic).map_or(0, |topic| {
                topic
                    .partitions
                    .iter()
                    .filter(|p| p.leader.is_some())
                    .count()
            });
            if led >= partitions.max(1) {
                return Ok(());
            }
            Err(ClientError::Broker {
                what: format!("topic {topic}: {led} of {partitions} partitions have a leader"),
                code: ErrorCode::LEADER_NOT_AVAILABLE,
                message: String::new(),
            })
        })
        .await;
    Ok(led?)
}

/// Deletes the topic.
///
/// # Errors
/// The cluster's.
pub(super) async fn delete(plan: &Plan) -> Result<(), BenchError> {
    let admin = Admin::connect(client_config(plan)).await?;
    let deleted = admin.delete_topic(&plan.topic).await;
    admin.close();
    Ok(deleted?)
}

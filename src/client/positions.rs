//! Finding where a consumer begins: the group's committed offsets, else `auto.offset.reset`, else
//! what a seek asked for.
//!
//! One executor. Runs beside poll, one at a time, so that short polls do not start it over again;
//! what it finds for a partition that has moved on meanwhile is dropped.

use std::rc::Rc;

use super::assignment::Position;
use super::cluster::Cluster;
use super::config::{Isolation, OffsetReset};
use super::error::ClientError;
use super::fetcher::Fetcher;
use super::group_coordinator::GroupCoordinator;
use super::list_offsets::{ListedOffsets, OffsetSpec, list_offsets};
use super::topic_partition::TopicPartition;
use crate::rt;
use crate::wire::Str;

/// Looks for the positions that are missing, unless that is under way. Rings the fetcher's bell
/// when it has ended; a final failure is the fetcher's.
pub(super) fn find_beside(fetcher: &Rc<Fetcher>, coordinator: Option<Rc<GroupCoordinator>>) {
    if !fetcher.assignment.borrow().lacks_positions() || fetcher.positioning.replace(true) {
        return;
    }
    let fetcher = fetcher.clone();
    drop(rt::spawn(async move {
        if let Err(error) = find(&fetcher, coordinator.as_deref()).await {
            tracing::debug!(%error, "positions not found");
            if error.is_retriable() {
                // Leaders may have moved. If this fails the next attempt does too.
                let _ = fetcher.cluster.refresh().await;
            } else {
                fetcher.fail(error);
            }
            rt::sleep(
                fetcher
                    .config
                    .client
                    .retry_backoff
                    .delay(1, rt::random_u64()),
            )
            .await;
        }
        fetcher.positioning.set(false);
        fetcher.bell.notify_one();
    }));
}

async fn find(
    fetcher: &Fetcher,
    coordinator: Option<&GroupCoordinator>,
) -> Result<(), ClientError> {
    find_committed(fetcher, coordinator).await?;
    let lookups = fetcher.assignment.borrow().lookups();
    if lookups.is_empty() {
        return Ok(());
    }
    let reset = match fetcher.config.offset_reset {
        OffsetReset::Earliest => Some(OffsetSpec::Earliest),
        OffsetReset::Latest => Some(OffsetSpec::Latest),
        OffsetReset::Fail => None,
    };
    let mut wanted = Vec::with_capacity(lookups.len());
    for (key, _, spec) in &lookups {
        let Some(spec) = spec.or(reset) else {
            let text = format!("no committed offset of {key} and auto.offset.reset=none");
            return Err(ClientError::Invalid(text));
        };
        wanted.push((key.clone(), spec));
    }
    let listed = list(&fetcher.cluster, &wanted, fetcher.config.isolation).await?;
    let mut trouble = Ok(());
    let mut assignment = fetcher.assignment.borrow_mut();
    for (key, result) in listed {
        let Some((_, stamp, _)) = lookups.iter().find(|(other, ..)| *other == key) else {
            continue;
        };
        match result {
            Ok(found) => {
                // No record at or after the time that was asked for: the end of the log.
                let to = match found.offset {
                    Some(offset) => Position::At(offset),
                    None => Position::Lookup(Some(OffsetSpec::Latest)),
                };
                assignment.resolve(&key, *stamp, to);
            }
            Err(code) => {
                trouble = Err(ClientError::broker(format!("offset of {key}"), code, ""));
            }
        }
    }
    trouble
}

/// Where the group has committed; the others are to be looked up.
async fn find_committed(
    fetcher: &Fetcher,
    coordinator: Option<&GroupCoordinator>,
) -> Result<(), ClientError> {
    let unknown = fetcher.assignment.borrow().unknown();
    if unknown.is_empty() {
        return Ok(());
    }
    let keys: Vec<TopicPartition> = unknown.iter().map(|(key, _)| key.clone()).collect();
    let committed = match coordinator {
        Some(coordinator) => coordinator.committed(Some(&keys), true).await?,
        None => Vec::new(),
    };
    let mut assignment = fetcher.assignment.borrow_mut();
    for (key, stamp) in unknown {
        let found = committed.iter().find(|(other, _)| *other == key);
        let to = found.map_or(Position::Lookup(None), |(_, found)| {
            Position::At(found.offset)
        });
        assignment.resolve(&key, stamp, to);
    }
    Ok(())
}

/// Asks the leaders, after a refresh if a topic is not known.
pub(super) async fn list(
    cluster: &Cluster,
    wanted: &[(TopicPartition, OffsetSpec)],
    isolation: Isolation,
) -> Result<ListedOffsets, ClientError> {
    let topics: Vec<Str> = wanted.iter().map(|(key, _)| key.topic.clone()).collect();
    let view = cluster.view();
    if topics.iter().any(|topic| view.topic(topic).is_none()) {
        cluster.refresh().await?;
    }
    list_offsets(cluster, wanted, isolation).await
}

//! DescribeLogDirs (key 35, v1-5): the log directories with the sizes of their partitions. Runs
//! on the connection's shard; every shard answers for the partitions it owns.

use super::request::Context;
use crate::log::Log;
use crate::replica::partition::Partition;
use crate::shard::Shard;
use crate::shard::mesh::LocalFuture;
use crate::types::Offset;
use crate::wire::messages::describe_log_dirs_request::DescribeLogDirsRequest;
use crate::wire::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResponse, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use crate::wire::{ErrorCode, Str};
use ahash::AHashSet;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

/// One partition's share, as its shard tells it.
struct Size {
    dir: PathBuf,
    topic: Str,
    partition: i32,
    bytes: u64,
    lag: i64,
    is_future: bool,
}

/// A partition, and the copy by which it is moved to another directory.
fn sizes(shard: &Shard, partition: &Partition) -> Vec<Size> {
    let log = &partition.log;
    let size = |of: &Log, lag: i64, is_future| {
        Some(Size {
            dir: of.dir().parent()?.to_owned(),
            topic: partition.topic.clone(),
            partition: partition.id.index,
            bytes: of.size_bytes(),
            lag: lag.max(0),
            is_future,
        })
    };
    let behind = |ahead: Offset, end: Offset| ahead.0 - end.0;
    // How far the high watermark is ahead of the log end: never, on a leader.
    let lag = behind(partition.bounds().high_watermark, log.log_end());
    let copy = shard.future_of(partition);
    let copy = copy.and_then(|copy| size(&copy, behind(log.log_end(), copy.log_end()), true));
    size(log, lag, false).into_iter().chain(copy).collect()
}

pub async fn handle(
    context: Rc<Context>,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    let answers = context
        .shard
        .ask_all(|shard| -> LocalFuture<Vec<Size>> {
            let partitions = shard.partitions();
            let sizes = partitions
                .iter()
                .flat_map(|partition| sizes(&shard, partition))
                .collect();
            Box::pin(std::future::ready(sizes))
        })
        .await;
    let wanted: Option<AHashSet<(Str, i32)>> = request.topics.map(|topics| {
        topics
            .into_iter()
            .flat_map(|topic| {
                let name = topic.topic;
                topic
                    .partitions
                    .into_iter()
                    .map(move |index| (name.clone(), index))
            })
            .collect()
    });
    let mut by_dir: BTreeMap<PathBuf, BTreeMap<Str, Vec<DescribeLogDirsPartition>>> =
        BTreeMap::new();
    for dir in &context.shard.node.config.log_dirs {
        by_dir.entry(dir.clone()).or_default();
    }
    for size in answers.into_iter().flatten().flatten() {
        if wanted
            .as_ref()
            .is_some_and(|wanted| !wanted.contains(&(size.topic.clone(), size.partition)))
        {
            continue;
        }
        by_dir
            .entry(size.dir)
            .or_default()
            .entry(size.topic)
            .or_default()
            .push(DescribeLogDirsPartition {
                partition_index: size.partition,
                partition_size: size.bytes as i64,
                offset_lag: size.lag,
                is_future_key: size.is_future,
                ..Default::default()
            });
    }
    let mut results = Vec::with_capacity(by_dir.len());
    for (dir, topics) in by_dir {
        if context.shard.logs.failure_of(&dir).is_some() {
            results.push(DescribeLogDirsResult {
                error_code: ErrorCode::KAFKA_STORAGE_ERROR.0,
                log_dir: Str::from(dir.to_string_lossy().into_owned()),
                ..Default::default()
            });
            continue;
        }
        let space = crate::rt::fs::space(&dir).await;
        let topics = topics
            .into_iter()
            .map(|(name, mut partitions)| {
                partitions.sort_by_key(|partition| partition.partition_index);
                DescribeLogDirsTopic {
                    name,
                    partitions,
                    ..Default::default()
                }
            })
            .collect();
        let (error, total, usable) = match space {
            Ok(space) => (ErrorCode::NONE, space.total as i64, space.free as i64),
            Err(_) => (ErrorCode::KAFKA_STORAGE_ERROR, -1, -1),
        };
        results.push(DescribeLogDirsResult {
            error_code: error.0,
            log_dir: Str::from(dir.to_string_lossy().into_owned()),
            topics,
            total_bytes: total,
            usable_bytes: usable,
            ..Default::default()
        });
    }
    DescribeLogDirsResponse {
        results,
        ..Default::default()
    }
}

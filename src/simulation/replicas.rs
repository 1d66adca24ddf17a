//! Replicas held against each other, on the disks of brokers that have stopped in good order: the
//! same bytes up to the high watermark, as KIP-101 has it.

use super::cluster::Cluster;
use crate::wire::batch::Batch;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The log directories there may be.
const DIRS: [&str; 2] = ["/data", "/other"];

/// A replica's batches, by base offset, with the offset after them.
type Batches = BTreeMap<i64, (i64, Bytes)>;

/// Where replicas differ below `high_watermarks` (by broker, topic and partition).
pub(super) fn differences(
    cluster: &Cluster,
    high_watermarks: &BTreeMap<usize, BTreeMap<(String, i32), i64>>,
) -> Vec<String> {
    let mut committed: BTreeMap<&(String, i32), i64> = BTreeMap::new();
    for (key, mark) in high_watermarks.values().flatten() {
        let highest = committed.entry(key).or_insert(*mark);
        *highest = (*highest).max(*mark);
    }
    let mut found = Vec::new();
    for ((topic, partition), end) in committed {
        let key = (topic.clone(), *partition);
        let holders = high_watermarks
            .iter()
            .filter(|(_, marks)| marks.contains_key(&key));
        let mut first: Option<(usize, Batches)> = None;
        for at in holders.map(|(at, _)| *at) {
            let batches = match batches_of(cluster, at, topic, *partition) {
                Ok(batches) => below(batches, end),
                Err(why) => {
                    found.push(format!("broker {at}, {topic}-{partition}: {why}"));
                    continue;
                }
            };
            match &first {
                None => first = Some((at, batches)),
                Some((other, known)) if *known != batches => {
                    let differs = known
                        .iter()
                        .find(|(base, batch)| batches.get(base) != Some(batch));
                    let at_base = differs.map(|(base, _)| *base);
                    let ends = [known, &batches].map(|all| all.values().last().map(|last| last.0));
                    found.push(format!(
                        "{topic}-{partition} differs on brokers {other} and {at} below {end}: \
                         first at {at_base:?}, ends {ends:?}"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    found
}

/// Every broker's batches around an offset, for a person.
pub(super) fn around(cluster: &Cluster, topic: &str, partition: i32, offset: i64) -> Vec<String> {
    let mut told = Vec::new();
    for at in 0..cluster.brokers.len() {
        let Ok(batches) = batches_of(cluster, at, topic, partition) else {
            continue;
        };
        told.push(format!("broker {at}:"));
        for (base, (next, bytes)) in batches.range(offset - 40..=offset + 10) {
            if let Ok((batch, _)) = Batch::parse(bytes) {
                told.push(format!(
                    "  {base}..{next} epoch {:?} producer {} {} sequence {}",
                    batch.partition_leader_epoch(),
                    batch.producer_id(),
                    batch.producer_epoch(),
                    batch.base_sequence()
                ));
            }
        }
    }
    told
}

fn below(batches: Batches, end: i64) -> Batches {
    let below = batches.into_iter().filter(|(base, _)| *base < end);
    below.collect()
}

fn batches_of(
    cluster: &Cluster,
    at: usize,
    topic: &str,
    partition: i32,
) -> Result<Batches, String> {
    let disk = cluster.brokers[at].host.disk();
    let mut dirs = DIRS.map(|dir| format!("{dir}/{topic}-{partition}"));
    dirs.sort_by_key(|dir| disk.list(dir).is_none());
    let [dir, other] = dirs;
    let names = disk.list(&dir).ok_or("there is no directory")?;
    if disk.list(&other).is_some() {
        return Err(format!("it is in {dir} and in {other}"));
    }
    let mut batches = Batches::new();
    for name in names.iter().filter(|name| name.ends_with(".log")) {
        let bytes = disk.read(format!("{dir}/{name}")).unwrap_or_default();
        let mut rest = Bytes::from(bytes);
        while !rest.is_empty() {
            let (batch, tail) = Batch::parse(&rest)
                .map_err(|error| format!("{name}, {} bytes from its end: {error}", rest.len()))?;
            let bytes = rest.slice(..rest.len() - tail.len());
            let next = batch.last_offset().next().0;
            batches.insert(batch.base_offset().0, (next, bytes));
            rest = tail;
        }
    }
    Ok(batches)
}

//! What a row costs: the same load for every row, once as fast as one producer goes and once at a
//! fixed rate, and what the brokers spent on each. Runs on the main thread; the load tool has
//! threads of its own.

use super::cost::flush_rounds;
use super::document::Measured;
use super::matrix::Row;
use super::tidy::wait_until_gone;
use crate::commands::Failure;
use crate::lab::bench::{Arrivals, Load, Plan, Sizes, TopicToMake, run};
use crate::lab::nodes::Nodes;
use crate::lab::result::Run;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const PARTITIONS: i32 = 4;
pub const RECORD_BYTES: usize = 1024;
/// Records a second while latency is taken: below what most rows can do on a small machine, so that
/// what is seen is the row's own way to an acknowledgement. Some cannot, such as those of three
/// Apache Kafka brokers on two cores, or of brokers that flush each request on a slow device: theirs
/// are the latencies of a queue that grows, and the row says so.
const RATE: f64 = 5000.0;
/// Of the time that a row has, this part is for warming up.
const WARM_UP: f64 = 0.1;
/// And this part for the run at saturation; a percentile needs time more than throughput does.
const SATURATED: f64 = 0.3;
/// How long the files of a run's topic may take to go, within the time of the run.
const GONE_LIMIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// What is still under way at the end of a run is waited for so long.
const DRAIN: Duration = Duration::from_secs(5);

/// How many latencies a row has that is sent load for so long.
pub fn paced_samples(a_row: Duration) -> u64 {
    (RATE * a_row.as_secs_f64() * (1.0 - SATURATED) * (1.0 - WARM_UP)) as u64
}

/// What the document says of it.
pub fn load_of(a_row: Duration) -> Value {
    json!({
        "record_bytes": RECORD_BYTES,
        "partitions": PARTITIONS,
        "producers": 1,
        "batch_bytes": Plan::default().batch_bytes,
        "in_flight": Plan::default().in_flight,
        "throughput": "closed loop, as fast as one producer goes",
        "latency": format!("open loop, {RATE} records/s at fixed times"),
        "seconds_per_row": a_row.as_secs_f64(),
        "latencies_per_row": paced_samples(a_row),
    })
}

/// Both runs of a row, in so much time. The brokers' files lie under `data`.
///
/// # Errors
/// The load does not get through; the brokers cannot be asked.
pub fn measure(nodes: &Nodes, data: &Path, row: &Row, time: Duration) -> Result<Measured, Failure> {
    let at_saturation = time.mul_f64(SATURATED);
    let saturated = one(nodes, data, row, "saturated", Load::Closed, at_saturation)?;
    let paced = Load::Open {
        records_per_second: RATE,
        arrivals: Arrivals::Fixed,
    };
    let before = flush_rounds(nodes)?;
    let at_rate = time.mul_f64(1.0 - SATURATED);
    let paced = one(nodes, data, row, "paced", paced, at_rate)?;
    let rounds = flush_rounds(nodes)?.zip(before);
    Ok(Measured {
        saturated,
        paced,
        rate: RATE,
        flush_rounds: rounds.map(|(now, before)| now.saturating_sub(before)),
        warm_up: WARM_UP,
    })
}

/// Sends for so long and forgets it: a Java process is slow until it has compiled what it runs.
///
/// # Errors
/// As of [`measure`].
pub fn warm(nodes: &Nodes, data: &Path, row: &Row, time: Duration) -> Result<(), Failure> {
    one(nodes, data, row, "warm", Load::Closed, time).map(drop)
}

fn one(
    nodes: &Nodes,
    data: &Path,
    row: &Row,
    name: &str,
    load: Load,
    time: Duration,
) -> Result<Run, Failure> {
    let plan = Plan {
        name: Some(name.to_owned()),
        bootstrap: nodes.bootstrap(),
        topic: format!("{name}-{}", row.topic()),
        make_topic: Some(TopicToMake {
            partitions: PARTITIONS,
            replication_factor: row.replication(),
            configs: row.topic_configs(),
        }),
        // What many rows write at saturation fits on no disk.
        delete_topic: true,
        load,
        warm_up: time.mul_f64(WARM_UP),
        duration: time.mul_f64(1.0 - WARM_UP),
        drain: DRAIN,
        acks: row.acks,
        sizes: Sizes::Fixed(RECORD_BYTES),
        broker_pids: nodes.pids(),
        ..Plan::default()
    };
    let mut run = run(&plan)?;
    let limit = time.clamp(GONE_LIMIT.0, GONE_LIMIT.1);
    if !wait_until_gone(data, &plan.topic, limit) {
        run.warnings.push(format!(
            "the files of topic {} were there {} s after its deletion: what is written by the next run may be more than was counted",
            plan.topic,
            limit.as_secs()
        ));
    }
    Ok(run)
}

//! What a row costs: the same load for every row, once as fast as one producer goes and once at a
//! fixed rate, and what the brokers spent on each. Runs on the main thread; the load tool has
//! threads of its own.

use super::cost::flush_rounds;
use super::document::Measured;
use super::matrix::Row;
use crate::commands::Failure;
use crate::lab::bench::{Arrivals, Load, Plan, Sizes, TopicToMake, run};
use crate::lab::nodes::Nodes;
use crate::lab::result::Run;
use serde_json::{Value, json};
use std::time::Duration;

const PARTITIONS: i32 = 4;
pub const RECORD_BYTES: usize = 1024;
/// Records a second while latency is taken: far below what any row can do on a small machine, so
/// that what is seen is the row's own way to an acknowledgement.
const RATE: f64 = 2000.0;
/// Of the time that a row has, this part is for warming up.
const WARM_UP: f64 = 0.15;
/// And this part for the run at saturation; a percentile needs time more than throughput does.
const SATURATED: f64 = 0.35;
/// What is still under way at the end of a run is waited for so long.
const DRAIN: Duration = Duration::from_secs(5);

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
    })
}

/// Both runs of a row, in so much time.
///
/// # Errors
/// The load does not get through; the brokers cannot be asked.
pub fn measure(nodes: &Nodes, row: &Row, time: Duration) -> Result<Measured, Failure> {
    let saturated = one(
        nodes,
        row,
        "saturated",
        Load::Closed,
        time.mul_f64(SATURATED),
    )?;
    let paced = Load::Open {
        records_per_second: RATE,
        arrivals: Arrivals::Fixed,
    };
    let before = flush_rounds(nodes)?;
    let paced = one(nodes, row, "paced", paced, time.mul_f64(1.0 - SATURATED))?;
    let rounds = flush_rounds(nodes)?.zip(before);
    Ok(Measured {
        saturated,
        paced,
        flush_rounds: rounds.map(|(now, before)| now.saturating_sub(before)),
        warm_up: WARM_UP,
    })
}

/// Sends for so long and forgets it: a Java process is slow until it has compiled what it runs.
///
/// # Errors
/// As of [`measure`].
pub fn warm(nodes: &Nodes, row: &Row, time: Duration) -> Result<(), Failure> {
    one(nodes, row, "warm", Load::Closed, time).map(drop)
}

fn one(nodes: &Nodes, row: &Row, name: &str, load: Load, time: Duration) -> Result<Run, Failure> {
    let plan = Plan {
        name: Some(name.to_owned()),
        bootstrap: nodes.bootstrap(),
        topic: format!("{name}-{}", row.topic()),
        make_topic: Some(TopicToMake {
            partitions: PARTITIONS,
            replication_factor: row.replication(),
            configs: row.topic_configs(),
        }),
        // What many rows write at saturation fits on no disk; the next row's warm-up sees its end.
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
    Ok(run(&plan)?)
}

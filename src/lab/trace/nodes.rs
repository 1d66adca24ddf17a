//! The cluster that a record is traced through: three brokers of this binary, one a rack, that tell
//! of every hop.

use super::collect::Hops;
use crate::lab::nodes::{Brand, Nodes, Plan};
use crate::observe::hop::TARGET;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// One a rack; so many replicas has the record.
pub const BROKERS: usize = 3;

/// Starts them; ready when all are. Their hops come to `hops`.
///
/// # Errors
/// One could not be started, or was not ready within `patience`.
pub fn start_nodes(hops: &Hops, patience: Duration) -> io::Result<Nodes> {
    let hops = hops.clone();
    let settings = [
        ("min.insync.replicas", "2"),
        ("highwater.log.format", "json"),
    ];
    let settings = settings.iter();
    Nodes::start(Plan {
        settings: settings
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        environment: vec![("HIGHWATER_LOG".to_owned(), format!("{TARGET}=trace"))],
        log_reader: Some(Arc::new(move |log, rest| hops.read_log(log, rest))),
        patience,
        ..Plan::new(Brand::Highwater, BROKERS)
    })
}

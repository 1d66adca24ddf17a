//! The cluster features this broker supports, and the levels a new cluster begins with. A feature
//! stands here only when what it promises is built. Facts only.

/// One feature with its range of levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    pub name: &'static str,
    pub min: i16,
    pub max: i16,
    /// The level of a new cluster; 0 is "off".
    pub initial: i16,
}

pub const METADATA_VERSION: &str = "metadata.version";

/// metadata.version 7 is 3.3-IV3, the oldest that Kafka 4 supports; 33 is 4.4-IV2. The features
/// that Kafka's formatter turns on beside it (transactions, new groups, share groups, streams
/// groups, eligible leader replicas) are not listed: clients would rely on protocols that are not
/// built here.
pub const SUPPORTED: &[Feature] =
    &[Feature { name: METADATA_VERSION, min: 7, max: 33, initial: 33 }];

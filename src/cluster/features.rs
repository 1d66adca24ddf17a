//! The cluster features this software supports, and the levels a new cluster begins with. A
//! feature stands here only when what it promises is built. Pure.

use super::image::{Image, ResourceType};
use super::record::MetadataRecord;
use crate::config::BrokerConfig;
use crate::wire::Str;
use crate::wire::messages::clear_elr_record::ClearElrRecord;
use crate::wire::messages::config_record::ConfigRecord;
use crate::wire::messages::feature_level_record::FeatureLevelRecord;

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
const MIN_IN_SYNC: &str = "min.insync.replicas";
/// Eligible leader replicas (KIP-966).
pub const ELIGIBLE_LEADER_REPLICAS: &str = "eligible.leader.replicas.version";

/// Epochs for each transaction, and partitions added by producing to them (KIP-890).
pub const TRANSACTION_VERSION: &str = "transaction.version";

/// metadata.version 33 is 4.4-IV2. Below 30 (4.3) metadata records have older versions, which this
/// controller does not write. The other features that Kafka's formatter turns on (new groups, share
/// groups, streams groups) are not listed: clients would rely on protocols that are not built here.
pub const SUPPORTED: &[Feature] = &[
    Feature {
        name: METADATA_VERSION,
        min: 30,
        max: 33,
        initial: 33,
    },
    Feature {
        name: ELIGIBLE_LEADER_REPLICAS,
        min: 0,
        max: 1,
        initial: 1,
    },
    Feature {
        name: TRANSACTION_VERSION,
        min: 0,
        max: 2,
        initial: 2,
    },
];

/// The cluster's metadata has a version that is not written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cluster's metadata.version is {level}; supported are {} to {}", SUPPORTED[0].min, SUPPORTED[0].max)]
pub struct UnsupportedMetadataVersion {
    pub level: i16,
}

/// What a new cluster's log begins with: metadata.version first, as Kafka wants it.
pub fn initial() -> Vec<MetadataRecord> {
    SUPPORTED
        .iter()
        .filter(|feature| feature.initial > 0)
        .map(|feature| level(feature.name, feature.initial))
        .collect()
}

/// What a new cluster's log has besides the records it was formatted with: where eligible leader
/// replicas are kept, all brokers have the same `min.insync.replicas`, set for the cluster.
pub fn activation(formatted: &[MetadataRecord], config: &BrokerConfig) -> Vec<MetadataRecord> {
    let keeps_eligible = formatted.iter().any(|record| match record {
        MetadataRecord::FeatureLevel(feature) => {
            *feature.name == *ELIGIBLE_LEADER_REPLICAS && feature.feature_level > 0
        }
        _ => false,
    });
    let record = || {
        MetadataRecord::from(ConfigRecord {
            resource_type: ResourceType::BROKER.0,
            name: Str::from_static(MIN_IN_SYNC),
            value: config.value(MIN_IN_SYNC).map(Str::from),
            ..Default::default()
        })
    };
    keeps_eligible.then(record).into_iter().collect()
}

/// What must be so before eligible leader replicas are turned on: `min.insync.replicas` is set for
/// the cluster and for no single broker.
pub(super) fn before_eligible(image: &Image, config: &BrokerConfig) -> Vec<MetadataRecord> {
    let change = |name: &str, value: Option<Str>| {
        MetadataRecord::from(ConfigRecord {
            resource_type: ResourceType::BROKER.0,
            resource_name: Str::from(name),
            name: Str::from_static(MIN_IN_SYNC),
            value,
            ..Default::default()
        })
    };
    let is_set = |name: &str| {
        let settings = image.config(ResourceType::BROKER, name);
        settings.is_some_and(|settings| settings.contains_key(MIN_IN_SYNC))
    };
    let mut records = Vec::new();
    if !is_set("") {
        records.push(change("", config.value(MIN_IN_SYNC).map(Str::from)));
    }
    for ((kind, name), _) in image.configs() {
        if *kind == ResourceType::BROKER && !name.is_empty() && is_set(name) {
            records.push(change(name, None));
        }
    }
    records
}

/// The changes that bring the features of a cluster that another controller has left to levels
/// that are supported here. Clients follow the levels: left as they are they would use protocols
/// that are not built.
pub fn lowered(image: &Image) -> Result<Vec<MetadataRecord>, UnsupportedMetadataVersion> {
    let mut records = Vec::new();
    let mut metadata = 0;
    for (name, finalized) in image.finalized_features() {
        let known = SUPPORTED.iter().find(|feature| feature.name == name);
        if name == METADATA_VERSION {
            metadata = finalized;
        } else if known.is_none_or(|feature| finalized > feature.max) {
            let to = known.map_or(0, |feature| feature.max);
            tracing::warn!(
                feature = name,
                from = finalized,
                to,
                "feature lowered: its level is not supported here"
            );
            records.push(level(name, to));
            if name == ELIGIBLE_LEADER_REPLICAS {
                records.push(MetadataRecord::from(ClearElrRecord::default()));
            }
        }
    }
    let supported = SUPPORTED[0];
    match (supported.min..=supported.max).contains(&metadata) {
        true => Ok(records),
        false => Err(UnsupportedMetadataVersion { level: metadata }),
    }
}

pub(super) fn level(name: &str, level: i16) -> MetadataRecord {
    MetadataRecord::from(FeatureLevelRecord {
        name: Str::from(name),
        feature_level: level,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(levels: &[(&str, i16)]) -> Image {
        let mut image = Image::default();
        for (at, (name, finalized)) in levels.iter().enumerate() {
            image.apply(at as i64, &level(name, *finalized)).unwrap();
        }
        image
    }

    #[test]
    fn features_of_kafkas_formatter_are_lowered_so_that_clients_do_not_rely_on_them() {
        let mut left = image(&[
            (METADATA_VERSION, 33),
            (TRANSACTION_VERSION, 2),
            ("group.version", 1),
            (ELIGIBLE_LEADER_REPLICAS, 2),
        ]);
        for (at, record) in lowered(&left).unwrap().iter().enumerate() {
            left.apply(10 + at as i64, record).unwrap();
        }
        assert_eq!(
            left.finalized_features().collect::<Vec<_>>(),
            [
                (ELIGIBLE_LEADER_REPLICAS, 1),
                (METADATA_VERSION, 33),
                (TRANSACTION_VERSION, 2)
            ]
        );
        assert!(lowered(&left).unwrap().is_empty());
    }

    #[test]
    fn metadata_of_another_version_is_refused_instead_of_misread() {
        assert_eq!(
            lowered(&image(&[(METADATA_VERSION, 29)])),
            Err(UnsupportedMetadataVersion { level: 29 })
        );
        assert_eq!(
            lowered(&image(&[(METADATA_VERSION, 34)])),
            Err(UnsupportedMetadataVersion { level: 34 })
        );
        assert!(lowered(&Image::default()).is_err());
        let mut new = Image::default();
        for (at, record) in initial().iter().enumerate() {
            new.apply(at as i64, record).unwrap();
        }
        assert_eq!(lowered(&new), Ok(Vec::new()));
    }
}

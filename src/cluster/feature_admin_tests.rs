//! UpdateFeatures: what may be changed, and what follows.

use super::*;
use crate::cluster::image::ResourceType;
use crate::cluster::test_kit::Model;
use crate::wire::messages::config_record::ConfigRecord;
use crate::wire::messages::register_broker_record::{BrokerFeature, RegisterBrokerRecord};

fn update(feature: &str, level: i16, kind: i8) -> UpdateFeaturesRequest {
    UpdateFeaturesRequest {
        feature_updates: vec![FeatureUpdateKey {
            feature: feature.into(),
            max_version_level: level,
            upgrade_type: kind,
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// One broker that supports what a broker of this software does.
fn model() -> Model {
    let mut model = Model::with_brokers(0);
    let features = SUPPORTED.iter().map(|feature| BrokerFeature {
        name: feature.name.into(),
        min_supported_version: feature.min,
        max_supported_version: feature.max,
        ..Default::default()
    });
    model.apply_one(RegisterBrokerRecord {
        broker_id: 1,
        features: features.collect(),
        ..Default::default()
    });
    model
}

fn ask(model: &mut Model, request: &UpdateFeaturesRequest) -> (i16, String) {
    let (records, response) = decide(&model.image, &model.config, request, 2);
    assert!(response.error_code == 0 || records.is_empty());
    model.apply(&records);
    let why = response.error_message.unwrap_or_default();
    (response.error_code, why.to_string())
}

#[test]
fn what_may_not_be_changed_is_refused_and_changes_nothing() {
    let mut model = model();
    for (feature, level, kind, why) in [
        (
            METADATA_VERSION,
            33,
            0,
            "does not support the given upgrade type",
        ),
        (METADATA_VERSION, -1, 1, "cannot be less than 0"),
        (
            METADATA_VERSION,
            34,
            1,
            "Local controller 1 only supports versions 30-33",
        ),
        (
            "group.version",
            1,
            1,
            "Local controller 1 does not support this feature",
        ),
        (METADATA_VERSION, 32, 1, "without setting the upgrade type"),
        (METADATA_VERSION, 32, 2, "might delete metadata information"),
        (
            METADATA_VERSION,
            30,
            3,
            "Unsafe metadata downgrade is not supported",
        ),
        (
            ELIGIBLE_LEADER_REPLICAS,
            1,
            2,
            "Can't downgrade to a newer version",
        ),
    ] {
        let (error, told) = ask(&mut model, &update(feature, level, kind));
        assert_eq!(error, 95, "{feature} {level}");
        assert!(told.contains(why), "{told}");
    }
    // A broker that does not know the feature at all.
    model.broker(2, true);
    let (error, told) = ask(&mut model, &update(ELIGIBLE_LEADER_REPLICAS, 1, 1));
    assert!(
        error == 95 && told.contains("Broker 2 does not support"),
        "{told}"
    );
    assert_eq!(model.image.feature(METADATA_VERSION), 33);
}

#[test]
fn eligible_leaders_are_turned_on_with_one_least_of_replicas_and_forgotten_with_it() {
    let mut model = model();
    model.apply_one(ConfigRecord {
        resource_type: 4,
        resource_name: "1".into(),
        name: "min.insync.replicas".into(),
        value: Some("2".into()),
        ..Default::default()
    });
    let mut dry = update(ELIGIBLE_LEADER_REPLICAS, 1, 1);
    dry.validate_only = true;
    assert_eq!(ask(&mut model, &dry).0, 0);
    assert_eq!(model.image.feature(ELIGIBLE_LEADER_REPLICAS), 0);
    assert_eq!(
        ask(&mut model, &update(ELIGIBLE_LEADER_REPLICAS, 1, 1)).0,
        0
    );
    assert_eq!(model.image.feature(ELIGIBLE_LEADER_REPLICAS), 1);
    let cluster = model.image.config(ResourceType::BROKER, "").unwrap();
    assert_eq!(
        cluster.get("min.insync.replicas").map(String::as_str),
        Some("1")
    );
    assert!(model.image.config(ResourceType::BROKER, "1").is_none());
    let (records, _) = decide(
        &model.image,
        &model.config,
        &update(ELIGIBLE_LEADER_REPLICAS, 0, 2),
        2,
    );
    assert!(matches!(records.last(), Some(MetadataRecord::ClearElr(_))));
}

#[test]
fn version_0_has_no_upgrade_types_and_tells_each_feature() {
    let mut model = model().with_eligible();
    let mut request = update(ELIGIBLE_LEADER_REPLICAS, 0, 0);
    let (_, told) = decide(&model.image, &model.config, &request, 0);
    assert_eq!(told.error_code, 95);
    request.feature_updates[0].allow_downgrade = true;
    let (records, told) = decide(&model.image, &model.config, &request, 0);
    assert_eq!((told.error_code, told.results.len()), (0, 1));
    model.apply(&records);
    assert_eq!(model.image.feature(ELIGIBLE_LEADER_REPLICAS), 0);
}

//! UpdateFeatures (key 57, v0-2): other levels for the cluster's features. Pure: the image and the
//! request in; records and the answer out.

use super::features::{
    ELIGIBLE_LEADER_REPLICAS, METADATA_VERSION, SUPPORTED, before_eligible, level,
};
use super::image::Image;
use super::record::MetadataRecord;
use super::topic_admin::{Refusal, refuse};
use crate::config::BrokerConfig;
use crate::types::NodeId;
use crate::wire::messages::clear_elr_record::ClearElrRecord;
use crate::wire::messages::update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};
use crate::wire::messages::update_features_response::{
    UpdatableFeatureResult, UpdateFeaturesResponse,
};
use crate::wire::{ErrorCode, Str};

/// FeatureUpdateKey.upgrade_type.
const UPGRADE: i8 = 1;
const SAFE_DOWNGRADE: i8 = 2;
const UNSAFE_DOWNGRADE: i8 = 3;
/// First version with upgrade types; before it a downgrade was allowed or not.
const UPGRADE_TYPE_VERSION: i16 = 1;
/// The last version that tells the outcome of each feature.
const RESULTS_VERSION: i16 = 1;
/// Levels of metadata.version that brought records which older levels do not have.
const METADATA_CHANGES: [i16; 2] = [32, 33];

/// The answer when nothing was changed.
pub(super) fn refused(error: ErrorCode, why: String) -> UpdateFeaturesResponse {
    UpdateFeaturesResponse {
        error_code: error.0,
        error_message: Some(Str::from(why)),
        ..Default::default()
    }
}

pub(super) fn decide(
    image: &Image,
    config: &BrokerConfig,
    request: &UpdateFeaturesRequest,
    version: i16,
) -> (Vec<MetadataRecord>, UpdateFeaturesResponse) {
    let mut records = Vec::new();
    for update in &request.feature_updates {
        match check(image, config, update, version) {
            Ok(()) => records.extend(change(image, config, update)),
            Err((error, why)) => {
                let why = format!(
                    "The update failed for all features since the following feature had an error: {}",
                    why.unwrap_or_default()
                );
                return (Vec::new(), refused(error, why));
            }
        }
    }
    let mut response = UpdateFeaturesResponse::default();
    if version <= RESULTS_VERSION {
        let updates = request.feature_updates.iter();
        response.results = updates
            .map(|update| UpdatableFeatureResult {
                feature: update.feature.clone(),
                ..Default::default()
            })
            .collect();
    }
    if request.validate_only {
        records.clear();
    }
    (records, response)
}

fn change(image: &Image, config: &BrokerConfig, update: &FeatureUpdateKey) -> Vec<MetadataRecord> {
    let mut records = Vec::new();
    let is_eligible = *update.feature == *ELIGIBLE_LEADER_REPLICAS;
    if is_eligible && update.max_version_level > 0 {
        records = before_eligible(image, config);
    }
    records.push(level(&update.feature, update.max_version_level));
    if is_eligible && update.max_version_level == 0 {
        // What nobody keeps up to date any more must not be believed when it is turned on again.
        records.push(MetadataRecord::from(ClearElrRecord::default()));
    }
    records
}

/// Kafka's checks, in its order.
fn check(
    image: &Image,
    config: &BrokerConfig,
    update: &FeatureUpdateKey,
    version: i16,
) -> Result<(), Refusal> {
    let (name, wanted) = (&*update.feature, update.max_version_level);
    let invalid = |why: &str| {
        refuse(
            ErrorCode::INVALID_UPDATE_VERSION,
            format!("Invalid update version {wanted} for feature {name}. {why}"),
        )
    };
    let kind = match (version >= UPGRADE_TYPE_VERSION, update.allow_downgrade) {
        (true, _) => update.upgrade_type,
        (false, true) => SAFE_DOWNGRADE,
        (false, false) => UPGRADE,
    };
    if !(UPGRADE..=UNSAFE_DOWNGRADE).contains(&kind) {
        return invalid("The controller does not support the given upgrade type.");
    }
    if wanted < 0 {
        return invalid("A feature version cannot be less than 0.");
    }
    if let Some(why) = not_supported(image, config, name, wanted) {
        return invalid(&why);
    }
    let current = image.feature(name);
    if wanted < current && kind == UPGRADE {
        return invalid(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
        );
    }
    if wanted > current && kind != UPGRADE {
        return invalid("Can't downgrade to a newer version.");
    }
    let loses = name == METADATA_VERSION
        && METADATA_CHANGES
            .iter()
            .any(|changed| (wanted + 1..=current).contains(changed));
    if loses {
        let why = match kind {
            UNSAFE_DOWNGRADE => "Unsafe metadata downgrade is not supported in this version.",
            _ => {
                "Refusing to perform the requested downgrade because it might delete metadata information."
            }
        };
        return refuse(
            ErrorCode::INVALID_UPDATE_VERSION,
            format!("Unsupported metadata.version downgrade from {current} to {wanted}. {why}"),
        );
    }
    Ok(())
}

/// Who does not support a level, if anybody: this controller, a broker, another controller.
fn not_supported(image: &Image, config: &BrokerConfig, name: &str, wanted: i16) -> Option<String> {
    let lacks = |who: String, range: Option<(i16, i16)>| {
        let (min, max) = range.unwrap_or((0, 0));
        if (min..=max).contains(&wanted) {
            None
        } else if max == 0 {
            Some(format!("{who} does not support this feature."))
        } else {
            Some(format!("{who} only supports versions {min}-{max}"))
        }
    };
    let own = SUPPORTED.iter().find(|feature| feature.name == name);
    let own = own.map(|feature| (feature.min, feature.max));
    lacks(format!("Local controller {}", config.node_id.0), own)
        .or_else(|| {
            image.brokers().find_map(|broker| {
                let known = broker.features.iter().find(|one| one.name == name);
                let range = known.map(|one| (one.min, one.max));
                lacks(format!("Broker {}", broker.id.0), range)
            })
        })
        .or_else(|| {
            let others = image
                .controllers()
                .filter(|other| other.controller_id != config.node_id.0);
            others.into_iter().find_map(|other| {
                let known = other.features.iter().find(|one| *one.name == *name);
                let range = known.map(|one| (one.min_supported_version, one.max_supported_version));
                lacks(format!("Controller {}", other.controller_id), range)
            })
        })
        .or_else(|| {
            let voters = config.quorum.voters.iter().map(|voter| voter.id);
            let mut unknown = voters
                .filter(|id| *id != config.node_id && image.controller(NodeId(id.0)).is_none());
            unknown.next().map(|id| {
                format!(
                    "controller {} has not registered, and may not support this feature",
                    id.0
                )
            })
        })
}

#[cfg(test)]
#[path = "feature_admin_tests.rs"]
mod tests;

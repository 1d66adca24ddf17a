//! Which version of each API a connection speaks.
//!
//! Pure. The answer of ApiVersions, cut down to what is known here.

use crate::wire::messages::api_versions_response::ApiVersionsResponse;

use super::error::ClientError;
use super::exchange::Exchange;

/// The feature that says which protocol transactions follow (KIP-890).
const TRANSACTION_VERSION: &str = "transaction.version";

/// What one broker said of itself and its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// `(key, first, last)` by rising key.
    ranges: Vec<(i16, i16, i16)>,
    /// The cluster's finalized `transaction.version`, 0 where it has none.
    transaction_version: i16,
}

impl Versions {
    pub fn new(answer: &ApiVersionsResponse) -> Versions {
        let mut ranges: Vec<_> = answer
            .api_keys
            .iter()
            .map(|api| (api.api_key, api.min_version, api.max_version))
            .collect();
        ranges.sort_unstable();
        ranges.dedup_by_key(|range| range.0);
        let mut finalized = answer.finalized_features.iter();
        let transactions = finalized.find(|feature| feature.name.as_str() == TRANSACTION_VERSION);
        Versions {
            ranges,
            transaction_version: transactions.map_or(0, |feature| feature.max_version_level),
        }
    }

    /// What the broker speaks of this API.
    pub fn range(&self, key: i16) -> Option<(i16, i16)> {
        let at = self
            .ranges
            .binary_search_by_key(&key, |range| range.0)
            .ok()?;
        Some((self.ranges[at].1, self.ranges[at].2))
    }

    /// The cluster's finalized `transaction.version`.
    pub fn transaction_version(&self) -> i16 {
        self.transaction_version
    }

    /// The last version that both sides speak, within `first..=last`, which is what the caller can
    /// use.
    ///
    /// # Errors
    /// [`ClientError::UnsupportedVersion`] if there is none.
    pub fn choose<R: Exchange>(&self, first: i16, last: i16) -> Result<i16, ClientError> {
        let unsupported = ClientError::UnsupportedVersion { api: R::KEY.name() };
        let Some((theirs_first, theirs_last)) = self.range(R::API_KEY) else {
            return Err(unsupported);
        };
        // Versions behind the stable ones may change in every release.
        let known = R::KEY
            .info()
            .map_or(R::MAX_VERSION, |api| api.max_stable_version);
        let last = last.min(theirs_last).min(known);
        let first = first.max(theirs_first).max(R::MIN_VERSION);
        if first <= last {
            Ok(last)
        } else {
            Err(unsupported)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey};
    use crate::wire::messages::metadata_request::MetadataRequest;

    fn speaks(min_version: i16, max_version: i16) -> Versions {
        let api = ApiVersion {
            api_key: 3,
            min_version,
            max_version,
            ..Default::default()
        };
        Versions::new(&ApiVersionsResponse {
            api_keys: vec![api],
            ..Default::default()
        })
    }

    #[test]
    fn the_finalized_level_of_transactions_is_known() {
        let feature = |name: &str, level| FinalizedFeatureKey {
            name: name.into(),
            max_version_level: level,
            ..Default::default()
        };
        let answer = ApiVersionsResponse {
            finalized_features: vec![
                feature("group.version", 1),
                feature("transaction.version", 2),
            ],
            ..Default::default()
        };
        assert_eq!(Versions::new(&answer).transaction_version(), 2);
        assert_eq!(speaks(0, 1).transaction_version(), 0);
    }

    #[test]
    fn the_last_common_version_is_chosen_and_none_is_invented() {
        let max = i16::MAX;
        assert_eq!(speaks(0, 9).choose::<MetadataRequest>(0, max).ok(), Some(9));
        assert_eq!(
            speaks(0, 99).choose::<MetadataRequest>(0, max).ok(),
            Some(13)
        );
        assert_eq!(speaks(0, 99).choose::<MetadataRequest>(0, 4).ok(), Some(4));
        assert!(speaks(50, 99).choose::<MetadataRequest>(0, max).is_err());
        assert!(speaks(0, 3).choose::<MetadataRequest>(4, max).is_err());
        assert!(speaks(5, 1).choose::<MetadataRequest>(0, max).is_err());
        assert!(
            Versions::default()
                .choose::<MetadataRequest>(0, max)
                .is_err()
        );
    }
}

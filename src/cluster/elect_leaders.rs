//! ElectLeaders (key 43, v0-2): an operator asks for the preferred leaders, or for any. Pure: the
//! image and the request in; records and the answer out.

use super::draft::{Draft, as_registered};
use super::image::Image;
use super::partition_change::Election;
use super::record::MetadataRecord;
use super::topic_admin::{Refusal, refuse};
use crate::config::BrokerConfig;
use crate::types::PartitionId;
use crate::wire::messages::elect_leaders_request::ElectLeadersRequest;
use crate::wire::messages::elect_leaders_response::{
    ElectLeadersResponse, PartitionResult, ReplicaElectionResult,
};
use crate::wire::{ErrorCode, Str};

pub(super) fn decide(
    image: &Image,
    config: &BrokerConfig,
    request: &ElectLeadersRequest,
) -> (Vec<MetadataRecord>, ElectLeadersResponse) {
    let election = match request.election_type {
        0 => Election::Preferred,
        1 => Election::Unclean,
        _ => return (Vec::new(), refused(request, ErrorCode::INVALID_REQUEST)),
    };
    let mut draft = Draft::new(image, config);
    let mut results = Vec::new();
    match &request.topic_partitions {
        // All; those that have the leader they should have are not told.
        None => {
            for topic in image.topics() {
                let indexes: Vec<i32> = topic.partitions().map(|(index, _)| index).collect();
                let mut told = elect_some(&mut draft, &topic.name, &indexes, election);
                told.partition_result
                    .retain(|one| one.error_code != ErrorCode::ELECTION_NOT_NEEDED.0);
                results.push(told);
            }
        }
        Some(asked) => {
            for topic in asked {
                let told = elect_some(&mut draft, &topic.topic, &topic.partitions, election);
                results.push(told);
            }
        }
    }
    let response = ElectLeadersResponse {
        replica_election_results: results,
        ..Default::default()
    };
    (draft.into_records(), response)
}

/// The answer when nothing is decided.
pub(super) fn refused(request: &ElectLeadersRequest, error: ErrorCode) -> ElectLeadersResponse {
    let partition = |index: &i32| told(*index, Err((error, None)));
    let topics = request.topic_partitions.as_deref().unwrap_or_default();
    ElectLeadersResponse {
        error_code: error.0,
        replica_election_results: topics
            .iter()
            .map(|topic| ReplicaElectionResult {
                topic: topic.topic.clone(),
                partition_result: topic.partitions.iter().map(partition).collect(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

fn elect_some(
    draft: &mut Draft<'_>,
    name: &Str,
    indexes: &[i32],
    election: Election,
) -> ReplicaElectionResult {
    let results = indexes
        .iter()
        .map(|index| told(*index, elect(draft, name, *index, election)));
    ReplicaElectionResult {
        topic: name.clone(),
        partition_result: results.collect(),
        ..Default::default()
    }
}

fn told(partition_id: i32, outcome: Result<(), Refusal>) -> PartitionResult {
    let (error, why) = outcome.err().unwrap_or((ErrorCode::NONE, None));
    PartitionResult {
        partition_id,
        error_code: error.0,
        error_message: why.map(Str::from),
        ..Default::default()
    }
}

fn elect(draft: &mut Draft<'_>, name: &str, index: i32, election: Election) -> Result<(), Refusal> {
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    let Some(topic) = draft.image().topic_by_name(name) else {
        return refuse(unknown, format!("No such topic as {name}"));
    };
    let Some(partition) = topic.partition(index) else {
        return refuse(unknown, format!("No such partition as {name}-{index}"));
    };
    let (not_needed, nobody) = match election {
        Election::Preferred => (
            partition.has_preferred_leader(),
            ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE,
        ),
        _ => (
            partition.has_leader(),
            ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ),
    };
    if not_needed {
        let error = ErrorCode::ELECTION_NOT_NEEDED;
        return refuse(error, error.message());
    }
    let id = PartitionId {
        topic: topic.id,
        index,
    };
    let elected = draft.change(id, &as_registered, |change| change.election = election);
    match elected {
        Some(_) => Ok(()),
        None => refuse(nobody, nobody.message()),
    }
}

#[cfg(test)]
#[path = "elect_leaders_tests.rs"]
mod tests;

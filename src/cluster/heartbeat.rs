//! BrokerHeartbeat (key 63, v0-2): fencing and unfencing as a broker asks for it, its way to a
//! controlled shutdown, and its directories. Pure: the image, the sessions and the request in;
//! records and the answer out.

use super::brokers::Broker;
use super::draft::Draft;
use super::fencing;
use super::image::Image;
use super::record::MetadataRecord;
use super::sessions::Sessions;
use crate::config::BrokerConfig;
use crate::rt::Instant;
use crate::types::NodeId;
use crate::wire::ErrorCode;
use crate::wire::messages::broker_heartbeat_request::BrokerHeartbeatRequest;
use crate::wire::messages::broker_heartbeat_response::BrokerHeartbeatResponse;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fenced,
    Unfenced,
    ControlledShutdown,
    ShutdownNow,
}

/// The broker of a request that names its epoch.
pub(super) fn check_epoch(image: &Image, node: NodeId, epoch: i64) -> Result<&Broker, ErrorCode> {
    image
        .broker(node)
        .filter(|broker| broker.epoch.0 == epoch)
        .ok_or(ErrorCode::STALE_BROKER_EPOCH)
}

pub(super) fn refused(error: ErrorCode) -> BrokerHeartbeatResponse {
    BrokerHeartbeatResponse {
        error_code: error.0,
        ..Default::default()
    }
}

/// The outcome: records, the answer, and whether the broker is in its controlled shutdown: once
/// the records are in the log, that offset is what the others must have applied.
pub(super) struct Outcome {
    pub records: Vec<MetadataRecord>,
    pub response: BrokerHeartbeatResponse,
    pub is_stopping: bool,
}

pub(super) fn decide(
    image: &Image,
    config: &BrokerConfig,
    sessions: &mut Sessions,
    now: Instant,
    request: &BrokerHeartbeatRequest,
) -> Outcome {
    let node = NodeId(request.broker_id);
    let broker = match check_epoch(image, node, request.broker_epoch) {
        Ok(broker) => broker,
        Err(error) => {
            return Outcome {
                records: Vec::new(),
                response: refused(error),
                is_stopping: false,
            };
        }
    };
    sessions.heard(broker, request.current_metadata_offset, now);
    let current = match (broker.fenced, sessions.stopping_since(broker)) {
        (true, _) => State::Fenced,
        (false, Some(_)) => State::ControlledShutdown,
        (false, None) => State::Unfenced,
    };
    let is_caught_up = request.current_metadata_offset >= broker.registered_at;
    let next = next_state(image, sessions, broker, current, is_caught_up, request);
    let mut draft = Draft::new(image, config);
    if next != current {
        match next {
            State::Fenced | State::ShutdownNow => fencing::fence(&mut draft, node),
            State::Unfenced => fencing::unfence(&mut draft, node),
            State::ControlledShutdown => fencing::shut_down(&mut draft, node),
        }
    }
    match next {
        State::Fenced => sessions.fenced(node),
        // Its life ends with this answer: the next one may register at once.
        State::ShutdownNow => sessions.forget(node),
        State::Unfenced | State::ControlledShutdown => {}
    }
    fencing::lose_directories(&mut draft, node, &request.offline_log_dirs);
    fencing::cordon(&mut draft, node, request.cordoned_log_dirs.as_deref());
    Outcome {
        records: draft.into_records(),
        response: BrokerHeartbeatResponse {
            is_caught_up,
            is_fenced: matches!(next, State::Fenced | State::ShutdownNow),
            should_shut_down: next == State::ShutdownNow,
            ..Default::default()
        },
        is_stopping: next == State::ControlledShutdown,
    }
}

fn next_state(
    image: &Image,
    sessions: &Sessions,
    broker: &Broker,
    current: State,
    is_caught_up: bool,
    request: &BrokerHeartbeatRequest,
) -> State {
    let leads = || {
        image
            .topics()
            .flat_map(|topic| topic.partitions())
            .any(|(_, partition)| partition.leader == broker.id)
    };
    match current {
        State::Fenced if request.want_shut_down => State::ShutdownNow,
        State::Fenced if !request.want_fence && is_caught_up => State::Unfenced,
        State::Fenced => State::Fenced,
        State::Unfenced if request.want_fence && request.want_shut_down => State::ShutdownNow,
        State::Unfenced if request.want_fence => State::Fenced,
        State::Unfenced if request.want_shut_down && leads() => State::ControlledShutdown,
        State::Unfenced if request.want_shut_down => State::ShutdownNow,
        State::Unfenced => State::Unfenced,
        State::ControlledShutdown | State::ShutdownNow => {
            let left = sessions.stopping_since(broker).unwrap_or(i64::MAX);
            if leads() || left > sessions.applied_by_all(image) {
                State::ControlledShutdown
            } else {
                State::ShutdownNow
            }
        }
    }
}

#[cfg(test)]
#[path = "heartbeat_tests.rs"]
mod tests;

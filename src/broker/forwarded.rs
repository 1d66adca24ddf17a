//! What the active controller alone answers: this broker sends it on as it came (KIP-590), waits
//! until its shards have what it changed, and passes the answer back. ElectLeaders (key 43),
//! AlterPartitionReassignments (45), ListPartitionReassignments (46), AlterClientQuotas (49),
//! DescribeQuorum (55), UpdateFeatures (57),
//! UnregisterBroker (64), UnregisterController (94). Runs on the connection's shard.

use super::request::Context;
use super::topics::forward;
use crate::client::Exchange;
use crate::cluster::client_quotas;
use crate::wire::messages::alter_client_quotas_request::AlterClientQuotasRequest;
use crate::wire::messages::alter_client_quotas_response::AlterClientQuotasResponse;
use crate::wire::messages::alter_partition_reassignments_request::AlterPartitionReassignmentsRequest;
use crate::wire::messages::alter_partition_reassignments_response::AlterPartitionReassignmentsResponse;
use crate::wire::messages::describe_quorum_request::DescribeQuorumRequest;
use crate::wire::messages::describe_quorum_response::DescribeQuorumResponse;
use crate::wire::messages::elect_leaders_request::ElectLeadersRequest;
use crate::wire::messages::elect_leaders_response::ElectLeadersResponse;
use crate::wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsRequest;
use crate::wire::messages::list_partition_reassignments_response::ListPartitionReassignmentsResponse;
use crate::wire::messages::unregister_broker_request::UnregisterBrokerRequest;
use crate::wire::messages::unregister_broker_response::UnregisterBrokerResponse;
use crate::wire::messages::unregister_controller_request::UnregisterControllerRequest;
use crate::wire::messages::unregister_controller_response::UnregisterControllerResponse;
use crate::wire::messages::update_features_request::UpdateFeaturesRequest;
use crate::wire::messages::update_features_response::UpdateFeaturesResponse;
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;
use std::time::Duration;

/// How long an answer may take, where the request does not say.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A request that is sent on whole.
pub trait Forwarded: Exchange {
    /// How long its sender waits.
    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    /// The answer when there is none from a controller.
    fn refused(&self, error: ErrorCode) -> Self::Response;
}

pub async fn handle<Q: Forwarded>(context: Rc<Context>, request: Q) -> Q::Response {
    let answered = forward(&context, context.version, &request, request.timeout()).await;
    answered.unwrap_or_else(|error| request.refused(error))
}

macro_rules! forwarded {
    ($($request:ident => $response:ident $(waits $timeout:ident)?,)*) => {$(
        impl Forwarded for $request {
            $(fn timeout(&self) -> Duration {
                Duration::from_millis(self.$timeout.max(0) as u64)
            })?

            fn refused(&self, error: ErrorCode) -> $response {
                $response {
                    error_code: error.0,
                    error_message: Some(Str::from_static(error.message())),
                    ..Default::default()
                }
            }
        }
    )*};
}

forwarded! {
    AlterPartitionReassignmentsRequest => AlterPartitionReassignmentsResponse waits timeout_ms,
    ListPartitionReassignmentsRequest => ListPartitionReassignmentsResponse waits timeout_ms,
    DescribeQuorumRequest => DescribeQuorumResponse,
    UnregisterBrokerRequest => UnregisterBrokerResponse,
    UnregisterControllerRequest => UnregisterControllerResponse,
    UpdateFeaturesRequest => UpdateFeaturesResponse waits timeout_ms,
}

impl Forwarded for AlterClientQuotasRequest {
    fn refused(&self, error: ErrorCode) -> AlterClientQuotasResponse {
        client_quotas::all_refused(self, error)
    }
}

impl Forwarded for ElectLeadersRequest {
    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.max(0) as u64)
    }

    fn refused(&self, error: ErrorCode) -> ElectLeadersResponse {
        ElectLeadersResponse {
            error_code: error.0,
            ..Default::default()
        }
    }
}

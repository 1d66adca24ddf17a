//! Partitions: AlterPartition (key 56, v2-3), AssignReplicasToDirs (73, v0), ElectLeaders (43,
//! v0-2), AlterPartitionReassignments (45, v0-1), ListPartitionReassignments (46, v0).

use crate::cluster::controller::Controller;
use crate::cluster::{alter_partition, dir_assignment, elect_leaders, reassignment};
use crate::wire::messages::alter_partition_reassignments_request::AlterPartitionReassignmentsRequest;
use crate::wire::messages::alter_partition_reassignments_response::AlterPartitionReassignmentsResponse;
use crate::wire::messages::alter_partition_request::AlterPartitionRequest;
use crate::wire::messages::alter_partition_response::AlterPartitionResponse;
use crate::wire::messages::assign_replicas_to_dirs_request::AssignReplicasToDirsRequest;
use crate::wire::messages::assign_replicas_to_dirs_response::AssignReplicasToDirsResponse;
use crate::wire::messages::elect_leaders_request::ElectLeadersRequest;
use crate::wire::messages::elect_leaders_response::ElectLeadersResponse;
use crate::wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsRequest;
use crate::wire::messages::list_partition_reassignments_response::ListPartitionReassignmentsResponse;
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

pub async fn alter(
    controller: &Rc<Controller>,
    version: i16,
    request: AlterPartitionRequest,
) -> AlterPartitionResponse {
    let decided = controller
        .change(|image| alter_partition::decide(image, &controller.config, &request, version));
    decided
        .await
        .unwrap_or_else(|error| alter_partition::refused(super::unavailable(&error)))
}

pub async fn assign_to_dirs(
    controller: &Rc<Controller>,
    request: AssignReplicasToDirsRequest,
) -> AssignReplicasToDirsResponse {
    let decided =
        controller.change(|image| dir_assignment::decide(image, &controller.config, &request));
    decided
        .await
        .unwrap_or_else(|error| dir_assignment::refused(super::unavailable(&error)))
}

pub async fn elect(
    controller: &Rc<Controller>,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse {
    let decided =
        controller.change(|image| elect_leaders::decide(image, &controller.config, &request));
    decided
        .await
        .unwrap_or_else(|error| elect_leaders::refused(&request, super::unavailable(&error)))
}

pub async fn reassign(
    controller: &Rc<Controller>,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let decided =
        controller.change(|image| reassignment::decide(image, &controller.config, &request));
    decided.await.unwrap_or_else(|error| {
        let error = super::unavailable(&error);
        AlterPartitionReassignmentsResponse {
            error_code: error.0,
            error_message: Some(Str::from_static(error.message())),
            ..Default::default()
        }
    })
}

pub fn list_reassignments(
    controller: &Controller,
    request: &ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    if !controller.is_active() {
        let error = ErrorCode::NOT_CONTROLLER;
        return ListPartitionReassignmentsResponse {
            error_code: error.0,
            error_message: Some(Str::from_static(error.message())),
            ..Default::default()
        };
    }
    reassignment::list(&controller.image(), request)
}

//! What leaders ask of the active controller: AlterPartition (key 56, v2-3).

use crate::cluster::alter_partition;
use crate::cluster::controller::Controller;
use crate::wire::messages::alter_partition_request::AlterPartitionRequest;
use crate::wire::messages::alter_partition_response::AlterPartitionResponse;
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

//! AllocateProducerIds (key 67, v0): a block of producer ids for a broker.

use crate::cluster::controller::{Controller, PRODUCER_ID_BLOCK};
use crate::cluster::record::MetadataRecord;
use crate::types::NodeId;
use crate::wire::ErrorCode;
use crate::wire::messages::allocate_producer_ids_request::AllocateProducerIdsRequest;
use crate::wire::messages::allocate_producer_ids_response::AllocateProducerIdsResponse;
use crate::wire::messages::producer_ids_record::ProducerIdsRecord;
use std::rc::Rc;

pub async fn allocate(
    controller: &Rc<Controller>,
    request: AllocateProducerIdsRequest,
) -> AllocateProducerIdsResponse {
    let refused = |error: ErrorCode| AllocateProducerIdsResponse {
        error_code: error.0,
        producer_id_start: -1,
        ..Default::default()
    };
    let decided = controller.change(|image| {
        match image.broker(NodeId(request.broker_id)) {
            None => return (Vec::new(), refused(ErrorCode::BROKER_ID_NOT_REGISTERED)),
            Some(broker) if broker.epoch.0 != request.broker_epoch => {
                return (Vec::new(), refused(ErrorCode::STALE_BROKER_EPOCH));
            }
            Some(_) => {}
        }
        let first = image.next_producer_id();
        let record = ProducerIdsRecord {
            broker_id: request.broker_id,
            broker_epoch: request.broker_epoch,
            next_producer_id: first + PRODUCER_ID_BLOCK,
            ..Default::default()
        };
        let answer = AllocateProducerIdsResponse {
            producer_id_start: first,
            producer_id_len: PRODUCER_ID_BLOCK as i32,
            ..Default::default()
        };
        (vec![MetadataRecord::from(record)], answer)
    });
    decided.await.unwrap_or_else(|error| {
        tracing::error!(%error, "metadata could not be changed");
        refused(ErrorCode::NOT_CONTROLLER)
    })
}

//! WriteTxnMarkers (key 27, v1-2): the coordinator of transactions on another broker ends them in
//! the partitions that this broker leads. Runs on the connection's shard; the markers are written
//! on the owners of the partitions, see [`crate::shard::markers`].

use super::request::Context;
use crate::wire::messages::write_txn_markers_request::WriteTxnMarkersRequest;
use crate::wire::messages::write_txn_markers_response::WriteTxnMarkersResponse;
use std::rc::Rc;

pub async fn handle(
    context: Rc<Context>,
    request: WriteTxnMarkersRequest,
) -> WriteTxnMarkersResponse {
    context.parked();
    context.shard.write_txn_markers(request).await
}

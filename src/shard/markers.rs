//! stub until the merge
use super::Shard;
use crate::wire::messages::write_txn_markers_request::WriteTxnMarkersRequest;
use crate::wire::messages::write_txn_markers_response::WriteTxnMarkersResponse;
use std::rc::Rc;
impl Shard {
    pub async fn write_txn_markers(
        self: &Rc<Self>,
        _: WriteTxnMarkersRequest,
    ) -> WriteTxnMarkersResponse {
        WriteTxnMarkersResponse::default()
    }
}

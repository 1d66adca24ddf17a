//! DescribeClientQuotas (key 48, v0-1): what the metadata says. Runs on the connection's shard.
//! Changes go to the controller, see [`super::forwarded`].

use super::request::Context;
use crate::cluster::client_quotas;
use crate::wire::messages::describe_client_quotas_request::DescribeClientQuotasRequest;
use crate::wire::messages::describe_client_quotas_response::DescribeClientQuotasResponse;
use std::rc::Rc;

pub async fn describe(
    context: Rc<Context>,
    request: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    client_quotas::describe(&context.shard.image(), &request)
}

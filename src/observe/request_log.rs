//! Kafka's request log: one "Completed request:" line of JSON for each answered request, with
//! Kafka's keys in Kafka's order (KAFKA: `kafka.request.logger`). Record contents never appear.
//! Written on the connection's shard after the answer has left; costs one flag test when off.

use crate::broker::{Context, Logged, ms_between};
use crate::rt::Instant;
use serde_json::{Value, json};

/// The target its lines carry, as Kafka names the logger.
pub const TARGET: &str = "kafka.request.logger";

/// Writes the line. `dequeued` is when the write of the answer began, `sent` when it ended.
pub fn write(context: &Context, logged: &Logged, dequeued: Instant, sent: Instant) {
    let line = describe(context, logged, dequeued, sent);
    tracing::debug!(target: TARGET, "Completed request:{line}");
}

fn describe(context: &Context, logged: &Logged, dequeued: Instant, sent: Instant) -> Value {
    let timeline = &context.timeline;
    let (local_ms, remote_ms) = timeline.local_and_remote_ms();
    let software = context.peer.software();
    let listener = &*context.peer.listener;
    json!({
        "isForwarded": false,
        "requestHeader": {
            "requestApiKey": context.key.0,
            "requestApiVersion": context.version,
            "correlationId": context.correlation_id,
            "clientId": &*context.client_id,
            "requestApiKeyName": context.key.name(),
        },
        "request": logged.request,
        "response": logged.response,
        "connection": format!(
            "{}-{}-{}-{}",
            context.peer.local, context.peer.remote, context.shard.place(), context.peer.connection
        ),
        "totalTimeMs": ms_between(timeline.received, sent),
        "requestQueueTimeMs": ms_between(timeline.received, timeline.started),
        "localTimeMs": local_ms,
        "remoteTimeMs": remote_ms,
        "throttleTimeMs": 0,
        "responseQueueTimeMs": ms_between(timeline.completed(), dequeued),
        "sendTimeMs": ms_between(dequeued, sent),
        "securityProtocol": "PLAINTEXT",
        "principal": "User:ANONYMOUS",
        "listener": listener,
        "clientInformation": {
            "softwareName": software.name,
            "softwareVersion": software.version,
        },
    })
}

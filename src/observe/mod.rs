//! What the broker tells about itself: logs, the request log, metrics. Never decides anything.

pub mod cleaner_metrics;
pub mod endpoint;
pub mod hop;
pub mod log_metrics;
pub mod logging;
pub mod metrics;
pub mod replica_metrics;
pub mod request_log;
pub mod transaction_metrics;

//! Sets `tracing` up for a process: text or JSON lines on standard error, levels by target.

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// Starts logging. `level` is for everything, the environment's `HIGHWATER_LOG` may add targets
/// (`target=level,...`); the request log has its own switch because it is a product of its own.
pub fn start(format: Format, level: Level, request_log: bool) {
    let mut targets = Targets::new()
        .with_default(level)
        .with_target(crate::rt::LOG_TARGET, Level::WARN);
    let extra = std::env::var("HIGHWATER_LOG").unwrap_or_default();
    match extra.parse::<Targets>() {
        Ok(more) => {
            targets =
                targets.with_targets(more.iter().map(|(name, level)| (name.to_owned(), level)))
        }
        Err(error) => eprintln!("HIGHWATER_LOG is ignored: {error}"),
    }
    let request_level = if request_log {
        Some(Level::DEBUG)
    } else {
        None
    };
    targets = match request_level {
        Some(level) => targets.with_target(super::request_log::TARGET, level),
        None => targets.with_target(
            super::request_log::TARGET,
            tracing::level_filters::LevelFilter::OFF,
        ),
    };
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        Format::Text => lines.with_ansi(false).boxed(),
        Format::Json => lines.json().boxed(),
    };
    // A second call (several brokers in one test process) keeps the first set-up.
    let _ = tracing_subscriber::registry()
        .with(lines.with_filter(targets))
        .try_init();
}

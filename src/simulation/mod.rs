//! Whole brokers in simulated worlds, with real producers, readers and groups, while processes die,
//! power goes, disks fail and networks cut; and a checker that knows what was promised.
//!
//! A world is a function of its seed. `HIGHWATER_SEED=n` runs one, `HIGHWATER_SEEDS=n` as many:
//! `HIGHWATER_SEEDS=1000 cargo test --release --lib simulation -- --nocapture`.
//!
//! `HIGHWATER_LOG=highwater=info` shows what the nodes log, with virtual time.
//!
//! * [`cluster`] brokers and their lives; [`probes`] what is true inside of them at every step;
//! * [`load`] the clients; [`ledger`] what they know, and the judgement;
//! * [`replicas`] what lies on the disks in the end;
//! * [`nemesis`] what goes wrong; [`history`] one world from its seed to its verdict.

mod cluster;
mod history;
mod ledger;
mod load;
mod nemesis;
mod probes;
mod replicas;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Log lines of simulated nodes say where and at which virtual time they were written.
struct Whereabouts;

impl FormatTime for Whereabouts {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        let here = crate::rt::sim::whereabouts();
        w.write_str(here.as_deref().unwrap_or("outside"))
    }
}

/// `HIGHWATER_LOG=target=level,…` shows what the nodes of a world log.
fn show_logs() {
    let Some(targets) = std::env::var("HIGHWATER_LOG").ok() else {
        return;
    };
    let targets: Targets = targets.parse().expect("HIGHWATER_LOG");
    let lines = tracing_subscriber::fmt::layer()
        .with_timer(Whereabouts)
        .with_ansi(false)
        .with_filter(targets);
    // Another test may have done it already.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

/// The seeds of a random test, each printed before it runs: `HIGHWATER_SEEDS` of them (or `count`;
/// one with `HIGHWATER_SEED`), from `HIGHWATER_SEED` (or a random one) on.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    show_logs();
    let of = |name| std::env::var(name).ok().and_then(|s| s.parse().ok());
    let given: Option<u64> = of("HIGHWATER_SEED");
    let first = given.unwrap_or_else(|| fastrand::u64(..));
    let count = of("HIGHWATER_SEEDS").unwrap_or(given.map_or(count, |_| 1));
    (0..count).map(move |at| {
        let seed = first.wrapping_add(at);
        println!("HIGHWATER_SEED={seed}");
        seed
    })
}

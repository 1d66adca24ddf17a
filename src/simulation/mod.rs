//! Whole brokers in simulated worlds, with real producers, readers and groups, while processes die,
//! power goes, disks fail and networks cut; and a checker that knows what was promised.
//!
//! A world is a function of its seed. `HIGHWATER_SEED=n` runs one, `HIGHWATER_SEEDS=n` as many:
//! `HIGHWATER_SEED=random HIGHWATER_SEEDS=1000 cargo test --lib simulation -- --nocapture`.
//!
//! `HIGHWATER_LOG=highwater=info` shows what the nodes log, with virtual time.
//!
//! * [`cluster`] brokers and their lives; [`probes`] what is true inside of them at every step;
//!   [`committed`] what lies on their disks while they run;
//! * [`load`] the clients; [`transfers`] those with transactions; [`hosts`] where they live; [`ledger`] what they know, and the judgement;
//! * [`replicas`] what lies on the disks in the end;
//! * [`nemesis`] what goes wrong; [`history`] one world from its seed to its verdict;
//! * [`participants`] leaders of partitions in transactions, each story by itself.
//!
//! What must hold, and where it is checked:
//!
//! | invariant | when | where |
//! |---|---|---|
//! | log start ≤ last stable ≤ high watermark ≤ log end | every eighth step | [`probes`] |
//! | a leader's high watermark and a replica's leader epoch do not go back | every eighth step | [`probes`] |
//! | one leader for each epoch | every eighth step | [`probes`] |
//! | replicas are the same below the high watermark, and what was committed stays | every 250 ms of a world, from the disks of running brokers; in the end between all of them | [`committed`], [`replicas`] |
//! | acknowledged with acks=all, or given to a consumer: below a high watermark | at each record | [`load`] |
//! | nothing acknowledged or seen is lost, doubled, reordered or invented beyond what the row allows | at each record and in the end | [`ledger`] |
//! | committed offsets of a group do not go back | after each rebalance and in the end | [`ledger`] |
//! | a transaction is all or nothing, over partitions and a group's offsets; nothing of it shows before its commit is asked for; none is left open | at each record and in the end | [`transfers`] |
//! | a producer hears of each record once | when it ends | [`load`] |
//! | an answer is that of the oldest request without one | at each answer | `client::connection`, [`history`] |
//! | requests that wait do not pile up; with the clients gone none is left | every eighth step; in the end | [`probes`], [`history`] |
//! | replicas come back into the in-sync set, brokers serve and stop | in the end | [`history`] |
//!
//! Most steps touch no partition, which is why not each is looked at. Offsets of groups are compared
//! by what their members are told, not inside the coordinators.

mod cluster;
mod committed;
mod history;
mod hosts;
mod ledger;
mod load;
mod nemesis;
mod participants;
mod probes;
mod replicas;
mod transfers;

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

/// Where seeds begin unless a run says otherwise: the same every time, so that a change is judged by
/// itself. Looking for what nobody has seen yet is a run of its own, with `HIGHWATER_SEED=random`.
const FIRST_SEED: u64 = 1000;

/// The seeds of a random test, each printed before it runs, from `HIGHWATER_SEED` on, which may be
/// `random`: `count` of them, or one with `HIGHWATER_SEED=n`; `HIGHWATER_SEEDS=n` says how many, and
/// `HIGHWATER_SEEDS=x10` ten times as many as usual.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    show_logs();
    let from = std::env::var("HIGHWATER_SEED").ok();
    let given: Option<u64> = from.as_deref().and_then(|from| from.parse().ok());
    let first = match from.as_deref() {
        Some("random") => fastrand::u64(..),
        _ => given.unwrap_or(FIRST_SEED),
    };
    let wanted = std::env::var("HIGHWATER_SEEDS").ok();
    let usual = given.map_or(count, |_| 1);
    let count = match wanted.as_deref() {
        Some(wanted) => match wanted.strip_prefix('x') {
            Some(times) => usual * times.parse::<u64>().expect("HIGHWATER_SEEDS"),
            None => wanted.parse().expect("HIGHWATER_SEEDS"),
        },
        None => usual,
    };
    (0..count).map(move |at| {
        let seed = first.wrapping_add(at);
        println!("HIGHWATER_SEED={seed}");
        seed
    })
}

//! One world from its seed to its verdict.

use super::cluster::{Cluster, Setup};
use super::hosts::{Host, at_once};
use super::ledger::{Counts, Ledger, Promise};
use super::load::{self, Load, Row, Topic};
use super::nemesis::{self, Nemesis, Trouble};
use super::transfers::{self, Transfers};
use super::{replicas, seeds};
use crate::client::connection::MISPLACED;
use crate::cluster::OFFSETS_TOPIC;
use crate::replica::mutation::{self, Mutation};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

/// Anything fetched before is with its client after this long: a request's time-out and a poll.
const SETTLED_AFTER: Duration = Duration::from_secs(12);
/// How long the clients may need to end in a world that is whole: a delivery's and a call's
/// time-outs.
const END_LIMIT: Duration = Duration::from_secs(90);
/// A follower's fetch of a few partitions is smaller.
const REQUEST_BYTES_MAX: u64 = 4096;

/// What a world is made of.
struct Plan {
    setup: Setup,
    topics: Vec<Topic>,
    promises: Vec<(String, Promise)>,
    rows: Vec<Row>,
    /// So many producers send in transactions.
    transfers: u32,
    /// In the protocol of before KIP-890.
    older_transactions: bool,
    troubles: &'static [Trouble],
    strikes: u64,
    /// Partitions move to other brokers all the time.
    shuffles: bool,
    /// Or, of one broker, between these of its log directories.
    dirs: &'static [&'static str],
    /// Producers wait so many microseconds at most between sends.
    pause_us: u64,
}

/// What came of a world.
struct Outcome {
    counts: Counts,
    /// Committed and aborted, as their producers were told.
    transactions: (u64, u64),
    troubles: BTreeMap<Trouble, u64>,
    violations: Vec<String>,
    trace: u64,
    steps: u64,
    elapsed: Duration,
    /// Batches that were held against another replica's while the brokers ran.
    compared: u64,
    /// The most requests that waited on a shard.
    waiting_max: usize,
}

fn live(seed: u64, plan: &Plan) -> Outcome {
    live_in(Cluster::new(seed, &plan.setup), plan)
}

fn live_in(cluster: Cluster, plan: &Plan) -> Outcome {
    let world = &cluster.world;
    let load = Rc::new(Load {
        servers: cluster.bootstrap_servers(),
        topics: plan.topics.clone(),
        ledger: Ledger::new(plan.promises.iter().cloned()),
        probes: cluster.probes.clone(),
        pause_us: plan.pause_us,
        ending: Cell::new(false),
        running: Cell::new(0),
        lives: Cell::new(0),
        transfers: Transfers::default(),
        transfer_producers: plan.transfers,
    });
    cluster.format();
    cluster.start_all();
    cluster.serve();
    at_once(world, "admin", &load, END_LIMIT, load::make_topics);
    if plan.older_transactions {
        let change = transfers::use_older_protocol;
        at_once(world, "feature-admin", &load, END_LIMIT, change);
    }
    let mut clients = Vec::new();
    for (id, row) in plan.rows.iter().copied().enumerate() {
        let client = move |load| load::produce(load, id as u32, row);
        let name = format!("producer-{id}");
        clients.push(Host::start(world, &name, &load, client));
    }
    let reader = |load| load::read(load, 1);
    clients.push(Host::start(world, "reader-1", &load, reader));
    for id in 0..2 {
        let client = move |load| load::belong(load, id, "workers");
        let name = format!("member-{id}");
        clients.push(Host::start(world, &name, &load, client));
    }
    for id in 0..plan.transfers {
        let client = move |load| transfers::transfer(load, id);
        let name = format!("transfer-{id}");
        clients.push(Host::start(world, &name, &load, client));
    }
    if plan.transfers > 0 {
        clients.push(Host::start(
            world,
            "transfer-reader",
            &load,
            transfers::read,
        ));
    }
    let brokers = plan.setup.brokers as i32;
    if plan.shuffles {
        let mover = move |load| load::shuffle(load, brokers);
        clients.push(Host::start(world, "mover", &load, mover));
    }
    if !plan.dirs.is_empty() {
        let dirs = plan.dirs;
        let mover = move |load| load::move_about(load, dirs);
        clients.push(Host::start(world, "dir-mover", &load, mover));
    }
    let nodes = plan.setup.brokers + 1 + clients.len();
    let mut nemesis = Nemesis {
        cluster: &cluster,
        ledger: &load.ledger,
        clients,
        lag: plan.setup.lag,
        done: BTreeMap::new(),
        drift: BTreeMap::new(),
    };
    let mut last_loss = world.elapsed();
    let mut losses = 0;
    let pass = |longest_ms: u64| {
        world.run_for(Duration::from_millis(50 + world.random_below(longest_ms)));
    };
    pass(3000);
    for _ in 0..plan.strikes {
        nemesis.strike(plan.troubles, nodes);
        pass(2500);
        nemesis.relent();
        pass(2500);
        if load.ledger.losses() != losses {
            losses = load.ledger.losses();
            last_loss = world.elapsed();
        } else if world.elapsed() - last_loss > SETTLED_AFTER {
            load.ledger.settle();
        }
    }
    nemesis.heal();
    cluster.serve();
    pass(3000);
    load.ending.set(true);
    let ended = world.run_until(END_LIMIT, || load.running.get() == 0);
    assert!(ended, "{} clients do not end", load.running.get());
    at_once(world, "auditor", &load, END_LIMIT, load::audit);
    if plan.transfers > 0 {
        let limit = 4 * END_LIMIT;
        at_once(world, "transfer-auditor", &load, limit, transfers::audit);
    }
    let mut violations = load.ledger.violations();
    violations.extend(load.transfers.violations());
    violations.extend(left_behind(&cluster));
    let misplaced = MISPLACED.take();
    if misplaced > 0 {
        violations.push(format!("{misplaced} answers that nobody waited for"));
    }
    violations.extend(stop_and_compare(&cluster));
    if let Some(where_) = violations.iter().find_map(|told| place_of(told)) {
        violations.extend(replicas::around(&cluster, &where_.0, where_.1, where_.2));
    }
    violations.extend(cluster.probes.violations());
    assert!(cluster.probes.looks() > 100, "nobody looked");
    let (compared, waiting_max) = cluster.probes.effort();
    Outcome {
        counts: load.ledger.counts(),
        transactions: (load.transfers.committed.get(), load.transfers.aborted.get()),
        troubles: nemesis.done,
        violations,
        trace: world.trace_hash(),
        steps: world.steps(),
        elapsed: world.elapsed(),
        compared,
        waiting_max,
    }
}

/// With all clients gone nothing waits in a broker but what followers ask for, a request for each
/// pair of their shards and the leader's.
fn left_behind(cluster: &Cluster) -> Vec<String> {
    let brokers = cluster.brokers.len();
    let fetches_max = (brokers - 1) * cluster.shards * cluster.shards;
    let is_quiet = |at: usize| {
        let (produces, fetches, bytes) = cluster.probes.unanswered(at);
        produces == 0 && fetches <= fetches_max && bytes <= REQUEST_BYTES_MAX * fetches_max as u64
    };
    let all_quiet = || (0..brokers).all(is_quiet);
    if cluster.world.run_until(SETTLED_AFTER, all_quiet) {
        return Vec::new();
    }
    let noisy = (0..brokers).filter(|at| !is_quiet(*at));
    noisy
        .map(|at| {
            let left = cluster.probes.unanswered(at);
            format!("broker {at}: produces, fetches and bytes left behind: {left:?}")
        })
        .collect()
}

/// Topic, partition and offset that a violation names.
fn place_of(told: &str) -> Option<(String, i32, i64)> {
    let (name, rest) = told.split_once(" offset ")?;
    let (topic, partition) = name.rsplit_once('-')?;
    let (offset, _) = rest.split_once(':')?;
    Some((
        topic.to_owned(),
        partition.parse().ok()?,
        offset.parse().ok()?,
    ))
}

/// Stops the brokers in good order once nothing comes any more; where their replicas differ.
fn stop_and_compare(cluster: &Cluster) -> Vec<String> {
    let nodes = 0..cluster.brokers.len();
    let in_sync = cluster.world.run_until(END_LIMIT, || cluster.is_in_sync());
    let mut found = Vec::new();
    if !in_sync {
        found.push("replicas do not come back into the in-sync set".to_owned());
    }
    // Whoever lost a replica hears of it.
    cluster.world.run_for(Duration::from_secs(3));
    let marks = nodes.map(|at| (at, cluster.probes.high_watermarks(at)));
    let marks = marks.collect();
    for broker in &cluster.brokers {
        broker.terminate();
    }
    let stopped = || cluster.running() == 0;
    if !cluster.world.run_until(END_LIMIT, stopped) {
        found.push("brokers do not stop".to_owned());
        return found;
    }
    let failures = cluster.failures();
    found.extend(
        failures
            .into_iter()
            .map(|why| format!("a broker failed: {why}")),
    );
    found.extend(replicas::differences(cluster, &marks));
    found
}

/// One broker whose topics are in different durability rows.
fn one_broker(flushed_offsets: bool, strikes: u64) -> Plan {
    let topic = |name: &str, flush: &str| Topic {
        name: name.to_owned(),
        partitions: 2,
        replication: 1,
        configs: vec![
            ("flush.messages".to_owned(), flush.to_owned()),
            ("segment.bytes".to_owned(), "1048576".to_owned()),
        ],
    };
    let promise = |survives_power_loss| Promise {
        survives_power_loss,
    };
    let never = "9223372036854775807";
    let settings = match flushed_offsets {
        true => vec![("log.flush.interval.messages", "1".to_owned())],
        false => Vec::new(),
    };
    Plan {
        setup: Setup {
            brokers: 1,
            controllers: 1,
            shards: 2,
            lag: Duration::from_secs(30),
            settings,
        },
        topics: vec![topic("ledgers", "1"), topic("clicks", never)],
        promises: vec![
            ("ledgers".to_owned(), promise(true)),
            ("clicks".to_owned(), promise(false)),
            (OFFSETS_TOPIC.to_owned(), promise(flushed_offsets)),
        ],
        rows: vec![Row::Idempotent, Row::All, Row::Leader, Row::None],
        transfers: 0,
        older_transactions: false,
        troubles: nemesis::FOR_ONE,
        strikes,
        shuffles: false,
        dirs: &[],
        pause_us: 60_000,
    }
}

/// One broker whose replicas are on their way from one of its directories to another, again and
/// again.
fn one_broker_that_moves(flushed_offsets: bool, strikes: u64) -> Plan {
    let mut plan = one_broker(flushed_offsets, strikes);
    plan.dirs = &["/data", "/other"];
    plan.setup.settings.push(("log.dirs", plan.dirs.join(",")));
    plan.troubles = &[
        Trouble::Kill,
        Trouble::Kill,
        Trouble::PowerLoss,
        Trouble::PowerLoss,
        Trouble::Restart,
        Trouble::SlowDisk,
        Trouble::FailingDisk,
    ];
    plan
}

fn run(count: u64, plan: impl Fn(u64) -> Plan) {
    let mut counts = Counts::default();
    let mut troubles: BTreeMap<Trouble, u64> = BTreeMap::new();
    let (mut steps, mut worlds, mut elapsed) = (0, 0, Duration::ZERO);
    let mut several = 0;
    let (mut compared, mut waiting_max) = (0, 0);
    for seed in seeds(count) {
        let plan = plan(seed);
        let outcome = live(seed, &plan);
        let told = outcome.violations.join("\n");
        assert!(
            outcome.violations.is_empty(),
            "HIGHWATER_SEED={seed}:\n{told}"
        );
        counts = counts.and(&outcome.counts);
        let (committed, aborted) = outcome.transactions;
        let enough = u64::from(plan.transfers) * 5;
        assert!(
            committed >= enough && aborted >= enough / 5,
            "HIGHWATER_SEED={seed}: {committed} transactions committed, {aborted} aborted"
        );
        for (kind, times) in outcome.troubles {
            *troubles.entry(kind).or_default() += times;
        }
        (steps, worlds) = (steps + outcome.steps, worlds + 1);
        elapsed += outcome.elapsed;
        compared += outcome.compared;
        waiting_max = waiting_max.max(outcome.waiting_max);
        several += u64::from(plan.setup.brokers > 1);
    }
    println!(
        "{worlds} worlds, {steps} steps, {elapsed:?}: {counts:?}, {troubles:?}, \
         {compared} batches compared, {waiting_max} requests waiting at most"
    );
    assert!(counts.acked > 100 * worlds && counts.seen > 100 * worlds);
    assert!(compared >= 100 * several);
}

/// Several brokers, three of them controllers, topics on three replicas. Some of it is another from
/// seed to seed.
fn several_brokers(brokers: usize, strikes: u64, seed: u64) -> Plan {
    let lag_ms = if seed.is_multiple_of(2) { 1500 } else { 3000 };
    let topic = |name: &str, partitions: i32| Topic {
        name: name.to_owned(),
        partitions,
        replication: 3,
        configs: vec![("segment.bytes".to_owned(), "1048576".to_owned())],
    };
    let promise = Promise {
        survives_power_loss: true,
    };
    let settings = [
        ("min.insync.replicas", "2".to_owned()),
        ("replica.lag.time.max.ms", lag_ms.to_string()),
        ("broker.session.timeout.ms", "3000".to_owned()),
        ("broker.heartbeat.interval.ms", "500".to_owned()),
    ];
    Plan {
        setup: Setup {
            brokers,
            controllers: 3,
            shards: 1 + (seed % 3) as usize,
            lag: Duration::from_millis(lag_ms),
            settings: settings.into(),
        },
        topics: vec![topic("orders", 2), topic("payments", 1)],
        promises: ["orders", "payments", OFFSETS_TOPIC]
            .map(|name| (name.to_owned(), promise))
            .into(),
        rows: vec![Row::Idempotent, Row::Idempotent, Row::All, Row::None],
        transfers: 0,
        older_transactions: false,
        troubles: nemesis::FOR_SEVERAL,
        strikes,
        shuffles: brokers > 3,
        dirs: &[],
        pause_us: [40_000, 100_000, 250_000][(seed / 3 % 3) as usize],
    }
}

#[test]
fn three_brokers_keep_their_promises() {
    run(2, |seed| several_brokers(3, 6, seed));
}

#[test]
fn four_brokers_that_move_their_partitions_keep_their_promises() {
    run(1, |seed| several_brokers(4, 4, seed));
}

#[test]
fn five_brokers_of_which_three_are_controllers_keep_their_promises() {
    run(1, |seed| several_brokers(5, 5, seed));
}

#[test]
fn one_broker_keeps_its_promises() {
    run(2, |seed| one_broker(seed % 2 == 0, 8));
}

#[test]
fn one_broker_that_moves_replicas_between_its_directories_keeps_its_promises() {
    run(2, |seed| one_broker_that_moves(seed % 2 == 0, 10));
}

/// The same world with producers in transactions, and little beside them.
fn with_transfers(mut plan: Plan) -> Plan {
    let like = plan.topics[0].clone();
    plan.topics.push(Topic {
        name: transfers::TOPIC.to_owned(),
        partitions: transfers::PARTITIONS,
        ..like
    });
    plan.rows = vec![Row::Idempotent];
    plan.transfers = 3;
    plan
}

#[test]
fn transactions_of_one_broker_are_all_or_nothing() {
    run(4, |seed| Plan {
        older_transactions: seed % 2 == 1,
        ..with_transfers(one_broker(true, 8))
    });
}

#[test]
fn transactions_of_a_broker_whose_disk_fills_up_are_all_or_nothing() {
    run(2, |seed| Plan {
        older_transactions: seed % 2 == 1,
        troubles: nemesis::FOR_COORDINATORS,
        ..with_transfers(one_broker(true, 10))
    });
}

#[test]
fn transactions_of_three_brokers_are_all_or_nothing() {
    run(4, |seed| Plan {
        older_transactions: seed / 2 % 2 == 1,
        ..with_transfers(several_brokers(3, 6, seed))
    });
}

#[test]
fn a_whole_world_replays_exactly() {
    for seed in seeds(1) {
        let plan = one_broker(true, 4);
        let first = Cluster::new(seed, &plan.setup);
        let world = first.world.clone();
        world.keep_trace();
        let first = live_in(first, &plan);
        let again = Cluster::new(seed, &plan.setup);
        again.world.expect_trace(world.kept_trace());
        let again = live_in(again, &plan);
        let told = |w: Outcome| (w.trace, w.steps, w.elapsed, w.counts.acked);
        assert_eq!(told(first), told(again), "HIGHWATER_SEED={seed}");
    }
}

/// What a world with this fault in it says, within a few seeds.
fn finds(fault: Mutation, plan: Plan) -> String {
    for seed in 0..40 {
        mutation::set(Some(fault));
        let lived = catch_unwind(AssertUnwindSafe(|| live(seed, &plan)));
        mutation::set(None);
        let found = match lived {
            Ok(outcome) => Some(outcome.violations.join("\n")).filter(|told| !told.is_empty()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Some(format!("panicked: {}", text.unwrap_or_default()))
            }
        };
        if let Some(found) = found {
            println!("{fault:?}, seed {seed}: {found}");
            let healthy = live(seed, &plan).violations;
            assert!(healthy.is_empty(), "also without it: {healthy:?}");
            return found;
        }
    }
    panic!("nobody noticed {fault:?}");
}

#[test]
fn an_answer_before_the_flush_is_found_out() {
    let plan = Plan {
        troubles: &[Trouble::PowerLoss],
        ..one_broker(true, 6)
    };
    let found = finds(Mutation::CountUnflushed, plan);
    assert!(found.contains("was acknowledged") || found.contains("was seen"));
}

/// Three brokers of which leaders die and lose sight of the others while these fall behind.
fn leaders_fall(strikes: u64) -> Plan {
    Plan {
        troubles: &[Trouble::Kill, Trouble::CutBrokers, Trouble::SlowNetwork],
        rows: vec![Row::Idempotent, Row::All],
        pause_us: 40_000,
        ..several_brokers(3, strikes, 1)
    }
}

#[test]
fn a_high_watermark_that_does_not_wait_for_followers_is_found_out() {
    finds(Mutation::CommitAlone, leaders_fall(6));
}

#[test]
fn a_follower_that_keeps_what_its_leader_never_had_is_found_out() {
    finds(Mutation::KeepDivergence, leaders_fall(6));
}

#[test]
fn a_shrunken_in_sync_set_that_nobody_committed_is_found_out() {
    let mut plan = leaders_fall(8);
    let settings = &mut plan.setup.settings;
    settings.retain(|(key, _)| *key != "replica.lag.time.max.ms");
    settings.push(("replica.lag.time.max.ms", "600".to_owned()));
    plan.troubles = &[Trouble::CutBrokers];
    finds(Mutation::ShrinkUnasked, plan);
}

#[test]
fn a_second_leader_in_an_epoch_is_found_out() {
    let found = finds(Mutation::LeadUnasked, leaders_fall(2));
    assert!(found.contains("leads epoch"));
}

/// Leaders fall, and with them coordinators, while transactions end all the time.
fn coordinators_fall() -> Plan {
    let mut plan = with_transfers(leaders_fall(8));
    plan.pause_us = 10_000;
    plan
}

#[test]
fn a_coordinator_that_acts_on_what_may_be_lost_is_found_out() {
    let found = finds(Mutation::DecideUnstored, coordinators_fall());
    assert!(
        found.contains("records seen") || found.contains("of a transaction that is"),
        "{found}"
    );
}

#[test]
fn markers_that_nobody_writes_are_found_out() {
    let found = finds(Mutation::LeaveDecided, with_transfers(leaders_fall(1)));
    assert!(found.contains("left open"), "{found}");
}

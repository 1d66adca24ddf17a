//! Power losses by the seed: worlds of whole brokers under load, the power of one host or of all
//! of them cut at a moment of the seed's choosing, and every acknowledged record looked for
//! afterwards. Many worlds, each on one of a few threads; the same seed is the same world.
//!
//! What the simulated disk does at a power loss: of each file everything that was synced stays; of
//! the sectors written since, all, none or some do, and the same goes for names. Its cache is
//! volatile and nothing is written back by itself, so a record that nobody synced is at risk from
//! its first to the last moment of a world. A real kernel writes back within 30 seconds or so.

use super::feed::{Feed, Pace};
use super::hosts::Hosts;
use super::losses::{Event, Tally};
use super::matrix::Row;
use crate::client::ClientError;
use crate::rt::sim::NodeHandle;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many power losses a world sees before it ends: a start costs more than an event.
pub const EVENTS_A_WORLD: u64 = 4;
/// How long an admin's call and an audit may take, in virtual time.
const CALL_LIMIT: Duration = Duration::from_secs(60);
const AUDIT_LIMIT: Duration = Duration::from_secs(90);
/// So much load there is before the power goes: at least, and by the seed more.
const LOAD_MS: (u64, u64) = (100, 500);
/// A host is without power for so long, at most: sometimes it is back before anybody noticed.
const DARK_MS: u64 = 5000;
pub const PACE: Pace = Pace {
    burst: 4,
    pause: Duration::from_millis(20),
    value_bytes: 200,
};

/// Whose power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outage {
    OneHost,
    AllHosts,
}

/// How much is simulated.
#[derive(Clone, Copy, Debug)]
pub struct PowerPlan {
    pub first_seed: u64,
    /// Worlds of each configuration and outage, at most.
    pub seeds: u64,
    /// No world begins after this time.
    pub budget: Option<Duration>,
    pub threads: usize,
}

/// What came of it.
#[derive(Default)]
pub struct PowerReport {
    /// By the place of the row among those given.
    pub tallies: BTreeMap<(usize, Outage), Tally>,
    pub worlds: u64,
    /// Seeds of worlds that did not come to their end, and why.
    pub failures: Vec<String>,
}

/// Rows that share a world: the same brokers and the same kind of topic, all acks.
struct Group {
    rows: Vec<(usize, Row)>,
    outage: Outage,
}

/// With one broker, one host's power is all hosts' power: it is simulated once.
fn groups(rows: &[Row]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let outages: &[Outage] = match row.brokers {
            1 => &[Outage::AllHosts],
            _ => &[Outage::OneHost, Outage::AllHosts],
        };
        for outage in outages {
            let same = |group: &&mut Group| {
                let other = group.rows[0].1;
                let alike = other.brokers == row.brokers && other.io == row.io;
                group.outage == *outage && alike && other.flush == row.flush
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.rows.push((at, *row)),
                None => groups.push(Group {
                    rows: vec![(at, *row)],
                    outage: *outage,
                }),
            }
        }
    }
    groups
}

/// Runs the worlds of all rows. `progress` is told how many have ended, and of how many.
pub fn simulate(rows: &[Row], plan: &PowerPlan, progress: impl Fn(u64, u64) + Sync) -> PowerReport {
    let groups = groups(rows);
    let all = plan.seeds * groups.len() as u64;
    let next = AtomicU64::new(0);
    let began = Instant::now();
    let report = Arc::new(Mutex::new(PowerReport::default()));
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    // The first of each group is always run: a row without any event says nothing.
                    let first = at < groups.len() as u64;
                    let late = plan.budget.is_some_and(|budget| began.elapsed() > budget);
                    if at >= all || late && !first {
                        return;
                    }
                    let group = &groups[(at % groups.len() as u64) as usize];
                    let seed = plan.first_seed + at / groups.len() as u64;
                    let rows: Vec<Row> = group.rows.iter().map(|(_, row)| *row).collect();
                    let lived = live(seed, &rows, group.outage);
                    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                    report.take(group, seed, lived);
                    progress(report.worlds, all);
                }
            });
        }
    });
    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *report)
}

impl PowerReport {
    fn take(&mut self, group: &Group, seed: u64, lived: Lived) {
        self.worlds += 1;
        for events in lived.events {
            for ((at, row), event) in group.rows.iter().zip(&events) {
                self.count(*at, group.outage, event);
                if row.brokers == 1 {
                    self.count(*at, Outage::OneHost, event);
                }
            }
        }
        if let Err(why) = lived.end {
            let name = group.rows[0].1.name();
            self.failures
                .push(format!("seed {seed} ({name}, {:?}): {why}", group.outage));
        }
    }

    fn count(&mut self, row: usize, outage: Outage, event: &Event) {
        self.tallies.entry((row, outage)).or_default().add(event);
    }
}

/// The events of one world, each with what it did to each row, and how the world ended.
struct Lived {
    events: Vec<Vec<Event>>,
    end: Result<(), String>,
}

fn live(seed: u64, rows: &[Row], outage: Outage) -> Lived {
    let mut events = Vec::new();
    let end = live_through(seed, rows, outage, &mut events);
    Lived { events, end }
}

fn live_through(
    seed: u64,
    rows: &[Row],
    outage: Outage,
    events: &mut Vec<Vec<Event>>,
) -> Result<(), String> {
    let hosts = Hosts::start(seed, rows[0].brokers)?;
    let world = &hosts.world;
    let admin = world.add_node("admin");
    let sender = world.add_node("sender");
    // What is compared with the world's time is told by a clock that runs with it.
    sender.set_clock(0, 0);
    let feed = Feed::new(hosts.servers(), rows, PACE);
    let making = feed.clone();
    at_once(&hosts, &admin, CALL_LIMIT, move || {
        let feed = making.clone();
        async move { feed.make_topics().await }
    })?;
    let sending = feed.clone();
    let failed: Rc<RefCell<Option<String>>> = Rc::default();
    let told = failed.clone();
    let began = world.elapsed();
    hosts.start_client(&sender, move || {
        let (feed, told) = (sending.clone(), told.clone());
        async move {
            if let Err(error) = feed.run().await {
                *told.borrow_mut() = Some(error.to_string());
            }
        }
    });
    for _ in 0..EVENTS_A_WORLD {
        feed.pause(false);
        // Every row has something at stake when the power goes.
        if !world.run_until(CALL_LIMIT, || feed.has_acknowledged(1)) {
            let why = failed.take().unwrap_or_default();
            return Err(format!("nothing is acknowledged {why}"));
        }
        pass(&hosts, LOAD_MS.0, LOAD_MS.1);
        let at = world.elapsed() - began;
        let recovery = match outage {
            Outage::AllHosts => all_hosts(&hosts)?,
            Outage::OneHost => one_host(&hosts)?,
        };
        pass(&hosts, 0, LOAD_MS.1);
        feed.pause(true);
        let auditing = feed.clone();
        let mut judged = at_once(&hosts, &admin, AUDIT_LIMIT * 2, move || {
            let feed = auditing.clone();
            async move { feed.audit(at, AUDIT_LIMIT).await }
        })?;
        for event in &mut judged {
            event.recovery = recovery;
        }
        events.push(judged);
    }
    feed.end();
    Ok(())
}

/// Cuts the power of every host at one instant and gives it back; how long until all serve.
fn all_hosts(hosts: &Hosts) -> Result<Duration, String> {
    for at in 0..hosts.count() {
        hosts.lose_power(at);
    }
    pass(hosts, 1, 200);
    let since = hosts.world.elapsed();
    for at in 0..hosts.count() {
        hosts.switch_on(at)?;
    }
    hosts.serve()?;
    Ok(hosts.world.elapsed() - since)
}

/// Cuts the power of one host and gives it back, while the load goes on with the others; how long
/// until it serves again.
fn one_host(hosts: &Hosts) -> Result<Duration, String> {
    let at = hosts.world.random_below(hosts.count() as u64) as usize;
    hosts.lose_power(at);
    pass(hosts, 1, DARK_MS);
    let since = hosts.world.elapsed();
    hosts.switch_on(at)?;
    hosts.serve()?;
    Ok(hosts.world.elapsed() - since)
}

/// Lets time pass, by the seed.
fn pass(hosts: &Hosts, least_ms: u64, more_ms: u64) {
    let ms = least_ms + hosts.world.random_below(more_ms);
    // And not always on the millisecond.
    let us = hosts.world.random_below(1000);
    hosts
        .world
        .run_for(Duration::from_millis(ms) + Duration::from_micros(us));
}

/// Runs something to its end on a client's host.
fn at_once<T: 'static, F: Future<Output = Result<T, ClientError>> + 'static>(
    hosts: &Hosts,
    host: &NodeHandle,
    limit: Duration,
    run: impl Fn() -> F + 'static,
) -> Result<T, String> {
    let outcome: Rc<RefCell<Option<Result<T, ClientError>>>> = Rc::default();
    let told = outcome.clone();
    hosts.start_client(host, move || {
        let (run, told) = (run(), told.clone());
        async move {
            let result = run.await;
            *told.borrow_mut() = Some(result);
        }
    });
    hosts.world.run_until(limit, || outcome.borrow().is_some());
    match outcome.take() {
        Some(result) => result.map_err(|error| error.to_string()),
        None => Err("a client does not end".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::losses::{Losses, Source};
    use super::super::matrix::{Flush, highwater_rows};
    use super::*;
    use crate::client::Acks;

    #[test]
    fn rows_share_a_world_with_those_that_differ_in_acks_only() {
        let rows = highwater_rows();
        let groups = groups(&rows);
        assert_eq!(groups.len(), 4 + 4 * 2);
        assert!(groups.iter().all(|group| group.rows.len() == 3));
    }

    fn losses(row: impl Fn(&Row) -> bool, seeds: u64) -> Vec<(Row, Losses, Losses)> {
        let rows: Vec<Row> = highwater_rows().into_iter().filter(row).collect();
        let plan = PowerPlan {
            first_seed: 1,
            seeds,
            budget: None,
            threads: 2,
        };
        let report = simulate(&rows, &plan, |_, _| {});
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        let of = |at: usize, outage| report.tallies[&(at, outage)].state(Source::Simulator);
        let rows = rows.iter().enumerate();
        rows.map(|(at, row)| (*row, of(at, Outage::OneHost), of(at, Outage::AllHosts)))
            .collect()
    }

    #[test]
    fn an_unflushed_acknowledgement_is_lost_with_the_power_and_a_flushed_one_is_not() {
        for (row, one, all) in losses(|row| row.brokers == 1 && row.acks != Acks::None, 4) {
            assert_eq!(one.lost_records, all.lost_records);
            assert!(all.events > 0 && all.acknowledged_records > 0);
            match row.flush {
                Flush::Os => assert!(all.lost_records > 0, "{}", row.name()),
                Flush::Each => assert_eq!(all.lost_records, 0, "{}", row.name()),
            }
        }
    }

    #[test]
    fn acks_all_of_three_brokers_outlives_one_host_and_with_a_flush_all_of_them() {
        for (row, one, all) in losses(|row| row.brokers == 3 && row.acks == Acks::All, 1) {
            assert_eq!(one.lost_records, 0, "{}", row.name());
            match row.flush {
                Flush::Os => assert!(all.lost_records > 0, "{}", row.name()),
                Flush::Each => assert_eq!(all.lost_records, 0, "{}", row.name()),
            }
        }
    }

    #[test]
    fn a_seed_is_always_the_same_world() {
        let rows: Vec<Row> = highwater_rows().into_iter().take(3).collect();
        let first = live(7, &rows, Outage::AllHosts);
        let again = live(7, &rows, Outage::AllHosts);
        assert_eq!(first.end, Ok(()));
        assert_eq!(first.events, again.events);
    }
}

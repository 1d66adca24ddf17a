//! kill -9 under load: real brokers, all rows of a cluster at once, and every acknowledged record
//! looked for once the brokers run again. With three brokers, one of them and all of them are
//! killed by turns. The main thread kills; a thread of its own sends.

use super::feed::{Feed, Pace};
use super::losses::Tally;
use super::matrix::Row;
use crate::commands::Failure;
use crate::commands::run::run;
use crate::lab::nodes::Nodes;
use crate::rt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PACE: Pace = Pace {
    burst: 8,
    pause: Duration::from_millis(10),
    value_bytes: 200,
};
/// How long brokers that came back may take until every row is served again.
const SERVE_LIMIT: Duration = Duration::from_secs(40);
const AUDIT_LIMIT: Duration = Duration::from_secs(60);
/// Every row has at least this at stake when a broker is killed.
const ACKNOWLEDGED_MIN: u64 = 20;
/// So much longer the load goes on before the kill, at most.
const MORE_MS: u64 = 250;
/// How long the load goes on after the restart, at most.
const AFTER_MS: u64 = 200;
const LOOK: Duration = Duration::from_millis(5);

/// How often brokers are killed.
#[derive(Clone, Copy, Debug)]
pub struct KillPlan {
    pub events: u64,
    /// No event but the first begins after this time.
    pub budget: Option<Duration>,
}

/// What each row lost, in the order of the rows.
///
/// # Errors
/// A broker does not come back, or the load does not get through to it.
pub fn kill_nine(nodes: &Nodes, rows: &[Row], plan: &KillPlan) -> Result<Vec<Tally>, Failure> {
    let feed = Feed::new(nodes.bootstrap(), rows, PACE);
    let making = feed.clone();
    run(move || async move { Ok(making.make_topics().await?) })?;
    let sending = feed.clone();
    let sender = std::thread::Builder::new()
        .name("lab-feed".to_owned())
        .spawn(move || run(move || async move { Ok(sending.run().await?) }))?;
    let mut tallies = vec![Tally::default(); rows.len()];
    let outcome = events(nodes, &feed, plan, &mut tallies);
    feed.end();
    let sent = match sender.join() {
        Ok(sent) => sent,
        Err(_) => Err("the sending thread panicked".into()),
    };
    outcome.and(sent).map(|()| tallies)
}

fn events(
    nodes: &Nodes,
    feed: &Arc<Feed>,
    plan: &KillPlan,
    tallies: &mut [Tally],
) -> Result<(), Failure> {
    let began = Instant::now();
    let brokers = nodes.pids().len();
    for number in 0..plan.events {
        let late = plan.budget.is_some_and(|budget| began.elapsed() > budget);
        if late && number > 0 {
            return Ok(());
        }
        feed.pause(false);
        let deadline = Instant::now() + SERVE_LIMIT;
        while !feed.has_acknowledged(ACKNOWLEDGED_MIN) {
            if Instant::now() > deadline {
                return Err(
                    format!("nothing is acknowledged: {}", feed.silent().join(", ")).into(),
                );
            }
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(Duration::from_millis(rt::random_below(MORE_MS)));
        let victims = victims(number, brokers);
        let at = feed.elapsed();
        for victim in victims.clone() {
            nodes.kill(victim)?;
        }
        let since = Instant::now();
        nodes.start_again(victims)?;
        let recovery = since.elapsed();
        std::thread::sleep(Duration::from_millis(rt::random_below(AFTER_MS)));
        feed.pause(true);
        let auditing = feed.clone();
        let events = run(move || async move { Ok(auditing.audit(at, AUDIT_LIMIT).await?) })?;
        for (tally, mut event) in tallies.iter_mut().zip(events) {
            event.recovery = recovery;
            tally.add(&event);
        }
    }
    Ok(())
}

/// Whom the event with this number kills.
fn victims(number: u64, brokers: usize) -> std::ops::Range<usize> {
    if brokers == 1 || !number.is_multiple_of(2) {
        return 0..brokers;
    }
    let one = (number / 2) as usize % brokers;
    one..one + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_broker_after_the_other_is_killed_and_all_of_them_in_between() {
        let all: Vec<_> = (0..7).map(|number| victims(number, 3)).collect();
        assert_eq!(all, [0..1, 0..3, 1..2, 0..3, 2..3, 0..3, 0..1]);
        assert_eq!(victims(0, 1), 0..1);
        assert_eq!(victims(1, 1), 0..1);
    }
}

//! kill -9 under load: real brokers, all rows of a cluster at once, and every acknowledged record
//! looked for once the brokers run again. With three brokers, one of them and all of them are
//! killed by turns. The main thread kills; a thread of its own sends.

use super::feed::{Feed, Pace};
use super::losses::{Event, Tally};
use super::matrix::Row;
use crate::commands::Failure;
use crate::commands::run::run;
use crate::lab::nodes::Nodes;
use crate::rt;
use std::ops::Range;
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

/// What kills did to the rows of one cluster.
pub struct Killed {
    /// What each row lost, in the order of the rows, in the events that were judged.
    pub tallies: Vec<Tally>,
    /// Why there were no more events, where there should have been; one line.
    pub cut_short: Option<String>,
}

/// Kills until the plan is done, or until a broker does not come back or the load does not get
/// through to it: what was judged until then stays.
pub fn kill_nine(nodes: &Nodes, rows: &[Row], plan: &KillPlan) -> Killed {
    let mut tallies = vec![Tally::default(); rows.len()];
    let ended = under_load(nodes, rows, plan, &mut tallies);
    let judged = tallies.first().map_or(0, Tally::events);
    Killed {
        cut_short: ended.err().map(|why| {
            format!(
                "kill -9 ended after {judged} of {} events: {why}",
                plan.events
            )
        }),
        tallies,
    }
}

fn under_load(
    nodes: &Nodes,
    rows: &[Row],
    plan: &KillPlan,
    tallies: &mut [Tally],
) -> Result<(), Failure> {
    let feed = Feed::new(nodes.bootstrap(), rows, PACE);
    let making = feed.clone();
    run(move || async move { Ok(making.make_topics().await?) })
        .map_err(|error| format!("topics could not be made: {error}"))?;
    let sending = feed.clone();
    let sender = std::thread::Builder::new()
        .name("lab-feed".to_owned())
        .spawn(move || run(move || async move { Ok(sending.run().await?) }))?;
    let brokers = nodes.pids().len();
    let judged = again(plan, tallies, |number| {
        event(nodes, &feed, victims(number, brokers))
    });
    feed.end();
    let sent = match sender.join() {
        Ok(sent) => sent.map_err(|error| format!("the load broke off: {error}").into()),
        Err(_) => Err("the sending thread panicked".into()),
    };
    judged.and(sent)
}

/// One event after the other, each counted as soon as it is judged.
fn again(
    plan: &KillPlan,
    tallies: &mut [Tally],
    mut event: impl FnMut(u64) -> Result<Vec<Event>, Failure>,
) -> Result<(), Failure> {
    let began = Instant::now();
    for number in 0..plan.events {
        let late = plan.budget.is_some_and(|budget| began.elapsed() > budget);
        if late && number > 0 {
            return Ok(());
        }
        for (tally, event) in tallies.iter_mut().zip(event(number)?) {
            tally.add(&event);
        }
    }
    Ok(())
}

/// Load, kill, restart, and what of each row is not there any more.
fn event(nodes: &Nodes, feed: &Arc<Feed>, victims: Range<usize>) -> Result<Vec<Event>, Failure> {
    feed.pause(false);
    let deadline = Instant::now() + SERVE_LIMIT;
    while !feed.has_acknowledged(ACKNOWLEDGED_MIN) {
        if Instant::now() > deadline {
            let silent = feed.silent().join(", ");
            let limit = SERVE_LIMIT.as_secs();
            return Err(
                format!("not every row was served within {limit} s; silent: {silent}").into(),
            );
        }
        std::thread::sleep(LOOK);
    }
    std::thread::sleep(Duration::from_millis(rt::random_below(MORE_MS)));
    let at = feed.elapsed();
    for victim in victims.clone() {
        nodes.kill(victim)?;
    }
    let since = Instant::now();
    nodes
        .start_again(victims)
        .map_err(|error| format!("a broker did not come back: {error}"))?;
    let recovery = since.elapsed();
    std::thread::sleep(Duration::from_millis(rt::random_below(AFTER_MS)));
    feed.pause(true);
    let auditing = feed.clone();
    let mut events = run(move || async move { Ok(auditing.audit(at, AUDIT_LIMIT).await?) })
        .map_err(|error| format!("what was acknowledged could not be read back: {error}"))?;
    for event in &mut events {
        event.recovery = recovery;
    }
    Ok(events)
}

/// Whom the event with this number kills.
fn victims(number: u64, brokers: usize) -> Range<usize> {
    if brokers == 1 || !number.is_multiple_of(2) {
        return 0..brokers;
    }
    let one = (number / 2) as usize % brokers;
    one..one + 1
}

#[cfg(test)]
mod tests {
    use super::super::losses::Source;
    use super::*;

    #[test]
    fn events_that_were_judged_outlive_the_one_that_ends_them() {
        let plan = KillPlan {
            events: 20,
            budget: None,
        };
        let mut tallies = vec![Tally::default(); 2];
        let lost = |lost| Event {
            acknowledged: 10,
            lost,
            ..Event::default()
        };
        let ended = again(&plan, &mut tallies, |number| match number {
            19 => Err("a broker did not come back".into()),
            _ => Ok(vec![lost(0), lost(1)]),
        });
        assert!(ended.is_err());
        let lost = |tally: &Tally| tally.state(Source::Processes).lost_records;
        let events: Vec<_> = tallies.iter().map(|of| (of.events(), lost(of))).collect();
        assert_eq!(events, [(19, 0), (19, 19)]);
    }

    #[test]
    fn the_first_event_comes_however_late_it_is_and_no_other() {
        let plan = KillPlan {
            events: 3,
            budget: Some(Duration::ZERO),
        };
        let mut tallies = vec![Tally::default()];
        let slow = |_| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(vec![Event::default()])
        };
        again(&plan, &mut tallies, slow).unwrap();
        assert_eq!(tallies[0].events(), 1);
    }

    #[test]
    fn one_broker_after_the_other_is_killed_and_all_of_them_in_between() {
        let all: Vec<_> = (0..7).map(|number| victims(number, 3)).collect();
        assert_eq!(all, [0..1, 0..3, 1..2, 0..3, 2..3, 0..3, 0..1]);
        assert_eq!(victims(0, 1), 0..1);
        assert_eq!(victims(1, 1), 0..1);
    }
}

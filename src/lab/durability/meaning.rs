//! What a row means, in a sentence that somebody can decide from. Says only what was counted. Pure.

use super::document::{FixedRate, LossSet, Percentiles};
use super::losses::{Losses, Source};
use super::matrix::Row;
use crate::client::Acks;

/// One sentence of a row.
pub fn meaning(
    row: &Row,
    percentiles: Option<&Percentiles>,
    rate: Option<&FixedRate>,
    losses: &LossSet,
) -> String {
    let done = match row.acks {
        Acks::None => "sends",
        _ => "acknowledges",
    };
    let mut text = format!(
        "{}: {}{}",
        row.title(),
        match percentiles.and_then(|of| of.p50_us.zip(of.p99_us)) {
            Some((p50, p99)) => format!(
                "{} in {} (p99 {}), {}",
                done,
                time(p50),
                time(p99),
                queued(rate)
            ),
            None => String::new(),
        },
        verdict(losses)
    );
    let told = [
        ("kill -9", &losses.process_kill),
        ("the power loss of one host", &losses.one_host_power_loss),
        ("the power loss of all hosts", &losses.all_hosts_power_loss),
    ];
    let told = told
        .iter()
        .filter_map(|(event, losses)| told_of(event, losses));
    let told: Vec<String> = told.collect();
    if !told.is_empty() {
        text += " (";
        text += &told.join("; ");
        text += ")";
    }
    if row.acks == Acks::None {
        text += "; with acks=0 nobody says that a record arrived, so whatever was handed to the socket counts";
    }
    text + "."
}

/// What is to be known of latencies at a rate that was not kept.
fn queued(rate: Option<&FixedRate>) -> String {
    match rate {
        Some(rate) if !rate.was_kept() => format!(
            "in a queue that grew, for {:.0} of {:.0} records/s were acknowledged in time, ",
            rate.acknowledged_records_per_second, rate.offered_records_per_second
        ),
        _ => String::new(),
    }
}

fn verdict(losses: &LossSet) -> &'static str {
    let kept = |of: &Losses| of.events > 0 && of.lost_records == 0;
    let unknown = |of: &Losses| of.events == 0;
    let (kill, one, all) = (
        &losses.process_kill,
        &losses.one_host_power_loss,
        &losses.all_hosts_power_loss,
    );
    match (kept(kill), kept(one), kept(all)) {
        _ if unknown(kill) && unknown(one) && unknown(all) => "nothing is known of its losses",
        (true, ..) if unknown(one) && unknown(all) => {
            "lost nothing to killed processes, and power losses are not known"
        }
        (true, true, true) => "lost nothing in anything that was done to it",
        (true, true, false) => {
            "outlives a killed process and a host without power, but not a power loss everywhere"
        }
        (true, false, true) => "outlives a power loss everywhere, but not one of a single host",
        (true, false, false) => "outlives a killed process, but not a power loss",
        (false, ..) if unknown(kill) => match (kept(one), kept(all)) {
            (true, true) => "lost nothing to power losses",
            (true, false) => "outlives a host without power, but not a power loss everywhere",
            _ => "loses records with the power",
        },
        (false, ..) => "loses records when a process is killed",
    }
}

/// What one kind of event cost; nothing of what was not done.
fn told_of(event: &str, losses: &Losses) -> Option<String> {
    if losses.source == Source::NotSimulated {
        return Some(format!("{event}: not simulated"));
    }
    let mean = losses.lost_records_per_event?;
    let events = match losses.events {
        1 => "1 event".to_owned(),
        count => format!("{count} events"),
    };
    Some(match losses.loss_probability_upper_bound {
        Some(bound) if bound < 1.0 => format!(
            "{event}: 0 lost in {events}, so fewer than {} in 100 lose anything",
            digits(bound * 100.0)
        ),
        Some(_) => format!("{event}: 0 lost in {events}, which proves little"),
        None => format!(
            "{event}: {} records lost an event over {events}, at most {}",
            digits(mean),
            losses.lost_records_max
        ),
    })
}

/// Two or three digits that mean something.
pub fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value if value >= 0.01 => format!("{value:.2}"),
        value => format!("{value:.4}"),
    }
}

/// Microseconds for a person.
pub fn time(us: u64) -> String {
    match us {
        0..1000 => format!("{us} µs"),
        1000..1_000_000 => format!("{} ms", digits(us as f64 / 1e3)),
        _ => format!("{} s", digits(us as f64 / 1e6)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::loss_set;
    use super::super::matrix::{highwater_rows, kafka_rows};
    use super::*;

    fn of(kill: u64, one: u64, all: u64) -> String {
        let rows = highwater_rows();
        let row = rows.iter().find(|row| row.acks == Acks::All).unwrap();
        meaning(row, None, None, &loss_set(kill, one, all))
    }

    #[test]
    fn the_sentence_says_what_the_row_outlives() {
        assert!(of(0, 0, 0).contains("lost nothing in anything"));
        assert!(of(0, 0, 3).contains("but not a power loss everywhere"));
        assert!(of(0, 3, 3).contains("killed process, but not a power loss"));
        assert!(of(2, 3, 3).contains("loses records when a process is killed"));
    }

    #[test]
    fn zero_is_said_with_the_number_of_events_and_what_it_bounds() {
        let text = of(0, 0, 3);
        assert!(
            text.contains("0 lost in 10 events, so fewer than 30.0 in 100"),
            "{text}"
        );
        assert!(
            text.contains("3.0 records lost an event over 10 events"),
            "{text}"
        );
    }

    #[test]
    fn nothing_is_said_of_what_was_not_simulated() {
        let mut losses = loss_set(0, 0, 0);
        losses.one_host_power_loss = Losses::not_simulated();
        losses.all_hosts_power_loss = Losses::not_simulated();
        let text = meaning(&kafka_rows()[2], None, None, &losses);
        assert!(text.contains("power losses are not known"), "{text}");
        assert!(text.contains("one host: not simulated"), "{text}");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!(time(90), "90 µs");
        assert_eq!(time(1500), "1.5 ms");
        assert_eq!(time(2_000_000), "2.0 s");
    }
}

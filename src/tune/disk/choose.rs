//! Owns which limits of the broker follow from the figures of a device, and why. Pure.

use super::figure::{Figure, Way, What};

/// A setting of the broker, with the reason of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub key: &'static str,
    pub value: u64,
    pub why: String,
}

/// As good as the best: what is within this share of it. Closer together is noise.
const AS_GOOD: f64 = 0.9;

/// A journal's round has to be this much shorter: its bytes are written twice.
const JOURNAL_GAIN: f64 = 0.8;

/// What a flush may have to wait for a read that was there first.
const WAIT_SECONDS: f64 = 300e-6;

/// Compaction takes at most this part of what the device does reading and writing.
const CLEANER_SHARE: f64 = 0.5;

/// The limits that these figures speak for; none for a figure that is not there or is no number.
/// Without `noise` only figures count whose turns agree: better the broker's default than a limit
/// from what somebody else did to the device.
pub fn limits(figures: &[Figure], noise: bool) -> Vec<Limit> {
    let needed = |limit: fn(&[Figure]) -> Option<Limit>, of: &[What]| {
        let counts = |figure: &&Figure| figure.way == Way::Ring && of.contains(&figure.what);
        let steady = figures.iter().filter(counts).all(Figure::is_steady);
        if steady || noise {
            limit(figures)
        } else {
            None
        }
    };
    let found = [
        needed(cold_read_bytes, &[What::Read]),
        needed(cold_reads, &[What::Read]),
        needed(direct_writes, &[What::Write]),
        needed(segments_in_flight, &[What::RoundLimited]),
        needed(journal_log_bytes, &[What::RoundBySegment, What::Write]),
        needed(journal_logs, &[What::RoundBySegment, What::RoundByJournal]),
        needed(write_bytes, &[What::Write]),
        needed(cleaner_rate, &[What::Mixed]),
    ];
    found.into_iter().flatten().collect()
}

fn of(figures: &[Figure], what: What) -> impl Iterator<Item = &Figure> + Clone {
    let ring = figures.iter().filter(|figure| figure.way == Way::Ring);
    ring.filter(move |figure| {
        figure.what == what && figure.bytes_per_second > 0.0 && figure.bytes_per_second.is_finite()
    })
}

fn rate(figures: &[Figure], what: What, bytes: u64, depth: u32) -> Option<f64> {
    let found = of(figures, what).find(|figure| figure.bytes == bytes && figure.depth == depth);
    found.map(|figure| figure.bytes_per_second)
}

fn median(figures: &[Figure], what: What, depth: u32) -> Option<f64> {
    let found = of(figures, what).find(|figure| figure.depth == depth);
    found
        .map(|figure| figure.p50_us)
        .filter(|us| us.is_finite() && *us > 0.0)
}

/// The first, in the order given, that is as good as the best.
fn first_as_good(rates: &[(u64, f64)]) -> Option<u64> {
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let good = rates.iter().find(|(_, rate)| *rate >= best * AS_GOOD);
    good.map(|(value, _)| *value)
}

/// The power of two that is nearest, within bounds.
fn power_of_two(value: f64, least: u64, most: u64) -> u64 {
    if !value.is_finite() || value <= least as f64 {
        return least;
    }
    let power = value.log2().round() as u32;
    1u64.checked_shl(power).unwrap_or(most).clamp(least, most)
}

fn mb(rate: f64) -> u64 {
    (rate / 1e6).round() as u64
}

fn told(rates: &[(u64, f64)]) -> String {
    let told = rates
        .iter()
        .map(|(value, rate)| format!("{value}: {} MB/s", mb(*rate)));
    told.collect::<Vec<_>>().join(", ")
}

fn by_depth(figures: &[Figure], what: What, most: u32) -> Vec<(u64, f64)> {
    let found = of(figures, what).filter(|figure| figure.bytes == 1 << 20 && figure.depth <= most);
    found
        .map(|figure| (u64::from(figure.depth), figure.bytes_per_second))
        .collect()
}

fn direct_writes(figures: &[Figure]) -> Option<Limit> {
    let rates = by_depth(figures, What::Write, 64);
    Some(Limit {
        key: "highwater.direct.writes.in.flight",
        value: first_as_good(&rates)?,
        why: format!(
            "direct writes of 1 MiB by number in flight: {}",
            told(&rates)
        ),
    })
}

fn cold_reads(figures: &[Figure]) -> Option<Limit> {
    let rates = by_depth(figures, What::Read, 4);
    Some(Limit {
        key: "highwater.cold.reads.in.flight",
        value: first_as_good(&rates)?,
        why: format!("reads of 1 MiB by number in flight: {}", told(&rates)),
    })
}

fn cold_read_bytes(figures: &[Figure]) -> Option<Limit> {
    let alone = rate(figures, What::Read, 1 << 20, 1)?;
    Some(Limit {
        key: "highwater.cold.read.bytes.beside.flushes",
        value: power_of_two(alone * WAIT_SECONDS, 64 << 10, 1 << 20),
        why: format!("what one read at {} MB/s takes in 300 us", mb(alone)),
    })
}

fn write_bytes(figures: &[Figure]) -> Option<Limit> {
    let writes = of(figures, What::Write).filter(|figure| figure.depth == 4);
    let mut rates: Vec<(u64, f64)> = writes
        .map(|figure| (figure.bytes, figure.bytes_per_second))
        .collect();
    rates.sort_by_key(|(bytes, _)| *bytes);
    Some(Limit {
        key: "highwater.write.bytes",
        value: first_as_good(&rates)?.clamp(64 << 10, 4 << 20),
        why: format!("direct writes, four in flight, by bytes: {}", told(&rates)),
    })
}

fn segments_in_flight(figures: &[Figure]) -> Option<Limit> {
    // Files a second, so that more is better.
    let rates: Vec<(u64, f64)> = of(figures, What::RoundLimited)
        .filter(|figure| figure.p50_us.is_finite() && figure.p50_us > 0.0)
        .map(|figure| (u64::from(figure.depth), 1e6 / figure.p50_us))
        .collect();
    let times: Vec<String> = rates
        .iter()
        .map(|(depth, rate)| format!("{depth}: {:.0} us", 1e6 / rate))
        .collect();
    Some(Limit {
        key: "highwater.flush.segments.in.flight",
        value: first_as_good(&rates)?.clamp(1, 128),
        why: format!(
            "64 files flushed, by number in flight: {}",
            times.join(", ")
        ),
    })
}

/// What a flush round costs more for each further segment, microseconds: the median over the
/// rounds of four files and more.
fn per_file_us(figures: &[Figure]) -> Option<f64> {
    let one = median(figures, What::RoundBySegment, 1)?;
    let mut costs: Vec<f64> = of(figures, What::RoundBySegment)
        .filter(|figure| figure.depth >= 4 && figure.p50_us.is_finite())
        .map(|figure| (figure.p50_us - one) / f64::from(figure.depth - 1))
        .collect();
    costs.sort_by(f64::total_cmp);
    costs.get(costs.len() / 2).map(|cost| cost.max(0.0))
}

fn journal_log_bytes(figures: &[Figure]) -> Option<Limit> {
    let per_file = per_file_us(figures)?;
    let rate = rate(figures, What::Write, 1 << 20, 1)?;
    Some(Limit {
        key: "highwater.journal.log.bytes",
        value: power_of_two(per_file / 1e6 * rate, 4 << 10, 512 << 10),
        why: format!(
            "one more segment costs a round {per_file:.0} us, in which {} MB/s are written",
            mb(rate)
        ),
    })
}

fn journal_logs(figures: &[Figure]) -> Option<Limit> {
    let mut depths: Vec<u32> = of(figures, What::RoundBySegment).map(|f| f.depth).collect();
    depths.sort_unstable();
    // From the smallest round on from which the journal wins in all.
    let mut value = 1000;
    let mut times = Vec::new();
    let mut open = true;
    for depth in depths.into_iter().rev() {
        let segment = median(figures, What::RoundBySegment, depth)?;
        let journal = median(figures, What::RoundByJournal, depth)?;
        times.push(format!("{depth}: {segment:.0}/{journal:.0} us"));
        open &= journal <= segment * JOURNAL_GAIN;
        if open {
            value = u64::from(depth);
        }
    }
    times.reverse();
    (!times.is_empty()).then(|| Limit {
        key: "highwater.journal.logs.min",
        value,
        why: format!("rounds by segments/journal, by logs: {}", times.join(", ")),
    })
}

fn cleaner_rate(figures: &[Figure]) -> Option<Limit> {
    let mixed = rate(figures, What::Mixed, 1 << 20, 4)?;
    Some(Limit {
        key: "log.cleaner.io.max.bytes.per.second",
        value: (mixed * CLEANER_SHARE) as u64,
        why: format!("half of {} MB/s read and written side by side", mb(mixed)),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{broker_definition, definition, disk_profile};
    use proptest::prelude::*;

    fn figure(what: What, bytes: u64, depth: u32, rate: f64, p50_us: f64) -> Figure {
        Figure {
            what,
            way: Way::Ring,
            bytes,
            depth,
            operations: 2000,
            seconds: 0.5,
            bytes_per_second: rate,
            spread: 0.1,
            p50_us,
            p99_us: None,
        }
    }

    const MIB: u64 = 1 << 20;

    pub(in crate::tune::disk) fn fast_device() -> Vec<Figure> {
        let mut figures = vec![
            figure(What::Write, 64 << 10, 4, 0.9e9, 70.0),
            figure(What::Write, 256 << 10, 4, 1.45e9, 180.0),
            figure(What::Write, MIB, 1, 1.0e9, 1000.0),
            figure(What::Write, MIB, 2, 1.4e9, 1400.0),
            figure(What::Write, MIB, 4, 1.5e9, 2700.0),
            figure(What::Read, MIB, 1, 0.9e9, 1100.0),
            figure(What::Read, MIB, 2, 1.6e9, 1200.0),
            figure(What::Read, MIB, 4, 1.6e9, 2500.0),
            figure(What::Mixed, MIB, 4, 1.2e9, 1000.0),
        ];
        let rounds = [
            (1, 80.0, 82.0),
            (2, 110.0, 105.0),
            (4, 190.0, 85.0),
            (16, 650.0, 90.0),
        ];
        for (files, segment, journal) in rounds {
            figures.push(figure(What::RoundBySegment, 1024, files, 1e6, segment));
            figures.push(figure(What::RoundByJournal, 1024, files, 1e6, journal));
        }
        for (limit, time) in [(4, 3000.0), (16, 2500.0), (64, 2400.0)] {
            figures.push(figure(What::RoundLimited, 1024, limit, 1e6, time));
        }
        figures
    }

    fn value(limits: &[Limit], key: &str) -> Option<u64> {
        limits.iter().find(|l| l.key == key).map(|l| l.value)
    }

    #[test]
    fn the_smallest_that_is_as_good_as_the_best_is_taken() {
        let limits = limits(&fast_device(), false);
        for (key, expected) in [
            ("highwater.direct.writes.in.flight", 2),
            ("highwater.cold.reads.in.flight", 2),
            ("highwater.cold.read.bytes.beside.flushes", 256 << 10),
            ("highwater.write.bytes", 256 << 10),
            ("highwater.flush.segments.in.flight", 16),
            ("highwater.journal.logs.min", 4),
            // 38 us a file at 1 GB/s.
            ("highwater.journal.log.bytes", 32 << 10),
            ("log.cleaner.io.max.bytes.per.second", 600_000_000),
        ] {
            assert_eq!(value(&limits, key), Some(expected), "{key}");
        }
        assert_eq!(limits.len(), disk_profile::LIMITS.len());
    }

    #[test]
    fn a_journal_that_never_wins_is_asked_for_by_nobody() {
        let mut figures = fast_device();
        for figure in &mut figures {
            if figure.what == What::RoundByJournal {
                figure.p50_us = 10_000.0;
            }
        }
        let limits = limits(&figures, false);
        assert_eq!(value(&limits, "highwater.journal.logs.min"), Some(1000));
    }

    #[test]
    fn turns_that_disagree_decide_nothing_unless_that_is_asked_for() {
        let mut figures = fast_device();
        let figure = figures.iter_mut().find(|f| f.what == What::Read).unwrap();
        figure.spread = 3.0;
        let (quiet, all) = (limits(&figures, false), limits(&figures, true));
        assert_eq!(value(&quiet, "highwater.cold.reads.in.flight"), None);
        assert_eq!(value(&quiet, "highwater.direct.writes.in.flight"), Some(2));
        assert_eq!((quiet.len(), all.len()), (6, 8));
    }

    #[test]
    fn nothing_follows_from_nothing() {
        assert_eq!(limits(&[], true), Vec::new());
    }

    fn odd() -> impl Strategy<Value = f64> {
        prop_oneof![
            Just(0.0),
            Just(-1.0),
            Just(f64::NAN),
            Just(f64::INFINITY),
            Just(1e300),
            Just(1e-300),
            0.0..1e10f64
        ]
    }

    proptest! {
        /// Whatever was measured, the broker takes what follows.
        #[test]
        fn every_limit_is_one_that_the_broker_takes(
            values in proptest::collection::vec((odd(), odd(), any::<bool>()), 20)
        ) {
            let mut figures = fast_device();
            for (figure, (rate, us, spoil)) in figures.iter_mut().zip(values) {
                if spoil {
                    (figure.bytes_per_second, figure.p50_us) = (rate, us);
                }
            }
            for limit in limits(&figures, true) {
                prop_assert!(disk_profile::LIMITS.contains(&limit.key));
                let kind = broker_definition(limit.key).unwrap().kind;
                let value = limit.value.to_string();
                prop_assert!(definition::check(limit.key, kind, &value).is_ok(), "{limit:?}");
            }
        }
    }
}

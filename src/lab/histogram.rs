//! Latencies in microseconds, recorded by one thread, merged and summarised later. Owns what is
//! counted and the form in which it is kept: HDR V2 with DEFLATE, base64, which every HDR tool
//! reads. Never reads a clock; never averages percentiles (histograms are merged instead).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram as Hdr;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

use super::result::{Latency, LatencyKind, PERCENTILES, Percentile, has_enough_samples};

/// The largest latency that is told apart from larger ones: one hour. Who waits longer has given
/// up. It bounds a histogram to 200 KiB.
pub const MAX_MICROS: u64 = 60 * 60 * 1_000_000;

/// Values are kept to three digits: an error of at most a thousandth.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Points of a percentile curve for every tenfold rarer sample.
const CURVE_POINTS_PER_NINE: u32 = 40;

/// A histogram that does not grow: recording never allocates.
#[derive(Clone, PartialEq)]
pub struct Histogram {
    hdr: Hdr<u64>,
    saturated: u64,
}

/// Text that is no histogram.
#[derive(Debug, thiserror::Error)]
#[error("not a histogram in HDR V2 with DEFLATE and base64: {0}")]
pub struct NotAHistogram(String);

/// Not the thousands of counts.
impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("samples", &self.samples())
            .field("min", &self.min())
            .field("max", &self.max())
            .field("saturated", &self.saturated)
            .finish_non_exhaustive()
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    pub fn new() -> Histogram {
        let hdr = Hdr::new_with_bounds(1, MAX_MICROS, SIGNIFICANT_DIGITS);
        Histogram {
            hdr: hdr.expect("the bounds are constants that the crate accepts"),
            saturated: 0,
        }
    }

    pub fn record(&mut self, micros: u64) {
        self.record_n(micros, 1);
    }

    /// Records `micros` `count` times. What is above [`MAX_MICROS`] is recorded as that, and
    /// counted in [`Histogram::saturated`].
    pub fn record_n(&mut self, micros: u64, count: u64) {
        if micros > MAX_MICROS {
            self.saturated += count;
        }
        self.hdr.saturating_record_n(micros.min(MAX_MICROS), count);
    }

    /// As if all that `other` recorded had been recorded here.
    pub fn merge(&mut self, other: &Histogram) {
        let added = self.hdr.add(&other.hdr);
        debug_assert!(added.is_ok(), "both have the same bounds");
        self.saturated += other.saturated;
    }

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.hdr.reset();
        self.saturated = 0;
    }

    pub fn samples(&self) -> u64 {
        self.hdr.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hdr.is_empty()
    }

    /// How many samples were above [`MAX_MICROS`]. The encoded form does not keep this.
    pub fn saturated(&self) -> u64 {
        self.saturated
    }

    pub fn min(&self) -> u64 {
        self.hdr.min()
    }

    pub fn max(&self) -> u64 {
        self.hdr.max()
    }

    pub fn mean(&self) -> f64 {
        self.hdr.mean()
    }

    /// The value that `percent` of the samples do not exceed, whether or not there are enough of
    /// them; absent without samples.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let value = self.hdr.value_at_percentile(percent).min(self.hdr.max());
        (!self.is_empty()).then_some(value)
    }

    /// The value at `percent`, if there are enough samples above it to say so.
    pub fn stated_percentile(&self, percent: f64) -> Option<u64> {
        has_enough_samples(percent, self.samples())
            .then(|| self.percentile(percent))
            .flatten()
    }

    /// How many samples were slower than `micros`, as exactly as values are kept.
    pub fn count_over(&self, micros: u64) -> u64 {
        let slower = self.hdr.next_non_equivalent(micros.min(MAX_MICROS));
        match slower > self.hdr.max() {
            true => 0,
            false => self.hdr.count_between(slower, self.hdr.max()),
        }
    }

    pub fn summary(&self, kind: LatencyKind) -> Latency {
        let stated = |percent: f64| {
            let us = self.stated_percentile(percent)?;
            Some(Percentile { percent, us })
        };
        Latency {
            kind,
            samples: self.samples(),
            mean_us: self.mean(),
            min_us: self.min(),
            max_us: self.max(),
            percentiles: PERCENTILES.into_iter().filter_map(stated).collect(),
            histogram: self.encode(),
        }
    }

    /// The percentile curve: ever rarer samples, as many points for each further nine, up to the
    /// last percentile that has enough samples above it.
    pub fn curve(&self) -> Vec<Percentile> {
        let mut points = Vec::new();
        for step in 0.. {
            let rarity = 10f64.powf(-f64::from(step) / f64::from(CURVE_POINTS_PER_NINE));
            let percent = 100.0 * (1.0 - rarity);
            let Some(us) = self.stated_percentile(percent) else {
                break;
            };
            points.push(Percentile { percent, us });
        }
        points
    }

    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        let written = V2DeflateSerializer::new().serialize(&self.hdr, &mut bytes);
        debug_assert!(written.is_ok(), "a vector takes everything");
        STANDARD.encode(bytes)
    }

    /// Reads what [`Histogram::encode`], or another HDR tool, wrote.
    ///
    /// # Errors
    /// [`NotAHistogram`] if `text` is none.
    pub fn decode(text: &str) -> Result<Histogram, NotAHistogram> {
        let bytes = STANDARD.decode(text.trim());
        let bytes = bytes.map_err(|error| NotAHistogram(error.to_string()))?;
        let read = Deserializer::new().deserialize::<u64, _>(&mut bytes.as_slice());
        let read = read.map_err(|error| NotAHistogram(error.to_string()))?;
        let mut own = Histogram::new();
        for bucket in read.iter_recorded() {
            let lowest = read.lowest_equivalent(bucket.value_iterated_to());
            own.record_n(lowest, bucket.count_at_value());
        }
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        for value in values {
            histogram.record(*value);
        }
        histogram
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(values in prop::collection::vec(0u64..=MAX_MICROS, 0..300)) {
            let histogram = of(&values);
            prop_assert_eq!(Histogram::decode(&histogram.encode()).unwrap(), histogram);
        }

        #[test]
        fn merging_equals_recording_everything_in_one(
            mut first in prop::collection::vec(0u64..2 * MAX_MICROS, 0..200),
            second in prop::collection::vec(0u64..100_000, 0..200),
        ) {
            let mut merged = of(&first);
            merged.merge(&of(&second));
            first.extend(&second);
            prop_assert_eq!(merged, of(&first));
        }

        #[test]
        fn a_percentile_is_within_a_thousandth_of_the_sorted_value(
            mut values in prop::collection::vec(1u64..10_000_000, 20..400),
            percent in 0.0f64..100.0,
        ) {
            let found = of(&values).percentile(percent).unwrap();
            values.sort_unstable();
            let rank = (percent / 100.0 * values.len() as f64).ceil().max(1.0) as usize;
            // Ranks on the border of two values may fall to either side by rounding.
            let near = [rank.saturating_sub(1).max(1), rank, (rank + 1).min(values.len())];
            let within = near.iter().any(|rank| {
                let wanted = values[rank - 1] as f64;
                (found as f64 - wanted).abs() <= (wanted / 1000.0).max(1.0)
            });
            prop_assert!(within, "{} of {} values", found, values.len());
        }

        #[test]
        fn the_curve_rises_and_ends_where_samples_are_too_few(
            values in prop::collection::vec(0u64..1_000_000, 0..500),
        ) {
            let curve = of(&values).curve();
            prop_assert!(curve.is_sorted_by(|a, b| a.percent < b.percent && a.us <= b.us));
            for point in &curve {
                prop_assert!(has_enough_samples(point.percent, values.len() as u64));
            }
            prop_assert_eq!(curve.is_empty(), values.len() < 10);
        }
    }

    #[test]
    fn what_is_too_long_is_counted_as_the_longest() {
        let mut histogram = of(&[5, MAX_MICROS]);
        assert_eq!(histogram.saturated(), 0);
        histogram.record_n(MAX_MICROS + 1, 3);
        histogram.record(u64::MAX);
        assert_eq!((histogram.samples(), histogram.saturated()), (6, 4));
        assert_eq!(histogram.percentile(100.0), Some(histogram.max()));
        assert!(histogram.max() >= MAX_MICROS);
        histogram.clear();
        assert_eq!(histogram, Histogram::new());
    }

    #[test]
    fn a_summary_states_what_has_enough_samples() {
        let mut histogram = Histogram::new();
        for micros in 1..=1000 {
            histogram.record(micros);
        }
        let latency = histogram.summary(LatencyKind::Produce);
        let stated: Vec<(f64, u64)> = latency
            .percentiles
            .iter()
            .map(|one| (one.percent, one.us))
            .collect();
        let wanted = [(50.0, 500), (90.0, 900), (95.0, 950), (99.0, 990)];
        assert_eq!(stated, wanted);
        assert_eq!((latency.min_us, latency.max_us), (1, 1000));
        let over: Vec<u64> = [0, 1, 500, 999, 1000, u64::MAX]
            .map(|us| histogram.count_over(us))
            .into();
        assert_eq!(over, [1000, 999, 500, 1, 0, 0]);
        assert_eq!((latency.samples, latency.mean_us), (1000, 500.5));
        assert_eq!(Histogram::decode(&latency.histogram).unwrap(), histogram);
    }

    #[test]
    fn without_samples_nothing_is_stated() {
        let latency = Histogram::new().summary(LatencyKind::Fetch);
        assert_eq!((latency.samples, latency.percentiles.len()), (0, 0));
        assert_eq!(Histogram::new().percentile(50.0), None);
    }

    #[test]
    fn text_that_is_no_histogram_is_refused() {
        for text in ["", "no base64!", "AAAA", "HISTFAAAABl4"] {
            assert!(Histogram::decode(text).is_err(), "{text}");
        }
    }
}

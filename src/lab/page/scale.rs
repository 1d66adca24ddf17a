//! Where a value stands on an axis, and where the axis has its ticks. Pure.

use super::quantity::{Unit, digits};

/// How values are spread over an axis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scale {
    /// From zero, evenly: lengths can be compared.
    Linear,
    /// Every tenfold takes the same room. Values must be positive; others stand at the low end.
    Log,
    /// As `Log`, with a place of its own for zero at the low end.
    LogAndZero,
    /// Percentiles: every further nine takes the same room.
    Nines,
}

/// About so many labelled ticks: enough to read values off, few enough not to touch.
const TICKS: f64 = 6.0;
/// The part of an axis that lies between zero and the smallest positive value.
const ZERO_ROOM: f64 = 0.12;
/// No axis shows more nines: no run has that many samples.
const NINES_MAX: f64 = 9.0;

/// An axis with its range.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    pub label: String,
    pub unit: Unit,
    scale: Scale,
    low: f64,
    high: f64,
    step: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// From 0, the low end, to 1.
    pub place: f64,
    /// Empty where only a thin line is drawn.
    pub text: String,
}

impl Axis {
    /// An axis on which all `values` have room, from one round figure to another.
    pub fn around(
        label: &str,
        unit: Unit,
        scale: Scale,
        values: impl Iterator<Item = f64>,
    ) -> Axis {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let largest = values.iter().copied().fold(0.0, f64::max);
        let (low, high, step) = match scale {
            Scale::Linear => {
                let step = linear_step(largest, unit.is_binary());
                (0.0, step * (largest / step).ceil().max(1.0), step)
            }
            Scale::Log | Scale::LogAndZero => {
                let positive = values.iter().copied().filter(|value| *value > 0.0);
                let smallest = positive.fold(f64::INFINITY, f64::min);
                let (low, high) = match smallest.is_finite() {
                    true => (round_down(smallest), round_up(largest)),
                    false => (1.0, 10.0),
                };
                // A single value does not stand on an axis without length.
                (low, high.max(low * 10.0), 1.0)
            }
            Scale::Nines => (0.0, nines(largest).max(1.0), 1.0),
        };
        Axis {
            label: label.to_owned(),
            unit,
            scale,
            low,
            high,
            step,
        }
    }

    /// From 0, the low end, to 1. What lies outside stands at the end.
    pub fn place(&self, value: f64) -> f64 {
        let log = |value: f64| {
            let over = (value / self.low).ln() / (self.high / self.low).ln();
            over.clamp(0.0, 1.0)
        };
        match self.scale {
            Scale::Linear => (value / self.high).clamp(0.0, 1.0),
            Scale::Log if value > 0.0 => log(value),
            Scale::LogAndZero if value > 0.0 => ZERO_ROOM + (1.0 - ZERO_ROOM) * log(value),
            Scale::Log | Scale::LogAndZero => 0.0,
            Scale::Nines => (nines(value) / self.high).clamp(0.0, 1.0),
        }
    }

    pub fn ticks(&self) -> Vec<Tick> {
        let labelled = |value: f64, text: String| Tick {
            place: self.place(value),
            text,
        };
        match self.scale {
            Scale::Linear => {
                let count = (self.high / self.step).round() as u32;
                let value = |at: u32| f64::from(at) * self.step;
                (0..=count)
                    .map(|at| labelled(value(at), self.unit.text(value(at))))
                    .collect()
            }
            Scale::Log => self.log_ticks(),
            Scale::LogAndZero => {
                let mut ticks = vec![labelled(0.0, self.unit.text(0.0))];
                ticks.extend(self.log_ticks());
                ticks
            }
            Scale::Nines => {
                let mut ticks = vec![labelled(0.0, percent(0.0)), labelled(50.0, percent(50.0))];
                let mut nine = 1;
                while f64::from(nine) <= self.high + 1e-9 {
                    let value = 100.0 * (1.0 - 10f64.powi(-nine));
                    ticks.push(labelled(value, percent(value)));
                    nine += 1;
                }
                ticks
            }
        }
    }

    /// Decades, and 2 and 5 between them where there is room for their text.
    fn log_ticks(&self) -> Vec<Tick> {
        let decades = (self.high / self.low).log10();
        let stride = (decades / TICKS).ceil().max(1.0) as i32;
        let mut ticks = Vec::new();
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        for decade in first..=last {
            for (at, factor) in [1.0, 2.0, 5.0].into_iter().enumerate() {
                let value = factor * 10f64.powi(decade);
                if value < self.low * (1.0 - 1e-9) || value > self.high * (1.0 + 1e-9) {
                    continue;
                }
                let text = match at {
                    0 if (decade - first) % stride == 0 => self.unit.text(value),
                    1 | 2 if decades <= 2.5 => self.unit.text(value),
                    _ => String::new(),
                };
                ticks.push(Tick {
                    place: self.place(value),
                    text,
                });
            }
        }
        ticks
    }
}

/// How many nines: 90 is one, 99 is two, 99.9 is three.
pub fn nines(percent: f64) -> f64 {
    let above = 1.0 - (percent / 100.0).clamp(0.0, 1.0);
    // 100 % has no place of its own on an axis that never ends.
    (-above.max(1e-12).log10()).clamp(0.0, NINES_MAX)
}

fn percent(value: f64) -> String {
    // As many digits as it takes: 99.999 is not 100.
    let decimals = (nines(value) - 2.0 + 1e-6).floor().max(0.0) as usize;
    format!("{value:.decimals$}\u{202f}%")
}

/// A step of 1, 2 or 5 (for bytes a power of two) that is taken about [`TICKS`] times.
fn linear_step(largest: f64, binary: bool) -> f64 {
    if largest <= 0.0 {
        return 1.0;
    }
    let least = largest / TICKS;
    if binary {
        return 2f64.powf(least.log2().ceil()).max(1.0);
    }
    let decade = 10f64.powf(least.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors
        .into_iter()
        .find(|f| f * decade >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * decade
}

/// The largest of 1, 2, 5 times a power of ten that is at most `value`.
fn round_down(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let factors = [5.0, 2.0, 1.0];
    let factor = factors
        .into_iter()
        .find(|f| f * decade <= value * (1.0 + 1e-9));
    factor.unwrap_or(1.0) * decade
}

fn round_up(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors
        .into_iter()
        .find(|f| f * decade >= value * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * decade
}

impl Axis {
    /// What the axis shows, for those who do not see it.
    pub fn described(&self) -> String {
        let (low, high) = match self.scale {
            Scale::Nines => (percent(0.0), format!("{}\u{202f}nines", digits(self.high))),
            Scale::LogAndZero => (self.unit.text(0.0), self.unit.text(self.high)),
            _ => (self.unit.text(self.low), self.unit.text(self.high)),
        };
        format!("{} from {low} to {high}", self.label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axis(scale: Scale, unit: Unit, values: &[f64]) -> Axis {
        Axis::around("x", unit, scale, values.iter().copied())
    }

    fn texts(axis: &Axis) -> Vec<String> {
        let texts = axis.ticks().into_iter().map(|tick| tick.text);
        texts
            .filter(|text| !text.is_empty())
            .map(|text| text.replace('\u{202f}', " "))
            .collect()
    }

    proptest! {
        #[test]
        fn every_value_has_room_and_order_is_kept(
            mut values in prop::collection::vec(1e-3f64..1e12, 1..20),
            which in 0usize..3,
            binary in any::<bool>(),
        ) {
            let scale = [Scale::Linear, Scale::Log, Scale::LogAndZero][which];
            let unit = if binary { Unit::Bytes } else { Unit::Plain };
            let axis = axis(scale, unit, &values);
            values.sort_by(f64::total_cmp);
            let places: Vec<f64> = values.iter().map(|value| axis.place(*value)).collect();
            prop_assert!(places.is_sorted());
            prop_assert!(places.iter().all(|place| (0.0..=1.0).contains(place)));
            // Nothing was cut off: the largest value is not beyond the end.
            prop_assert!(values[values.len() - 1] <= axis.high * (1.0 + 1e-6));
            if scale != Scale::Linear {
                prop_assert!(values[0] >= axis.low * (1.0 - 1e-6));
            }
        }

        #[test]
        fn ticks_are_few_ordered_and_within_the_axis(
            values in prop::collection::vec(0f64..1e12, 0..20),
            which in 0usize..4,
        ) {
            let scale = [Scale::Linear, Scale::Log, Scale::LogAndZero, Scale::Nines][which];
            let values: Vec<f64> = match scale {
                Scale::Nines => values.iter().map(|value| value / 1e10).collect(),
                _ => values,
            };
            let axis = axis(scale, Unit::Plain, &values);
            let ticks = axis.ticks();
            prop_assert!(ticks.is_sorted_by(|a, b| a.place < b.place), "{:?}", ticks);
            prop_assert!(ticks.iter().all(|tick| (0.0..=1.0).contains(&tick.place)));
            let labelled = texts(&axis).len();
            prop_assert!((2..=12).contains(&labelled), "{:?}", ticks);
        }
    }

    #[test]
    fn linear_axes_begin_at_zero_and_have_round_steps() {
        assert_eq!(
            texts(&axis(Scale::Linear, Unit::Count, &[43_000.0])),
            ["0", "10 k", "20 k", "30 k", "40 k", "50 k"]
        );
        assert_eq!(
            texts(&axis(
                Scale::Linear,
                Unit::BytesPerSecond,
                &[20.0 * 1048576.0]
            )),
            [
                "0 B/s", "4 MiB/s", "8 MiB/s", "12 MiB/s", "16 MiB/s", "20 MiB/s"
            ]
        );
        assert_eq!(texts(&axis(Scale::Linear, Unit::Plain, &[])), ["0", "1"]);
    }

    #[test]
    fn short_log_axes_have_twos_and_fives_long_ones_decades() {
        assert_eq!(
            texts(&axis(Scale::Log, Unit::Micros, &[230.0, 4100.0])),
            ["200 µs", "500 µs", "1 ms", "2 ms", "5 ms"]
        );
        assert_eq!(
            texts(&axis(Scale::Log, Unit::Micros, &[10.0, 900_000.0])),
            ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"]
        );
        let with_zero = axis(Scale::LogAndZero, Unit::Count, &[0.0, 3.0, 2000.0]);
        assert_eq!(texts(&with_zero)[..2], ["0", "10"]);
        assert_eq!(with_zero.place(0.0), 0.0);
        assert!(with_zero.place(3.0) > ZERO_ROOM / 2.0);
    }

    #[test]
    fn every_nine_takes_the_same_room() {
        let axis = axis(Scale::Nines, Unit::Percent, &[0.0, 99.99]);
        assert_eq!(
            texts(&axis),
            ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]
        );
        for (percent, place) in [
            (0.0, 0.0),
            (90.0, 0.25),
            (99.0, 0.5),
            (99.9, 0.75),
            (100.0, 1.0),
        ] {
            assert!((axis.place(percent) - place).abs() < 1e-6, "{percent}");
        }
    }
}

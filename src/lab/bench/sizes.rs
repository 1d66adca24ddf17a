//! How large values are: one size, or a distribution of sizes. Pure.

use std::fmt;
use std::str::FromStr;

/// The largest value that may be asked for: what `message.max.bytes` could ever be set to in
/// earnest. It bounds the memory for the content.
pub const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Without its own limit a lognormal distribution ends at this many medians: its tail is endless.
const LOGNORMAL_CUT: usize = 100;

/// Sizes of values in bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    Fixed(usize),
    /// All from the first to the second, equally likely.
    Uniform(usize, usize),
    /// The logarithm is normal: many small ones and few large.
    Lognormal {
        median: usize,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        max: usize,
    },
    /// Sizes with their weights.
    Weighted(Vec<(usize, f64)>),
}

impl Sizes {
    pub(super) fn max(&self) -> usize {
        match self {
            Sizes::Fixed(size) => *size,
            Sizes::Uniform(_, max) | Sizes::Lognormal { max, .. } => *max,
            Sizes::Weighted(sizes) => sizes.iter().map(|(size, _)| *size).max().unwrap_or(0),
        }
    }

    pub(super) fn min(&self) -> usize {
        match self {
            Sizes::Fixed(size) => *size,
            Sizes::Uniform(min, _) => *min,
            Sizes::Lognormal { .. } => 1,
            Sizes::Weighted(sizes) => sizes.iter().map(|(size, _)| *size).min().unwrap_or(0),
        }
    }

    /// A size in the middle, for what is measured beside the load.
    pub fn typical(&self) -> usize {
        match self {
            Sizes::Fixed(size) => *size,
            Sizes::Uniform(min, max) => min.midpoint(*max),
            Sizes::Lognormal { median, .. } => *median,
            Sizes::Weighted(sizes) => {
                let heaviest = sizes.iter().max_by(|a, b| a.1.total_cmp(&b.1));
                heaviest.map_or(0, |(size, _)| *size)
            }
        }
    }

    /// A size.
    pub(super) fn sample(&self, random: &mut fastrand::Rng) -> usize {
        match self {
            Sizes::Fixed(size) => *size,
            Sizes::Uniform(min, max) => random.usize(*min..=*max),
            Sizes::Lognormal { median, sigma, max } => {
                let size = *median as f64 * (sigma * normal(random)).exp();
                (size.round() as usize).clamp(1, *max)
            }
            Sizes::Weighted(sizes) => {
                let total: f64 = sizes.iter().map(|(_, weight)| weight).sum();
                let mut point = random.f64() * total;
                for (size, weight) in sizes {
                    point -= weight;
                    if point < 0.0 {
                        return *size;
                    }
                }
                // Rounding may leave a hair above the last.
                sizes.last().map_or(0, |(size, _)| *size)
            }
        }
    }
}

/// A standard normal number, by Box and Muller.
fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let size = |text: &str| match text.trim().parse::<usize>() {
            Ok(size) if size <= VALUE_BYTES_MAX => Ok(size),
            Ok(_) => Err(format!("a size above {VALUE_BYTES_MAX} bytes")),
            Err(_) => Err(format!("{text:?} is no size in bytes")),
        };
        let positive = |text: &str| match text.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
            _ => Err(format!("{text:?} is no positive number")),
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["uniform", min, max] => {
                let (min, max) = (size(min)?, size(max)?);
                if min > max {
                    return Err(format!(
                        "the smallest size {min} is above the largest {max}"
                    ));
                }
                Ok(Sizes::Uniform(min, max))
            }
            ["lognormal", median, sigma] => {
                let median = size(median)?.max(1);
                Ok(Sizes::Lognormal {
                    median,
                    sigma: positive(sigma)?,
                    max: (median * LOGNORMAL_CUT).min(VALUE_BYTES_MAX),
                })
            }
            ["lognormal", median, sigma, max] => {
                let (median, max) = (size(median)?.max(1), size(max)?);
                if median > max {
                    return Err(format!(
                        "the median {median} is above the largest size {max}"
                    ));
                }
                let sigma = positive(sigma)?;
                Ok(Sizes::Lognormal { median, sigma, max })
            }
            [list] if list.contains('*') => list
                .split(',')
                .map(|part| match part.split_once('*') {
                    Some((bytes, weight)) => Ok((size(bytes)?, positive(weight)?)),
                    None => Ok((size(part)?, 1.0)),
                })
                .collect::<Result<_, _>>()
                .map(Sizes::Weighted),
            [one] => size(one).map(Sizes::Fixed),
            _ => Err(
                "not BYTES, uniform:MIN:MAX, lognormal:MEDIAN:SIGMA[:MAX] or \
                      BYTES*WEIGHT,BYTES*WEIGHT"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Fixed(size) => write!(f, "{size}"),
            Sizes::Uniform(min, max) => write!(f, "uniform:{min}:{max}"),
            Sizes::Lognormal { median, sigma, max } => {
                write!(f, "lognormal:{median}:{sigma}:{max}")
            }
            Sizes::Weighted(sizes) => {
                for (at, (size, weight)) in sizes.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{size}*{weight}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for text in [
            "1024",
            "uniform:10:2000",
            "lognormal:300:1.5:9000",
            "100*9,10000*1",
        ] {
            assert_eq!(text.parse::<Sizes>().unwrap().to_string(), text);
        }
        let cut: Sizes = "lognormal:300:1".parse().unwrap();
        assert_eq!(cut.max(), 30_000);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "-1",
            "a",
            "uniform:5",
            "uniform:9:5",
            "lognormal:100:0",
            "lognormal:100:1:50",
            "1*0",
            "1*x",
            "1:2",
            "99999999999",
        ] {
            assert!(text.parse::<Sizes>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn samples_stay_within_their_bounds(
            a in 0usize..5000, b in 0usize..5000, sigma in 0.1f64..3.0, seed in any::<u64>(),
        ) {
            let (min, max) = (a.min(b), a.max(b));
            let mut random = fastrand::Rng::with_seed(seed);
            let all = [
                Sizes::Fixed(a),
                Sizes::Uniform(min, max),
                Sizes::Lognormal { median: min.max(1), sigma, max: max.max(1) },
                Sizes::Weighted(vec![(a, 2.0), (b, 0.5)]),
            ];
            for sizes in all {
                for _ in 0..200 {
                    let size = sizes.sample(&mut random);
                    prop_assert!((sizes.min()..=sizes.max()).contains(&size), "{} of {}", size, sizes);
                }
            }
        }
    }

    #[test]
    fn half_of_a_lognormal_lies_below_its_median_and_weights_are_kept() {
        let mut random = fastrand::Rng::with_seed(3);
        let sizes: Sizes = "lognormal:500:1".parse().unwrap();
        let below = (0..20_000)
            .filter(|_| sizes.sample(&mut random) <= 500)
            .count();
        assert!((9_600..10_400).contains(&below), "{below}");
        let sizes: Sizes = "10*3,20*1".parse().unwrap();
        let small = (0..20_000)
            .filter(|_| sizes.sample(&mut random) == 10)
            .count();
        assert!((14_600..15_400).contains(&small), "{small}");
    }
}

//! Which keys records have: none, all equally often, or few of them often (Zipf). Pure.

use std::fmt;
use std::str::FromStr;

/// A key's length: a letter and the number in 15 digits.
pub(super) const KEY_BYTES: usize = 16;
/// More distinct keys than anybody's log compacts; below what 15 digits count.
const KEYS_MAX: u64 = 1_000_000_000_000;

/// Keys of records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keys {
    None,
    /// This many, equally likely.
    Uniform(u64),
    /// The k-th of `count` keys comes k^-exponent as often as the first.
    Zipf {
        count: u64,
        exponent: f64,
    },
}

impl FromStr for Keys {
    type Err = String;

    fn from_str(text: &str) -> Result<Keys, String> {
        let count = |text: &str| match text.trim().parse::<u64>() {
            Ok(count) if (1..=KEYS_MAX).contains(&count) => Ok(count),
            _ => Err(format!(
                "{text:?} is no number of keys from 1 to {KEYS_MAX}"
            )),
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["none"] => Ok(Keys::None),
            ["uniform", keys] => Ok(Keys::Uniform(count(keys)?)),
            ["zipf", keys] => Ok(Keys::Zipf {
                count: count(keys)?,
                exponent: 1.0,
            }),
            ["zipf", keys, exponent] => match exponent.parse::<f64>() {
                Ok(exponent) if exponent.is_finite() && exponent > 0.0 && exponent <= 10.0 => {
                    Ok(Keys::Zipf {
                        count: count(keys)?,
                        exponent,
                    })
                }
                _ => Err(format!("{exponent:?} is no exponent above 0 and up to 10")),
            },
            _ => Err("not none, uniform:KEYS or zipf:KEYS[:EXPONENT]".to_owned()),
        }
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keys::None => f.write_str("none"),
            Keys::Uniform(count) => write!(f, "uniform:{count}"),
            Keys::Zipf { count, exponent } => write!(f, "zipf:{count}:{exponent}"),
        }
    }
}

/// Draws keys.
#[derive(Clone, Debug)]
pub(super) enum KeySource {
    None,
    Uniform(u64),
    Zipf(Zipf),
}

impl KeySource {
    pub(super) fn new(keys: Keys) -> KeySource {
        match keys {
            Keys::None => KeySource::None,
            Keys::Uniform(count) => KeySource::Uniform(count),
            Keys::Zipf { count, exponent } => KeySource::Zipf(Zipf::new(count, exponent)),
        }
    }

    /// The next record's key.
    pub(super) fn sample(&self, random: &mut fastrand::Rng) -> Option<[u8; KEY_BYTES]> {
        match self {
            KeySource::None => None,
            KeySource::Uniform(count) => Some(key(random.u64(0..*count))),
            KeySource::Zipf(zipf) => Some(key(zipf.sample(random) - 1)),
        }
    }
}

/// The bytes of key `number`.
fn key(mut number: u64) -> [u8; KEY_BYTES] {
    let mut bytes = [b'0'; KEY_BYTES];
    bytes[0] = b'k';
    for digit in bytes[1..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    bytes
}

/// Zipf's distribution over `1..=count`, by rejection-inversion (Hörmann and Derflinger, 1996):
/// constant time and memory for any number of keys.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    count: f64,
    exponent: f64,
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    pub(super) fn new(count: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf {
            count: count as f64,
            exponent,
            low: 0.0,
            high: 0.0,
            shortcut: 0.0,
        };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.count + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// The integral of the density from 1 to x.
    fn integral(&self, x: f64) -> f64 {
        let rest = 1.0 - self.exponent;
        if rest.abs() < 1e-9 {
            x.ln()
        } else {
            (x.powf(rest) - 1.0) / rest
        }
    }

    fn inverse(&self, area: f64) -> f64 {
        let rest = 1.0 - self.exponent;
        if rest.abs() < 1e-9 {
            area.exp()
        } else {
            (1.0 + area * rest).max(0.0).powf(1.0 / rest)
        }
    }

    pub(super) fn sample(&self, random: &mut fastrand::Rng) -> u64 {
        loop {
            let area = self.high + random.f64() * (self.low - self.high);
            let x = self.inverse(area);
            let k = x.round().clamp(1.0, self.count);
            if k - x <= self.shortcut || area >= self.integral(k + 0.5) - self.density(k) {
                return k as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for text in ["none", "uniform:10", "zipf:1000:0.9"] {
            assert_eq!(text.parse::<Keys>().unwrap().to_string(), text);
        }
        assert_eq!(
            "zipf:5".parse::<Keys>().unwrap(),
            Keys::Zipf {
                count: 5,
                exponent: 1.0
            }
        );
        for text in [
            "",
            "uniform",
            "uniform:0",
            "zipf:0",
            "zipf:5:0",
            "zipf:5:x",
            "some",
        ] {
            assert!(text.parse::<Keys>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_key_is_its_number() {
        assert_eq!(&key(0), b"k000000000000000");
        assert_eq!(&key(KEYS_MAX - 1), b"k000999999999999");
    }

    #[test]
    fn zipf_keys_come_as_often_as_their_rank_says() {
        for exponent in [0.5, 1.0, 1.7] {
            let zipf = Zipf::new(50, exponent);
            let mut random = fastrand::Rng::with_seed(11);
            let mut seen = [0u32; 51];
            let draws = 200_000;
            for _ in 0..draws {
                seen[zipf.sample(&mut random) as usize] += 1;
            }
            let total: f64 = (1..=50).map(|k| f64::from(k).powf(-exponent)).sum();
            for k in 1..=50u32 {
                let wanted = f64::from(k).powf(-exponent) / total * f64::from(draws);
                let found = f64::from(seen[k as usize]);
                // Six standard deviations.
                assert!(
                    (found - wanted).abs() < 6.0 * wanted.sqrt() + 3.0,
                    "key {k} at {exponent}: {found} of {wanted}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn zipf_stays_within_its_keys(count in 1u64..1_000_000, exponent in 0.01f64..10.0, seed in any::<u64>()) {
            let zipf = Zipf::new(count, exponent);
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..100 {
                prop_assert!((1..=count).contains(&zipf.sample(&mut random)));
            }
        }
    }
}

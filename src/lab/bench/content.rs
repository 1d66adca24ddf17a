//! What values are made of, and the stamp that tells a consumer when a record was due.
//!
//! Pure. A value is a slice of one prepared buffer, so making one costs no copy of its own.

use std::fmt;
use std::str::FromStr;

/// Run and due time, at the start of a value.
pub(super) const STAMP_BYTES: usize = 16;
/// Bytes that values are cut from beyond the largest of them. Without compression it should stay
/// in the second-level cache; a codec must not find the same bytes again within a batch.
const SPREAD_PLAIN: usize = 256 * 1024;
const SPREAD_COMPRESSED: usize = 4 * 1024 * 1024;
/// From one value to the next, beside its size: coprime to every power of two.
const STEP: usize = 61;

/// What values look like to a codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing to compress.
    Random,
    /// Words and numbers, as in log lines: compresses to about a third.
    Text,
    /// Compresses to nothing.
    Zeros,
}

impl Content {
    const ALL: [(Content, &'static str); 3] = [
        (Content::Random, "random"),
        (Content::Text, "text"),
        (Content::Zeros, "zeros"),
    ];
}

impl FromStr for Content {
    type Err = String;

    fn from_str(text: &str) -> Result<Content, String> {
        let found = Content::ALL.into_iter().find(|(_, name)| *name == text);
        found
            .map(|(content, _)| content)
            .ok_or_else(|| "not random, text or zeros".to_owned())
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Content::ALL.iter().find(|(content, _)| content == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

/// Where values are cut from.
pub(super) struct Values {
    bytes: Vec<u8>,
    at: usize,
    /// Last position that a value may begin at.
    last: usize,
    stamp: Option<u64>,
}

impl Values {
    /// Values of at most `max` bytes; with `stamp`, the run's number, each begins with it and its
    /// due time, if it is large enough.
    pub(super) fn new(
        content: Content,
        max: usize,
        compressed: bool,
        stamp: Option<u64>,
        random: &mut fastrand::Rng,
    ) -> Values {
        let spread = if compressed {
            SPREAD_COMPRESSED
        } else {
            SPREAD_PLAIN
        };
        let mut bytes = vec![0; max + spread];
        match content {
            Content::Random => random.fill(&mut bytes),
            Content::Text => fill_with_words(&mut bytes, random),
            Content::Zeros => {}
        }
        Values {
            bytes,
            at: 0,
            last: spread,
            stamp,
        }
    }

    /// Gives `with` the next value, of `size` bytes, due at `due`.
    pub(super) fn next<T>(&mut self, size: usize, due: u64, with: impl FnOnce(&[u8]) -> T) -> T {
        let at = self.at;
        self.at += size + STEP;
        if self.at > self.last {
            self.at %= self.last;
        }
        let value = &mut self.bytes[at..at + size];
        match self.stamp {
            Some(run) if size >= STAMP_BYTES => {
                let mut before = [0; STAMP_BYTES];
                before.copy_from_slice(&value[..STAMP_BYTES]);
                value[..8].copy_from_slice(&run.to_be_bytes());
                value[8..STAMP_BYTES].copy_from_slice(&due.to_be_bytes());
                let result = with(value);
                value[..STAMP_BYTES].copy_from_slice(&before);
                result
            }
            _ => with(value),
        }
    }
}

/// When a record of this run was due; `None` for anybody else's.
pub(super) fn read_stamp(value: &[u8], run: u64) -> Option<u64> {
    let (stamped, rest) = value.split_first_chunk::<8>()?;
    let due = rest.first_chunk::<8>()?;
    (u64::from_be_bytes(*stamped) == run).then(|| u64::from_be_bytes(*due))
}

fn fill_with_words(bytes: &mut [u8], random: &mut fastrand::Rng) {
    const WORDS: [&str; 16] = [
        "order",
        "payment",
        "customer",
        "accepted",
        "rejected",
        "GET",
        "POST",
        "/api/v1/items",
        "status=200",
        "status=404",
        "latency_ms=",
        "region=eu",
        "region=us",
        "retry",
        "session",
        "user_id=",
    ];
    let mut at = 0;
    while at < bytes.len() {
        let word = WORDS[random.usize(..WORDS.len())];
        let text = match word.ends_with('=') {
            true => format!("{word}{} ", random.u32(..1_000_000)),
            false => format!("{word} "),
        };
        let taken = text.len().min(bytes.len() - at);
        bytes[at..at + taken].copy_from_slice(&text.as_bytes()[..taken]);
        at += taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec::{Codec, compress};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_value_has_its_size_and_its_stamp(
            sizes in prop::collection::vec(0usize..5000, 1..400), due in any::<u64>(),
        ) {
            let mut random = fastrand::Rng::with_seed(1);
            let mut values = Values::new(Content::Random, 5000, false, Some(77), &mut random);
            let before = values.bytes.clone();
            for size in sizes {
                values.next(size, due, |value| {
                    assert_eq!(value.len(), size);
                    assert_eq!(read_stamp(value, 77), (size >= STAMP_BYTES).then_some(due));
                    assert_eq!(read_stamp(value, 78), None);
                });
            }
            prop_assert!(values.bytes == before, "a stamp was left in the content");
        }
    }

    #[test]
    fn content_compresses_as_it_says() {
        let ratio = |content| {
            let mut random = fastrand::Rng::with_seed(1);
            let mut values = Values::new(content, 1000, true, None, &mut random);
            let mut batch = Vec::new();
            for _ in 0..64 {
                values.next(1000, 0, |value| batch.extend_from_slice(value));
            }
            compress(Codec::Zstd, None, &batch).unwrap().len() as f64 / batch.len() as f64
        };
        assert!(ratio(Content::Random) > 0.99);
        assert!((0.1..0.5).contains(&ratio(Content::Text)));
        assert!(ratio(Content::Zeros) < 0.01);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for (content, name) in Content::ALL {
            assert_eq!(content.to_string(), name);
            assert_eq!(name.parse(), Ok(content));
        }
        assert!("zero".parse::<Content>().is_err());
    }
}

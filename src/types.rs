//! The nouns every room shares: offsets, epochs, ids. Plain values, no I/O, any core.
//!
//! Offsets that mean different things still have one unit (a record's position in its
//! partition), so they share one type and differ by name: `log_start`, `written`, `durable`,
//! `high_watermark`, `last_stable`, `log_end`.

use std::fmt;

/// A record's position in its partition (Kafka protocol: int64). Never negative in a log; the
/// protocol's special values (-1 latest, -2 earliest) stay raw integers in the messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Offset(pub i64);

impl Offset {
    pub const ZERO: Offset = Offset(0);
    /// "No offset" on the wire.
    pub const UNKNOWN: Offset = Offset(-1);

    pub fn next(self) -> Offset {
        Offset(self.0 + 1)
    }

    /// Number of offsets from `earlier` up to, not including, `self`; 0 if it is not earlier.
    pub fn since(self, earlier: Offset) -> u64 {
        self.0.saturating_sub(earlier.0).max(0) as u64
    }
}

impl fmt::Debug for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The term of a partition's leader (KIP-101). -1 means unknown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LeaderEpoch(pub i32);

impl LeaderEpoch {
    pub const UNKNOWN: LeaderEpoch = LeaderEpoch(-1);
}

/// The offset of a broker's registration record in the metadata log; -1 means unknown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BrokerEpoch(pub i64);

/// Counts the changes of one partition's registration (KIP-497).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PartitionEpoch(pub i32);

/// `node.id`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub i32);

/// A 16-byte id of a topic, directory or incarnation; printed as Kafka prints it, 22 characters
/// of unpadded base64url.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    pub const ZERO: Uuid = Uuid([0; 16]);

    /// The id with the given most and least significant halves, as Java's `UUID` names them.
    pub const fn from_halves(most: u64, least: u64) -> Uuid {
        Uuid((((most as u128) << 64) | least as u128).to_be_bytes())
    }

    pub fn is_zero(self) -> bool {
        self == Uuid::ZERO
    }

    /// Parses the 22-character form; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Uuid> {
        use base64::Engine;
        let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
            .decode(text)
            .ok()?;
        Some(Uuid(bytes.try_into().ok()?))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use base64::Engine;
        f.write_str(&base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A partition by topic id: the key of everything that is kept per partition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartitionId {
    pub topic: Uuid,
    pub index: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_prints_as_kafka_does() {
        let metadata_topic = Uuid::from_halves(0, 1);
        assert_eq!(metadata_topic.to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(Uuid::parse("AAAAAAAAAAAAAAAAAAAAAQ"), Some(metadata_topic));
        assert_eq!(Uuid::parse("short"), None);
    }
}

//! How the records of a coordinator's log (`__consumer_offsets`, `__transaction_state`,
//! `__share_group_state`) carry their types and versions: the key begins with its type, the value
//! with its version, int16 each. Any core; no state.

use bytes::Bytes;

use super::fault::{DecodeError, EncodeError};
use super::message::Message;
use super::reader::Reader;
use super::writer::Writer;

/// What the states of a transaction are called, by their numbers in `__transaction_state`; filters
/// of ListTransactions name them too.
pub const TRANSACTION_STATES: [&str; 8] = [
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
];

/// Keys have one version only: what changes gets a new type.
const KEY_VERSION: i16 = 0;

/// The rest of a key whose type was read.
pub(super) fn read_key<K: Message>(mut r: Reader) -> Result<K, DecodeError> {
    let key = K::decode(&mut r, K::MIN_VERSION)?;
    r.expect_end()
        .map_err(|e| e.within(K::NAME, K::MIN_VERSION))?;
    Ok(key)
}

/// A value with its version before it; `None` is a tombstone. Bytes after the fields are refused.
pub(super) fn read_value<V: Message>(value: Option<Bytes>) -> Result<Option<V>, DecodeError> {
    let Some(value) = value else { return Ok(None) };
    let mut r = Reader::new(value);
    let version = r.i16("value version").map_err(|e| e.within(V::NAME, -1))?;
    let value = V::decode(&mut r, version)?;
    r.expect_end().map_err(|e| e.within(V::NAME, version))?;
    Ok(Some(value))
}

pub(super) fn encode_pair<K: Message, V: Message>(
    key: &K,
    value: Option<&V>,
    version: i16,
) -> Result<(Bytes, Option<Bytes>), EncodeError> {
    let mut w = Writer::new();
    w.i16(K::API_KEY);
    key.encode(&mut w, K::MIN_VERSION.max(KEY_VERSION))?;
    let value = match value {
        Some(value) => Some(encode_versioned(value, version)?),
        None => None,
    };
    Ok((w.into_bytes(), value))
}

/// A message with its version before it, as coordinator values, group member blobs and forwarded
/// principals are stored.
pub fn encode_versioned<M: Message>(message: &M, version: i16) -> Result<Bytes, EncodeError> {
    let mut w = Writer::new();
    w.i16(version);
    message.encode(&mut w, version)?;
    Ok(w.into_bytes())
}

/// Reads what [`encode_versioned`] wrote; bytes after the fields are left, as Kafka does.
pub fn decode_versioned<M: Message>(bytes: Bytes) -> Result<(M, i16), DecodeError> {
    let mut r = Reader::new(bytes);
    let version = r.i16("version").map_err(|e| e.within(M::NAME, -1))?;
    Ok((M::decode(&mut r, version)?, version))
}

/// The same, but a version above the last known one is read as the last known one: a consumer of
/// a later release may share a group with an older one (consumer protocol, KIP-429).
pub fn decode_versioned_capped<M: Message>(bytes: Bytes) -> Result<(M, i16), DecodeError> {
    let mut r = Reader::new(bytes);
    let version = r
        .i16("version")
        .map_err(|e| e.within(M::NAME, -1))?
        .min(M::MAX_VERSION);
    Ok((M::decode(&mut r, version)?, version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::offset_commit_key::OffsetCommitKey;
    use crate::wire::messages::offset_commit_value::OffsetCommitValue;
    use crate::wire::messages::{GroupRecord, TransactionRecord};
    use crate::wire::{DecodeFault, Str};

    fn commit() -> GroupRecord {
        let key = OffsetCommitKey {
            group: Str::from("g"),
            topic: Str::from("t"),
            partition: 3,
            ..OffsetCommitKey::default()
        };
        let value = OffsetCommitValue {
            offset: 7,
            leader_epoch: 2,
            ..OffsetCommitValue::default()
        };
        GroupRecord::OffsetCommit(key, Some(value))
    }

    #[test]
    fn an_offset_commit_is_stored_as_kafka_stores_it() {
        let (key, value) = commit().encode(3).unwrap();
        assert_eq!(&key[..], b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03");
        let value = value.unwrap();
        assert_eq!(
            &value[..],
            b"\x00\x03\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
        );
        assert_eq!(GroupRecord::decode(key, Some(value)), Ok(commit()));
    }

    #[test]
    fn a_tombstone_is_a_key_without_a_value() {
        let GroupRecord::OffsetCommit(key, _) = commit() else {
            unreachable!()
        };
        let tombstone = GroupRecord::OffsetCommit(key, None);
        let (key, value) = tombstone.encode(0).unwrap();
        assert_eq!(value, None);
        assert_eq!(GroupRecord::decode(key, None), Ok(tombstone));
    }

    #[test]
    fn an_unknown_key_type_is_an_error_and_not_a_guess() {
        let error =
            TransactionRecord::decode(Bytes::from_static(b"\x00\x09\x00\x00"), None).unwrap_err();
        assert_eq!(error.fault(), DecodeFault::UnknownKey(9));
        assert!(TransactionRecord::decode(Bytes::from_static(b"\x00"), None).is_err());
    }
}

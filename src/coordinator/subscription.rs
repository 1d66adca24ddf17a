//! Reads the topics out of a consumer's subscription metadata (ConsumerProtocolSubscription),
//! which is opaque to the coordinator otherwise. Pure. It reads the version-0 prefix, which every
//! later version keeps, and takes nothing for granted: the bytes come from clients.

use std::collections::BTreeSet;

use crate::wire::Str;

/// Adds the topics to `topics`. `None` if the bytes are not a subscription.
pub(super) fn read_topics(metadata: &[u8], topics: &mut BTreeSet<Str>) -> Option<()> {
    let (version, rest) = take::<2>(metadata)?;
    if i16::from_be_bytes(version) < 0 {
        return None;
    }
    let (count, mut rest) = take::<4>(rest)?;
    for _ in 0..i32::from_be_bytes(count).max(0) {
        let (length, after) = take::<2>(rest)?;
        let length = usize::try_from(i16::from_be_bytes(length)).ok()?;
        let topic = std::str::from_utf8(after.get(..length)?).ok()?;
        if !topics.contains(topic) {
            topics.insert(Str::from(topic.to_owned()));
        }
        rest = &after[length..];
    }
    Some(())
}

fn take<const N: usize>(bytes: &[u8]) -> Option<([u8; N], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    Some((*head, rest))
}

#[cfg(test)]
pub(super) fn write_for_tests(topics: &[&str]) -> bytes::Bytes {
    let mut out = vec![0, 1];
    out.extend_from_slice(&(topics.len() as i32).to_be_bytes());
    for topic in topics {
        out.extend_from_slice(&(topic.len() as i16).to_be_bytes());
        out.extend_from_slice(topic.as_bytes());
    }
    // User data: null; then an owned-partitions list of version 1.
    out.extend_from_slice(&(-1i32).to_be_bytes());
    out.extend_from_slice(&0i32.to_be_bytes());
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribed_topics_keep_their_offsets() {
        let mut topics = BTreeSet::new();
        read_topics(&write_for_tests(&["orders", "clicks"]), &mut topics).unwrap();
        assert_eq!(
            topics.into_iter().collect::<Vec<_>>(),
            ["clicks".into(), "orders".into()] as [Str; 2]
        );
    }

    #[test]
    fn hostile_metadata_neither_panics_nor_allocates() {
        let whole = write_for_tests(&["orders", "clicks"]);
        for cut in 0..26.min(whole.len()) {
            let _ = read_topics(&whole[..cut], &mut BTreeSet::new());
        }
        let mut huge = vec![0, 0];
        huge.extend_from_slice(&i32::MAX.to_be_bytes());
        assert_eq!(read_topics(&huge, &mut BTreeSet::new()), None);
        assert_eq!(read_topics(&[], &mut BTreeSet::new()), None);
        assert_eq!(
            read_topics(&[0xff, 0xff, 0, 0, 0, 0], &mut BTreeSet::new()),
            None
        );
    }
}

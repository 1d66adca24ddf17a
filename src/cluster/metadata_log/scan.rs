//! Cutting a segment's bytes into batches at start, and telling a write that a crash cut short from
//! damage. Pure.
//!
//! Batches are synced before others are written behind them, so only the last write can be torn:
//! one batch, or the several that were announced before. A whole batch behind what is broken means
//! that this was synced once: then it is damage, which is never cut off by itself.

use super::Damage;
use crate::cluster::replay::ReplayError;
use crate::types::Offset;
use crate::wire::batch::{Batch, BatchError, BatchView, Batches};
use bytes::Bytes;

/// Where a batch says its magic, and the only one there is in a metadata log.
const MAGIC_AT: usize = 16;
const MAGIC: u8 = 2;

/// What a segment holds.
pub(super) struct Scanned {
    pub(super) batches: Vec<Batch>,
    /// Bytes of whole batches; what is behind was cut short by a crash.
    pub(super) whole: u64,
    /// The offset behind the last.
    pub(super) next: Offset,
}

/// Cuts `bytes`, whose first batch must begin at `next`, into batches. `unsynced` are the offsets of
/// the last announced write.
pub(super) fn scan(
    bytes: &Bytes,
    mut next: Offset,
    unsynced: Option<(Offset, Offset)>,
    damage: Damage,
) -> Result<Scanned, ReplayError> {
    let mut position = 0;
    let mut batches = Vec::new();
    let mut broken: Option<ReplayError> = None;
    for batch in Batches::new(bytes.clone()) {
        let checked = batch.and_then(|batch| batch.check_crc().map(|()| batch));
        match checked {
            Ok(batch) if batch.base_offset() == next => {
                next = batch.last_offset().next();
                position += batch.total_size() as u64;
                batches.push(batch);
            }
            // The checksum leaves the offset out: a torn write may spare all but it.
            Ok(batch) => {
                let found = batch.base_offset();
                broken = Some(ReplayError::Gap {
                    position,
                    expected: next,
                    found,
                });
                break;
            }
            Err(source) => {
                broken = Some(ReplayError::Batch { position, source });
                break;
            }
        }
    }
    let scanned = Scanned {
        batches,
        whole: position,
        next,
    };
    if damage == Damage::FetchedAgain {
        return Ok(scanned);
    }
    let behind = bytes.slice(position as usize..);
    // Offsets that a batch behind the break must have to prove that the break was synced once.
    let proof = match unsynced {
        Some((from, to)) if from <= next && next < to => to,
        _ => next,
    };
    if holds_a_batch(&behind, proof) {
        let source = BatchError::Partial {
            needed: bytes.len() + 1,
            available: bytes.len(),
        };
        return Err(broken.unwrap_or(ReplayError::Batch { position, source }));
    }
    Ok(scanned)
}

/// Whether a whole batch from `offset` on stands anywhere in `bytes`.
fn holds_a_batch(bytes: &[u8], offset: Offset) -> bool {
    let candidates = bytes
        .iter()
        .enumerate()
        .skip(MAGIC_AT)
        .filter(|(_, byte)| **byte == MAGIC);
    candidates
        .map(|(at, _)| &bytes[at - MAGIC_AT..])
        .any(|rest| {
            BatchView::parse(rest)
                .is_ok_and(|(batch, _)| batch.base_offset() >= offset && batch.check_crc().is_ok())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LeaderEpoch;
    use crate::wire::batch_builder::{ControlType, control_batch};

    fn batches(count: i64) -> Vec<Bytes> {
        let one = |at| {
            let value = [at as u8; 40];
            let change = [(ControlType::LeaderChange, &value[..])];
            control_batch(Offset(at), LeaderEpoch(1), 7, &change).unwrap()
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn only_what_was_announced_may_be_torn_before_a_whole_batch() {
        let batches = batches(4);
        let mut bytes: Vec<u8> = batches.concat();
        let torn = batches[0].len() + 30;
        bytes[torn..torn + 20].fill(0);
        let bytes = Bytes::from(bytes);
        let read = |unsynced, damage| scan(&bytes, Offset(0), unsynced, damage);
        assert!(read(None, Damage::Fatal).is_err());
        // The write ended before the last batch: that was synced, so the broken one was.
        let before = Some((Offset(1), Offset(3)));
        assert!(read(before, Damage::Fatal).is_err());
        let all = read(Some((Offset(1), Offset(4))), Damage::Fatal).unwrap();
        assert_eq!((all.next, all.batches.len()), (Offset(1), 1));
        let other = Some((Offset(2), Offset(4)));
        assert!(read(other, Damage::Fatal).is_err());
        // Only the offset of the last batch was torn.
        let mut bytes: Vec<u8> = batches.concat();
        let last = 3 * batches[0].len();
        bytes[last..last + 8].fill(0);
        let torn_offset = scan(&bytes.into(), Offset(0), None, Damage::Fatal).unwrap();
        assert_eq!(torn_offset.next, Offset(3));
        let observer = read(None, Damage::FetchedAgain).unwrap();
        assert_eq!(observer.whole, batches[0].len() as u64);
    }
}

//! Which partition a record goes to: by its key as Java's client decides it, else sticky
//! (KIP-794).
//!
//! Pure; the caller brings the randomness.

/// MurmurHash2, 32 bits, with the seed and the sign of Java's client.
pub fn murmur2(data: &[u8]) -> i32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    let mut hash = SEED ^ data.len() as u32;
    let (words, tail) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u32::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    (hash ^ (hash >> 15)) as i32
}

/// The partition of a keyed record; `partitions` counts all of the topic, with or without leader.
pub fn partition_for_key(key: &[u8], partitions: usize) -> i32 {
    let positive = (murmur2(key) & 0x7fff_ffff) as usize;
    (positive % partitions.max(1)) as i32
}

/// Where the records of one topic without key go: to one partition until it has been given a
/// batch's worth of bytes, then to another.
#[derive(Clone, Copy, Debug, Default)]
pub struct StickyPartitioner {
    current: Option<i32>,
    bytes: usize,
}

impl StickyPartitioner {
    /// The partition for the next record of `bytes`. `available` are the partitions that have a
    /// leader, or all if none has; `batch_size` is when to move on; `random` any 64 bits.
    pub fn next(
        &mut self,
        available: &[i32],
        bytes: usize,
        batch_size: usize,
        random: u64,
    ) -> Option<i32> {
        let stays = self
            .current
            .filter(|at| self.bytes < batch_size && available.contains(at));
        let partition = match stays {
            Some(partition) => partition,
            None => {
                self.bytes = 0;
                *available.get((random % available.len().max(1) as u64) as usize)?
            }
        };
        self.current = Some(partition);
        self.bytes += bytes;
        Some(partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_hash_as_in_java() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
        }
    }

    #[test]
    fn a_negative_hash_still_gives_a_partition() {
        assert_eq!(
            partition_for_key(b"21", 7),
            (-973_932_308i32 & 0x7fff_ffff) % 7
        );
        for n in 0..1000u32 {
            assert!((0..7).contains(&partition_for_key(&n.to_be_bytes(), 7)));
        }
        assert_eq!(partition_for_key(b"x", 0), 0);
    }

    #[test]
    fn records_without_key_fill_a_batch_before_they_move_on() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut sticky = StickyPartitioner::default();
        let available = [0, 2, 5];
        let mut counts = [0usize; 6];
        let mut moves = 0;
        let mut last = None;
        for _ in 0..30_000 {
            let at = sticky.next(&available, 100, 1000, random.u64(..)).unwrap();
            moves += usize::from(last != Some(at));
            last = Some(at);
            counts[at as usize] += 1;
        }
        assert!(moves <= 3000, "seed {seed}: {moves} moves");
        for at in [0, 2, 5] {
            assert!(
                (9_000..11_000).contains(&counts[at]),
                "seed {seed}: {counts:?}"
            );
        }
        assert_eq!(counts[1] + counts[3] + counts[4], 0);
    }

    #[test]
    fn a_partition_that_lost_its_leader_is_left() {
        let mut sticky = StickyPartitioner::default();
        assert_eq!(sticky.next(&[3], 1, 1000, 9), Some(3));
        assert_eq!(sticky.next(&[4], 1, 1000, 9), Some(4));
        assert_eq!(sticky.next(&[], 1, 1000, 9), None);
    }
}

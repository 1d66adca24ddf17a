//! Owns how a record key becomes 128 bits: SipHash-2-4 with its 128-bit output, under a secret of
//! the pass. Pure, any core. It never sees values.
//!
//! The offset map compares hashes, not keys, so two keys with one hash would cost a record. Kafka
//! takes MD5, whose collisions anybody can make today: a producer could make a stranger's record
//! vanish. SipHash is keyed; who does not know the secret, drawn anew for every pass, cannot aim.
//! By accident, a billion keys in one pass collide once in 10^20 passes.

/// The secret a pass hashes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashSecret(pub u64, pub u64);

/// A key's hash.
pub type KeyHash = [u64; 2];

/// Rounds per eight bytes of key, and at each half of the end.
const COMPRESSION_ROUNDS: usize = 2;
const FINAL_ROUNDS: usize = 4;

struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    /// The four constants spell "somepseudorandomlygeneratedbytes"; 0xee marks the long output.
    fn new(secret: HashSecret) -> State {
        State {
            v0: secret.0 ^ 0x736f_6d65_7073_6575,
            v1: secret.1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            v2: secret.0 ^ 0x6c79_6765_6e65_7261,
            v3: secret.1 ^ 0x7465_6462_7974_6573,
        }
    }

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.v0 = self.v0.wrapping_add(self.v1);
            self.v1 = self.v1.rotate_left(13) ^ self.v0;
            self.v0 = self.v0.rotate_left(32);
            self.v2 = self.v2.wrapping_add(self.v3);
            self.v3 = self.v3.rotate_left(16) ^ self.v2;
            self.v0 = self.v0.wrapping_add(self.v3);
            self.v3 = self.v3.rotate_left(21) ^ self.v0;
            self.v2 = self.v2.wrapping_add(self.v1);
            self.v1 = self.v1.rotate_left(17) ^ self.v2;
            self.v2 = self.v2.rotate_left(32);
        }
    }

    fn absorb(&mut self, word: u64) {
        self.v3 ^= word;
        self.rounds(COMPRESSION_ROUNDS);
        self.v0 ^= word;
    }

    fn half(&mut self, mark: impl FnOnce(&mut State)) -> u64 {
        mark(self);
        self.rounds(FINAL_ROUNDS);
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }
}

/// The hash of a key.
pub fn hash_key(secret: HashSecret, key: &[u8]) -> KeyHash {
    let mut state = State::new(secret);
    let (words, tail) = key.as_chunks::<8>();
    for word in words {
        state.absorb(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    // The length modulo 256 closes the last word.
    last[7] = key.len() as u8;
    state.absorb(u64::from_le_bytes(last));
    [
        state.half(|state| state.v2 ^= 0xee),
        state.half(|state| state.v1 ^= 0xdd),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_siphash_and_not_something_like_it() {
        // The published vectors: secret 00..0f, keys of 0, 1, 2 bytes counting up from 0.
        let secret = HashSecret(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        let published = [
            "a3817f04ba25a8e66df67214c7550293",
            "da87c1d86b99af44347659119b22fc45",
            "8177228da4a45dc7fca38bdef60affe4",
        ];
        for (len, want) in published.into_iter().enumerate() {
            let key: Vec<u8> = (0..len as u8).collect();
            let bytes = hash_key(secret, &key).map(u64::to_le_bytes).concat();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, want, "{len} bytes");
        }
    }

    #[test]
    fn another_secret_gives_other_hashes_and_lengths_count() {
        let hash = |secret, key: &[u8]| hash_key(HashSecret(secret, 0), key);
        assert_ne!(hash(1, b"key"), hash(2, b"key"));
        assert_ne!(hash(1, b""), hash(1, b"\0"));
        assert_ne!(hash(1, &[0; 8]), hash(1, &[0; 16]));
        assert_eq!(hash(1, b"12345678"), hash(1, b"12345678"));
    }
}

//! Owns bytes of a segment file that lie side by side but came in several parts: pieces read
//! ahead, steps through the page cache. Pure. It never copies them; only a batch header that
//! lies across two parts is put together.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::wire::Records;
use crate::wire::batch::HEADER_BYTES;

/// A range of a file in memory.
pub(super) struct Window {
    start: u64,
    parts: SmallVec<[Bytes; 4]>,
    len: usize,
}

impl Window {
    pub(super) fn new(start: u64) -> Window {
        Window {
            start,
            parts: SmallVec::new(),
            len: 0,
        }
    }

    pub(super) fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// Position in the file of the first byte.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Position in the file behind the last byte.
    pub(super) fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of `from..to`, both counted from the start.
    pub(super) fn slice(&self, from: usize, to: usize) -> Records {
        let mut records = Records::default();
        let mut part_start = 0;
        for part in &self.parts {
            let begin = from.clamp(part_start, part_start + part.len()) - part_start;
            let end = to.clamp(part_start, part_start + part.len()) - part_start;
            if begin < end {
                records.push(part.slice(begin..end));
            }
            part_start += part.len();
        }
        records
    }

    /// For a walk over the batch headers.
    pub(super) fn heads(&self) -> Heads<'_> {
        Heads {
            window: self,
            part: 0,
            part_start: 0,
            joined: [0; HEADER_BYTES],
        }
    }
}

/// A walk over a window that only goes forward, so that it costs no search per batch.
pub(super) struct Heads<'a> {
    window: &'a Window,
    part: usize,
    part_start: usize,
    joined: [u8; HEADER_BYTES],
}

impl Heads<'_> {
    /// The bytes from `at` on, as many as a batch header has or the window holds. `at` never goes
    /// back.
    pub(super) fn at(&mut self, at: usize) -> &[u8] {
        let parts = &self.window.parts;
        while let Some(part) = parts.get(self.part) {
            if at < self.part_start + part.len() {
                break;
            }
            self.part_start += part.len();
            self.part += 1;
        }
        let Some(part) = parts.get(self.part) else {
            return &[];
        };
        let rest = &part[at - self.part_start..];
        if rest.len() >= HEADER_BYTES {
            return &rest[..HEADER_BYTES];
        }
        let mut filled = 0;
        let more = parts[self.part + 1..].iter().map(|part| &part[..]);
        for bytes in std::iter::once(rest).chain(more) {
            let take = bytes.len().min(HEADER_BYTES - filled);
            self.joined[filled..filled + take].copy_from_slice(&bytes[..take]);
            filled += take;
            if filled == HEADER_BYTES {
                break;
            }
        }
        &self.joined[..filled]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_the_bytes_are_cut_they_read_the_same() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..300 {
            let whole: Vec<u8> = (0..rng.usize(0..400)).map(|_| rng.u8(..)).collect();
            let mut window = Window::new(1000);
            let mut rest = Bytes::from(whole.clone());
            while !rest.is_empty() {
                let cut = rng.usize(..rest.len().min(90) + 1);
                window.push(rest.split_to(cut));
            }
            assert_eq!(window.end(), 1000 + whole.len() as u64);
            let (mut heads, mut at) = (window.heads(), 0);
            while at <= whole.len() {
                let end = whole.len().min(at + HEADER_BYTES);
                assert_eq!(heads.at(at), &whole[at..end]);
                at += rng.usize(1..100);
            }
            let from = rng.usize(..whole.len() + 1);
            let to = rng.usize(from..whole.len() + 1);
            assert_eq!(&window.slice(from, to).to_bytes()[..], &whole[from..to]);
        }
    }
}

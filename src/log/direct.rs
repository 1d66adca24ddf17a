//! Owns O_DIRECT writes of a log: how batches become whole blocks, and what follows when one of
//! the writes in flight ends. On the log's shard, one task per write in flight. It never decides
//! which batches go together: the write queue does.
//!
//! Nothing is ever appended into a buffer in flight: every write is composed in a buffer of its
//! own, the partial block before the data from a copy.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::rt::fs::AlignedBuf;
use crate::rt::sync::Permit;

use super::log::{Log, Status};
use super::write_queue::{BLOCK_BYTES, DirectWrite, Outcome};

/// Blocks ready to be written.
struct Blocks {
    at: u64,
    buffer: AlignedBuf,
}

impl Blocks {
    /// Lays `pieces` side by side from `at` on, zeros up to the next boundary.
    fn of(at: u64, pieces: &[&[u8]]) -> Blocks {
        debug_assert!(at.is_multiple_of(BLOCK_BYTES));
        Blocks {
            at,
            buffer: AlignedBuf::gathered(pieces),
        }
    }

    fn len(&self) -> u64 {
        self.buffer.len() as u64
    }
}

/// The blocks of a write: all of them, or the shared first one apart from the rest.
struct Composed {
    seam: Option<Blocks>,
    main: Option<Blocks>,
}

impl Composed {
    fn of(direct: &DirectWrite) -> Composed {
        let start = direct.write.position - direct.head.len() as u64;
        let mut pieces: SmallVec<[&[u8]; 16]> = SmallVec::new();
        pieces.push(&direct.head);
        pieces.extend(direct.write.parts.iter().map(|part| &part[..]));
        if direct.beside.is_none() {
            return Composed {
                seam: None,
                main: Some(Blocks::of(start, &pieces)),
            };
        }
        let mut room = BLOCK_BYTES as usize;
        let mut rest: SmallVec<[&[u8]; 16]> = SmallVec::new();
        let mut first: SmallVec<[&[u8]; 16]> = SmallVec::new();
        for piece in pieces {
            let (here, there) = piece.split_at(piece.len().min(room));
            room -= here.len();
            first.push(here);
            if !there.is_empty() {
                rest.push(there);
            }
        }
        Composed {
            seam: Some(Blocks::of(start, &first)),
            main: (!rest.is_empty()).then(|| Blocks::of(start + BLOCK_BYTES, &rest)),
        }
    }
}

impl Log {
    /// Writes what was taken off the queue and sees to what follows.
    pub(super) async fn fly(self: Rc<Self>, direct: DirectWrite, permit: Option<Permit>) {
        let outcome = self.write_blocks(&direct).await;
        drop(permit);
        self.flight_ended(direct.id, outcome).await;
    }

    async fn write_blocks(&self, direct: &DirectWrite) -> Outcome {
        let segment = &direct.write.segment;
        let Some(handles) = segment.handles() else {
            unreachable!("a segment's files are opened before it is written and stay open");
        };
        let Composed { seam, main } = Composed::of(direct);
        let mut end = 0;
        let mut batches = direct.write.batches;
        let has_main = main.is_some();
        if let Some(Blocks { at, buffer }) = main {
            let len = buffer.len() as u64;
            end = at + len;
            self.shard.appends.wrote(len, std::mem::take(&mut batches));
            let written = handles.writer.write_aligned_at(at, buffer).await.0;
            direct.last_block.end(written.is_ok());
            if let Err(error) = written {
                return Outcome::Failed(error);
            }
        }
        if let (Some(blocks), Some(before)) = (seam, &direct.beside) {
            let good = before.ended().await;
            if !good {
                direct.last_block.end(false);
                return Outcome::Orphaned;
            }
            end = end.max(blocks.at + blocks.len());
            self.shard.appends.wrote(blocks.len(), batches);
            let written = handles
                .writer
                .write_aligned_at(blocks.at, blocks.buffer)
                .await
                .0;
            if !has_main {
                direct.last_block.end(written.is_ok());
            }
            if let Err(error) = written {
                return Outcome::Failed(error);
            }
        }
        // Only where no space could be reserved ahead.
        if end > segment.file_len() {
            segment.file_resized(end);
        }
        Outcome::Done
    }

    /// `written` follows the writes that are done without a gap. A failure ends that for good: the
    /// storage's takes the log offline at once; on a full disk the others in flight are awaited,
    /// then the tail from the first failed one on is lost.
    async fn flight_ended(&self, id: u64, outcome: Outcome) {
        let (ended, moved) = {
            let mut state = self.state_mut();
            let mut ended = state.queue.ended(id, outcome);
            let usable = matches!(state.status, Status::Open | Status::Truncating);
            let moved = usable && !ended.reached.is_empty();
            if usable {
                for reached in ended.reached.drain(..) {
                    reached.segment.written_to(reached.end);
                    state.marks.written_to(reached.upto);
                }
                if ended.refused {
                    // Until the tail is cut nothing may be appended behind it.
                    state.status = Status::Truncating;
                }
            } else {
                ended.lost = None;
            }
            if moved {
                self.after_write(&mut state);
            }
            if usable && ended.lost.is_none() && ended.failure.is_none() {
                self.wake_writer_for_more(&mut state);
            }
            (ended, moved)
        };
        if let Some(error) = ended.failure {
            self.fail("write", error);
        } else if let Some(error) = ended.lost {
            self.lose_unwritten(error).await;
        } else if moved {
            self.announce();
        }
        // Whoever waits for an idle writer looks again.
        self.progress.notify_all();
    }
}

//! Random numbers for decisions, given as an argument so that a decision can be repeated. Pure.

use crate::types::Uuid;

/// Random input of a decision.
pub struct Dice<'a>(pub &'a mut dyn FnMut() -> u64);

impl Dice<'_> {
    pub fn roll(&mut self) -> u64 {
        (self.0)()
    }

    /// An id that does not begin with a dash and is none of the reserved ones.
    pub fn uuid(&mut self) -> Uuid {
        loop {
            let id = Uuid::from_halves(self.roll(), self.roll());
            let reserved = id.0[..15].iter().all(|byte| *byte == 0);
            if !reserved && !id.to_string().starts_with('-') {
                return id;
            }
        }
    }
}

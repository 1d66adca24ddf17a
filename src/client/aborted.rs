//! Which batches of one fetched partition belong to aborted transactions (`read_committed`).
//!
//! Pure; one executor. Batches are shown to it in the order of the log, markers too. Reads no
//! record.

use ahash::AHashSet;

use crate::types::Offset;

/// The aborted transactions that came with a partition's records.
#[derive(Debug)]
pub(crate) struct Aborted {
    /// Those that begin further on: (first offset, producer id), the first last.
    coming: Vec<(i64, i64)>,
    /// Producers whose open transaction will be aborted.
    open: AHashSet<i64>,
}

impl Aborted {
    /// Of (first offset, producer id) in any order.
    pub(crate) fn new(mut transactions: Vec<(i64, i64)>) -> Aborted {
        transactions.sort_unstable_by(|a, b| b.cmp(a));
        Aborted {
            coming: transactions,
            open: AHashSet::new(),
        }
    }

    /// Whether the records of the next batch are hidden. A marker (`control`) ends the producer's
    /// transaction, whichever way.
    pub(crate) fn hides(
        &mut self,
        last: Offset,
        producer: i64,
        transactional: bool,
        control: bool,
    ) -> bool {
        if !transactional && !control {
            return false;
        }
        while self
            .coming
            .last()
            .is_some_and(|(first, _)| *first <= last.0)
        {
            self.open
                .extend(self.coming.pop().map(|(_, producer)| producer));
        }
        match control {
            true => {
                self.open.remove(&producer);
                false
            }
            false => self.open.contains(&producer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_hidden_from_its_beginning_to_its_marker() {
        let mut aborted = Aborted::new(vec![(30, 7), (10, 7), (12, 8)]);
        let mut hides = |last, producer| aborted.hides(Offset(last), producer, true, false);
        assert!(!hides(9, 7), "an earlier one was committed");
        assert!(hides(10, 7));
        assert!(!hides(11, 8));
        assert!(hides(15, 8) && hides(16, 7));
        assert!(!aborted.hides(Offset(17), 7, true, true));
        assert!(!aborted.hides(Offset(18), 7, true, false));
        assert!(
            !aborted.hides(Offset(19), 8, false, false),
            "not part of it"
        );
        assert!(aborted.hides(Offset(30), 7, true, false));
    }
}

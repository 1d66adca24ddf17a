//! Owns what a pass knows of transactions while it walks a log in offset order: which were
//! aborted, and whether data of one was still met before its marker. Pure. It never decides what
//! becomes of a batch: it tells whether the batch may go.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::super::txn_index::AbortedTxn;
use crate::types::Offset;
use crate::wire::batch_builder::ControlType;

/// An aborted transaction that the walk is in.
#[derive(Debug)]
struct Ongoing {
    row: AbortedTxn,
    /// A batch of its data lies in the log still (it may go with this pass).
    met_data: bool,
}

/// The transactions of one walk over a log.
#[derive(Debug, Default)]
pub struct CleanedTransactions {
    /// Aborted ones that begin further on, by first offset.
    waiting: BinaryHeap<Reverse<(Offset, Offset)>>,
    rows: HashMap<(Offset, Offset), AbortedTxn>,
    aborted: HashMap<i64, Ongoing>,
    committed: HashSet<i64>,
}

/// What an end-transaction marker means for the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MarkerVerdict {
    /// No data of the transaction was met: the marker may go once the delete horizon has passed.
    pub may_go: bool,
    /// The transaction's row stays in the index, because its data was met.
    pub row: Option<AbortedTxn>,
}

impl CleanedTransactions {
    /// For a walk over a log with these aborted transactions, given in any order.
    pub fn new(rows: impl IntoIterator<Item = AbortedTxn>) -> CleanedTransactions {
        let mut transactions = CleanedTransactions::default();
        for row in rows {
            let key = (row.first_offset, row.last_offset);
            if transactions.rows.insert(key, row).is_none() {
                transactions.waiting.push(Reverse(key));
            }
        }
        transactions
    }

    /// A data batch that ends at `last_offset`. True if it belongs to an aborted transaction: its
    /// records may go.
    pub fn on_data(&mut self, producer_id: i64, transactional: bool, last_offset: Offset) -> bool {
        self.begin_up_to(last_offset);
        if !transactional {
            return false;
        }
        match self.aborted.get_mut(&producer_id) {
            Some(ongoing) if last_offset < ongoing.row.last_offset => {
                ongoing.met_data = true;
                true
            }
            // Past the marker, whatever has become of it: never another transaction's data.
            _ => {
                self.committed.insert(producer_id);
                false
            }
        }
    }

    /// A control batch that ends at `last_offset`; `kind` is that of its record, `None` if it has
    /// no record (any more) or one not known here.
    pub fn on_control(
        &mut self,
        producer_id: i64,
        kind: Option<ControlType>,
        last_offset: Offset,
        is_empty: bool,
    ) -> MarkerVerdict {
        self.begin_up_to(last_offset);
        let verdict = |may_go| MarkerVerdict { may_go, row: None };
        match kind {
            // What it said was cleaned before; only its place was kept.
            _ if is_empty => verdict(true),
            Some(ControlType::Abort) => match self.aborted.remove(&producer_id) {
                Some(ongoing) if ongoing.met_data => MarkerVerdict {
                    may_go: false,
                    row: Some(ongoing.row),
                },
                _ => verdict(true),
            },
            Some(ControlType::Commit) => verdict(!self.committed.remove(&producer_id)),
            _ => verdict(false),
        }
    }

    fn begin_up_to(&mut self, offset: Offset) {
        while let Some(Reverse(key)) = self.waiting.peek().copied()
            && key.0 <= offset
        {
            self.waiting.pop();
            if let Some(row) = self.rows.remove(&key) {
                let met_data = false;
                self.aborted
                    .insert(row.producer_id, Ongoing { row, met_data });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(producer_id: i64, first: i64, last: i64) -> AbortedTxn {
        AbortedTxn {
            producer_id,
            first_offset: Offset(first),
            last_offset: Offset(last),
            last_stable_offset: Offset(last + 1),
        }
    }

    fn control(
        transactions: &mut CleanedTransactions,
        id: i64,
        kind: ControlType,
        at: i64,
    ) -> MarkerVerdict {
        transactions.on_control(id, Some(kind), Offset(at), false)
    }

    const KEPT: MarkerVerdict = MarkerVerdict {
        may_go: false,
        row: None,
    };
    const MAY_GO: MarkerVerdict = MarkerVerdict {
        may_go: true,
        row: None,
    };

    #[test]
    fn data_of_an_aborted_transaction_goes_and_its_marker_stays_while_there_was_some() {
        let mut first = CleanedTransactions::new([row(1, 2, 9)]);
        assert!(
            !first.on_data(1, false, Offset(0)),
            "outside any transaction"
        );
        assert!(first.on_data(1, true, Offset(4)));
        let verdict = control(&mut first, 1, ControlType::Abort, 9);
        assert_eq!(
            verdict,
            MarkerVerdict {
                may_go: false,
                row: Some(row(1, 2, 9))
            }
        );
        // The next pass meets the marker alone: marker and row may go.
        let mut second = CleanedTransactions::new([row(1, 2, 9)]);
        assert_eq!(control(&mut second, 1, ControlType::Abort, 9), MAY_GO);
    }

    #[test]
    fn a_commit_marker_stays_while_its_data_is_there() {
        let mut transactions = CleanedTransactions::default();
        assert!(!transactions.on_data(7, true, Offset(0)));
        assert_eq!(control(&mut transactions, 7, ControlType::Commit, 1), KEPT);
        assert_eq!(
            control(&mut transactions, 7, ControlType::Commit, 2),
            MAY_GO
        );
    }

    #[test]
    fn one_producer_may_abort_commit_and_abort_again() {
        let mut transactions = CleanedTransactions::new([row(1, 10, 12), row(1, 0, 2)]);
        assert!(transactions.on_data(1, true, Offset(0)));
        assert!(
            control(&mut transactions, 1, ControlType::Abort, 2)
                .row
                .is_some()
        );
        assert!(!transactions.on_data(1, true, Offset(5)));
        assert_eq!(control(&mut transactions, 1, ControlType::Commit, 6), KEPT);
        assert!(transactions.on_data(1, true, Offset(10)));
        let last = control(&mut transactions, 1, ControlType::Abort, 12);
        assert_eq!(last.row, Some(row(1, 10, 12)));
    }

    #[test]
    fn transactions_of_two_producers_do_not_mix() {
        let mut transactions = CleanedTransactions::new([row(1, 0, 4)]);
        assert!(transactions.on_data(1, true, Offset(0)));
        assert!(!transactions.on_data(2, true, Offset(1)));
        assert_eq!(control(&mut transactions, 2, ControlType::Commit, 2), KEPT);
        assert!(transactions.on_data(1, true, Offset(3)));
    }

    #[test]
    fn an_emptied_marker_may_go_and_an_unknown_control_record_never_does() {
        let mut transactions = CleanedTransactions::default();
        assert_eq!(transactions.on_control(1, None, Offset(0), true), MAY_GO);
        assert_eq!(transactions.on_control(1, None, Offset(1), false), KEPT);
        let leader_change = control(&mut transactions, -1, ControlType::LeaderChange, 2);
        assert_eq!(leader_change, KEPT);
    }
}

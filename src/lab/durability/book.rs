//! What the producer of one row was told of its numbered records, and the judgement: which of the
//! acknowledged ones are not there any more. Knows no broker and no clock; shared between the
//! executor that sends and the thread that kills.

use super::losses::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
struct Pages {
    next: u64,
    /// By number, when the acknowledgement was heard, since the feed began. What was lost is taken
    /// out: it is lost once.
    acknowledged: BTreeMap<u64, Duration>,
    since_event: u64,
    /// Sent, and nothing is known of them yet.
    open: u64,
    refused: u64,
}

/// See the module's words.
#[derive(Default)]
pub struct Book(Mutex<Pages>);

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record is about to be sent; its number.
    pub fn open(&self) -> u64 {
        let mut pages = self.pages();
        let number = pages.next;
        pages.next += 1;
        pages.open += 1;
        number
    }

    /// The record's fate: acknowledged at a time, or given up (then it is not promised).
    pub fn close(&self, number: u64, acknowledged: Option<Duration>) {
        let mut pages = self.pages();
        pages.open = pages.open.saturating_sub(1);
        match acknowledged {
            Some(at) => {
                pages.acknowledged.insert(number, at);
                pages.since_event += 1;
            }
            None => pages.refused += 1,
        }
    }

    /// Whether every record's fate is known.
    pub fn is_settled(&self) -> bool {
        self.pages().open == 0
    }

    pub fn acknowledged_since_event(&self) -> u64 {
        self.pages().since_event
    }

    pub fn refused(&self) -> u64 {
        self.pages().refused
    }

    /// Holds what can be read against what was acknowledged. `at` is when the event was.
    pub fn judge(&self, found: &BTreeSet<u64>, at: Duration) -> Event {
        let mut pages = self.pages();
        let lost: Vec<(u64, Duration)> = pages
            .acknowledged
            .iter()
            .filter(|(number, _)| !found.contains(number))
            .map(|(number, heard)| (*number, *heard))
            .collect();
        for (number, _) in &lost {
            pages.acknowledged.remove(number);
        }
        let ages = lost.iter().map(|(_, heard)| at.saturating_sub(*heard));
        Event {
            acknowledged: std::mem::take(&mut pages.since_event),
            lost: lost.len() as u64,
            oldest: ages.max().unwrap_or_default(),
            recovery: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_was_acknowledged_and_is_not_there_is_lost_once() {
        let book = Book::default();
        for at in 0..4 {
            let number = book.open();
            book.close(number, Some(SECOND * at));
        }
        let event = book.judge(&BTreeSet::from([0, 3]), SECOND * 10);
        assert_eq!((event.acknowledged, event.lost), (4, 2));
        assert_eq!(event.oldest, SECOND * 9);
        let event = book.judge(&BTreeSet::from([0]), SECOND * 20);
        assert_eq!((event.acknowledged, event.lost), (0, 1));
    }

    #[test]
    fn what_was_not_acknowledged_may_be_there_or_not() {
        let book = Book::default();
        let (first, second) = (book.open(), book.open());
        assert!(!book.is_settled());
        book.close(first, None);
        book.close(second, None);
        assert!(book.is_settled());
        assert_eq!(book.refused(), 2);
        assert_eq!(book.judge(&BTreeSet::from([first]), SECOND).lost, 0);
    }
}

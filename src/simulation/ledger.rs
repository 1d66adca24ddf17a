//! What the clients of a world know: which records were sent, acknowledged, seen, which offsets
//! were committed. Judges each new fact against the earlier ones and, at the end, the logs against
//! all of them. Knows no broker.
//!
//! A durability row does not promise everything: what it does not promise is forgiven to facts
//! from before a loss that the row allows, never to later ones.

use crate::client::TopicPartition;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// A record: its producer, and which of that producer's records for this partition it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RecordId {
    pub(super) producer: u32,
    pub(super) number: u32,
}

/// What a topic promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
    /// Acknowledged records outlive a power loss of a node, or a disk that lost what it had not
    /// synced.
    pub(super) survives_power_loss: bool,
}

/// What is known of one offset, and how many forgivable losses there had been when it was learnt.
#[derive(Clone, Copy, Debug)]
struct Fact {
    id: RecordId,
    losses: u64,
}

#[derive(Default)]
struct Book {
    sent: BTreeSet<RecordId>,
    acked: BTreeMap<i64, Fact>,
    /// Acknowledged as duplicates whose offset the broker had forgotten.
    acked_somewhere: BTreeMap<RecordId, u64>,
    seen: BTreeMap<i64, Fact>,
}

/// How much happened, to tell a test that proved something from one that did not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) acked: u64,
    pub(super) failed: u64,
    pub(super) seen: u64,
    pub(super) commits: u64,
    pub(super) forgiven: u64,
}

impl Counts {
    pub(super) fn and(self, more: &Counts) -> Counts {
        Counts {
            acked: self.acked + more.acked,
            failed: self.failed + more.failed,
            seen: self.seen + more.seen,
            commits: self.commits + more.commits,
            forgiven: self.forgiven + more.forgiven,
        }
    }
}

/// See the module's words.
pub(super) struct Ledger {
    promises: BTreeMap<String, Promise>,
    books: RefCell<BTreeMap<TopicPartition, Book>>,
    /// Producers whose records must be there once and in order.
    idempotent: RefCell<BTreeSet<u32>>,
    losses: Cell<u64>,
    /// Those of them that are so long ago that nothing from before is still under way to a client.
    settled_losses: Cell<u64>,
    /// By group and partition: the highest offset whose commit was acknowledged.
    committed: RefCell<BTreeMap<(String, TopicPartition), (i64, u64)>>,
    counts: Cell<Counts>,
    violations: RefCell<Vec<String>>,
}

impl Ledger {
    pub(super) fn new(promises: impl IntoIterator<Item = (String, Promise)>) -> Ledger {
        Ledger {
            promises: promises.into_iter().collect(),
            books: RefCell::default(),
            idempotent: RefCell::default(),
            losses: Cell::new(0),
            settled_losses: Cell::new(0),
            committed: RefCell::default(),
            counts: Cell::default(),
            violations: RefCell::default(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn count(&self, what: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        what(&mut counts);
        self.counts.set(counts);
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.violations.borrow().clone()
    }

    pub(super) fn violated(&self, what: String) {
        self.violations.borrow_mut().push(what);
    }

    /// Something was lost that some rows do not promise to keep: power, or an unsynced write.
    pub(super) fn loss(&self) {
        self.losses.set(self.losses.get() + 1);
    }

    pub(super) fn is_idempotent(&self, producer: u32) {
        self.idempotent.borrow_mut().insert(producer);
    }

    /// Whether a fact learnt after `losses` losses still binds.
    fn binds(&self, key: &TopicPartition, losses: u64) -> bool {
        let promise = self.promises.get(key.topic.as_str());
        promise.is_some_and(|promise| promise.survives_power_loss) || losses == self.losses.get()
    }

    fn with<R>(&self, key: &TopicPartition, f: impl FnOnce(&mut Book) -> R) -> R {
        let mut books = self.books.borrow_mut();
        f(books.entry(key.clone()).or_default())
    }

    pub(super) fn sent(&self, key: &TopicPartition, id: RecordId) {
        self.with(key, |book| book.sent.insert(id));
    }

    pub(super) fn failed(&self) {
        self.count(|counts| counts.failed += 1);
    }

    /// A record was acknowledged. `since` is what [`Ledger::losses`] said when it was sent: only
    /// what happened after an acknowledgement is forgiven, but it may have been given before it
    /// was heard.
    pub(super) fn acked(
        &self,
        key: &TopicPartition,
        id: RecordId,
        offset: Option<i64>,
        since: u64,
    ) {
        self.count(|counts| counts.acked += 1);
        let fact = Fact { id, losses: since };
        let Some(offset) = offset else {
            self.with(key, |book| book.acked_somewhere.insert(id, since));
            return;
        };
        let (acked, seen) = self.with(key, |book| {
            let seen = book.seen.get(&offset).copied();
            (book.acked.insert(offset, fact), seen)
        });
        for (known, how) in [(acked, "acknowledged"), (seen, "seen")] {
            self.same(key, offset, known, fact, how, "acknowledged");
        }
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// The losses from before anything that a consumer may be given now was fetched.
    pub(super) fn settled_losses(&self) -> u64 {
        self.settled_losses.get()
    }

    /// Whatever was fetched before the last loss has reached the clients.
    pub(super) fn settle(&self) {
        self.settled_losses.set(self.losses.get());
    }

    /// A consumer was given a record; `since` as of [`Ledger::settled_losses`].
    pub(super) fn saw(&self, key: &TopicPartition, offset: i64, id: RecordId, since: u64) {
        self.count(|counts| counts.seen += 1);
        let fact = Fact { id, losses: since };
        let (acked, seen, sent) = self.with(key, |book| {
            let acked = book.acked.get(&offset).copied();
            let sent = book.sent.contains(&id);
            (acked, book.seen.insert(offset, fact), sent)
        });
        if !sent {
            self.violated(format!("{key} has {id:?} at {offset}, nobody sent it"));
        }
        for (known, how) in [(acked, "acknowledged"), (seen, "seen")] {
            self.same(key, offset, known, fact, how, "seen");
        }
    }

    fn same(
        &self,
        key: &TopicPartition,
        offset: i64,
        known: Option<Fact>,
        new: Fact,
        known_as: &str,
        new_as: &str,
    ) {
        let Some(known) = known.filter(|known| known.id != new.id) else {
            return;
        };
        if self.binds(key, known.losses) && self.binds(key, new.losses) {
            self.violated(format!(
                "{key} offset {offset}: {:?} was {known_as}, {:?} is {new_as}",
                known.id, new.id
            ));
        } else {
            self.count(|counts| counts.forgiven += 1);
        }
    }

    /// A group's commit was acknowledged.
    pub(super) fn committed(&self, group: &str, key: &TopicPartition, offset: i64, since: u64) {
        self.count(|counts| counts.commits += 1);
        let mut committed = self.committed.borrow_mut();
        committed.insert((group.to_owned(), key.clone()), (offset, since));
    }

    /// The highest offset whose commit was acknowledged so far, where it binds.
    pub(super) fn last_commit(&self, group: &str, key: &TopicPartition) -> Option<i64> {
        let committed = self.committed.borrow();
        let (offset, losses) = committed.get(&(group.to_owned(), key.clone()))?;
        let offsets = TopicPartition::new(crate::cluster::OFFSETS_TOPIC.into(), 0);
        self.binds(&offsets, *losses).then_some(*offset)
    }

    /// A group was told its committed offset; `known` is what was acknowledged before it asked.
    pub(super) fn told_commit(
        &self,
        group: &str,
        key: &TopicPartition,
        told: Option<i64>,
        known: Option<i64>,
    ) {
        // What was known binds only if nothing was lost while it was asked.
        let still = self.last_commit(group, key).is_some();
        if let Some(known) = known.filter(|_| still)
            && told.unwrap_or(-1) < known
        {
            self.violated(format!(
                "{group} committed {known} of {key}, and is told {told:?}"
            ));
        }
    }

    /// Holds a whole partition, offsets from 0 on, against everything that is known of it.
    pub(super) fn audit(&self, key: &TopicPartition, log: &[(i64, RecordId)]) {
        for (at, (offset, id)) in log.iter().enumerate() {
            if at as i64 != *offset {
                self.violated(format!("{key} has {id:?} at {offset}, as record {at}"));
                break;
            }
        }
        let books = self.books.borrow();
        let empty = Book::default();
        let book = books.get(key).unwrap_or(&empty);
        for (how, facts) in [("acknowledged", &book.acked), ("seen", &book.seen)] {
            for (offset, fact) in facts {
                let found = log.get(*offset as usize).map(|(_, id)| *id);
                if found == Some(fact.id) {
                    continue;
                }
                if self.binds(key, fact.losses) {
                    self.violated(format!(
                        "{key} offset {offset}: {:?} was {how}, the log has {found:?}",
                        fact.id
                    ));
                } else {
                    self.count(|counts| counts.forgiven += 1);
                }
            }
        }
        let present: BTreeSet<RecordId> = log.iter().map(|(_, id)| *id).collect();
        for (id, losses) in &book.acked_somewhere {
            if !present.contains(id) && self.binds(key, *losses) {
                self.violated(format!("{key}: {id:?} was acknowledged and is not there"));
            }
        }
        for id in &present {
            if !book.sent.contains(id) {
                self.violated(format!("{key} has {id:?}, nobody sent it"));
            }
        }
        let mut last: BTreeMap<u32, u32> = BTreeMap::new();
        let idempotent = self.idempotent.borrow();
        for (offset, id) in log {
            if !idempotent.contains(&id.producer) {
                continue;
            }
            let before = last.insert(id.producer, id.number);
            if before.is_some_and(|before| before >= id.number) {
                self.violated(format!(
                    "{key} offset {offset}: {id:?} after number {before:?}"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> RecordId {
        RecordId {
            producer: 1,
            number,
        }
    }

    fn ledger(survives_power_loss: bool) -> (Ledger, TopicPartition) {
        let promise = Promise {
            survives_power_loss,
        };
        let ledger = Ledger::new([("orders".to_owned(), promise)]);
        ledger.is_idempotent(1);
        (ledger, TopicPartition::new("orders".into(), 0))
    }

    #[test]
    fn what_was_acknowledged_must_be_there() {
        let (ledger, key) = ledger(true);
        ledger.sent(&key, id(0));
        ledger.acked(&key, id(0), Some(0), 0);
        ledger.loss();
        ledger.audit(&key, &[(0, id(0))]);
        assert!(ledger.violations().is_empty());
        ledger.audit(&key, &[]);
        assert_eq!(ledger.violations().len(), 1);
    }

    #[test]
    fn a_row_without_flush_may_lose_what_came_before_a_power_loss_and_nothing_else() {
        let (ledger, key) = ledger(false);
        ledger.sent(&key, id(0));
        ledger.sent(&key, id(1));
        ledger.acked(&key, id(0), Some(0), 0);
        ledger.loss();
        ledger.audit(&key, &[]);
        assert!(ledger.violations().is_empty());
        ledger.acked(&key, id(1), Some(0), 1);
        ledger.audit(&key, &[]);
        assert_eq!(ledger.violations().len(), 1);
    }

    #[test]
    fn duplicates_and_disorder_of_an_idempotent_producer_are_told() {
        let (ledger, key) = ledger(true);
        for number in 0..3 {
            ledger.sent(&key, id(number));
        }
        ledger.audit(&key, &[(0, id(0)), (1, id(0))]);
        ledger.audit(&key, &[(0, id(1)), (1, id(0))]);
        assert_eq!(ledger.violations().len(), 2);
    }

    #[test]
    fn two_records_at_one_offset_are_told() {
        let (ledger, key) = ledger(true);
        ledger.sent(&key, id(0));
        ledger.sent(&key, id(1));
        ledger.saw(&key, 0, id(0), 0);
        ledger.saw(&key, 0, id(1), 0);
        assert_eq!(ledger.violations().len(), 1);
    }
}

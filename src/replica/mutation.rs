//! Faults that tests put into the decisions on purpose, to see that the checks find them. Outside
//! tests there are none, at no cost.

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The high watermark follows the leader's own log alone.
    CommitAlone,
    /// A follower whose history has left the leader's is not told so.
    KeepDivergence,
    /// The leader acts as if a set that it asked for were committed already.
    ShrinkUnasked,
    /// What is written counts, also where the durability row waits for the flush.
    CountUnflushed,
    /// Every member of the in-sync set leads, whomever the controller elected.
    LeadUnasked,
    /// A transaction's coordinator acts on what is not committed.
    DecideUnstored,
    /// A transaction's coordinator leaves what the one before it decided to others.
    LeaveDecided,
}

#[cfg(test)]
thread_local! {
    static PRESENT: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Whether the fault is there.
#[cfg(test)]
pub(crate) fn is_on(mutation: Mutation) -> bool {
    PRESENT.get() == Some(mutation)
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_on(_: Mutation) -> bool {
    false
}

/// Puts the fault there, or takes it away.
#[cfg(test)]
pub(crate) fn set(mutation: Option<Mutation>) {
    PRESENT.set(mutation);
}

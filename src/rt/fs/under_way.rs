//! How many file operations of this executor have been asked for and not completed: the depth of
//! its ring, as far as files go. One counter an executor; for metrics, nothing decides by it.

use std::cell::Cell;

thread_local! {
    // One executor a thread on the ring; in the simulator one figure for the whole world.
    static UNDER_WAY: Cell<usize> = const { Cell::new(0) };
}

/// File operations of this executor that have not completed.
pub fn under_way() -> usize {
    UNDER_WAY.get()
}

/// Counts one operation while it lives.
pub(super) struct UnderWay(());

impl UnderWay {
    pub(super) fn begin() -> UnderWay {
        UNDER_WAY.set(UNDER_WAY.get() + 1);
        UnderWay(())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.set(UNDER_WAY.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_is_dropped_is_not_counted_any_more() {
        let before = under_way();
        let (first, second) = (UnderWay::begin(), UnderWay::begin());
        assert_eq!(under_way(), before + 2);
        drop(first);
        drop(second);
        assert_eq!(under_way(), before);
    }
}

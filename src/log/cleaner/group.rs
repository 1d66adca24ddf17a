//! Owns which neighbouring segments become one: small ones that fit into a segment together, by
//! bytes, by index bytes and by the range of offsets an index can hold. Pure.

use std::ops::Range;

use crate::types::Offset;

/// A segment as the grouping sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentSizes {
    pub base: Offset,
    /// One past the last offset it may hold.
    pub end: Offset,
    pub bytes: u64,
    pub index_bytes: u64,
    pub time_index_bytes: u64,
}

/// Splits `segments` into runs that each become one segment.
pub fn group(segments: &[SegmentSizes], segment_bytes: u64, index_bytes: u64) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut sums = (0, 0, 0);
    for (at, next) in segments.iter().enumerate() {
        let open = groups.last_mut().filter(|group| {
            let first = segments[group.start].base;
            sums.0 + next.bytes <= segment_bytes
                && sums.1 + next.index_bytes <= index_bytes
                && sums.2 + next.time_index_bytes <= index_bytes
                && next.end.0 - 1 - first.0 <= i64::from(i32::MAX)
        });
        match open {
            Some(group) => group.end = at + 1,
            None => {
                groups.push(at..at + 1);
                sums = (0, 0, 0);
            }
        }
        sums.0 += next.bytes;
        sums.1 += next.index_bytes;
        sums.2 += next.time_index_bytes;
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(base: i64, end: i64, bytes: u64) -> SegmentSizes {
        SegmentSizes {
            base: Offset(base),
            end: Offset(end),
            bytes,
            index_bytes: bytes / 10,
            time_index_bytes: bytes / 10,
        }
    }

    #[test]
    fn neighbours_join_as_long_as_they_fit_into_a_segment() {
        let segments = [
            sizes(0, 10, 40),
            sizes(10, 20, 60),
            sizes(20, 30, 1),
            sizes(30, 40, 100),
        ];
        assert_eq!(group(&segments, 100, 1000), vec![0..2, 2..3, 3..4]);
        assert_eq!(
            group(&segments, 1000, 9),
            vec![0..1, 1..3, 3..4],
            "index bytes count too"
        );
        assert!(group(&[], 100, 100).is_empty());
    }

    #[test]
    fn a_joined_segment_never_holds_more_offsets_than_its_index_can_name() {
        let far = i64::from(i32::MAX);
        let fits = [sizes(5, 10, 1), sizes(10, 6 + far, 1)];
        assert_eq!(group(&fits, 100, 100).len(), 1);
        let too_far = [sizes(5, 10, 1), sizes(10, 7 + far, 1)];
        assert_eq!(group(&too_far, 100, 100).len(), 2);
    }

    #[test]
    fn a_segment_that_is_too_large_by_itself_stays_alone() {
        let segments = [sizes(0, 10, 500), sizes(10, 20, 1), sizes(20, 30, 500)];
        assert_eq!(group(&segments, 100, 100), vec![0..1, 1..2, 2..3]);
    }

    proptest! {
        #[test]
        fn groups_cover_every_segment_once_and_keep_the_bounds(
            bytes in prop::collection::vec(0u64..120, 0..40),
        ) {
            let segments: Vec<SegmentSizes> = bytes
                .iter()
                .enumerate()
                .map(|(at, bytes)| sizes(at as i64 * 10, at as i64 * 10 + 10, *bytes))
                .collect();
            let groups = group(&segments, 100, 1000);
            let covered: Vec<usize> = groups.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..segments.len()).collect::<Vec<_>>());
            for range in groups {
                let sum: u64 = segments[range.clone()].iter().map(|s| s.bytes).sum();
                prop_assert!(sum <= 100 || range.len() == 1);
            }
        }
    }
}

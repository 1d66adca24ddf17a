//! Which partition of `__consumer_offsets` a group lives in. Pure; runs on every core. It never
//! looks at cluster state: the partition count is an argument.

/// Java's `String.hashCode`: `31 * h + unit` over the UTF-16 code units, wrapping at 32 bits.
/// Iterating over `char`s instead would move every group with a character outside the BMP.
pub fn java_string_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

/// The partition of a group id (or transactional id) among `partitions` (> 0) partitions.
/// Kafka's `Utils.abs` maps `i32::MIN` to 0, so the result is never negative.
pub fn partition_for(group_id: &str, partitions: i32) -> i32 {
    assert!(
        partitions > 0,
        "a coordinator topic has at least one partition, not {partitions}"
    );
    let hash = java_string_hash(group_id);
    let positive = if hash == i32::MIN { 0 } else { hash.abs() };
    positive % partitions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_looked_for_where_kafka_put_them() {
        // Values of java.lang.String.hashCode.
        assert_eq!(java_string_hash(""), 0);
        assert_eq!(java_string_hash("a"), 97);
        assert_eq!(java_string_hash("hello"), 99_162_322);
        assert_eq!(java_string_hash("console-consumer-12345"), {
            let mut hash = 0i32;
            for byte in b"console-consumer-12345" {
                hash = hash.wrapping_mul(31).wrapping_add(i32::from(*byte));
            }
            hash
        });
        // U+1D11E is the surrogate pair D834 DD1E: 31 * 0xD834 + 0xDD1E.
        assert_eq!(java_string_hash("\u{1D11E}"), 31 * 0xD834 + 0xDD1E);
        assert_eq!(partition_for("hello", 50), 22);
    }

    #[test]
    fn the_hash_without_an_absolute_value_lands_on_partition_zero() {
        // A classic string whose hash is Integer.MIN_VALUE.
        assert_eq!(java_string_hash("polygenelubricants"), i32::MIN);
        assert_eq!(partition_for("polygenelubricants", 50), 0);
    }
}

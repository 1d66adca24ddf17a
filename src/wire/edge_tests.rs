//! What is refused, by name: lengths, tags and values that the protocol cannot say.

use bytes::Bytes;

use super::messages::broker_heartbeat_request::BrokerHeartbeatRequest;
use super::messages::list_offsets_request::{ListOffsetsRequest, ListOffsetsTopic};
use super::{DecodeFault, EncodeFault, Message, Str};

#[test]
fn lengths_that_cannot_be_are_refused_by_name() {
    let fault = |version, bytes: &'static [u8]| {
        let error = ListOffsetsRequest::from_bytes(Bytes::from_static(bytes), version).unwrap_err();
        (error.fault(), error.field())
    };
    let topics = "ListOffsetsRequest.topics";
    let cut = |count, remaining| DecodeFault::CountTooLarge { count, remaining };
    assert_eq!(
        fault(1, b"\0\0\0\0\x7f\xff\xff\xff"),
        (cut(i32::MAX as usize, 0), topics)
    );
    assert_eq!(
        fault(1, b"\0\0\0\0\xff\xff\xff\xff"),
        (DecodeFault::UnexpectedNull, topics)
    );
    assert_eq!(
        fault(1, b"\0\0\0\0\x80\0\0\0"),
        (DecodeFault::NegativeLength(i32::MIN.into()), topics)
    );
    // A topic takes at least three bytes at any version: five are not in twelve.
    assert_eq!(
        fault(1, b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\0"),
        (cut(5, 12), topics)
    );
    assert_eq!(
        fault(6, b"\0\0\0\0\0\xff\xff\xff\xff\x0f"),
        (cut(u32::MAX as usize - 1, 0), topics)
    );
    assert_eq!(
        fault(6, b"\0\0\0\0\0\xff\xff\xff\xff\x10"),
        (DecodeFault::VarintTooLong, topics)
    );
    assert_eq!(
        fault(6, b"\0\0\0\0\0\x80\x80\x80\x80\x80\x01"),
        (DecodeFault::VarintTooLong, topics)
    );
    let name = "ListOffsetsTopic.name";
    assert_eq!(
        fault(1, b"\0\0\0\0\0\0\0\x01\xff\xfe\0\0\0\0"),
        (DecodeFault::NegativeLength(-2), name)
    );
    let short = DecodeFault::Truncated {
        needed: 300,
        remaining: 4,
    };
    assert_eq!(
        fault(1, b"\0\0\0\0\0\0\0\x01\x01\x2c\0\0\0\0"),
        (short, name)
    );
    // 32768 + 1 as a varint.
    assert_eq!(
        fault(6, b"\0\0\0\0\0\x02\x81\x80\x02\0\0"),
        (DecodeFault::StringTooLong(32_768), name)
    );
}

#[test]
fn a_tagged_field_must_fill_its_size() {
    let start: &[u8] = b"\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0";
    let fault = |tags: &[u8]| {
        BrokerHeartbeatRequest::from_bytes(Bytes::from([start, tags].concat()), 2)
            .unwrap_err()
            .fault()
    };
    assert_eq!(
        fault(b"\x01\x00\x02\x01\x00"),
        DecodeFault::TagSize { size: 2, left: 1 }
    );
    // One directory does not fit into one byte, whatever follows the field.
    let cut = DecodeFault::CountTooLarge {
        count: 1,
        remaining: 0,
    };
    assert_eq!(
        fault(b"\x01\x00\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        cut
    );
    assert_eq!(
        fault(b"\x01\x00\x7f\x01"),
        DecodeFault::Truncated {
            needed: 127,
            remaining: 1
        }
    );
    assert!(matches!(
        fault(b"\xff\xff\xff\xff\x0f"),
        DecodeFault::Truncated { .. }
    ));
}

#[test]
fn unknown_tags_pass_through_in_their_place() {
    let start: &[u8] = b"\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0";
    let bytes = [start, b"\x03", b"\x01\x01\x01", b"\x02\x02hi", b"\x07\0"].concat();
    let mut request = BrokerHeartbeatRequest::from_bytes(Bytes::from(bytes.clone()), 2).unwrap();
    assert_eq!(request.unknown_tagged_fields.len(), 2);
    assert_eq!(request.to_bytes(2).unwrap(), bytes);
    // Version 1 does not know tag 1: there it is one more unknown field.
    let older = BrokerHeartbeatRequest::from_bytes(Bytes::from(bytes.clone()), 1).unwrap();
    assert_eq!(
        (
            older.cordoned_log_dirs.clone(),
            older.unknown_tagged_fields.len()
        ),
        (None, 3)
    );
    assert_eq!(older.to_bytes(1).unwrap(), bytes);
    // Twice the same number, or a known one among the unknown, cannot be written.
    assert_eq!(older.to_bytes(2).unwrap(), bytes);
    request.unknown_tagged_fields.push(7, Bytes::new());
    assert_eq!(
        request.to_bytes(2).unwrap_err().fault(),
        EncodeFault::TagOrder(7)
    );
    let mut clash = older;
    clash.cordoned_log_dirs = Some(vec![]);
    assert_eq!(
        clash.to_bytes(2).unwrap_err().fault(),
        EncodeFault::TagOrder(1)
    );
}

#[test]
fn tags_cannot_be_written_where_there_are_none() {
    let mut request = ListOffsetsRequest::default();
    request.unknown_tagged_fields.push(1, Bytes::new());
    assert_eq!(
        request.to_bytes(5).unwrap_err().fault(),
        EncodeFault::TagsNotInVersion
    );
    assert!(request.to_bytes(6).is_ok());
}

#[test]
fn what_the_wire_cannot_say_is_an_error_and_not_a_cut() {
    let long = ListOffsetsTopic {
        name: Str::from("x".repeat(32_768)),
        ..Default::default()
    };
    let request = ListOffsetsRequest {
        topics: vec![long],
        ..Default::default()
    };
    for version in [1, 11] {
        let error = request.to_bytes(version).unwrap_err();
        assert_eq!(
            (error.fault(), error.field()),
            (EncodeFault::TooLong(32_768), "ListOffsetsTopic.name")
        );
        assert_eq!(error.version(), version);
    }
    assert_eq!(
        request.to_bytes(12).unwrap_err().fault(),
        EncodeFault::UnsupportedVersion
    );
    let isolated = ListOffsetsRequest {
        isolation_level: 1,
        ..Default::default()
    };
    assert_eq!(
        isolated.to_bytes(1).unwrap_err().fault(),
        EncodeFault::FieldNotInVersion
    );
}

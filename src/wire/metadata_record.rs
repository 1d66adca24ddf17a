//! How a record of the metadata log carries its type and version: its value is a frame version,
//! the record's type and its version, each an unsigned varint, and then its fields (KIP-631).
//! Any core; no state.

use bytes::Bytes;

use super::fault::{DecodeError, DecodeFault, EncodeError, EncodeFault};
use super::messages::AnyRecord;
use super::reader::Reader;
use super::writer::Writer;

/// The only frame version there is.
const FRAME_VERSION: u32 = 1;

/// A writer that has the frame of a record of this type and version, and takes its fields next.
pub fn begin_record(key: i16, version: i16) -> Result<Writer, EncodeError> {
    let number = |n: i16| {
        u32::try_from(n).map_err(|_| {
            EncodeError::new(EncodeFault::UnsupportedVersion, "record").at_version(version)
        })
    };
    let mut w = Writer::new();
    w.uvarint(FRAME_VERSION);
    w.uvarint(number(key)?);
    w.uvarint(number(version)?);
    Ok(w)
}

/// The type and version of the record whose fields follow.
pub fn read_frame(r: &mut Reader) -> Result<(i16, i16), DecodeError> {
    let frame = r.uvarint("frame version")?;
    if frame != FRAME_VERSION {
        return Err(DecodeError::new(
            DecodeFault::FrameVersion(frame),
            "frame version",
            0,
        ));
    }
    let number = r.uvarint("record type")?;
    let key = i16::try_from(number).map_err(|_| {
        DecodeError::new(
            DecodeFault::UnknownKey(number as i32),
            "record type",
            r.position(),
        )
    })?;
    let version = r.uvarint("record version")?;
    let version = i16::try_from(version).map_err(|_| {
        DecodeError::new(
            DecodeFault::UnsupportedVersion,
            "record version",
            r.position(),
        )
    })?;
    Ok((key, version))
}

/// The value of a metadata log record.
pub fn encode_record(record: &AnyRecord, version: i16) -> Result<Bytes, EncodeError> {
    let mut w = begin_record(record.key(), version)?;
    record.encode(&mut w, version)?;
    Ok(w.into_bytes())
}

/// The record and its version. An unknown type or version is an error, never skipped: an image
/// that misses a record has silently diverged. So are bytes after the fields.
pub fn decode_record(value: Bytes) -> Result<(AnyRecord, i16), DecodeError> {
    let mut r = Reader::new(value);
    let (key, version) = read_frame(&mut r)?;
    let record = AnyRecord::decode(key, &mut r, version)?;
    r.expect_end()?;
    Ok((record, version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Uuid;
    use crate::wire::Str;
    use crate::wire::messages::topic_record::TopicRecord;

    fn topic() -> AnyRecord {
        let record = TopicRecord {
            name: Str::from("ab"),
            topic_id: Uuid::from_halves(1, 2),
            ..TopicRecord::default()
        };
        AnyRecord::from(record)
    }

    #[test]
    fn a_topic_record_is_framed_as_kafka_frames_it() {
        let value = encode_record(&topic(), 0).unwrap();
        assert_eq!(
            &value[..],
            b"\x01\x02\x00\x03ab\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\x00"
        );
        assert_eq!(decode_record(value), Ok((topic(), 0)));
    }

    #[test]
    fn what_an_image_does_not_know_is_an_error() {
        let fault = |bytes: &'static [u8]| {
            decode_record(Bytes::from_static(bytes))
                .unwrap_err()
                .fault()
        };
        assert_eq!(fault(b"\x00\x02\x00"), DecodeFault::FrameVersion(0));
        assert_eq!(fault(b"\x02\x02\x00"), DecodeFault::FrameVersion(2));
        assert_eq!(fault(b"\x01\x06\x00"), DecodeFault::UnknownKey(6));
        assert_eq!(
            fault(b"\x01\xff\xff\xff\xff\x0f\x00"),
            DecodeFault::UnknownKey(-1)
        );
        assert_eq!(fault(b"\x01\x02\x01"), DecodeFault::UnsupportedVersion);
        assert_eq!(
            fault(b"\x01\x02\xff\xff\xff\xff\x0f"),
            DecodeFault::UnsupportedVersion
        );
        assert_eq!(
            fault(b"\x01\x14\x00\x00\x00"),
            DecodeFault::TrailingBytes(1)
        );
    }
}

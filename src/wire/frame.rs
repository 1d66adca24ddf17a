//! A request as it stands in a frame: the header taken apart, the body still to be decoded.
//! Pure. Judges no API and no version; that is for whoever serves them.

use super::api::{self, ApiKey};
use super::header::{RequestHeader, ResponseHeader};
use super::{DecodeError, EncodeError, Message, Reader, Str, Writer};
use bytes::{BufMut, Bytes, BytesMut};

/// See the module's words.
pub struct RequestFrame {
    pub key: ApiKey,
    pub version: i16,
    pub correlation_id: i32,
    /// "" where the header had none.
    pub client_id: Str,
    /// Behind the header, if the API has the version; behind the client id otherwise.
    pub body: Reader,
}

impl RequestFrame {
    /// Takes the header off a frame without its size.
    pub fn open(frame: Bytes) -> Result<RequestFrame, DecodeError> {
        let mut body = Reader::new(frame);
        let key = ApiKey(body.i16("request_api_key")?);
        let version = body.i16("request_api_version")?;
        let correlation_id = body.i32("correlation_id")?;
        // Never in the flexible form, at any header version.
        let client_id = body.nullable_string(false, "client_id")?;
        if api::request_header_version(key, version) == Some(2) {
            body.unknown_tagged_fields()?;
        }
        Ok(RequestFrame {
            key,
            version,
            correlation_id,
            client_id: client_id.unwrap_or_default(),
            body,
        })
    }
}

/// Header and body of a request without the size before them, as an Envelope carries them.
pub fn request_bytes(
    key: ApiKey,
    version: i16,
    correlation_id: i32,
    client_id: &Str,
    body: &[u8],
) -> Result<Bytes, EncodeError> {
    let header = RequestHeader {
        request_api_key: key.0,
        request_api_version: version,
        correlation_id,
        client_id: Some(client_id.clone()),
        ..Default::default()
    };
    let mut writer = Writer::new();
    header.encode(
        &mut writer,
        api::request_header_version(key, version).unwrap_or(1),
    )?;
    let mut bytes = BytesMut::from(&writer.into_bytes()[..]);
    bytes.put_slice(body);
    Ok(bytes.freeze())
}

/// Header and body of a response without the size before them.
pub fn response_bytes(
    key: ApiKey,
    version: i16,
    correlation_id: i32,
    body: &[u8],
) -> Result<Bytes, EncodeError> {
    let header = ResponseHeader {
        correlation_id,
        ..Default::default()
    };
    let mut writer = Writer::new();
    header.encode(
        &mut writer,
        api::response_header_version(key, version).unwrap_or(0),
    )?;
    let mut bytes = BytesMut::from(&writer.into_bytes()[..]);
    bytes.put_slice(body);
    Ok(bytes.freeze())
}

/// The correlation id and the body of a response.
pub fn open_response(key: ApiKey, version: i16, frame: Bytes) -> Result<(i32, Bytes), DecodeError> {
    let mut reader = Reader::new(frame);
    let version = api::response_header_version(key, version).unwrap_or(0);
    let header = ResponseHeader::decode(&mut reader, version)?;
    Ok((header.correlation_id, reader.rest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_together_comes_apart_again() {
        for version in [4, 7] {
            let client = Str::from_static("me");
            let bytes = request_bytes(ApiKey::CREATE_TOPICS, version, 9, &client, b"body").unwrap();
            let mut frame = RequestFrame::open(bytes).unwrap();
            assert_eq!((frame.key, frame.version), (ApiKey::CREATE_TOPICS, version));
            assert_eq!((frame.correlation_id, &*frame.client_id), (9, "me"));
            assert_eq!(&frame.body.rest()[..], b"body");
            let bytes = response_bytes(ApiKey::CREATE_TOPICS, version, 9, b"answer").unwrap();
            let (correlation, body) = open_response(ApiKey::CREATE_TOPICS, version, bytes).unwrap();
            assert_eq!((correlation, &body[..]), (9, &b"answer"[..]));
        }
        assert!(RequestFrame::open(Bytes::from_static(&[0, 19, 0])).is_err());
    }
}

//! A frame as a broker takes it: the key and version first, the header that they imply, the body.
#![no_main]

use bytes::Bytes;
use highwater_wire::wire::api::{ApiKey, request_header_version, response_header_version};
use highwater_wire::wire::header::{RequestHeader, ResponseHeader};
use highwater_wire::wire::messages::AnyRequest;
use highwater_wire::wire::{Message, Reader, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let frame = Bytes::copy_from_slice(data);
    let mut peek = Reader::new(frame.clone());
    let (Ok(key), Ok(version)) = (peek.i16("key"), peek.i16("version")) else {
        return;
    };
    let key = ApiKey(key);
    let Some(header_version) = request_header_version(key, version) else {
        assert_eq!(response_header_version(key, version), None);
        return;
    };
    let mut r = Reader::new(frame);
    let Ok(header) = RequestHeader::decode(&mut r, header_version) else {
        return;
    };
    assert_eq!(
        (header.request_api_key, header.request_api_version),
        (key.0, version)
    );
    let mut w = Writer::new();
    header.encode(&mut w, header_version).ok();
    let answer = ResponseHeader {
        correlation_id: header.correlation_id,
        ..ResponseHeader::default()
    };
    let answer_version = response_header_version(key, version).expect("every API has an answer");
    assert!(answer.to_bytes(answer_version).is_ok());
    let _ = AnyRequest::decode(key.0, &mut r, version).map(|request| request.to_json(version));
});

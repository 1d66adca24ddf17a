//! A request body of any API at any version: never a panic, and what is accepted is stable.
#![no_main]

use bytes::Bytes;
use highwater_wire::wire::messages::AnyRequest;
use highwater_wire::wire::{Reader, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [key, version, body @ ..] = data else {
        return;
    };
    let (key, version) = (i16::from(*key as i8), i16::from(*version as i8));
    let mut r = Reader::new(Bytes::copy_from_slice(body));
    let Ok(request) = AnyRequest::decode(key, &mut r, version) else {
        return;
    };
    let json = request.to_json(version);
    let mut w = Writer::new();
    if request.encode(&mut w, version).is_err() {
        return;
    }
    let bytes = w.into_bytes();
    let mut r = Reader::new(bytes.clone());
    let again = AnyRequest::decode(key, &mut r, version).expect("own bytes are valid");
    assert_eq!(r.remaining(), 0);
    let mut w = Writer::new();
    again.encode(&mut w, version).expect("as before");
    assert_eq!(w.into_bytes(), bytes);
    assert_eq!(again.to_json(version), json);
});

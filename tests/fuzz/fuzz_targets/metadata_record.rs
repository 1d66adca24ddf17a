//! The value of a record of the metadata log.
#![no_main]

use bytes::Bytes;
use highwater_wire::wire::metadata_record::{decode_record, encode_record};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok((record, version)) = decode_record(Bytes::copy_from_slice(data)) else {
        return;
    };
    let json = record.to_json(version);
    let Ok(bytes) = encode_record(&record, version) else {
        return;
    };
    let (again, same) = decode_record(bytes.clone()).expect("own bytes are valid");
    assert_eq!((same, again.to_json(version)), (version, json));
    assert_eq!(encode_record(&again, version), Ok(bytes));
});

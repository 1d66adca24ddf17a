//! Records of the coordinators' logs, and the values that carry their own version: group member
//! blobs and forwarded principals.
#![no_main]

use bytes::Bytes;
use highwater_wire::wire::coordinator_record::{
    decode_versioned, decode_versioned_capped, encode_versioned,
};
use highwater_wire::wire::messages::consumer_protocol_assignment::ConsumerProtocolAssignment;
use highwater_wire::wire::messages::consumer_protocol_subscription::ConsumerProtocolSubscription;
use highwater_wire::wire::messages::default_principal_data::DefaultPrincipalData;
use highwater_wire::wire::messages::{GroupRecord, ShareRecord, TransactionRecord};
use libfuzzer_sys::fuzz_target;

/// Decodes, encodes at the version of the value, decodes again.
macro_rules! pass {
    ($record:ident, $key:expr, $value:expr, $version:expr) => {
        if let Ok(record) = $record::decode($key, $value)
            && let Ok((key, value)) = record.encode($version)
        {
            let again = $record::decode(key.clone(), value.clone()).expect("own bytes are valid");
            assert_eq!(again.encode($version), Ok((key, value)));
        }
    };
}

fuzz_target!(|data: &[u8]| {
    let [family, rest @ ..] = data else { return };
    if *family > 2 {
        let bytes = Bytes::copy_from_slice(rest);
        if let Ok((principal, version)) = decode_versioned::<DefaultPrincipalData>(bytes.clone()) {
            let _ = encode_versioned(&principal, version);
        }
        if let Ok((subscription, version)) =
            decode_versioned_capped::<ConsumerProtocolSubscription>(bytes.clone())
        {
            let _ = encode_versioned(&subscription, version);
        }
        let _ = decode_versioned_capped::<ConsumerProtocolAssignment>(bytes);
        return;
    }
    let [key_len, rest @ ..] = rest else { return };
    let (key, value) = rest.split_at((*key_len as usize).min(rest.len()));
    let version = value
        .first_chunk()
        .map_or(0, |bytes| i16::from_be_bytes(*bytes));
    let key = Bytes::copy_from_slice(key);
    // No value at all is a tombstone.
    let value = (!value.is_empty()).then(|| Bytes::copy_from_slice(value));
    match family {
        0 => pass!(GroupRecord, key, value, version),
        1 => pass!(TransactionRecord, key, value, version),
        _ => pass!(ShareRecord, key, value, version),
    }
});

//! Bytes that should be record batches: cutting, checking, inflating within a bound, walking.
//! The first byte chooses between bytes as they came and a batch whose lengths and magic are
//! right, so that the fuzzer need not find those.
#![no_main]

use bytes::Bytes;
use highwater_wire::wire::batch::{Batch, Batches};
use libfuzzer_sys::fuzz_target;

/// An inflated body may be this long.
const LIMIT: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let [form, rest @ ..] = data else { return };
    let bytes = match form % 2 {
        0 => Bytes::copy_from_slice(rest),
        _ => Bytes::from(framed(rest)),
    };
    let mut batches = Batches::new(bytes.clone());
    let mut cut = 0;
    for batch in batches.by_ref() {
        let Ok(batch) = batch else { break };
        cut += batch.view().total_size();
        check(&batch);
    }
    assert!(cut + batches.rest().len() <= bytes.len());
});

fn framed(rest: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 8];
    let len = (rest.len() + 9).max(49);
    out.extend((len as i32).to_be_bytes());
    out.extend([0, 0, 0, 1, 2, 0, 0, 0, 0]);
    out.extend(rest);
    out.resize(12 + len, 0);
    out
}

fn check(batch: &Batch) {
    let _ = batch.check_crc();
    let view = batch.view();
    let _ = (
        view.last_offset(),
        view.last_sequence(),
        view.codec(),
        view.timestamp_type(),
        format!("{view:?}"),
    );
    let mut scratch = Vec::new();
    let mut seen = 0;
    let walked = view.walk(LIMIT, &mut scratch, |_, record| {
        seen += 1;
        for header in record.headers() {
            let _ = header;
        }
    });
    assert!(scratch.len() <= LIMIT);
    let Ok(records) = batch.records(LIMIT) else {
        assert!(walked.is_err());
        return;
    };
    let mut read = 0;
    let mut whole = true;
    for record in records {
        match record {
            Ok(record) => {
                read += 1;
                let _ = record.headers().count();
            }
            Err(_) => whole = false,
        }
    }
    assert_eq!(whole, walked.is_ok(), "{walked:?}");
    assert!(walked.is_err() || read == seen);
}

//! The lines are those of Kafka's own tool.

use super::*;
use crate::types::{LeaderEpoch, Offset};
use crate::wire::batch_builder::{BatchBuilder, end_txn_marker};
use crate::wire::codec::Codec;

fn dump(options: DumpOptions, path: &Path) -> (String, String, bool) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut dump = Dump::new(options, &TextDecoder, &mut out);
    dump.file(path).unwrap();
    let clean = dump.finish(&mut err).unwrap();
    (
        String::from_utf8(out).unwrap(),
        String::from_utf8(err).unwrap(),
        clean,
    )
}

fn printed() -> DumpOptions {
    DumpOptions {
        print_data: true,
        ..DumpOptions::default()
    }
}

/// The one record of which the output of Kafka's tool is on record, byte for byte.
fn recorded_batch() -> Bytes {
    let mut builder = BatchBuilder::new().with_producer(0, 0, 0);
    builder.leader_epoch = LeaderEpoch(0);
    builder
        .append(1790649638549, None, Some(b"hello-acks-all"), &[])
        .unwrap();
    builder.build().unwrap()
}

#[test]
fn a_batch_is_printed_as_kafka_prints_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00000000000000000000.log");
    std::fs::write(&path, recorded_batch()).unwrap();
    let (out, err, clean) = dump(printed(), &path);
    let want = format!(
        "Dumping {}\nLog starting offset: 0\n\
         baseOffset: 0 lastOffset: 0 count: 1 baseSequence: 0 lastSequence: 0 producerId: 0 \
         producerEpoch: 0 partitionLeaderEpoch: 0 isTransactional: false isControl: false \
         deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1790649638549 size: 82 \
         magic: 2 compresscodec: none crc: 3516512333 isvalid: true\n\
         | offset: 0 CreateTime: 1790649638549 keySize: -1 valueSize: 14 sequence: 0 headerKeys: [] \
         payload: hello-acks-all\n",
        path.display()
    );
    assert_eq!((out, err, clean), (want, String::new(), true));
}

#[test]
fn headers_markers_gaps_and_a_cut_tail_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00000000000000000005.log");
    let mut builder = BatchBuilder::new()
        .with_codec(Codec::Gzip, None)
        .with_producer(9, 2, 7);
    builder.base_offset = Offset(5);
    builder.leader_epoch = LeaderEpoch(3);
    builder.transactional = true;
    let headers: [(&[u8], Option<&[u8]>); 2] = [(b"a", None), (b"a", Some(b"x"))];
    builder
        .append(100, Some(b"k"), Some(b"v"), &headers)
        .unwrap();
    builder.append(101, Some(b"k2"), None, &[]).unwrap();
    let mut bytes = builder.build().unwrap().to_vec();
    let mut marker = end_txn_marker(9, 2, false, 4, 102).unwrap().to_vec();
    crate::wire::batch::set_base_offset(&mut marker, Offset(9));
    bytes.extend(&marker);
    bytes.extend(&marker[..20]);
    std::fs::write(&path, bytes).unwrap();
    let (out, err, clean) = dump(printed(), &path);
    assert!(out.contains("lastSequence: 8 producerId: 9 producerEpoch: 2 partitionLeaderEpoch: 3 isTransactional: true isControl: false"));
    assert!(out.contains("| offset: 5 CreateTime: 100 keySize: 1 valueSize: 1 sequence: 7 headerKeys: [a,a] key: k payload: v\n"));
    assert!(out.contains(
        "| offset: 6 CreateTime: 101 keySize: 2 valueSize: -1 sequence: 8 headerKeys: [] key: k2\n"
    ));
    assert!(out.contains("endTxnMarker: ABORT coordinatorEpoch: 4\n"));
    assert!(out.ends_with("Found 20 invalid bytes at the end of 00000000000000000005.log\n"));
    assert!(err.contains("  -1 is followed by 5\n  6 is followed by 9\n"));
    assert!(!clean);
}

#[test]
fn an_index_that_disagrees_with_its_log_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("00000000000000000000.log");
    let mut bytes = Vec::new();
    for offset in 0..3 {
        let mut batch = recorded_batch().to_vec();
        crate::wire::batch::set_base_offset(&mut batch, Offset(offset));
        bytes.extend(batch);
    }
    std::fs::write(&log, bytes).unwrap();
    let mut offsets = crate::log::index::OffsetIndex::new(Offset(0));
    offsets.append(Offset(1), 82);
    let mut times = crate::log::index::TimeIndex::new(Offset(0));
    times.maybe_append(1790649638549, Offset(1));
    let (index, time) = (log.with_extension("index"), log.with_extension("timeindex"));
    let with_zero_tail = |mut bytes: Vec<u8>, entry: usize| {
        bytes.resize(bytes.len() + 4 * entry, 0);
        bytes
    };
    std::fs::write(&index, with_zero_tail(offsets.encode_from(0), 8)).unwrap();
    std::fs::write(&time, with_zero_tail(times.encode_from(0), 12)).unwrap();
    let (out, err, _) = dump(DumpOptions::default(), &index);
    assert_eq!(out.lines().nth(1), Some("offset: 1 position: 82"));
    assert_eq!((out.lines().count(), err.as_str()), (2, ""));
    let (out, err, clean) = dump(DumpOptions::default(), &time);
    assert_eq!(
        out.lines().nth(1),
        Some("timestamp: 1790649638549 offset: 1")
    );
    assert_eq!((err.as_str(), clean), ("", true));
    let sanity = DumpOptions {
        index_sanity_check: true,
        ..DumpOptions::default()
    };
    let (out, ..) = dump(sanity, &index);
    assert!(out.ends_with("00000000000000000000.index passed sanity check.\n"));

    let mut wrong = crate::log::index::OffsetIndex::new(Offset(0));
    wrong.append(Offset(2), 82);
    std::fs::write(&index, wrong.encode_from(0)).unwrap();
    let verify = DumpOptions {
        verify_index_only: true,
        ..DumpOptions::default()
    };
    let (out, err, clean) = dump(verify, &index);
    assert_eq!(out.lines().count(), 1);
    assert!(err.contains("  Index offset: 2, log offset: 1\n") && !clean);
    std::fs::write(&index, b"").unwrap();
    let (out, ..) = dump(verify, &index);
    assert!(out.ends_with("00000000000000000000.index is empty.\n"));
}

/// Twenty lines that Kafka's console producer wrote, and what Kafka's tool printed of the file.
#[test]
fn a_segment_that_kafka_wrote_is_printed_as_kafka_prints_it() {
    const FIRST_MS: i64 = 1_795_965_181_381;
    let timestamp = |offset: i64| match offset {
        0 => FIRST_MS,
        1..10 => FIRST_MS + 12,
        _ => FIRST_MS + 13,
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00000000000000000000.log");
    let mut builder = BatchBuilder::new().with_producer(1000, 0, 0);
    builder.leader_epoch = LeaderEpoch(0);
    for offset in 0..20 {
        let value = (offset + 1).to_string();
        builder
            .append(timestamp(offset), None, Some(value.as_bytes()), &[])
            .unwrap();
    }
    std::fs::write(&path, builder.build().unwrap()).unwrap();
    let (out, err, clean) = dump(printed(), &path);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[2],
        "baseOffset: 0 lastOffset: 19 count: 20 baseSequence: 0 lastSequence: 19 producerId: 1000 \
         producerEpoch: 0 partitionLeaderEpoch: 0 isTransactional: false isControl: false \
         deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1795965181394 size: 232 \
         magic: 2 compresscodec: none crc: 3895049516 isvalid: true"
    );
    assert_eq!(
        lines[12],
        "| offset: 9 CreateTime: 1795965181393 keySize: -1 valueSize: 2 sequence: 9 headerKeys: [] \
         payload: 10"
    );
    assert_eq!((lines.len(), err.as_str(), clean), (23, "", true));

    let index = path.with_extension("index");
    std::fs::write(&index, b"").unwrap();
    let times = path.with_extension("timeindex");
    let mut entry = 1_795_965_181_394_i64.to_be_bytes().to_vec();
    entry.extend(19_u32.to_be_bytes());
    std::fs::write(&times, entry).unwrap();
    let (out, err, _) = dump(DumpOptions::default(), &times);
    assert!(out.ends_with("\ntimestamp: 1795965181394 offset: 19\n"));
    assert_eq!(err, "");
}

#[test]
fn a_producer_snapshot_is_printed_as_kafka_prints_it() {
    let mut body = 1_i32.to_be_bytes().to_vec();
    body.extend(1000_i64.to_be_bytes());
    body.extend(0_i16.to_be_bytes());
    body.extend(19_i32.to_be_bytes());
    body.extend(19_i64.to_be_bytes());
    body.extend(19_i32.to_be_bytes());
    body.extend(1_795_965_181_394_i64.to_be_bytes());
    body.extend((-1_i32).to_be_bytes());
    body.extend((-1_i64).to_be_bytes());
    let mut file = 1_i16.to_be_bytes().to_vec();
    file.extend(crc32c::crc32c(&body).to_be_bytes());
    file.extend(body);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00000000000000000020.snapshot");
    std::fs::write(&path, file).unwrap();
    let (out, err, _) = dump(DumpOptions::default(), &path);
    assert_eq!(
        out.lines().nth(1),
        Some(
            "producerId: 1000 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: \
             OptionalLong.empty lastTimestamp: 1795965181394 firstSequence: 0 lastSequence: 19 \
             lastOffset: 19 offsetDelta: 19 timestamp: 1795965181394"
        )
    );
    assert_eq!(err, "");
}

#[test]
fn the_reserved_space_of_an_active_index_is_not_an_entry() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("00000000000000000000.log");
    std::fs::write(&log, recorded_batch()).unwrap();
    let (index, times) = (log.with_extension("index"), log.with_extension("timeindex"));
    std::fs::write(&index, [0; 80]).unwrap();
    std::fs::write(&times, [0; 120]).unwrap();
    let (out, err, _) = dump(DumpOptions::default(), &index);
    assert!(out.ends_with("00000000000000000000.index is empty.\n"));
    assert_eq!(err, "");
    let (out, err, clean) = dump(DumpOptions::default(), &times);
    assert_eq!((out.lines().count(), err.as_str(), clean), (1, "", true));
}

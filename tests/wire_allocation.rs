//! A small frame must not make the decoder allocate much, whatever lengths it claims: every
//! message, at every version, with huge counts written over every position.

#[path = "../src/wire/schema/mod.rs"]
#[allow(dead_code)]
mod schema;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::{Bytes, BytesMut};
use highwater::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use highwater::wire::messages::{AnyRecord, AnyRequest, AnyResponse};
use highwater::wire::{DecodeError, Message, Reader, Records, Str};
use schema::model::Kind;
use schema::sample::Sampler;

/// Counts what the running thread allocates; frees are not subtracted.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

#[allow(unsafe_code)]
// SAFETY: every call goes to the system allocator unchanged; counting touches only a thread-local
// that needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|sum| sum.set(sum.get() + layout.size()));
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one decode may allocate in all: room for sixteen elements of the largest struct at each
/// of a few levels, and, for what really arrives, structs in memory that are larger than their
/// bytes (a struct of a dozen optional fields takes 500 bytes for 15 on the wire, and a vector
/// that grows to it doubles several times).
fn allowance(frame_len: usize) -> usize {
    64 * 1024 + 200 * frame_len
}

const HUGE: [&[u8]; 6] = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff",
    b"\x00\xff\xff\xff",
];

fn decode(kind: Kind, key: i16, version: i16, frame: Bytes) -> Option<Result<(), DecodeError>> {
    let mut r = Reader::new(frame);
    match kind {
        Kind::Request => Some(AnyRequest::decode(key, &mut r, version).map(drop)),
        Kind::Response => Some(AnyResponse::decode(key, &mut r, version).map(drop)),
        Kind::Record => Some(AnyRecord::decode(key, &mut r, version).map(drop)),
        _ => None,
    }
}

#[test]
fn a_huge_count_in_a_small_frame_allocates_little() {
    let mut frames = 0;
    for message in schema::load() {
        let Some(key) = message.key else { continue };
        for version in message.versions.iter() {
            let sample = Sampler::new(&message, version, 7).sample();
            let sample = &sample[..sample.len().min(300)];
            for at in 0..sample.len() {
                for huge in HUGE {
                    let mut frame = sample.to_vec();
                    frame.truncate(at);
                    frame.extend(huge);
                    frame.extend(sample.iter().skip(at + huge.len()));
                    let (len, frame) = (frame.len(), Bytes::from(frame));
                    let before = ALLOCATED.get();
                    let decoded = decode(message.kind, key, version, frame);
                    let allocated = ALLOCATED.get() - before;
                    assert!(
                        allocated <= allowance(len),
                        "{} v{version}, {huge:x?} at {at}: {allocated} bytes for a frame of {len}",
                        message.name()
                    );
                    frames += usize::from(decoded.is_some());
                }
            }
        }
    }
    assert!(frames > 100_000, "only {frames} frames were tried");
}

#[test]
fn strings_and_records_of_a_produce_request_are_not_copied() {
    const TOPICS: usize = 40;
    let partition = PartitionProduceData {
        records: Some(Records::from(Bytes::from_static(&[7; 100]))),
        ..PartitionProduceData::default()
    };
    let topic = |n: usize| TopicProduceData {
        name: Str::from(format!("topic-{n}")),
        partition_data: vec![partition.clone(); 3],
        ..TopicProduceData::default()
    };
    let request = ProduceRequest {
        transactional_id: Some(Str::from("transaction")),
        topic_data: (0..TOPICS).map(topic).collect(),
        ..ProduceRequest::default()
    };
    // A frame comes out of the socket's buffer, whose memory is counted already.
    let frame = BytesMut::from(&request.to_bytes(12).expect("valid")[..]).freeze();
    let before = ALLOCATIONS.get();
    let decoded = ProduceRequest::decode(&mut Reader::new(frame.clone()), 12);
    let allocations = ALLOCATIONS.get() - before;
    assert_eq!(decoded, Ok(request));
    // The vector of topics, one of partitions for each, and the count of the frame's owners.
    assert!(allocations <= TOPICS + 2, "{allocations} allocations");
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATED.get();
    drop(std::hint::black_box(vec![0u8; 1_000_000]));
    assert!(ALLOCATED.get() - before >= 1_000_000);
}

//! Question: what does it cost a core to judge a produced batch, and how far is that from the
//! checksum alone, which no broker can leave out?
//!
//! Floor, printed beside it: CRC-32C over the same bytes (`floor/crc`), and a copy of them
//! (`floor/copy`). The target for uncompressed batches of 1 KiB records is one and a half floors.
//! Run: `cargo bench --bench batch`; it prints throughput over the batch's uncompressed bytes.
//!
//! Last result (2 virtual cores shared with other work, so the fastest of 2000 runs each):
//! 16 x 1 KiB 0.91 us against a floor of 0.65 us (1.40); 950 x 1 KiB 42 us against 30 us (1.43);
//! 5000 x 100 B 86 us against 18 us (4.7), of which the walk over the records is 42 us, 8 ns a
//! record. Building 950 x 1 KiB uncompressed takes 50 us.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use highwater::log::producers::{BatchFacts, Producers, VerificationGuard};
use highwater::log::validator::{Origin, ValidationRules, validate};
use highwater::types::Offset;
use highwater::wire::batch::Batch;
use highwater::wire::batch_builder::BatchBuilder;
use highwater::wire::codec::Codec;

const NOW: i64 = 1_700_000_000_000;

/// Text that compresses about threefold, different in every record.
fn value(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let words: Vec<&[u8]> = vec![
        b"order=",
        b"customer=",
        b"amount=",
        b"state=paid;",
        b"region=eu ",
    ];
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        out.extend_from_slice(words[rng.usize(..words.len())]);
        out.extend_from_slice(format!("{:x}", rng.u32(..)).as_bytes());
    }
    out.truncate(len);
    out
}

fn build(codec: Codec, records: usize, bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new()
        .with_codec(codec, None)
        .with_producer(7, 0, 0);
    for at in 0..records {
        let (key, value) = (format!("key-{at:08}"), value(bytes, at as u64));
        let appended = builder.append(NOW, Some(key.as_bytes()), Some(&value), &[]);
        appended.expect("small records fit");
    }
    builder.build().expect("records were appended")
}

/// (records, bytes of each value): one small record, a common batch, a full default batch, and
/// one of tiny records, where the walk and not the checksum is the work.
const SHAPES: [(usize, usize); 4] = [(1, 100), (16, 1024), (950, 1024), (5000, 100)];

fn floor(c: &mut Criterion) {
    let mut group = c.benchmark_group("floor");
    for (records, bytes) in SHAPES {
        let batch = build(Codec::None, records, bytes);
        let id = format!("{records}x{bytes}");
        group.throughput(Throughput::Bytes(batch.len() as u64));
        group.bench_function(BenchmarkId::new("crc", &id), |b| {
            b.iter(|| crc32c::crc32c(black_box(&batch[21..])));
        });
        let mut copy = vec![0; batch.len()];
        group.bench_function(BenchmarkId::new("copy", &id), |b| {
            b.iter(|| {
                copy.copy_from_slice(black_box(&batch));
                black_box(copy[0])
            });
        });
    }
}

fn validation(c: &mut Criterion) {
    let mut group = c.benchmark_group("validate");
    let rules = ValidationRules::default();
    for (records, bytes) in SHAPES {
        let plain = build(Codec::None, records, bytes).len() as u64;
        for codec in Codec::ALL {
            let (batch, _) = Batch::parse(&build(codec, records, bytes)).expect("it was built");
            let id = format!("{records}x{bytes}");
            group.throughput(Throughput::Bytes(plain));
            group.bench_function(BenchmarkId::new(codec.name(), id), |b| {
                b.iter(|| {
                    let batch = black_box(&batch);
                    let verdict = validate(batch, &"bench-0", Origin::Client, &rules, NOW);
                    verdict.expect("it is valid").max_timestamp
                });
            });
        }
    }
}

fn building(c: &mut Criterion) {
    let mut group = c.benchmark_group("build");
    let values: Vec<Vec<u8>> = (0..950).map(|at| value(1024, at)).collect();
    for codec in Codec::ALL {
        group.throughput(Throughput::Bytes(950 * 1024));
        group.bench_function(codec.name(), |b| {
            b.iter(|| {
                let mut builder = BatchBuilder::new().with_codec(codec, None);
                for value in &values {
                    let appended = builder.append(NOW, None, Some(value), &[]);
                    appended.expect("small records fit");
                }
                builder.build().expect("records were appended").len()
            });
        });
    }
}

fn producers(c: &mut Criterion) {
    let (batch, _) = Batch::parse(&build(Codec::None, 16, 100)).expect("it was built");
    let template = BatchFacts::of(&batch).expect("it is a data batch");
    let mut state = Producers::new(24 * 60 * 60 * 1000);
    let (mut at, ids) = (0i64, 10_000);
    c.bench_function("producers/check+apply, 10000 producers", |b| {
        b.iter(|| {
            let mut facts = template;
            // Spread over the table as real producers are, each counting its own sequence.
            facts.producer_id = at * 7919 % ids;
            facts.base_sequence = ((at / ids) * 16) as i32;
            facts.last_sequence = facts.base_sequence + 15;
            (facts.base_offset, facts.last_offset) = (Offset(at * 16), Offset(at * 16 + 15));
            at += 1;
            let verdict = state.check(&facts, Origin::Client, VerificationGuard::NONE, 0);
            black_box(verdict.expect("sequences grow"));
            state.apply(&facts)
        });
    });
}

criterion_group!(benches, floor, validation, building, producers);
criterion_main!(benches);

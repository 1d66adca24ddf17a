//! The codecs: round trips, frames of other encoders, and the bound on what inflates.

use super::*;

/// Bytes that compress well but not trivially: repeated words with a counter between them.
fn sample(len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 32);
    let mut counter = 0u32;
    while out.len() < len {
        out.extend_from_slice(b"a record of ordinary text ");
        out.extend_from_slice(&counter.to_le_bytes());
        counter = counter.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    out.truncate(len);
    out
}

#[test]
fn every_codec_returns_what_it_was_given() {
    for codec in Codec::ALL {
        for len in [0, 1, 63, 1000, 32 * 1024, 64 * 1024 + 1, 300_000] {
            let source = sample(len);
            let packed = compress(codec, None, &source).unwrap();
            let out = decompress(codec, &packed, len).unwrap();
            assert!(out == source, "{codec:?} changed {len} bytes");
        }
    }
}

#[test]
fn a_body_one_byte_over_the_limit_is_too_large_and_one_at_the_limit_is_not() {
    for codec in Codec::ALL {
        let source = sample(100_000);
        let packed = compress(codec, None, &source).unwrap();
        assert!(
            decompress(codec, &packed, source.len()).is_ok(),
            "{codec:?}"
        );
        let error = decompress(codec, &packed, source.len() - 1).unwrap_err();
        assert!(
            matches!(error, CodecError::TooLarge { limit: 99_999 }),
            "{codec:?}: {error}"
        );
    }
}

#[test]
fn a_decompression_bomb_allocates_no_more_than_the_limit() {
    const LIMIT: usize = 1 << 20;
    let source = vec![0u8; 64 << 20];
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let packed = compress(codec, None, &source).unwrap();
        let mut out = Vec::new();
        let error = decompress_into(codec, &packed, LIMIT, &mut out).unwrap_err();
        assert!(
            matches!(error, CodecError::TooLarge { .. }),
            "{codec:?}: {error}"
        );
        assert!(out.capacity() <= LIMIT, "{codec:?} took {}", out.capacity());
    }
}

#[test]
fn a_zstd_stream_without_a_content_size_is_read_as_clients_write_it() {
    for len in [0, 10, 200_000, 3_000_000] {
        let source = sample(len);
        for level in [1, 3, 19, 22] {
            if len > 200_000 && level > 3 {
                continue;
            }
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), level).unwrap();
            encoder.include_checksum(level == 1).unwrap();
            encoder.write_all(&source).unwrap();
            let packed = encoder.finish().unwrap();
            assert!(zstd_bound(&packed).unwrap() <= len + ZSTD_BLOCK_BYTES_MAX);
            assert!(decompress(Codec::Zstd, &packed, len.max(1)).unwrap() == source);
        }
    }
}

#[test]
fn a_zstd_frame_that_lies_about_its_size_is_refused() {
    // A single-segment frame of one raw block of 1 byte that declares 2^40 bytes.
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0xE0];
    frame.extend_from_slice(&(1u64 << 40).to_le_bytes());
    frame.extend_from_slice(&[0x09, 0, 0, b'x']);
    let mut out = Vec::new();
    let error = decompress_into(Codec::Zstd, &frame, 1 << 20, &mut out).unwrap_err();
    assert!(matches!(error, CodecError::Corrupt { .. }), "{error}");
    assert!(out.capacity() < 1024);
}

#[test]
fn raw_snappy_is_read_as_librdkafka_writes_it() {
    let source = sample(100_000);
    let packed = snap::raw::Encoder::new().compress_vec(&source).unwrap();
    assert!(decompress(Codec::Snappy, &packed, source.len()).unwrap() == source);
}

#[test]
fn xerial_streams_that_were_put_together_are_read_through() {
    let (left, right) = (sample(40_000), sample(10));
    let mut packed = compress(Codec::Snappy, None, &left).unwrap();
    packed.extend(compress(Codec::Snappy, None, &right).unwrap());
    let out = decompress(Codec::Snappy, &packed, 50_000).unwrap();
    assert!(out == [left, right].concat());
}

#[test]
fn a_snappy_length_its_input_cannot_hold_is_refused_before_allocation() {
    // Varint 2^30 and three bytes of nothing.
    let mut out = Vec::new();
    let lie = [0x80, 0x80, 0x80, 0x80, 0x04, 0, 0, 0];
    let error = decompress_into(Codec::Snappy, &lie, 1 << 31, &mut out).unwrap_err();
    assert!(matches!(error, CodecError::Corrupt { .. }), "{error}");
    assert_eq!(out.capacity(), 0);
}

#[test]
fn lz4_frames_of_every_shape_clients_write_are_read() {
    let source = sample(300_000);
    for size in [
        BlockSize::Max64KB,
        BlockSize::Max256KB,
        BlockSize::Max1MB,
        BlockSize::Max4MB,
    ] {
        for flags in 0..8 {
            let frame = FrameInfo::new()
                .block_size(size)
                .block_mode(BlockMode::Independent)
                .block_checksums(flags & 1 != 0)
                .content_checksum(flags & 2 != 0)
                .content_size((flags & 4 != 0).then_some(source.len() as u64));
            let mut encoder = FrameEncoder::with_frame_info(frame, Vec::new());
            encoder.write_all(&source).unwrap();
            let packed = encoder.finish().unwrap();
            assert!(decompress(Codec::Lz4, &packed, 300_000).unwrap() == source);
        }
    }
}

#[test]
fn an_lz4_frame_the_java_client_could_not_read_is_refused() {
    let frame = FrameInfo::new().block_mode(BlockMode::Linked);
    let mut encoder = FrameEncoder::with_frame_info(frame, Vec::new());
    encoder.write_all(&sample(200_000)).unwrap();
    let packed = encoder.finish().unwrap();
    let error = decompress(Codec::Lz4, &packed, 200_000).unwrap_err();
    assert!(error.to_string().contains("depend"), "{error}");
}

#[test]
fn a_cut_body_is_corrupt_and_never_shorter_data() {
    let source = sample(150_000);
    for codec in [Codec::Gzip, Codec::Lz4, Codec::Zstd] {
        let packed = compress(codec, None, &source).unwrap();
        let step = (packed.len() / 997).max(1);
        for cut in (0..packed.len()).step_by(step) {
            match decompress(codec, &packed[..cut], source.len()) {
                Err(CodecError::Corrupt { .. }) => {}
                // An empty body is no frame at all, which gzip and zstd take for no data.
                Ok(out) if cut == 0 => assert!(out.is_empty()),
                other => panic!("{codec:?} cut at {cut}: {:?}", other.map(|out| out.len())),
            }
        }
    }
}

#[test]
fn garbled_bodies_never_panic_and_never_pass_the_limit() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let source = sample(20_000);
    for codec in Codec::ALL {
        let packed = compress(codec, None, &source).unwrap();
        let mut out = Vec::new();
        for _ in 0..3000 {
            let mut garbled = packed.clone();
            for _ in 0..rng.usize(1..6) {
                let at = rng.usize(..garbled.len().min(200));
                garbled[at] = rng.u8(..);
            }
            garbled.truncate(rng.usize(..=garbled.len()));
            let _ = decompress_into(codec, &garbled, 40_000, &mut out);
            assert!(
                out.len() <= 40_000 && out.capacity() <= 40_000,
                "{codec:?} seed {seed}"
            );
        }
    }
}

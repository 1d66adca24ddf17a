//! Compression of record bodies: gzip, snappy, lz4, zstd, and no compression at all.
//!
//! Owns the choice of codec (attribute bits 0-2 of a batch) and the frames each codec uses on the
//! wire, written the way the Java client writes them and read the way any client writes them.
//! Runs on whichever core holds the bytes; keeps only reusable codec contexts per thread.
//! Never trusts a length found in its input: output grows only as far as the caller's limit, and a
//! declared size that its input could not possibly inflate to is refused before any allocation.

use std::cell::RefCell;
use std::io::{self, BufRead, Read, Write};

use bytes::Bytes;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

/// How a batch's records are compressed. The number is the codec id of the batch attributes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Codec {
    #[default]
    None = 0,
    Gzip = 1,
    Snappy = 2,
    Lz4 = 3,
    Zstd = 4,
}

impl Codec {
    pub const ALL: [Codec; 5] = [
        Codec::None,
        Codec::Gzip,
        Codec::Snappy,
        Codec::Lz4,
        Codec::Zstd,
    ];

    /// The codec with this id; `None` for the ids 5-7, which no version of the format defines.
    pub fn from_id(id: u8) -> Option<Codec> {
        Codec::ALL.get(usize::from(id)).copied()
    }

    pub fn id(self) -> u8 {
        self as u8
    }

    /// The name `compression.type` knows it by, in topics and producers.
    pub fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Gzip => "gzip",
            Codec::Snappy => "snappy",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }

    /// Parses a `compression.type`; `uncompressed` is the topic setting's word for no codec.
    pub fn from_name(name: &str) -> Option<Codec> {
        match name {
            "uncompressed" => Some(Codec::None),
            _ => Codec::ALL.into_iter().find(|codec| codec.name() == name),
        }
    }
}

/// Why bytes could not be compressed or inflated.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The body inflates to more bytes than the caller allows.
    #[error("the records inflate to more than {limit} bytes")]
    TooLarge { limit: usize },
    /// The body is not what its codec says it is.
    #[error("the {codec} body is corrupt: {reason}", codec = .codec.name())]
    Corrupt { codec: Codec, reason: String },
    /// The library refused to compress: a level out of its range, or no memory for its tables.
    #[error("{codec} could not compress: {source}", codec = .codec.name())]
    Compress { codec: Codec, source: io::Error },
}

fn corrupt(codec: Codec, reason: impl ToString) -> CodecError {
    CodecError::Corrupt {
        codec,
        reason: reason.to_string(),
    }
}

/// Compresses `source`. `level` is the codec's own scale (`compression.gzip.level` and so on);
/// `None` is its default. Snappy has no levels, and the lz4 encoder here has only its fast one, so
/// both ignore it.
pub fn compress(codec: Codec, level: Option<i32>, source: &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut out = Vec::with_capacity(source.len() / 2 + 64);
    compress_into(codec, level, source, &mut out)?;
    Ok(out)
}

/// [`compress`], appending to `out`.
pub fn compress_into(
    codec: Codec,
    level: Option<i32>,
    source: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let done = match codec {
        Codec::None => {
            out.extend_from_slice(source);
            Ok(())
        }
        Codec::Gzip => compress_gzip(level, source, out),
        Codec::Snappy => compress_xerial(source, out),
        Codec::Lz4 => compress_lz4(source, out),
        Codec::Zstd => compress_zstd(level, source, out),
    };
    done.map_err(|source| CodecError::Compress { codec, source })
}

/// Inflates `source` into fresh memory of at most `limit` bytes.
pub fn decompress(codec: Codec, source: &[u8], limit: usize) -> Result<Bytes, CodecError> {
    let mut out = Vec::new();
    decompress_into(codec, source, limit, &mut out)?;
    Ok(Bytes::from(out))
}

/// Inflates `source` into `out`, which is cleared first and whose memory is reused. `out` never
/// grows beyond `limit` bytes (or beyond the capacity it came with). On an error its contents are
/// unspecified.
pub fn decompress_into(
    codec: Codec,
    source: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    out.clear();
    match codec {
        Codec::None => append(out, source, limit),
        Codec::Gzip => inflate_gzip(source, limit, out),
        Codec::Snappy => inflate_snappy(source, limit, out),
        Codec::Lz4 => inflate_lz4(source, limit, out),
        Codec::Zstd => inflate_zstd(source, limit, out),
    }
}

/// Makes room for `more` bytes by doubling, but never beyond `limit`.
fn grow(out: &mut Vec<u8>, more: usize, limit: usize) -> Result<(), CodecError> {
    let needed = out.len().saturating_add(more);
    if needed > limit {
        return Err(CodecError::TooLarge { limit });
    }
    if needed > out.capacity() {
        let target = out.capacity().saturating_mul(2).clamp(needed, limit);
        out.reserve_exact(target - out.len());
    }
    Ok(())
}

fn append(out: &mut Vec<u8>, bytes: &[u8], limit: usize) -> Result<(), CodecError> {
    grow(out, bytes.len(), limit)?;
    out.extend_from_slice(bytes);
    Ok(())
}

// ---------------------------------------------------------------------------------------- gzip

/// zlib's own default, which Kafka's level -1 stands for.
const GZIP_LEVEL_DEFAULT: u32 = 6;

fn compress_gzip(level: Option<i32>, source: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let level = match level {
        Some(level @ 0..=9) => level as u32,
        _ => GZIP_LEVEL_DEFAULT,
    };
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(level));
    encoder.write_all(source)?;
    encoder.finish().map(|_| ())
}

/// How much a gzip stream is asked for at a time: enough to keep the call count low, small enough
/// that the zero filling before each read stays in the first-level cache.
const GZIP_CHUNK_BYTES: usize = 16 * 1024;

fn inflate_gzip(source: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let mut reader = flate2::bufread::MultiGzDecoder::new(source);
    loop {
        let len = out.len();
        // At the limit one more byte is read, to tell a body that just fits from one that does not.
        let ask = GZIP_CHUNK_BYTES.min(limit - len).max(1);
        let mut probe = [0u8; 1];
        let read = if len == limit {
            reader.read(&mut probe)
        } else {
            grow(out, ask, limit)?;
            out.resize(len + ask, 0);
            let read = reader.read(&mut out[len..]);
            out.truncate(len + read.as_ref().map_or(0, |read| *read));
            read
        };
        match read {
            Ok(0) => return Ok(()),
            Ok(_) if len == limit => return Err(CodecError::TooLarge { limit }),
            Ok(_) => {}
            Err(error) => return Err(corrupt(Codec::Gzip, error)),
        }
    }
}

// -------------------------------------------------------------------------------------- snappy

/// The framing of the Java snappy library: this, then two big-endian int32 (version, lowest
/// compatible version), then chunks of int32 length and a raw snappy block.
const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const XERIAL_HEADER_BYTES: usize = 16;
const XERIAL_VERSION: i32 = 1;
/// The Java library's default block; its readers take any size.
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;
/// The densest snappy element turns 3 bytes into 64. A declared length beyond this ratio is a lie.
const SNAPPY_RATIO_MAX: usize = 22;

fn compress_xerial(source: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    out.extend_from_slice(&XERIAL_MAGIC);
    out.extend_from_slice(&XERIAL_VERSION.to_be_bytes());
    out.extend_from_slice(&XERIAL_VERSION.to_be_bytes());
    let mut encoder = snap::raw::Encoder::new();
    for block in source.chunks(XERIAL_BLOCK_BYTES) {
        let at = out.len();
        out.resize(at + 4 + snap::raw::max_compress_len(block.len()), 0);
        let written = encoder.compress(block, &mut out[at + 4..])?;
        out[at..at + 4].copy_from_slice(&(written as u32).to_be_bytes());
        out.truncate(at + 4 + written);
    }
    Ok(())
}

fn inflate_snappy(source: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    if !source.starts_with(&XERIAL_MAGIC) {
        return inflate_snappy_block(source, limit, out);
    }
    let mut rest = source;
    while !rest.is_empty() {
        // A header may stand in the middle as well: streams that were simply put together.
        if rest.starts_with(&XERIAL_MAGIC) {
            rest = rest
                .get(XERIAL_HEADER_BYTES..)
                .ok_or_else(|| corrupt(Codec::Snappy, "the stream header is cut short"))?;
            continue;
        }
        let (len, tail) = rest
            .split_first_chunk::<4>()
            .ok_or_else(|| corrupt(Codec::Snappy, "a chunk length is cut short"))?;
        let len = u32::from_be_bytes(*len) as usize;
        let (block, tail) = tail
            .split_at_checked(len)
            .ok_or_else(|| corrupt(Codec::Snappy, "a chunk is longer than the body"))?;
        inflate_snappy_block(block, limit, out)?;
        rest = tail;
    }
    Ok(())
}

fn inflate_snappy_block(block: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let len = snap::raw::decompress_len(block).map_err(|error| corrupt(Codec::Snappy, error))?;
    if len > block.len().saturating_mul(SNAPPY_RATIO_MAX) {
        return Err(corrupt(Codec::Snappy, "it declares more than it can hold"));
    }
    grow(out, len, limit)?;
    let at = out.len();
    out.resize(at + len, 0);
    let written = snap::raw::Decoder::new()
        .decompress(block, &mut out[at..])
        .map_err(|error| corrupt(Codec::Snappy, error))?;
    out.truncate(at + written);
    Ok(())
}

// ----------------------------------------------------------------------------------------- lz4

const LZ4_MAGIC: [u8; 4] = 0x184D_2204_u32.to_le_bytes();
const LZ4_FLAG_INDEPENDENT: u8 = 0x20;
const LZ4_FLAG_BLOCK_CHECKSUM: u8 = 0x10;
const LZ4_FLAG_CONTENT_SIZE: u8 = 0x08;
const LZ4_FLAG_CONTENT_CHECKSUM: u8 = 0x04;
const LZ4_FLAG_DICTIONARY: u8 = 0x01;

fn compress_lz4(source: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    // The Java client's frame: 64 KiB independent blocks, no content size, no checksums.
    let frame = FrameInfo::new()
        .block_size(BlockSize::Max64KB)
        .block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(frame, out);
    encoder.write_all(source)?;
    encoder.finish().map(|_| ()).map_err(io::Error::other)
}

/// The bytes of the first frame in `source`, whose blocks are whole and independent. The Java
/// client reads only independent blocks, so a frame of linked ones must not enter a log.
fn lz4_frame(source: &[u8]) -> Result<&[u8], CodecError> {
    let cut = || corrupt(Codec::Lz4, "the frame is cut short");
    if source.get(..4) != Some(&LZ4_MAGIC) {
        return Err(corrupt(Codec::Lz4, "it does not start with a frame"));
    }
    let flags = *source.get(4).ok_or_else(cut)?;
    if flags & LZ4_FLAG_INDEPENDENT == 0 {
        return Err(corrupt(Codec::Lz4, "its blocks depend on each other"));
    }
    if flags & LZ4_FLAG_DICTIONARY != 0 {
        return Err(corrupt(Codec::Lz4, "it needs a dictionary"));
    }
    let content_size = if flags & LZ4_FLAG_CONTENT_SIZE != 0 {
        8
    } else {
        0
    };
    let block_checksum = if flags & LZ4_FLAG_BLOCK_CHECKSUM != 0 {
        4
    } else {
        0
    };
    let content_checksum = if flags & LZ4_FLAG_CONTENT_CHECKSUM != 0 {
        4
    } else {
        0
    };
    // Magic, flags, block descriptor, content size, header checksum.
    let mut at = 4 + 2 + content_size + 1;
    loop {
        let word = source
            .get(at..)
            .and_then(|rest| rest.first_chunk::<4>())
            .ok_or_else(cut)?;
        at += 4;
        let word = u32::from_le_bytes(*word);
        if word == 0 {
            return source.get(..at + content_checksum).ok_or_else(cut);
        }
        at += (word & 0x7fff_ffff) as usize + block_checksum;
    }
}

fn inflate_lz4(source: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let mut reader = FrameDecoder::new(lz4_frame(source)?);
    loop {
        let block = reader
            .fill_buf()
            .map_err(|error| corrupt(Codec::Lz4, error))?;
        if block.is_empty() {
            return Ok(());
        }
        let len = block.len();
        append(out, block, limit)?;
        reader.consume(len);
    }
}

// ---------------------------------------------------------------------------------------- zstd

/// Kafka's default for `compression.zstd.level`.
const ZSTD_LEVEL_DEFAULT: i32 = 3;
const ZSTD_BLOCK_BYTES_MAX: usize = 128 * 1024;

thread_local! {
    /// Building a context costs more than inflating a small batch, so each core keeps one of each.
    static ZSTD_INFLATE: RefCell<zstd::bulk::Decompressor<'static>> = RefCell::default();
    static ZSTD_COMPRESS: RefCell<zstd::bulk::Compressor<'static>> = RefCell::default();
}

fn compress_zstd(level: Option<i32>, source: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let packed = ZSTD_COMPRESS.with_borrow_mut(|compressor| {
        compressor.set_compression_level(level.unwrap_or(ZSTD_LEVEL_DEFAULT))?;
        compressor.compress(source)
    })?;
    out.extend_from_slice(&packed);
    Ok(())
}

/// Inflates in one pass. Unlike the streaming interface this needs no window buffer, whose size
/// (up to 128 MiB) the frame's author would choose.
fn inflate_zstd(source: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let bound = zstd_bound(source)?;
    let room = bound.min(limit);
    if room > out.capacity() {
        out.reserve_exact(room);
    }
    let result =
        ZSTD_INFLATE.with_borrow_mut(|inflater| inflater.decompress_to_buffer(source, out));
    match result {
        Ok(_) if out.len() > limit => Err(CodecError::TooLarge { limit }),
        Ok(_) => Ok(()),
        // The library names this error only in words. Where the frames could hold more than the
        // limit it means that they do; otherwise room was enough and the frame is broken.
        Err(error) if bound > limit && error.to_string().contains("too small") => {
            Err(CodecError::TooLarge { limit })
        }
        Err(error) => Err(corrupt(Codec::Zstd, error)),
    }
}

/// An upper bound of what the frames in `source` inflate to, taken from the block headers
/// (RFC 8878), without believing the content size a frame declares.
fn zstd_bound(source: &[u8]) -> Result<usize, CodecError> {
    const FRAME_MAGIC: u32 = 0xFD2F_B528;
    const SKIPPABLE_MAGIC: u32 = 0x184D_2A50;
    let cut = || corrupt(Codec::Zstd, "the frame is cut short");
    let mut rest = source;
    let mut bound = 0usize;
    while !rest.is_empty() {
        let (magic, tail) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let magic = u32::from_le_bytes(*magic);
        if magic & 0xFFFF_FFF0 == SKIPPABLE_MAGIC {
            let (len, tail) = tail.split_first_chunk::<4>().ok_or_else(cut)?;
            rest = tail
                .get(u32::from_le_bytes(*len) as usize..)
                .ok_or_else(cut)?;
            continue;
        }
        if magic != FRAME_MAGIC {
            return Err(corrupt(Codec::Zstd, "it does not start with a frame"));
        }
        let (&descriptor, tail) = tail.split_first().ok_or_else(cut)?;
        let single_segment = descriptor & 0x20 != 0;
        let window = if single_segment { 0 } else { 1 };
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let content_size = match descriptor >> 6 {
            0 if single_segment => 1,
            0 => 0,
            1 => 2,
            2 => 4,
            _ => 8,
        };
        rest = tail
            .get(window + dictionary + content_size..)
            .ok_or_else(cut)?;
        loop {
            let (header, tail) = rest.split_first_chunk::<3>().ok_or_else(cut)?;
            let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
            let size = (header >> 3) as usize;
            let (stored, inflated) = match (header >> 1) & 3 {
                0 => (size, size),
                1 => (1, size),
                2 => (size, ZSTD_BLOCK_BYTES_MAX),
                _ => return Err(corrupt(Codec::Zstd, "a block has the reserved type")),
            };
            bound = bound.saturating_add(inflated);
            rest = tail.get(stored..).ok_or_else(cut)?;
            if header & 1 != 0 {
                break;
            }
        }
        if descriptor & 4 != 0 {
            rest = rest.get(4..).ok_or_else(cut)?;
        }
    }
    Ok(bound)
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;

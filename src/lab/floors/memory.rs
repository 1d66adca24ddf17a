//! What one core does to bytes in memory: CRC-32C and a copy.

use std::hint::black_box;
use std::io;

use super::{Floor, FloorPlan, noise, rate, size, times};

/// The largest batch that a broker takes by default: more than a core's first caches hold.
const BYTES: usize = 1 << 20;

pub(super) fn measure(plan: &FloorPlan) -> Vec<Floor> {
    let bytes = noise(BYTES);
    let mut copy = vec![0; BYTES];
    let checksums = times(plan.share(3), || {
        black_box(crc32c::crc32c(black_box(&bytes)));
        io::Result::Ok(())
    });
    let copies = times(plan.share(3), || {
        copy.copy_from_slice(black_box(&bytes));
        black_box(&copy);
        io::Result::Ok(())
    });
    vec![
        rate(
            "crc32c",
            format!("CRC-32C of {} by one core", size(BYTES)),
            BYTES,
            &checksums.unwrap_or_default(),
        ),
        rate(
            "memory_copy",
            format!("copy of {} by one core", size(BYTES)),
            BYTES,
            &copies.unwrap_or_default(),
        ),
    ]
}

//! Randomness: a fast generator for jitter and choices, and bytes fit for ids.
//!
//! Any thread. Real bytes come from the kernel; under the simulator everything comes from the
//! seed, so that a run replays.

use super::current::{Current, try_current};

/// A random number, not for secrets.
pub fn random_u64() -> u64 {
    match try_current() {
        None | Some(Current::Ring(_)) => fastrand::u64(..),
        Some(Current::Sim(executor)) => executor.random(),
    }
}

/// A number below `bound`, 0 if `bound` is 0.
pub fn random_below(bound: u64) -> u64 {
    if bound == 0 {
        return 0;
    }
    // Multiply-shift: the bias is below bound / 2^64.
    ((u128::from(random_u64()) * u128::from(bound)) >> 64) as u64
}

/// Fills `bytes` from the kernel's entropy: ids, salts, nonces.
///
/// # Panics
/// If the kernel gives no entropy; running on with a guessable id would be worse.
pub fn fill_random(bytes: &mut [u8]) {
    match try_current() {
        None | Some(Current::Ring(_)) => {
            getrandom::fill(bytes).expect("the kernel's random source failed");
        }
        Some(Current::Sim(executor)) => executor.fill_random(bytes),
    }
}

//! Random distances between samples: a Poisson process over bytes allocated, or over time waited.
//!
//! The distance to the next sample is exponentially distributed, so that an item of size S is sampled with probability
//! `1 - exp(-S/R)`, independently of earlier ones. The reader divides by that probability.
//!
//! What must never happen here: floating-point arithmetic. The program may have it fault on inexact results, and sees in
//! its flags that there were some.

/// Draws the distance to the next sample, with mean `mean`. A mean of 1 gives 0, so that everything is sampled.
///
/// `state` is the state of the calling thread's random number generator, in thread-local storage; 0 before the first
/// call.
pub(crate) fn draw(state: &mut u64, mean: u64) -> u64 {
    if *state == 0 {
        *state = seed(core::ptr::from_ref(state) as u64);
    }
    let random = next(state);
    match mean {
        0 | 1 => 0,
        _ => {
            let distance = (u128::from(negative_logarithm(random)) * u128::from(mean)) >> FRACTION;
            u64::try_from(distance).unwrap_or(u64::MAX).saturating_add(1)
        }
    }
}

/// Binary digits of a fraction.
const FRACTION: u32 = 32;

/// A seed for the random numbers of one thread, from an address that no other thread shares.
fn seed(address: u64) -> u64 {
    let seed = platform::clock::now() ^ u64::from(platform::sys::thread_id()) << 32;
    let mut state = (seed ^ address).max(1);
    // Seeds that are close together diverge after a few steps.
    (0..4).for_each(|_| _ = next(&mut state));
    state
}

/// xorshift64* (Vigna, 2016).
fn next(state: &mut u64) -> u64 {
    let mut x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    x.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// `-ln(x / 2^64)`, in units of `2^-FRACTION`, for x > 0: the exponent, minus for the mantissa m in [1, 2) the series of
/// `ln(m) = 2 artanh((m - 1) / (m + 1))`. Its argument is below 1/3, so nine terms are accurate to 4e-9.
fn negative_logarithm(x: u64) -> u64 {
    const ONE: u64 = 1 << FRACTION;
    const LN_2: u64 = 2_977_044_472;
    let zeros = x.leading_zeros();
    // Without its first digit, which is 1.
    let mantissa = x.wrapping_shl(zeros) << 1 >> FRACTION;
    let z = (mantissa << FRACTION) / (2 * ONE + mantissa);
    let square = (z * z) >> FRACTION;
    let series = (0..9).rev().fold(0, |sum, term| ((sum * square) >> FRACTION) + ONE / (2 * term + 1));
    (u64::from(zeros + 1) * LN_2).saturating_sub((2 * z * series) >> FRACTION)
}

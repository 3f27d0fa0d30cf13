//! Random distances between samples: a Poisson process over bytes allocated, or over time waited.
//!
//! The distance to the next sample is exponentially distributed, so that an item of size S is sampled with probability
//! `1 - exp(-S/R)`, independently of earlier ones. The reader divides by that probability.

/// Draws the distance to the next sample, with mean `mean`. A mean of 1 gives 0, so that everything is sampled.
///
/// `state` is the state of the calling thread's random number generator, in thread-local storage; 0 before the first
/// call.
pub(crate) fn draw(state: &mut u64, mean: u64) -> u64 {
    if *state == 0 {
        *state = seed(core::ptr::from_ref(state) as u64);
    }
    let uniform = (next(state) >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
    match mean {
        0 | 1 => 0,
        // 1 - uniform is greater than 0.
        _ => (negative_logarithm(1.0 - uniform) * mean as f64) as u64 + 1,
    }
}

/// A seed for the random numbers of one thread, from an address that no other thread shares.
fn seed(address: u64) -> u64 {
    let seed = handler::clock::now() ^ u64::from(handler::sys::thread_id()) << 32;
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

/// `-ln(x)` for x in (0, 1]: the exponent, plus for the mantissa m in [1, 2) the series of
/// `ln(m) = 2 artanh((m - 1) / (m + 1))`. Its argument is below 1/3, so nine terms are accurate to 1e-9.
fn negative_logarithm(x: f64) -> f64 {
    const BITS: u32 = 52;
    let bits = x.to_bits();
    let exponent = (bits >> BITS) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << BITS) - 1) | 1023 << BITS);
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let series = (0..9).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    -(exponent as f64 * core::f64::consts::LN_2 + 2.0 * z * series)
}

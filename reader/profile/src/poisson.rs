//! The weights of samples taken by a Poisson process.
//!
//! Where one sample is taken in R units on average, each unit with the same chance, something of S units is sampled with
//! the probability `p = 1 - exp(-S/R)`, and represents `1/p` of its kind and `S/p` units. Weights are whole numbers:
//! fractions are rounded up or down at random in proportion (by a number that the sample itself gives, so that equal
//! profiles give equal weights), which leaves every sum right on average, however small the parts.

/// How many objects, and how many units, a sample of this size represents.
pub(crate) fn stands_for(size: u64, mean: u64) -> (f64, f64) {
    if mean <= 1 {
        return (1.0, size as f64);
    }
    let size = size.max(1) as f64;
    let probability = -(-size / mean as f64).exp_m1();
    (1.0 / probability, size / probability)
}

/// A number in [0, 1) that looks random (splitmix64, Steele and others, 2014).
pub(crate) fn fraction(seed: u64) -> f64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ x >> 31) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_stands_for_many_and_the_large_for_itself() {
        let (objects, bytes) = stands_for(64, 1 << 19);
        assert!((objects - 8192.5).abs() < 0.01 && (bytes - 524_320.0).abs() < 1.0, "{objects} {bytes}");
        let (objects, bytes) = stands_for(1 << 30, 1 << 19);
        assert_eq!((objects, bytes), (1.0, (1u64 << 30) as f64));
        assert_eq!(stands_for(0, 1), (1.0, 0.0));
    }
}

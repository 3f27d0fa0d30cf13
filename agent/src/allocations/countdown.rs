//! Which allocations are sampled: one in so many bytes, by a Poisson process over the bytes of each thread.
//!
//! The distance to the next sample is exponentially distributed, so that a block of S bytes is sampled with the
//! probability `1 - exp(-S/R)`, whatever came before it; a reader divides by that.

use core::arch::asm;

/// What a thread keeps, in thread-local storage.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Countdown {
    /// Bytes until the next sample: an allocation of so many, or more, goes the slow way.
    pub(super) left: u64,
    /// State of the random numbers; 0 before the first.
    random: u64,
    /// The stack pointer of the call that is under way; 0 if there is none.
    pub(super) inside: u64,
    /// What `left` was before that.
    pub(super) saved: u64,
    /// Calls inside that one.
    pub(super) nested: u64,
    /// Allocations recorded.
    pub(super) serial: u64,
    _free: [u64; 2],
}

const _: () = assert!(size_of::<Countdown>() == 64);

/// The calling thread's; none where no loader has placed the library.
pub(super) fn own() -> Option<*mut Countdown> {
    let address: usize;
    // SAFETY: computes the address of the thread's own bytes. The first word of a thread's block is its own address
    // (x86-64 TLS ABI).
    unsafe {
        asm!(
            "mov {0}, [rip + selfwind_countdown@GOTTPOFF]",
            "test {0}, {0}",
            "jz 2f",
            "add {0}, fs:[0]",
            "2:",
            out(reg) address,
            options(nostack, readonly),
        );
    }
    (address != 0).then_some(address as *mut Countdown)
}

impl Countdown {
    /// Whether there is a distance in `left`.
    pub(super) fn is_begun(&self) -> bool {
        self.random != 0
    }

    /// Draws the distance to the next sample, `mean` bytes on average; 0, which samples all, for a mean of 1.
    pub(super) fn draw(&mut self, mean: u64) {
        if self.random == 0 {
            let seed = handler::clock::now() ^ u64::from(handler::sys::thread_id()) << 32;
            self.random = (seed ^ core::ptr::from_ref(self) as u64).max(1);
            // Neighbouring seeds lie apart after a few.
            (0..4).for_each(|_| _ = self.next());
        }
        let uniform = (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        self.left = match mean {
            0 | 1 => 0,
            // 1 - uniform is above 0.
            _ => (negative_logarithm(1.0 - uniform) * mean as f64) as u64 + 1,
        };
    }

    /// xorshift64* (Vigna, 2016).
    fn next(&mut self) -> u64 {
        let mut x = self.random;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// `-ln(x)` for x in (0, 1]: of the exponent, and of the mantissa m in [1, 2) by the series of
/// `ln(m) = 2 artanh((m - 1) / (m + 1))`, whose argument is below 1/3: nine terms are good to 1e-9.
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

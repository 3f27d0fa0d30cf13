//! Decimal numbers in settings and in what the kernel says of processes.

/// A decimal number.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    let valid = !digits.is_empty() && digits.len() <= 18 && digits.iter().all(u8::is_ascii_digit);
    valid.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

//! Sizes in flags and the environment: bytes, or with the suffix K, M or G multiples of 1024, 1024^2 or 1024^3.

use std::fmt;

/// Parses a size; the agent parses it the same way.
pub(super) fn parse(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(1 << shift)
}

/// Writes a size in its shortest form.
pub(super) fn write(bytes: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match bytes {
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 30) => write!(f, "{}G", bytes >> 30),
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => write!(f, "{}M", bytes >> 20),
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => write!(f, "{}K", bytes >> 10),
        bytes => write!(f, "{bytes}"),
    }
}

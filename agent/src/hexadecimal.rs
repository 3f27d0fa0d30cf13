//! Hexadecimal numbers, in text from the kernel and in settings.

/// Parses all of `digits`, at most 16; `None` if there is anything else.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| Some(sum << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

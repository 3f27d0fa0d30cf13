//! Hexadecimal numbers, in text from the kernel and in settings.

/// The sixteen bytes that `digits` stand for, two digits each; `None` if there is anything else.
pub(crate) fn bytes(digits: &[u8]) -> Option<[u8; 16]> {
    let (high, low) = digits.split_at_checked(16).filter(|(_, low)| low.len() == 16)?;
    Some((u128::from(number(high)?) << 64 | u128::from(number(low)?)).to_be_bytes())
}

/// Parses all of `digits`, at most 16; `None` if there is anything else.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| Some(sum << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

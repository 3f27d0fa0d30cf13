//! Decimal numbers, in text from the kernel and in settings.

/// Parses all of `digits`; `None` if there is anything else, or the number does not fit 64 bits.
#[inline(never)]
pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(digit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_a_number_and_nothing_else_is() {
        assert_eq!((number(b"0"), number(b"007")), (Some(0), Some(7)));
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for text in [&b""[..], b"x", b"1x", b"-1", b"+1", b" 1", b"18446744073709551616"] {
            assert_eq!(number(text), None);
        }
    }
}

//! Decodes strings of interpreters: characters of one, two or four bytes.

/// The text of characters that are `width` bytes wide each.
pub fn text(bytes: &[u8], width: u32) -> String {
    let known = |character: u32| char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
    match width {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => bytes.as_chunks().0.iter().map(|unit| known(u16::from_le_bytes(*unit).into())).collect(),
        4 => bytes.as_chunks().0.iter().map(|unit| known(u32::from_le_bytes(*unit))).collect(),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_all_widths_are_text() {
        assert_eq!(text(b"caf\xe9", 1), "café");
        assert_eq!(text(&[0x42, 0x04, 0x51, 0x04], 2), "тё");
        assert_eq!(text(&[0, 0xf6, 1, 0, b'a', 0, 0, 0], 4), "😀a");
        // What is no character is none.
        assert_eq!(text(&[0, 0xd8, b'x'], 2), "\u{fffd}");
        assert_eq!(text(b"abc", 9), "abc");
    }
}

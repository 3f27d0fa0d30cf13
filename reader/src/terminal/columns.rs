//! Line wrapping.

use unicode_width::UnicodeWidthStr;

/// `text` wrapped at spaces to lines of at most `width` columns; longer words are not broken.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_wrapped() {
        assert_eq!(wrapped("note: one two three", 10), ["note: one", "  two", "  three"]);
    }
}

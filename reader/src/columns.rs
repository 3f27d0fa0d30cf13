//! Numbers and sentences made to fit.

/// `text` on lines of at most `width` columns, broken at spaces; what has none is left long.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A number with its digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 thread`, `1,234 threads`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_and_sentences_wrapped() {
        assert_eq!(["7", "999", "1,000", "12,345,678"], [7, 999, 1000, 12_345_678].map(grouped)[..]);
        assert_eq!(counted(1, "thread", "threads"), "1 thread");
        assert_eq!(wrapped("note: one two three", 10), ["note: one", "  two", "  three"]);
    }
}

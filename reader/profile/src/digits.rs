//! Formats numbers for people: digits in groups, and the noun in singular or plural.

/// A number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 thread`, `1,234 threads`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        assert_eq!(["7", "999", "1,000", "12,345,678"], [7, 999, 1000, 12_345_678].map(grouped)[..]);
        assert_eq!(counted(1, "thread", "threads"), "1 thread");
    }
}

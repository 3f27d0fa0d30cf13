//! Shortens long C++ and Rust names, dropping the least informative parts first.

use std::borrow::Cow;

/// `name`; without its parameters if it is longer than `width` characters, and if that is not enough without type
/// arguments, too. It is never truncated.
pub fn collapsed_name(name: &str, width: usize) -> Cow<'_, str> {
    let fits = |text: &str| text.chars().count() <= width;
    if fits(name) {
        return Cow::Borrowed(name);
    }
    let without_parameters = collapsed(name, '(', ')');
    if fits(&without_parameters) {
        return Cow::Owned(without_parameters);
    }
    Cow::Owned(collapsed(&without_parameters, '<', '>'))
}

/// `name` with the content of its outermost brackets replaced by `…`. Empty ones, those that begin the
/// name (`<T as Trait>::f`), those of operators and `(anonymous namespace)` stay.
fn collapsed(name: &str, open: char, close: char) -> String {
    let mut text = String::new();
    let mut depth = 0usize;
    let mut inside = String::new();
    for c in name.chars() {
        let opens =
            c == open && !text.ends_with("operator") && !text.ends_with("operator<") && !text.is_empty();
        let closes = c == close && !text.ends_with("operator") && !inside.ends_with('-');
        match (depth, opens, closes) {
            (0, true, _) => {
                depth = 1;
                inside.clear();
            }
            (0, false, _) => text.push(c),
            (1, _, true) => {
                depth = 0;
                let kept = inside.is_empty() || inside == "anonymous namespace";
                text.push(open);
                text.push_str(if kept { &inside } else { "…" });
                text.push(close);
            }
            _ => {
                depth = match (opens || c == open, closes) {
                    (true, _) => depth + 1,
                    (_, true) => depth - 1,
                    _ => depth,
                };
                inside.push(c);
            }
        }
    }
    if depth > 0 {
        // Unbalanced brackets: not a supported name.
        return name.to_owned();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_brackets_stays() {
        for (name, short) in [
            ("a::(anonymous namespace)::f(long long)", "a::(anonymous namespace)::f(…)"),
            ("std::ostream& operator<< <char>(std::ostream&, char)", "std::ostream& operator<< <…>(…)"),
            ("F::operator()(int, int, int, int) const", "F::operator()(…) const"),
            ("g(int, int, int, int, int, int) [clone .cold]", "g(…) [clone .cold]"),
            (
                "<alloc::vec::Vec<T> as core::ops::Drop>::drop::<Type>",
                "<alloc::vec::Vec<…> as core::ops::Drop>::drop::<…>",
            ),
            ("operator->(unbalanced((", "operator->(unbalanced(("),
        ] {
            let shortest = collapsed(&collapsed(name, '(', ')'), '<', '>');
            assert_eq!(shortest, short);
        }
    }
}

//! Shortens long C++ and Rust names, dropping the least telling parts first.

use std::borrow::Cow;

use selfwind_profile::collapsed_name::collapsed_name;

use crate::terminal::screen::fit;

/// `name` in at most `width` characters: complete, else without parameters, else also without type arguments, else cut.
pub(crate) fn short_name(name: &str, width: usize) -> Cow<'_, str> {
    match collapsed_name(name, width) {
        Cow::Borrowed(name) => fit(name, width),
        Cow::Owned(name) => Cow::Owned(fit(&name, width).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_go_before_type_arguments() {
        let name = "void std::sort<Iterator, Compare>(Iterator, Iterator, Compare (*)(int))";
        assert_eq!(short_name(name, 100), name);
        assert_eq!(short_name(name, 40), "void std::sort<Iterator, Compare>(…)");
        assert_eq!(short_name(name, 25), "void std::sort<…>(…)");
        assert_eq!(short_name(name, 10), "void s…(…)");
    }
}

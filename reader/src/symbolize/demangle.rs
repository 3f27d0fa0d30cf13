//! Linker names made readable.
//!
//! A name that is not mangled, or not understood, is shown as it is: never an error, never a loss.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use cpp_demangle::DemangleOptions;

/// Longest mangled name that is tried. Mangled names can expand exponentially; real ones are shorter.
const LONGEST: usize = 16 * 1024;
/// Longest readable name; the rest is cut.
const LONGEST_READABLE: usize = 4096;

/// The readable form of a symbol: Rust (legacy, without its hash, and v0) and Itanium C++.
/// ELF symbol versions (`name@@GLIBC_2.17`) are cut.
pub fn demangle(name: &str) -> Cow<'_, str> {
    let name = match name.find('@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    };
    if name.len() > LONGEST {
        return Cow::Borrowed(name);
    }
    let mut readable = Bounded { text: String::new(), full: false };
    let done = if let Ok(rust) = rustc_demangle::try_demangle(name) {
        write!(readable, "{rust:#}").is_ok()
    } else if let Some(Ok(cpp)) = name.starts_with("_Z").then(|| cpp_demangle::Symbol::new(name)) {
        cpp.structured_demangle(&mut readable, &DemangleOptions::default()).is_ok()
    } else {
        return Cow::Borrowed(name);
    };
    match (done, readable.full) {
        (true, _) => Cow::Owned(readable.text),
        (false, true) => Cow::Owned(readable.text + "…"),
        (false, false) => Cow::Borrowed(name),
    }
}

/// A text that refuses to grow past [`LONGEST_READABLE`].
struct Bounded {
    text: String,
    full: bool,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = LONGEST_READABLE - self.text.len();
        self.full |= more.len() > room;
        let cut = (0..=room.min(more.len())).rev().find(|&at| more.is_char_boundary(at)).unwrap_or(0);
        self.text.push_str(&more[..cut]);
        if self.full { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn rust_legacy_loses_its_hash() {
        assert_eq!(
            demangle("_ZN4core3ptr28drop_in_place$LT$$RF$str$GT$17h1234567890abcdefE"),
            "core::ptr::drop_in_place<&str>"
        );
        assert_eq!(demangle("_ZN3foo3bar17h0123456789abcdefE.llvm.1234"), "foo::bar");
    }

    #[test]
    fn rust_v0() {
        assert_eq!(demangle("_RNvCs1234_7mycrate4main"), "mycrate::main");
        assert_eq!(
            demangle("_RINvNtC3std3mem8align_ofNtNtC3std3mem12DiscriminantE"),
            "std::mem::align_of::<std::mem::Discriminant>"
        );
    }

    #[test]
    fn cpp() {
        assert_eq!(demangle("_ZN5space3fooEibc"), "space::foo(int, bool, char)");
        assert_eq!(demangle("_ZNSt6vectorIiSaIiEE9push_backERKi"), {
            "std::vector<int, std::allocator<int> >::push_back(int const&)"
        });
        assert_eq!(demangle("_ZN5space3fooEi.cold"), "space::foo(int) [clone .cold]");
    }

    #[test]
    fn plain_and_broken_names_stay() {
        for name in ["main", "_start", "_Z", "_ZN", "_R", "", "@", "_ZN3", "foo.part.0"] {
            assert_eq!(demangle(name), name);
        }
        let long = format!("_Z{}", "x".repeat(20_000));
        assert_eq!(demangle(&long), long);
    }

    #[test]
    fn versions_are_cut() {
        assert_eq!(demangle("memcpy@@GLIBC_2.14"), "memcpy");
        assert_eq!(demangle("_ZN5space3fooEi@VERS_1"), "space::foo(int)");
    }

    #[test]
    fn exploding_names_are_cut() {
        // Each level names its predecessor twice: 2^40 texts.
        let mut name = String::from("_Z1fSt4pairIiiE");
        for level in 0..40 {
            let previous = substitution(level);
            name.push_str(&format!("S_I{previous}{previous}E"));
        }
        let readable = demangle(&name);
        assert!(readable.starts_with("f(std::pair<int, int>, "), "{readable}");
        assert!(readable.ends_with('…') && readable.len() < 5000, "{}", readable.len());
    }

    /// The mangled reference to the `level`th pair, behind the name of the template itself.
    fn substitution(level: usize) -> String {
        let number = level; // S_ is the template, S0_ the first pair
        let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        match number {
            0..36 => format!("S{}_", digits[number] as char),
            _ => format!("S1{}_", digits[number - 36] as char),
        }
    }
}

//! Demangles linkage names.
//!
//! A name that is not mangled, or cannot be demangled, is shown as it is; this never fails.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use cpp_demangle::{DemangleOptions, DemangleWrite};

/// Maximum length of a mangled name. Mangled names can expand exponentially; real ones are shorter.
const LONGEST: usize = 16 * 1024;
/// Maximum length of a readable name; the rest is cut off.
const LONGEST_READABLE: usize = 4096;

/// The readable form of a symbol: Rust (legacy, without its hash, and v0), Itanium C++, and OCaml (with its number).
/// ELF symbol versions (`name@@GLIBC_2.17`) are removed.
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
    } else if name.starts_with("_Z") {
        match write_cpp(name, &mut readable) {
            Some(done) => {
                readable.text = as_usual(&readable.text).unwrap_or(readable.text);
                done
            }
            None => return Cow::Borrowed(name),
        }
    } else {
        return ocaml(name).map_or(Cow::Borrowed(name), Cow::Owned);
    };
    match (done, readable.full) {
        (true, _) => Cow::Owned(readable.text),
        (false, true) => Cow::Owned(readable.text + "…"),
        (false, false) => Cow::Borrowed(name),
    }
}

/// The readable form of a function of OCaml: `caml`, its module, two underscores (since OCaml 5.1 a dot), its name and a number.
/// Characters other than letters, digits and underscores are written as `$` and two hexadecimal digits.
fn ocaml(name: &str) -> Option<String> {
    let path = name
        .strip_prefix("caml")
        .filter(|path| path.starts_with(|first: char| first.is_ascii_uppercase()))?;
    let path = path.replace("__", ".");
    if !path.contains('.') {
        return None;
    }
    let mut pieces = path.split('$');
    let mut readable = String::from(pieces.next()?);
    for piece in pieces {
        let code = piece.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok())?;
        readable.push(code.is_ascii_graphic().then_some(code.into())?);
        readable.push_str(&piece[2..]);
    }
    Some(readable)
}

/// A C++ name with empty argument lists and literals as other demanglers write them; `None` if it is written so.
fn as_usual(name: &str) -> Option<String> {
    const SUFFIXES: [(&str, &str); 5] = [
        ("(unsigned int)", "u"),
        ("(unsigned long)", "ul"),
        ("(unsigned long long)", "ull"),
        ("(long)", "l"),
        ("(long long)", "ll"),
    ];
    let mut text = name.replace(", >", ">").replace(", )", ")");
    for (kind, suffix) in SUFFIXES {
        let mut from = 0;
        while let Some(at) = text[from..].find(kind).map(|at| from + at) {
            let value = &text[at + kind.len()..];
            let digits =
                value.trim_start_matches('-').trim_start_matches(|digit: char| digit.is_ascii_digit());
            let len = value.len() - digits.len();
            from = at + kind.len();
            if len > 0 {
                text.insert_str(from + len, suffix);
                text.replace_range(at..from, "");
                from = at + len;
            }
        }
    }
    (text != name).then_some(text)
}

/// Splits the name of a function that the compiler adds to another one (ABI 5.1.4.2), which the demangler writes in its own way: what
/// it is, in the words of other demanglers, and the other's name after `_Z`.
fn added(name: &str) -> Option<(&'static str, &str)> {
    let (kind, rest) = name.strip_prefix("_ZT")?.split_at_checked(1)?;
    match kind {
        "h" | "v" => {
            let what = if kind == "h" { "non-virtual thunk to " } else { "virtual thunk to " };
            Some((what, after_offset(kind, rest)?))
        }
        "c" => {
            let (first, rest) = rest.split_at_checked(1)?;
            let (second, rest) = after_offset(first, rest)?.split_at_checked(1)?;
            Some(("covariant return thunk to ", after_offset(second, rest)?))
        }
        "W" => Some(("TLS wrapper function for ", rest)),
        "H" => Some(("TLS init function for ", rest)),
        _ => None,
    }
}

/// What follows a call offset of this kind: one number, or for a virtual one two, each ended by an underscore.
fn after_offset<'n>(kind: &str, rest: &'n str) -> Option<&'n str> {
    let after_number = |rest: &'n str| {
        let digits = rest.strip_prefix('n').unwrap_or(rest);
        let rest = digits.trim_start_matches(|digit: char| digit.is_ascii_digit());
        rest.strip_prefix('_').filter(|_| rest.len() < digits.len())
    };
    match kind {
        "h" => after_number(rest),
        "v" => after_number(rest).and_then(after_number),
        _ => None,
    }
}

/// Writes an Itanium name. `None` if it cannot be parsed; false if it did not fit.
fn write_cpp(name: &str, readable: &mut Bounded) -> Option<bool> {
    let Some((what, other)) = added(name) else { return write_encoding(name, readable) };
    // Its words only go where a name follows.
    let other = format!("_Z{other}");
    cpp_demangle::Symbol::new(other.as_str()).ok()?;
    if readable.write_str(what).is_err() {
        return Some(false);
    }
    write_encoding(&other, readable)
}

fn write_encoding(name: &str, readable: &mut Bounded) -> Option<bool> {
    if let Ok(cpp) = cpp_demangle::Symbol::new(name) {
        return Some(cpp.structured_demangle(readable, &DemangleOptions::default()).is_ok());
    }
    let name = member_as_cast(name)?;
    let cpp = cpp_demangle::Symbol::new(name.as_str()).ok()?;
    let mut out = CastAsMember { readable, open: Vec::new() };
    Some(cpp.structured_demangle(&mut out, &DemangleOptions::default()).is_ok())
}

/// GCC mangles a member of a dependent type, `T::name`, as `sr <type> <name>` with any type (ABI 5.1.6 allows some
/// only), which the demangler does not support. It supports `rc <type> <name>`, with the same substitutions:
/// `reinterpret_cast<T>(name)`, which never occurs in a signature because it is no constant expression. `None` if there is
/// no such member.
fn member_as_cast(name: &str) -> Option<String> {
    let mut cast = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("sr") {
        let (before, member) = rest.split_at(at);
        let is_type = member[2..].starts_with(|c: char| matches!(c, 'S' | 'N' | 'T' | '1'..='9'));
        cast.push_str(before);
        cast.push_str(if is_type { "rc" } else { "sr" });
        rest = &member[2..];
    }
    cast.push_str(rest);
    (cast != name).then_some(cast)
}

/// Turns `reinterpret_cast<T>(name)` back into `T::name`.
struct CastAsMember<'a> {
    readable: &'a mut Bounded,
    /// The casts being written, outermost first.
    open: Vec<Cast>,
}

enum Cast {
    /// A genuine cast, left unchanged.
    Other,
    /// The type of a member.
    Type,
    /// The name of a member, with this many open parentheses.
    Member(u32),
}

impl DemangleWrite for CastAsMember<'_> {
    fn write_string(&mut self, piece: &str) -> fmt::Result {
        match (piece, self.open.last_mut()) {
            ("reinterpret_cast<", _) => self.open.push(Cast::Type),
            (">(", Some(cast @ Cast::Type)) => {
                *cast = Cast::Member(0);
                return self.readable.write_str("::");
            }
            (")", Some(Cast::Member(0))) => drop(self.open.pop()),
            _ => {
                match (piece, self.open.last_mut()) {
                    (">(", Some(Cast::Other)) => drop(self.open.pop()),
                    (_, Some(Cast::Member(depth))) => {
                        let opened = piece.matches('(').count() as u32;
                        *depth = (*depth + opened).saturating_sub(piece.matches(')').count() as u32);
                    }
                    _ => {}
                }
                if piece.ends_with("_cast<") {
                    self.open.push(Cast::Other);
                }
                return self.readable.write_str(piece);
            }
        }
        Ok(())
    }
}

/// A text of at most [`LONGEST_READABLE`] bytes.
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

    /// As c++filt and llvm-cxxfilt write them.
    #[test]
    fn functions_that_the_compiler_adds() {
        for (name, readable) in [
            ("_ZThn16_N4Base3fooEv", "non-virtual thunk to Base::foo()"),
            ("_ZTh16_NK4Base3fooEi.cold", "non-virtual thunk to Base::foo(int) const [clone .cold]"),
            ("_ZTv0_n264_N4BaseD1Ev", "virtual thunk to Base::~Base()"),
            ("_ZTch0_h32_NK6Window4edgeEv", "covariant return thunk to Window::edge() const"),
            ("_ZTcv0_n24_v0_n32_N1A1fEv", "covariant return thunk to A::f()"),
            ("_ZTWN5space5countE", "TLS wrapper function for space::count"),
            ("_ZTH5count", "TLS init function for count"),
        ] {
            assert_eq!(demangle(name), readable);
        }
        for name in ["_ZTh", "_ZThn16_", "_ZThx_1fv", "_ZTv0_1fv", "_ZTch0_1fv", "_ZTW", "_ZThé"] {
            assert_eq!(demangle(name), name);
        }
    }

    #[test]
    fn literals_and_empty_packs() {
        for (name, readable) in [
            ("_Z1fILj1ELm64ELln3EEvj", "void f<1u, 64ul, -3l>(unsigned int)"),
            ("_Z1fI1AIiJEEJEEvT_", "void f<A<int>>(A<int>)"),
        ] {
            assert_eq!(demangle(name), readable);
        }
    }

    #[test]
    fn members_of_dependent_types() {
        for (name, readable) in [
            (
                "_ZSt3sinIiEN9__gnu_cxx11__enable_ifIXsrSt12__is_integerIT_E7__valueEdE6__typeES3_",
                "__gnu_cxx::__enable_if<std::__is_integer<int>::__value, double>::__type std::sin<int>(int)",
            ),
            (
                "_ZSt4swapI3RecENSt9enable_ifIXsrSt6__and_IJSt6__not_ISt15__is_tuple_likeIT_EESt21is_move_constructible\
                 IS5_ESt18is_move_assignableIS5_EEE5valueEvE4typeERS5_SF_",
                "std::enable_if<std::__and_<std::__not_<std::__is_tuple_like<Rec> >, std::is_move_constructible<Rec>, \
                 std::is_move_assignable<Rec> >::value, void>::type std::swap<Rec>(Rec&, Rec&)",
            ),
            (
                "_ZngILj1E16generic_wide_intIN2wi15unextended_treeEEE8poly_intIXT_EN11poly_resultIT0_S6_\
                 Xsr22poly_coeff_pair_traitsIS6_S6_E11result_kindEE4typeEERK12poly_int_podIXT_ES6_E",
                "poly_int<1u, poly_result<generic_wide_int<wi::unextended_tree>, \
                 generic_wide_int<wi::unextended_tree>, poly_coeff_pair_traits<generic_wide_int<wi::unextended_tree>, \
                 generic_wide_int<wi::unextended_tree> >::result_kind>::type> operator-<1u, \
                 generic_wide_int<wi::unextended_tree> >(poly_int_pod<1u, \
                 generic_wide_int<wi::unextended_tree> > const&)",
            ),
        ] {
            assert_eq!(demangle(name), readable);
        }
        // Names of vector functions (libmvec) are not C++.
        assert_eq!(demangle("_ZGVbN2v_cos"), "_ZGVbN2v_cos");
    }

    #[test]
    fn names_of_ocaml() {
        assert_eq!(demangle("camlStdlib__List__rev_merge_552"), "Stdlib.List.rev_merge_552");
        assert_eq!(demangle("camlStdlib__List.rev_merge_552"), "Stdlib.List.rev_merge_552");
        assert_eq!(demangle("camlMain__$2b$21_90"), "Main.+!_90");
        for name in [
            "caml_apply2",
            "caml_oldify_one",
            "camlMain",
            "camlMain__$2",
            "camlMain__$zz",
            "camlMain__$00",
            "camlMain__$é",
        ] {
            assert_eq!(demangle(name), name);
        }
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

    /// The mangled reference to the `level`th pair, after the name of the template itself.
    fn substitution(level: usize) -> String {
        let number = level; // S_ is the template, S0_ the first pair
        let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        match number {
            0..36 => format!("S{}_", digits[number] as char),
            _ => format!("S1{}_", digits[number - 36] as char),
        }
    }
}

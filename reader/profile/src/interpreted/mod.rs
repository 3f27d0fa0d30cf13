//! Interpreted functions: decodes what an agent records of them, and how they are shown.
//!
//! Nothing here reads a process or a file, so names outlive the function, the process and its source.

mod internals;
mod line_table;
mod text;

use std::path::Path;

pub use internals::is_internal;
pub(crate) use internals::is_interpreter;
pub use text::text;

use unwind::{Frame, Interpreted};

use self::line_table::NAME_OF_LANGUAGE;
use crate::file_name::base_name;
use crate::profile_file::InterpretedFunction;

/// How interpreted frames are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterpretedView {
    /// A function has a name for each of its lines.
    pub lines: bool,
    /// Show the interpreter's own frames too.
    pub internals: bool,
}

/// What marks the frames of Python in folded stacks.
const PYTHON_MARK: &str = "_[py]";
/// The number of languages that the unwinders of regions name.
const BY_UNWINDER: u32 = 2;

/// The mark at the end of an element of a folded stack, if it is an interpreter's: the name of a language in it has two
/// characters or more, so that it is none of the other marks.
pub(crate) fn mark_of(element: &str) -> Option<&str> {
    let language = element.strip_suffix(']')?;
    let start = language.rfind("_[")?;
    is_language(&language.as_bytes()[start + 2..]).then(|| &element[start..])
}

fn is_language(name: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-_".contains(byte);
    (2..=15).contains(&name.len()) && name.iter().all(fits)
}

impl InterpretedFunction {
    /// What marks its frames in folded stacks.
    pub fn mark(&self) -> String {
        let is_named = self.language == BY_UNWINDER && self.lines_form == NAME_OF_LANGUAGE;
        match std::str::from_utf8(&self.lines) {
            Ok(name) if is_named && is_language(name.as_bytes()) => format!("_[{name}]"),
            _ if self.language == BY_UNWINDER => "_[unknown]".into(),
            _ => PYTHON_MARK.into(),
        }
    }

    /// The source line of an instruction; that of the function if it is not known.
    pub(crate) fn line_of(&self, offset: u32) -> u32 {
        line_table::line_of(self.lines_form, &self.lines, self.first_line, offset).unwrap_or(self.first_line)
    }

    /// `name (file.py:LINE)`, as far as it has them.
    pub fn shown(&self, line: u32) -> String {
        let file = base_name(Path::new(&self.file));
        match (file.is_empty(), line) {
            (true, _) => self.name.clone(),
            (false, 0) => format!("{} ({file})", self.name),
            (false, line) => format!("{} ({file}:{line})", self.name),
        }
    }
}

/// Whether the agent's reason is about frames of an interpreter. The others mean that only the outermost frame is known.
pub fn is_of_interpreter(reason: u32) -> bool {
    !(5..=7).contains(&reason)
}

/// Whether this leaf marks CPU time of which only the outermost frame is known: before the sampling of a thread began, or after
/// its last sample.
pub(crate) fn is_unplaced(leaf: u64) -> bool {
    Frame::from_bits(leaf)
        .as_interpreted()
        .is_some_and(|frame| frame.function == Interpreted::NOTHING && !is_of_interpreter(frame.offset))
}

/// What is shown where frames are missing, for the agent's reason.
pub fn gap(reason: u32) -> &'static str {
    match reason {
        1 => "[python: unreadable frames]",
        2 => "[python: unnamed function]",
        3 => "[python: too many frames]",
        4 => "[unwinder: unnamed function]",
        5 => "[program start]",
        6 => "[agent start]",
        7 => "[since last sample]",
        _ => "[python: unknown function]",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_of_unwinders_have_marks_of_their_own() {
        let function = |language, lines_form, lines: &[u8]| InterpretedFunction {
            language,
            lines_form,
            name: "f".into(),
            file: "/a/b.lua".into(),
            lines: lines.to_vec(),
            ..InterpretedFunction::default()
        };
        let lua = function(2, 4, b"lua");
        assert_eq!((lua.mark().as_str(), lua.line_of(7), lua.line_of(0)), ("_[lua]", 7, 0));
        assert_eq!((lua.shown(3), lua.shown(0)), ("f (b.lua:3)".to_owned(), "f (b.lua)".to_owned()));
        assert_eq!(InterpretedFunction { file: String::new(), ..lua }.shown(3), "f");
        // What is no name of a language is not shown, least of all as another mark.
        for strange in [&b"k"[..], b"", b"a;b", b"\xff\xff", b"much-too-long-a-name"] {
            assert_eq!(function(2, 4, strange).mark(), "_[unknown]", "{strange:?}");
        }
        assert_eq!(function(1, 3, b"lua").mark(), "_[py]");
        for (element, mark) in [
            ("f (b.lua:3)_[lua]", Some("_[lua]")),
            ("f_[py]", Some("_[py]")),
            ("f_[k]", None),
            ("a[int]", None),
            ("f_[LUA]", None),
        ] {
            assert_eq!(mark_of(element), mark, "{element}");
        }
    }
}

//! Functions that interpreters run: what an agent tells of them, and how they are shown.
//!
//! Nothing here reads a target or a file: a name outlives the function, the process and its source.

mod internals;
mod line_table;
mod text;

use std::path::Path;

pub use internals::{is_internal, is_interpreter};
pub use text::text;

use crate::file_name::base_name;
use crate::profile_file::InterpretedFunction;

/// How frames of interpreters are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterpretedView {
    /// A function has a name for each of its lines.
    pub lines: bool,
    /// The interpreter's own frames are shown too.
    pub internals: bool,
}

/// What marks the frames of Python in folded stacks.
pub const PYTHON_MARK: &str = "_[py]";

impl InterpretedFunction {
    /// The source line of an instruction; that of the function if it is not known.
    pub fn line_of(&self, offset: u32) -> u32 {
        line_table::line_of(self.lines_form, &self.lines, self.first_line, offset).unwrap_or(self.first_line)
    }

    /// `name (file.py:LINE)`.
    pub fn shown(&self, line: u32) -> String {
        format!("{} ({}:{line})", self.name, base_name(Path::new(&self.file)))
    }
}

/// What is shown where frames are missing, for the agent's reason.
pub fn gap(reason: u32) -> &'static str {
    match reason {
        1 => "[python: unreadable frames]",
        2 => "[python: unnamed function]",
        3 => "[python: too many frames]",
        _ => "[python: unknown function]",
    }
}

//! Messages of the program: one line each on stderr, never on stdout.

use std::io::Write;

use crate::terminal::screen::printable;

/// How much to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Notices {
    /// Only errors.
    Quiet,
    /// Results, and what a user has to know.
    #[default]
    Normal,
    /// Each step.
    Verbose,
}

impl Notices {
    /// From the flags `-q` and `-v`.
    pub(crate) fn new(quiet: bool, verbose: bool) -> Self {
        match (quiet, verbose) {
            (true, _) => Self::Quiet,
            (_, true) => Self::Verbose,
            _ => Self::Normal,
        }
    }

    /// Prints a message unless `-q` was given.
    pub(crate) fn say(self, text: impl std::fmt::Display) {
        if self >= Self::Normal {
            warn(text);
        }
    }

    /// Prints a message with `-v` only.
    pub(crate) fn detail(self, text: impl std::fmt::Display) {
        if self >= Self::Verbose {
            warn(text);
        }
    }
}

/// Prints a message always. Control characters in it, for example from names of programs, are replaced. A closed stderr is
/// ignored.
pub(crate) fn warn(text: impl std::fmt::Display) {
    let text = text.to_string();
    let _ = writeln!(std::io::stderr().lock(), "selfwind: {}", printable(&text));
}

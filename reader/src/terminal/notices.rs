//! What the program says about its own doings: on stderr, one line each, never on stdout.

use std::io::Write;

use crate::terminal::screen::printable;

/// How much to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Notices {
    /// Only errors.
    Quiet,
    /// Results and what a user has to know.
    #[default]
    Normal,
    /// Every step.
    Verbose,
}

impl Notices {
    /// By the flags `-q` and `-v`.
    pub(crate) fn new(quiet: bool, verbose: bool) -> Self {
        match (quiet, verbose) {
            (true, _) => Self::Quiet,
            (_, true) => Self::Verbose,
            _ => Self::Normal,
        }
    }

    /// Says something unless `-q` was given.
    pub(crate) fn say(self, text: impl std::fmt::Display) {
        if self >= Self::Normal {
            warn(text);
        }
    }

    /// Says something only with `-v`.
    pub(crate) fn detail(self, text: impl std::fmt::Display) {
        if self >= Self::Verbose {
            warn(text);
        }
    }
}

/// Says something in any case. Names of programs, threads and files are in it: nothing of them moves a cursor. A closed
/// stderr is no reason to fail.
pub(crate) fn warn(text: impl std::fmt::Display) {
    let text = text.to_string();
    let _ = writeln!(std::io::stderr().lock(), "selfwind: {}", printable(&text));
}

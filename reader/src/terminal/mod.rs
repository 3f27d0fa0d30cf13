//! Terminal output: the screen, notices on stderr, text fitted to columns.

pub(crate) mod columns;
pub(crate) mod notices;
pub(crate) mod open;
pub(crate) mod progress;
pub(crate) mod screen;
pub(crate) mod short_name;
pub(crate) mod standard_output;

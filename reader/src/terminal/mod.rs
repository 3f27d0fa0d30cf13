//! What the user sees: the screen, what is said on stderr, texts made to fit.

pub(crate) mod columns;
pub(crate) mod notices;
pub(crate) mod open;
pub(crate) mod progress;
pub(crate) mod screen;
pub(crate) mod short_name;

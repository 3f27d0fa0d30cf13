//! What the user sees: the screen, what is said on stderr, texts made to fit.

pub mod columns;
pub mod notices;
pub mod open;
pub mod progress;
pub mod screen;
pub mod short_name;

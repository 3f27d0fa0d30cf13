//! How stacks are grouped, as far as a format can do that.

/// What to add before the root of each stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Grouping {
    /// Nothing: equal stacks of all threads are merged.
    #[default]
    None,
    /// The process, `NAME-PID`.
    Process,
    /// The thread, `NAME-PID/TID`.
    Thread,
}

//! A row that no FDE gives: other crates infer it, and the table takes it in.

use unwind::Rule;

/// A row for code without call frame information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InferredRow {
    /// Its first address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// The rule there.
    pub rule: Rule,
}

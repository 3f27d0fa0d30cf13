//! `selfwind stats --json`, and the sums it must keep.

use serde_json::Value;

/// The JSON document.
#[derive(Clone, Debug)]
pub struct Stats(pub Value);

impl Stats {
    /// Parses the output of `selfwind stats --json`.
    pub fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_else(|e| panic!("stats is not JSON: {e}: {text}")))
    }

    /// One of the promised numbers at the top level.
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("stats has no number {name}: {}", self.0))
    }
}

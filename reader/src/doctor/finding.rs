//! A finding: one fact about the machine or a process, and its consequence for recording.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grade {
    /// As it should be.
    Good,
    /// Something is missing or slower; recording works.
    Limited,
    /// Nothing can be recorded.
    Blocked,
}

/// One fact and its consequence.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    /// A stable name.
    pub(super) name: &'static str,
    /// The value found.
    pub(super) value: String,
    pub(super) grade: Grade,
    /// What it means for recording.
    pub(super) consequence: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn good(name: &'static str, value: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self { name, value: value.into(), grade: Grade::Good, consequence: consequence.into(), remedy: None }
    }

    pub(super) fn limited(
        name: &'static str,
        value: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { grade: Grade::Limited, remedy: Some(remedy.into()), ..Self::good(name, value, consequence) }
    }

    pub(super) fn blocked(
        name: &'static str,
        value: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { grade: Grade::Blocked, ..Self::limited(name, value, consequence, remedy) }
    }
}

//! How stacks are unwound: the values of `--unwind` and `--copy-limit`, of `SELFWIND_UNWIND` and `SELFWIND_COPY_LIMIT`.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use shm_format::COPY_MOST;

use crate::sampling::size;

/// How the frames of a stack are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unwinding {
    /// The thread itself.
    #[default]
    #[value(name = "self")]
    Own,
    /// The recorder, from a copy of the addresses on the stack.
    Copy,
    /// The recorder, from a copy of the code addresses on the stack.
    CopyCode,
    /// No unwinding: every return address on the stack counts as a frame.
    Guess,
    /// Both the thread and the recorder, which compares the results.
    Both,
}

impl Unwinding {
    /// Its name, the same as in the agent.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Maximum size of a stack copy in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CopyLimit(u64);

impl CopyLimit {
    const MIN: Self = Self(1 << 10);
    const MAX: Self = Self(COPY_MOST);
}

impl Default for CopyLimit {
    fn default() -> Self {
        Self(32 << 10)
    }
}

impl FromStr for CopyLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("invalid size `{text}`: expected {} to {}, such as 8K or 64K", Self::MIN, Self::MAX);
        let bytes = size::parse(text).map(Self);
        bytes.filter(|size| (Self::MIN..=Self::MAX).contains(size)).ok_or_else(wrong)
    }
}

impl fmt::Display for CopyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        size::write(self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        for (text, shown) in [("1024", "1K"), ("32K", "32K"), ("1m", "1M"), ("5000", "5000")] {
            assert_eq!(text.parse::<CopyLimit>().unwrap().to_string(), shown);
        }
        for text in ["", "1023", "2M", "8 K", "-1", "K"] {
            let error = text.parse::<CopyLimit>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("1K to 1M"), "{error}");
        }
    }

    #[test]
    fn names_are_those_of_the_agent() {
        let names = Unwinding::value_variants().iter().map(|unwinding| unwinding.name());
        assert!(names.eq(["self", "copy", "copy-code", "guess", "both"]));
    }
}

//! What samples hold of a stack, and who unwinds it: the values of `--unwind` and `--copy-limit`, of `SELFWIND_UNWIND` and
//! `SELFWIND_COPY_LIMIT`.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use shm_format::COPY_MOST;

use crate::sampling::size;

/// Who finds the frames of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unwinding {
    /// The thread itself.
    #[default]
    #[value(name = "self")]
    Own,
    /// The recorder, from a copy of the addresses on the stack.
    Copy,
    /// The recorder, from a copy of the addresses of code on the stack.
    CopyCode,
    /// Nobody: every address behind a call counts.
    Guess,
    /// Both, and the recorder compares.
    Both,
}

impl Unwinding {
    /// Its name, as the agent knows it.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Bytes of a stack that are copied at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CopyLimit(u64);

impl CopyLimit {
    const LEAST: Self = Self(1 << 10);
    const MOST: Self = Self(COPY_MOST);
}

impl Default for CopyLimit {
    fn default() -> Self {
        Self(32 << 10)
    }
}

impl FromStr for CopyLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("invalid size `{text}`: expected {} to {}, such as 8K or 64K", Self::LEAST, Self::MOST)
        };
        let bytes = size::parse(text).map(Self);
        bytes.filter(|size| (Self::LEAST..=Self::MOST).contains(size)).ok_or_else(wrong)
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

//! Sampling rate and overhead limit: the values of `-F` and `--max-overhead`.

use std::fmt;
use std::str::FromStr;

/// Default samples per second of CPU time, the same as in the agent.
pub(crate) const DEFAULT_FREQUENCY: u32 = 199;
/// Beyond this, the handler would hardly finish before the next tick.
pub(crate) const MAX_FREQUENCY: u32 = 100_000;
/// 100 % in hundredths of a percent.
const WHOLE: u32 = 10_000;

/// Parses a number of samples per second.
pub(crate) fn frequency(text: &str) -> Result<u32, String> {
    let hz: f64 = text.parse().map_err(|_| format!("invalid rate `{text}`: expected a number such as 99"))?;
    if hz > f64::from(MAX_FREQUENCY) {
        return Err(format!(
            "{text} samples per second would leave the program hardly any time; the maximum is {MAX_FREQUENCY}"
        ));
    }
    if hz < 1.0 {
        return Err(format!("`{text}`: the rate must be at least 1"));
    }
    text.parse().map_err(|_| format!("invalid rate `{text}`: expected a whole number such as 99"))
}

/// Maximum share of a program's CPU time for its signal handlers, in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overhead(u32);

impl Default for Overhead {
    fn default() -> Self {
        Self(200)
    }
}

impl FromStr for Overhead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid percentage `{text}`: expected 0.01 to 100 (no limit)");
        let percent: f64 = text.parse().map_err(|_| wrong())?;
        let hundredths = (percent * 100.0).round();
        let valid = hundredths >= 1.0 && hundredths <= f64::from(WHOLE);
        valid.then_some(Self(hundredths as u32)).ok_or_else(wrong)
    }
}

/// In percent, the format that the agent parses.
impl fmt::Display for Overhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 100, self.0 % 100);
        match rest {
            0 => write!(f, "{whole}"),
            _ => write!(f, "{whole}.{rest:02}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies() {
        assert_eq!((frequency("1"), frequency("100000")), (Ok(1), Ok(100_000)));
        for (text, part) in [
            ("0", "at least 1"),
            ("100001", "the maximum is 100000"),
            ("99999999999", "the maximum is 100000"),
            ("-3", "at least 1"),
            ("0.5", "at least 1"),
            ("99.5", "whole number"),
            ("fast", "invalid rate"),
        ] {
            let error = frequency(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn percentages() {
        for (text, shown) in
            [("2", "2"), ("0.5", "0.50"), ("0.01", "0.01"), ("100", "100"), ("12.345", "12.35")]
        {
            assert_eq!(text.parse::<Overhead>().unwrap().to_string(), shown);
        }
        assert_eq!(Overhead::default().to_string(), "2");
        for text in ["0", "-1", "101", "nan", "inf", "", "2%"] {
            assert!(text.parse::<Overhead>().unwrap_err().contains("0.01 to 100"), "{text}");
        }
    }
}

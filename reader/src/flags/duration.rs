//! Durations on the command line: `500ms`, `10s`, `5m`, `1h`, or seconds.

use std::time::Duration;

/// The shortest interval.
const LEAST: Duration = Duration::from_millis(100);

/// Parses a duration above zero.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse(text).filter(|duration| !duration.is_zero()).ok_or_else(|| {
        format!(
            "invalid duration `{text}`: expected more than 0, such as 0.5 or 10 (seconds), 500ms, 5m or 1h"
        )
    })
}

/// Parses an interval.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    parse(text).filter(|interval| *interval >= LEAST).ok_or_else(|| {
        format!("invalid interval `{text}`: expected 100ms or more, such as 500ms, 10s, 5m or 1h")
    })
}

fn parse(text: &str) -> Option<Duration> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)];
    let (number, unit) = units.into_iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, ms) in [("500ms", 500), ("10s", 10_000), ("1.5m", 90_000), ("2h", 7_200_000), ("3", 3000)]
        {
            let expected = Ok(Duration::from_millis(ms));
            assert_eq!((interval(text), duration(text)), (expected.clone(), expected), "{text}");
        }
        assert_eq!(duration("0.25"), duration("250ms"));
        for text in ["", "s", "0", "0ms", "-1s", "10 s", "10d", "nan", "infs", "1e300h"] {
            assert!(interval(text).unwrap_err().contains("such as 500ms, 10s"), "{text}");
            assert!(duration(text).unwrap_err().contains("such as 0.5 or 10 (seconds), 500ms"), "{text}");
        }
        assert!(interval("99ms").is_err() && duration("99ms").is_ok());
    }
}

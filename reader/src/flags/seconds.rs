//! Durations on the command line.

use std::time::Duration;

/// Parses a duration above zero, in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid time `{text}`: expected seconds above 0, such as 10 or 0.5");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero()).ok_or_else(wrong)
}

/// The shortest interval.
const LEAST: Duration = Duration::from_millis(100);

/// Parses an interval: `500ms`, `10s`, `5m`, `1h`, or seconds.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid interval `{text}`: expected 100ms or more, such as 500ms, 10s, 5m or 1h");
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)];
    let found = units.into_iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let (number, unit) = found.ok_or_else(wrong)?;
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * unit).ok().filter(|interval| *interval >= LEAST).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_units() {
        for (text, ms) in [("500ms", 500), ("10s", 10_000), ("1.5m", 90_000), ("2h", 7_200_000), ("3", 3000)]
        {
            assert_eq!(interval(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "0", "99ms", "-1s", "10 s", "10d", "nan", "infs", "1e300h"] {
            assert!(interval(text).unwrap_err().contains("such as 500ms, 10s"), "{text}");
        }
    }
}

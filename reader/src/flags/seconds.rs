//! Lengths of time on the command line.

use std::time::Duration;

/// A length of time above zero.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid time `{text}`: expected seconds above 0, such as 10 or 0.5");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero()).ok_or_else(wrong)
}

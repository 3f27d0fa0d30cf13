//! Conditions under which a comparison fails, for scripts: the values of `--fail-if`.

use std::str::FromStr;

use regex_lite::Regex;

use super::comparison::{Change, Comparison};

/// A share has grown only if the probability that chance explains it is below this.
const CHANCE: f64 = 0.05;

/// What must not grow by more than a percentage.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    text: String,
    what: What,
    percent: f64,
}

#[derive(Debug, Clone)]
enum What {
    /// The total amount.
    Everything,
    /// The self shares of functions.
    Own(Regex),
    /// The total (inclusive) shares of functions.
    Total(Regex),
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "invalid condition `{text}`: expected total>PERCENT%, self(REGEX)>PERCENT% or total(REGEX)>PERCENT%"
            )
        };
        let (what, percent) = text.rsplit_once('>').ok_or_else(wrong)?;
        let percent: f64 = percent.trim().trim_end_matches('%').trim().parse().map_err(|_| wrong())?;
        if !(0.0..=1e6).contains(&percent) {
            return Err(wrong());
        }
        let named = |kind: &str| {
            let rest = what.trim().strip_prefix(kind)?.strip_prefix('(')?;
            rest.strip_suffix(')').map(|name| Regex::new(name).map_err(|error| error.to_string()))
        };
        let what = match (what.trim(), named("self"), named("total")) {
            ("total", ..) => What::Everything,
            (_, Some(name), _) => What::Own(name?),
            (_, _, Some(name)) => What::Total(name?),
            _ => return Err(wrong()),
        };
        Ok(Self { text: text.to_owned(), what, percent })
    }
}

impl Gate {
    /// Why the comparison fails; `None` if it passes.
    ///
    /// # Errors
    /// If no function of either profile matches: such a condition would never fail.
    pub(super) fn failure(&self, comparison: &Comparison<'_>) -> anyhow::Result<Option<String>> {
        let (name, own) = match &self.what {
            What::Everything => return Ok(self.everything(comparison)),
            What::Own(name) => (name, true),
            What::Total(name) => (name, false),
        };
        let share = |change: &Change| {
            if own { (change.own, change.p_own) } else { (change.total, change.p_total) }
        };
        let mut found = comparison.changes.iter().filter(|change| name.is_match(&change.name)).peekable();
        if found.peek().is_none() {
            anyhow::bail!("--fail-if '{}': neither profile has a function that matches", self.text);
        }
        let grown = found.map(|change| (change, share(change)));
        let mut grown = grown.filter(|&(_, (by, p))| by * 100.0 > self.percent && p < CHANCE);
        Ok(grown.next().map(|(change, (by, _))| {
            format!(
                "the share of {} grew by {:.1} points (--fail-if '{}')",
                change.name,
                by * 100.0,
                self.text
            )
        }))
    }

    fn everything(&self, comparison: &Comparison<'_>) -> Option<String> {
        let by = (comparison.ratio()? - 1.0) * 100.0;
        let used = comparison.a.amount.as_ref().map_or("weight".into(), |amount| amount.unit.clone());
        (by > self.percent).then(|| format!("{used} grew by {by:.1}% (--fail-if '{}')", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_or_explained() {
        let what = |text: &str| {
            let gate: Gate = text.parse().unwrap();
            let name = match gate.what {
                What::Everything => String::new(),
                What::Own(name) => format!("self {name}"),
                What::Total(name) => format!("total {name}"),
            };
            (name, gate.percent)
        };
        assert_eq!(what("total>5%"), (String::new(), 5.0));
        assert_eq!(what(" total > 0.5 "), (String::new(), 0.5));
        assert_eq!(what("self(^operator>$)>2%"), ("self ^operator>$".into(), 2.0));
        assert_eq!(what("total(f(int))>0%"), ("total f(int)".into(), 0.0));
        for wrong in ["", "total", "total<5%", "total>x", "total>-1%", "self>5%", "self(f>5%", "self(()>5%"] {
            assert!(wrong.parse::<Gate>().is_err(), "{wrong}");
        }
    }
}

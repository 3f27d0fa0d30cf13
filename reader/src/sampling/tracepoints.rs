//! Tracepoints of programs, as `-e` names them: `tp:PROVIDER:NAME`, with `,nostack` behind those whose events have no stack.

use selfwind_profile::source_list::NO_STACK;

/// Tracepoints that are recorded; the first that a name matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tracepoints(Vec<Pattern>);

/// A name that stands for several.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    /// `PROVIDER:NAME`, with `*` and `?`.
    glob: String,
    has_stack: bool,
}

/// Bytes of the longest, as agents take it.
const LONGEST: usize = 257;

impl Tracepoints {
    /// Reads one, with all its words; none if it is another source.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some(pattern) = text.strip_prefix("tp:") else { return Ok(None) };
        let (glob, has_stack) = match pattern.split_once(',') {
            Some((glob, NO_STACK)) => (glob, false),
            _ => (pattern, true),
        };
        let names = glob.split_once(':').filter(|(provider, name)| !provider.is_empty() && !name.is_empty());
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_:*?".contains(c);
        if names.is_none() || glob.len() > LONGEST || !glob.chars().all(is_word) {
            return Err(format!(
                "`{text}` is no tracepoint of a program; give tp:PROVIDER:NAME, such as tp:app:request or tp:app:*, with `,nostack` behind it for events without stacks"
            ));
        }
        Ok(Some(Self(vec![Pattern { glob: glob.to_owned(), has_stack }])))
    }

    /// With these behind them.
    pub(super) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// As `-e` takes them.
    pub(super) fn name(&self) -> String {
        let name = |pattern: &Pattern| {
            format!("tp:{}{}", pattern.glob, if pattern.has_stack { "" } else { ",nostack" })
        };
        self.0.iter().map(name).collect::<Vec<_>>().join(",")
    }
}

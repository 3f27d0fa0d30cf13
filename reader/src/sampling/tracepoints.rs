//! Programs' own tracepoints in `-e`: `tp:PROVIDER:NAME`, followed by `,nostack` if their events are to have no stack.

use selfwind_profile::source_list::NO_STACK;

/// The tracepoints to record; the first matching pattern decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tracepoints(Vec<Pattern>);

/// A pattern for names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    /// `PROVIDER:NAME`, with `*` and `?`.
    glob: String,
    has_stack: bool,
}

/// Maximum length in bytes that the agent accepts.
const LONGEST: usize = 257;

impl Tracepoints {
    /// Parses one; `None` if it is another kind of source.
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
                "`{text}` is not a tracepoint of a program; give tp:PROVIDER:NAME, such as tp:app:request or tp:app:*, followed by `,nostack` for events without stacks"
            ));
        }
        Ok(Some(Self(vec![Pattern { glob: glob.to_owned(), has_stack }])))
    }

    /// Appends others.
    pub(super) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// As written in `-e`.
    pub(super) fn name(&self) -> String {
        let name = |pattern: &Pattern| {
            format!("tp:{}{}", pattern.glob, if pattern.has_stack { "" } else { ",nostack" })
        };
        self.0.iter().map(name).collect::<Vec<_>>().join(",")
    }
}

//! Folded stacks: `root;...;leaf COUNT`, one stack a line.

use std::collections::BTreeMap;

/// Outermost functions of a thread in glibc and musl: a stack that begins with one of these, ignoring versions and
/// offsets, is complete.
const ROOTS: [&str; 10] = [
    "_start",
    "_start_c",
    "_dl_start_user",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "clone3",
    "__clone3",
    "clone",
    "__clone",
];

/// In place of the functions of CPU time of which only the amount is known.
pub const UNPLACED: [&str; 3] = ["[program start]", "[agent start]", "[since last sample]"];

/// A whole folded output.
#[derive(Clone, Debug, Default)]
pub struct Folded {
    /// Stacks, outermost function first, with their weights.
    pub stacks: Vec<(Vec<String>, u64)>,
}

impl Folded {
    /// Parses the output; a malformed line fails the test.
    pub fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (stack, weight) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no count: {line:?}"));
            let weight = weight.parse().unwrap_or_else(|_| panic!("no number: {line:?}"));
            (stack.split(';').map(str::to_string).collect(), weight)
        };
        Self { stacks: text.lines().map(line).collect() }
    }

    /// The sum of all weights.
    pub fn total(&self) -> u64 {
        self.stacks.iter().map(|(_, weight)| weight).sum()
    }

    /// The weight of all stacks in which `function` occurs.
    pub fn inclusive(&self, function: &str) -> u64 {
        let with = self.stacks.iter().filter(|(stack, _)| stack.iter().any(|f| is(f, function)));
        with.map(|(_, weight)| weight).sum()
    }

    /// The weight of all stacks in which `outer` occurs further out than `inner`.
    pub fn nested(&self, outer: &str, inner: &str) -> u64 {
        let both = self.stacks.iter().filter(|(stack, _)| {
            let position = stack.iter().position(|f| is(f, outer));
            position.is_some_and(|at| stack[at + 1..].iter().any(|f| is(f, inner)))
        });
        both.map(|(_, weight)| weight).sum()
    }

    /// The share of the weight whose stacks begin at a thread's outermost function.
    pub fn rooted(&self) -> f64 {
        let rooted = self
            .stacks
            .iter()
            .filter(|(stack, _)| stack.first().is_some_and(|f| ROOTS.iter().any(|root| is(f, root))));
        share(rooted.map(|(_, weight)| weight).sum(), self.total())
    }

    /// The share of the weight whose leaf has a name rather than an address.
    pub fn named(&self) -> f64 {
        let named = self.stacks.iter().filter(|(stack, _)| stack.last().is_some_and(|f| !is_nameless(f)));
        share(named.map(|(_, weight)| weight).sum(), self.total())
    }

    /// The outermost functions by weight, for failure messages.
    pub fn roots(&self) -> BTreeMap<&str, u64> {
        let mut roots = BTreeMap::new();
        for (stack, weight) in &self.stacks {
            *roots.entry(stack.first().map_or("", String::as_str)).or_default() += weight;
        }
        roots
    }
}

/// Compares function names without the suffixes of some symbolizers: `@@VERSION`, `.constprop.0`, arguments.
fn is(shown: &str, function: &str) -> bool {
    let end = shown.strip_prefix(function);
    end.is_some_and(|rest| rest.is_empty() || rest.starts_with(['@', '.', '(']))
}

fn is_nameless(frame: &str) -> bool {
    let is_mark = frame.starts_with('[') && !UNPLACED.contains(&frame);
    frame.starts_with("0x") || is_mark || frame.contains("+0x") || frame.is_empty()
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::Folded;

    #[test]
    fn stacks_are_counted_by_weight() {
        let folded = Folded::parse("_start;main;work(int) 30\nclone3;work.constprop.0 10\nodd;0x1234 10\n");
        assert_eq!(folded.total(), 50);
        assert_eq!(folded.inclusive("work"), 40);
        assert_eq!(folded.inclusive("wor"), 0);
        assert_eq!(folded.nested("main", "work"), 30);
        assert_eq!(folded.nested("work", "main"), 0);
        assert!((folded.rooted() - 0.8).abs() < 1e-9);
        assert!((folded.named() - 0.8).abs() < 1e-9);
    }
}

//! Lock contention: the stacks that wait for locks, with the stacks of the threads that ended the waits.

use selfwind_profile::locks::LockValue;
use selfwind_profile::profile::{LockPair, Profile};
use serde::Serialize;

use super::text::Page;
use crate::terminal::screen::{fit, printable};

/// Number of pairs shown by default.
const ROWS: usize = 10;
/// The column where stacks begin.
const CHAIN_AT: usize = 28;

/// A waiting stack and the stack that ended the wait, in JSON.
#[derive(Serialize)]
pub(super) struct PairRow<'a> {
    /// Functions of the waiting stack, innermost first.
    wait: Vec<&'a str>,
    /// Functions of the stack that released the lock or woke the waiter.
    ended: Vec<&'a str>,
    samples: u64,
    delay_ns: u64,
}

/// The pairs of a profile, longest total delay first.
pub(super) fn rows(profile: &Profile) -> Vec<PairRow<'_>> {
    let row = |pair: &LockPair| PairRow {
        wait: names(profile, pair.wait),
        ended: names(profile, pair.holder),
        samples: pair.samples,
        delay_ns: pair.delay_ns,
    };
    profile.lock_pairs.iter().map(row).collect()
}

fn names(profile: &Profile, stack: u32) -> Vec<&str> {
    let Some(stack) = profile.stacks.get(stack as usize) else { return Vec::new() };
    let mut names: Vec<&str> =
        profile.functions_from_root(stack).map(|function| profile.function_name(function)).collect();
    names.reverse();
    names
}

/// As many functions of a stack as fit a line, innermost first. Each takes at most a third of the width.
fn chain(profile: &Profile, stack: u32, width: usize) -> String {
    const BETWEEN: &str = " < ";
    const MORE: &str = " < …";
    let mut text = String::new();
    let mut names = names(profile, stack).into_iter().peekable();
    while let Some(name) = names.next() {
        let name = printable(name);
        let name = fit(&name, width / 3);
        let between = if text.is_empty() { "" } else { BETWEEN };
        let behind = if names.peek().is_some() { MORE } else { "" };
        let length = [&text, between, &name, behind].map(|part| part.chars().count()).iter().sum::<usize>();
        if length > width {
            return text + MORE;
        }
        text.push_str(between);
        text.push_str(&name);
    }
    text
}

impl Page<'_> {
    /// Prints at most `limit` pairs, 0 for all, on two lines each.
    pub(super) fn waits(&mut self, limit: Option<usize>) {
        let profile = self.profile;
        let shown = &profile.measure(profile.main).name;
        let is_of_locks = LockValue::ALL.iter().any(|value| value.name() == shown);
        if profile.lock_pairs.is_empty() || !is_of_locks {
            return;
        }
        let all: u64 = profile.lock_pairs.iter().map(|pair| pair.delay_ns).sum();
        let rows = limit.map_or(ROWS, |limit| if limit == 0 { usize::MAX } else { limit });
        self.heading("Waits, and who ended them");
        for pair in profile.lock_pairs.iter().take(rows) {
            let share = pair.delay_ns as f64 * 100.0 / all.max(1) as f64;
            let width = self.screen.width.saturating_sub(CHAIN_AT);
            self.line(&format!(
                "{share:>6.1}% {:>11}  waits  {}",
                time(pair.delay_ns),
                chain(profile, pair.wait, width)
            ));
            self.line(&format!("{:>7} {:>11}  ended  {}", "", "", chain(profile, pair.holder, width)));
        }
        if let Some(more) = profile.lock_pairs.len().checked_sub(rows).filter(|more| *more > 0) {
            self.remark(&format!("{more} more; --limit 0 shows all"));
        }
    }
}

/// A time in human-readable units.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

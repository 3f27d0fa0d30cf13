//! Both profiles stack by stack, for differential flame graphs.

use std::collections::BTreeMap;
use std::io::{self, Write};

use inferno::flamegraph::{self, TextTruncateDirection};
use selfwind_profile::call_tree::Stacks;
use selfwind_profile::selection::Selection;

use super::comparison::Side;

/// Writes `STACK A B` lines. The weights of A are scaled to the total of B and rounded so that they add up to it; memory in use
/// is not scaled.
pub(super) fn write(a: &Side<'_>, b: &Side<'_>, out: &mut dyn Write) -> io::Result<()> {
    for line in lines(a, b) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Draws a flame graph of B, coloured by the change from A.
pub(super) fn flamegraph(a: &Side<'_>, b: &Side<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut options = flamegraph::Options::default();
    options.title = format!("{} compared with {}", b.name, a.name);
    options.count_name = "weight".into();
    options.text_truncate_direction = TextTruncateDirection::Right;
    let lines = lines(a, b);
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)?;
    Ok(())
}

fn lines(a: &Side<'_>, b: &Side<'_>) -> Vec<String> {
    let mut both: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (stack, weight) in folded(&a.selection) {
        both.entry(stack).or_default().0 += weight;
    }
    for (stack, weight) in folded(&b.selection) {
        both.entry(stack).or_default().1 += weight;
    }
    // Each line gets the difference of two rounded running totals, so rounding errors do not add up.
    let whole_a = u128::from(a.weight().max(1));
    let whole_b = if a.is_level() { whole_a } else { u128::from(b.weight()) };
    let scaled = |weight: u64| ((u128::from(weight) * whole_b + whole_a / 2) / whole_a) as u64;
    let (mut so_far, mut given) = (0, 0);
    let line = |(stack, (in_a, in_b)): (String, (u64, u64))| {
        so_far += in_a;
        let in_a = scaled(so_far) - given;
        given += in_a;
        format!("{stack} {in_a} {in_b}")
    };
    both.into_iter().map(line).collect()
}

/// Each stack as `root;...;leaf`.
fn folded(selection: &Selection<'_>) -> Vec<(String, u64)> {
    let mut lines = Vec::new();
    selection.each(&mut |steps, weight| {
        let names = steps.iter().map(|step| selection.text(step.label).replace([';', '\n'], ":"));
        let stack: Vec<String> = names.collect();
        lines.push((if stack.is_empty() { "[no frames]".into() } else { stack.join(";") }, weight));
    });
    lines
}

//! Folded stacks: `root;...;leaf COUNT`, one line per distinct stack, sorted.
//!
//! Read by flamegraph.pl, inferno, speedscope and others.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::Grouping;
use crate::profile::{Bucket, Profile};

/// Weight by folded stack.
pub(super) fn fold(profile: &Profile, grouping: Grouping) -> BTreeMap<String, u64> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let texts: Vec<String> = profile.stacks.iter().map(|stack| stack_text(profile, stack)).collect();
    for Bucket { thread, stack, weight, .. } in &profile.buckets {
        let text = &texts[*stack as usize];
        let line = match group(profile, grouping, *thread) {
            Some(group) if text.is_empty() => group,
            Some(group) => format!("{group};{text}"),
            // A line needs a stack; one without frames still counts.
            None if text.is_empty() => "[no frames]".to_owned(),
            None => text.clone(),
        };
        *lines.entry(line).or_default() += weight;
    }
    lines
}

fn stack_text(profile: &Profile, stack: &crate::profile::Stack) -> String {
    let mut text = String::new();
    for function in profile.functions_from_root(stack) {
        if !text.is_empty() {
            text.push(';');
        }
        push_element(&mut text, profile.function_name(function));
        if profile.is_kernel(function) {
            text.push_str("_[k]");
        }
    }
    text
}

/// Appends a name. What would break the line or the stack apart is replaced.
fn push_element(text: &mut String, name: &str) {
    text.extend(name.chars().map(|c| match c {
        ';' => ':',
        c if c.is_control() => ' ',
        c => c,
    }));
}

fn group(profile: &Profile, grouping: Grouping, thread: u32) -> Option<String> {
    let process = profile.process_of(thread);
    let thread = &profile.threads[thread as usize];
    let mut text = String::new();
    match grouping {
        Grouping::None => return None,
        Grouping::Process => push_element(&mut text, &format!("{}-{}", process.name(), process.info.pid)),
        Grouping::Thread => {
            let name = if thread.name.is_empty() { process.name() } else { thread.name.clone() };
            push_element(&mut text, &format!("{name}-{}/{}", process.info.pid, thread.tid));
        }
    }
    Some(text)
}

/// Writes the folded stacks of a profile.
pub(super) fn write(profile: &Profile, grouping: Grouping, out: &mut dyn Write) -> io::Result<()> {
    for (stack, weight) in fold(profile, grouping).iter().filter(|&(_, &weight)| weight > 0) {
        writeln!(out, "{stack} {weight}")?;
    }
    Ok(())
}

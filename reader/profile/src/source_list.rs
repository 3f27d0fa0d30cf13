//! The sources of a recording as text: the value of `record -e`, also stored in the session.
//!
//! It is a comma-separated list of at most one clock and other sources. Kernel events are a list too, `perf:EVENT,EVENT`, which ends at
//! the next word that is a source itself: `perf:faults,cs,alloc` are two events and allocations.

/// Clocks without arguments. `perf:` is followed by events.
pub const CLOCKS: [&str; 5] = ["auto", "cpu", "itimer", "perf", "offcpu"];
/// Prefix of a list of kernel events.
pub const EVENTS: &str = "perf:";

/// Follows a program's tracepoint: its events have no stack.
pub const NO_STACK: &str = "nostack";

/// The sources in `text`, each with all its words.
pub fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut begin = 0;
    for (comma, _) in text.match_indices(',') {
        let next = text[comma + 1..].split(',').next().unwrap_or_default();
        if next != NO_STACK && (!text[begin..].starts_with(EVENTS) || is_source(next)) {
            pieces.push(&text[begin..comma]);
            begin = comma + 1;
        }
    }
    pieces.push(&text[begin..]);
    pieces
}

/// True for a word that is a source itself, and so not a kernel event.
fn is_source(word: &str) -> bool {
    CLOCKS.contains(&word) || word.starts_with(EVENTS) || is_probe(word)
}

/// True for a source other than a clock: one of [`PROBES`], alone or followed by a colon and a valid value.
pub fn is_probe(word: &str) -> bool {
    let (name, rest) = word.split_once(':').map_or((word, None), |(name, rest)| (name, Some(rest)));
    PROBES.iter().any(|(known, allows)| *known == name && rest.is_none_or(allows))
}

/// Validates the value after the colon.
type Rule = fn(&str) -> bool;

/// Sources other than clocks, with the validation of their value. A group of kernel tracepoints may have the same name, as in
/// `lock:contention_begin`.
pub const PROBES: [(&str, Rule); 5] =
    [("alloc", is_amount), ("lock", is_amount), (MMAP, nothing), (WALL, nothing), ("tp", is_name)];

/// Timers on the CPU clocks of threads.
pub const CPU: &str = "cpu";
/// Their number in samples.
pub const THREAD_TIMER: u8 = 2;
/// Mappings of memory.
pub const MMAP: &str = "mmap";
/// The wall clock.
pub const WALL: &str = "wall";
/// Its number in samples.
pub const WALL_SOURCE: u8 = 6;

fn nothing(_: &str) -> bool {
    false
}

/// `all`, or what begins as a number does.
fn is_amount(text: &str) -> bool {
    text == "all" || text.starts_with(|c: char| c.is_ascii_digit())
}

/// `PROVIDER:NAME`.
fn is_name(text: &str) -> bool {
    text.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_ends_the_list_of_events() {
        for (text, expected) in [
            ("auto", &["auto"][..]),
            ("cpu,alloc", &["cpu", "alloc"]),
            ("alloc:64K,cpu", &["alloc:64K", "cpu"]),
            ("perf:faults,cs@10", &["perf:faults,cs@10"]),
            ("perf:faults,cs,alloc:all", &["perf:faults,cs", "alloc:all"]),
            ("perf:alloc:page,alloc:page,alloc:1", &["perf:alloc:page,alloc:page", "alloc:1"]),
            ("tp:app:a,nostack,cpu,tp:app:*", &["tp:app:a,nostack", "cpu", "tp:app:*"]),
            ("perf:faults,tp:app:x", &["perf:faults", "tp:app:x"]),
            (
                "perf:faults,lock:contention_begin,lock:10us",
                &["perf:faults,lock:contention_begin", "lock:10us"],
            ),
            ("perf:faults,mmap,alloc", &["perf:faults", "mmap", "alloc"]),
            ("perf:faults,cpu,cs", &["perf:faults", "cpu", "cs"]),
            ("", &[""]),
            ("perf:,", &["perf:,"]),
        ] {
            assert_eq!(pieces(text), expected, "{text}");
        }
    }
}

//! The Python functions in a folded stack.

/// Tag of a Python frame.
pub const MARK: &str = "_[py]";
/// Prefix of a placeholder for unreadable frames.
pub const GAP: &str = "[python:";

/// The name of a Python function in an element of a stack, without its place.
pub fn function(element: &str) -> Option<&str> {
    let shown = element.strip_suffix(MARK)?;
    Some(shown.rsplit_once(" (").map_or(shown, |(name, _)| name))
}

/// The Python functions of a stack, outermost first, with placeholders where some are missing.
pub fn functions(stack: &[String]) -> Vec<&str> {
    let shown =
        |element| function(element).or(Some(element).filter(|element: &&str| element.starts_with(GAP)));
    stack.iter().filter_map(|element| shown(element)).collect()
}

//! Names of generated code.

/// Maximum length of a name, in bytes.
pub(super) const LONGEST_NAME: usize = 1024;

/// Cuts a name off at that length.
pub fn short_name(name: &str) -> String {
    let end = (0..=LONGEST_NAME.min(name.len())).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
    name[..end].to_owned()
}

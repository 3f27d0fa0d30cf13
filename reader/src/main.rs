//! The `selfwind` command.
fn main() {}

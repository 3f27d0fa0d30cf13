//! Records and shows profiles of programs that unwind themselves.
fn main() {}

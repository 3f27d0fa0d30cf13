//! See `reader/profile/tests/fuzz/profile.rs`.
#![no_main]

#[path = "../../../reader/profile/tests/fuzz/profile.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::profile(bytes));

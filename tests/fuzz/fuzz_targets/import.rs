//! See `reader/import/tests/fuzz/import.rs`.
#![no_main]

#[path = "../../../reader/import/tests/fuzz/import.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(entry::import(bytes)));

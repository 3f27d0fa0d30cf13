//! See `selfwind_tests::fuzz::copy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| selfwind_tests::fuzz::copy(bytes));

//! See `selfwind_tests::fuzz::table`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| selfwind_tests::fuzz::table(bytes));

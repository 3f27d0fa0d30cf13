//! Compiled table, full-register decoder and search agree with gimli on every row of real files.

use compilation::verify;
use unwind::elf_file::ElfFile;

/// Verifies the file if it exists and returns its number of rows.
fn verify_file(path: &str) -> Option<u64> {
    let bytes = std::fs::read(path).ok()?;
    let elf = ElfFile::parse(&bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
    let report = verify::verify(&elf).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(report.mismatches, 0, "{path}: {:#?}", report.described);
    assert!(report.table_bytes < report.eh_frame_bytes, "{path}: {report:?}");
    Some(report.rows)
}

#[test]
fn the_test_binary_itself() {
    let rows = verify_file("/proc/self/exe").unwrap();
    assert!(rows > 1_000, "{rows}");
}

#[test]
fn system_libraries() {
    let files = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/lib/x86_64-linux-gnu/libgcc_s.so.1",
        "/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/lib/x86_64-linux-gnu/libgcrypt.so.20",
        "/usr/lib64/libc.so.6",
        "/usr/lib/libc.so.6",
    ];
    let verified = files.into_iter().filter_map(verify_file).count();
    assert!(verified > 0, "none of {files:?} exists");
}

#[test]
fn other_files_have_a_reason() {
    assert!(ElfFile::parse(b"#!/bin/sh\n").is_err());
    let own = std::fs::read("/proc/self/exe").unwrap();
    for length in [0, 4, 20, 64, 1000, own.len() / 2] {
        assert!(ElfFile::parse(&own[..length]).is_err(), "{length} bytes");
    }
    let mut other = own.clone();
    other[18] = 40;
    assert_eq!(ElfFile::parse(&other).unwrap_err().to_string(), "an ELF file for another machine");
}

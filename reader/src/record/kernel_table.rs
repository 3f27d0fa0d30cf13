//! The running kernel's functions by address: the function lines of /proc/kallsyms, sorted.
//!
//! The kernel takes tens of milliseconds to print that file, more than the rest of a short recording. The symbols of the kernel
//! proper are valid until the next boot and kept in the user's cache. Those of modules and BPF programs come and go, so for
//! an address outside the kernel proper the file is read.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use selfwind_profile::private_directory::{cache_directory, read_file, replace_file};
use selfwind_profile::profile_file::KernelSymbol;

use crate::target::liveness::boot_id;

/// Assumed size of the last symbol.
const LAST_BYTES: u64 = 4096;
/// Hexadecimal digits of an address.
const DIGITS: usize = 16;
/// Maximum size of a cached table; a kernel has 5 MB.
const CACHE_MAX: u64 = 64 << 20;

/// Functions sorted by address.
#[derive(Debug, Default)]
pub(super) struct KernelTable {
    /// Lines of `ADDRESS TYPE NAME`, followed by a tab and `[MODULE]` for modules.
    text: String,
}

impl KernelTable {
    /// Reads all functions; empty if the kernel hides their addresses.
    pub(super) fn read() -> io::Result<Self> {
        Self::parse(File::open("/proc/kallsyms")?)
    }

    /// The cached functions of the kernel proper; empty if there is no cache.
    pub(super) fn cached() -> Self {
        let cached = cache_path().and_then(|path| read_file(&path, CACHE_MAX).ok());
        Self { text: cached.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default() }
    }

    /// Caches the functions of the kernel proper, and removes the caches of earlier boots.
    pub(super) fn store(&self) {
        let Some(path) = cache_path().filter(|_| !self.is_empty()) else { return };
        let of_kernel: String = self.text.split_inclusive('\n').filter(|line| !line.contains('[')).collect();
        // Without a cache, the next recording takes as long as this one.
        if replace_file(&path, of_kernel.as_bytes()).is_err() {
            return;
        }
        let others = path.parent().and_then(|directory| std::fs::read_dir(directory).ok());
        for other in others.into_iter().flatten().flatten().filter(|other| other.path() != path) {
            let _ = std::fs::remove_file(other.path());
        }
    }

    fn parse(mut file: impl Read) -> io::Result<Self> {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut lines: Vec<(u64, &str)> =
            text.split_inclusive('\n').filter_map(|line| Some((function_at(line)?, line))).collect();
        // Of several names at one address, the first is kept.
        lines.sort_by_key(|&(start, _)| start);
        lines.dedup_by_key(|&mut (start, _)| start);
        Ok(Self { text: lines.into_iter().map(|(_, line)| line).collect() })
    }

    /// True if there are no functions.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The function at an address.
    pub(super) fn find(&self, address: u64) -> Option<KernelSymbol> {
        let text = self.text.as_str();
        // Binary search for the last line whose function starts at or before the address.
        let (mut from, mut to) = (0, text.len());
        let mut found = None;
        while from < to {
            let middle = text.as_bytes()[from..to].split_at((to - from) / 2).0;
            let line = from + middle.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            let next = text[line..].find('\n').map_or(text.len(), |at| line + at + 1);
            if function_at(&text[line..next])? <= address {
                (found, from) = (Some(line), next);
            } else {
                to = line;
            }
        }
        let mut lines = text.get(found?..)?.lines();
        let line = lines.next()?;
        let start = function_at(line)?;
        let end = lines.next().and_then(function_at).unwrap_or(start.saturating_add(LAST_BYTES));
        let mut names = line.get(DIGITS + 3..)?.split_ascii_whitespace();
        let name = names.next()?;
        let module = names.next().map_or("", |module| module.trim_matches(['[', ']']));
        (address < end).then(|| KernelSymbol { start, end, name: name.into(), module: module.into() })
    }
}

/// The address in a line, if the line is of a function.
fn function_at(line: &str) -> Option<u64> {
    let (address, rest) = line.split_at_checked(DIGITS)?;
    let is_function = [" t ", " T ", " w ", " W "].iter().any(|kind| rest.starts_with(kind));
    u64::from_str_radix(address, 16).ok().filter(|&start| is_function && start != 0)
}

/// The cache file of this boot.
fn cache_path() -> Option<PathBuf> {
    let boot = u128::from_be_bytes(boot_id()?);
    Some(cache_directory().join("kernel").join(format!("{boot:032x}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0000000000000000 A fixed_percpu_data
ffffffffc0001000 t module_function\t[ext4]
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000100 t do_one_thing
ffffffff81000180 D some_data
ffffffff81000200 W do_another
garbage
";

    #[test]
    fn functions_are_found_by_their_addresses() {
        let table = KernelTable::parse(TEXT.as_bytes()).unwrap();
        let name = |address| table.find(address).map(|symbol| symbol.name);
        assert_eq!(name(0xffff_ffff_8100_0000).as_deref(), Some("_stext"));
        assert_eq!(name(0xffff_ffff_8100_00ff).as_deref(), Some("_stext"));
        assert_eq!(name(0xffff_ffff_8100_01ff).as_deref(), Some("do_one_thing"));
        assert_eq!(name(0xffff_ffff_8100_0200).as_deref(), Some("do_another"));
        assert_eq!(name(0xffff_ffff_80ff_ffff), None);
        let last = table.find(0xffff_ffff_c000_1010).unwrap();
        assert_eq!((last.name.as_str(), last.module.as_str()), ("module_function", "ext4"));
        assert_eq!(name(0xffff_ffff_c000_2000), None);
    }

    #[test]
    fn every_line_is_found() {
        let text: String = (0..1000u64)
            .map(|at| format!("{:016x} t function_{at}\n", 0xffff_ffff_8100_0000 + at * at * 16))
            .collect();
        let table = KernelTable::parse(text.as_bytes()).unwrap();
        for at in 0..1000u64 {
            let address = 0xffff_ffff_8100_0000 + at * at * 16;
            assert_eq!(table.find(address).unwrap().name, format!("function_{at}"));
            assert_eq!(table.find(address + 15).unwrap().name, format!("function_{at}"));
        }
    }

    #[test]
    fn hidden_addresses_give_no_names() {
        assert!(
            KernelTable::parse(&b"0000000000000000 T _stext\n0000000000000000 t other\n"[..])
                .unwrap()
                .is_empty()
        );
    }

    /// The cache file may contain anything.
    #[test]
    fn damage_gives_no_panic() {
        for text in ["", "\n", "x", "ffffffff81000000 T", "ffffffff81000000 T \n\u{e4}\n", "\n\n\n\n"] {
            let table = KernelTable { text: text.into() };
            for address in [0, 0xffff_ffff_8100_0000, u64::MAX] {
                let _ = table.find(address);
            }
        }
    }
}

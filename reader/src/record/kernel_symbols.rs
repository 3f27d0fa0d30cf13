//! The names of the running kernel's functions, from /proc/kallsyms.
//!
//! They are of use while this kernel runs only, and hidden from most users: so the recorder, which may be more
//! privileged than whoever reads the profile later, tells each function once, before the first sample that has it.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;

use selfwind_profile::profile_file::{KernelSymbol, Sample, WALL_MARKS};

/// A symbol that nothing follows ends so far behind its start.
const LAST_BYTES: u64 = 4096;

/// Symbols of functions in the order of their addresses.
#[derive(Default)]
struct Table {
    /// Start, and where in `text` the name begins.
    starts: Vec<(u64, u32)>,
    /// /proc/kallsyms: lines of `ADDRESS TYPE NAME`, with a tab and `[MODULE]` where there is one.
    text: String,
}

impl Table {
    fn read(mut file: impl Read) -> Self {
        let mut text = String::new();
        // What has been read by then is whole lines but for the last.
        if file.read_to_string(&mut text).is_err() || u32::try_from(text.len()).is_err() {
            return Self::default();
        }
        let mut starts = Vec::new();
        let mut line_start = 0;
        for line in text.split_inclusive('\n') {
            starts.extend(Self::start(line).map(|(start, name)| (start, (line_start + name) as u32)));
            line_start += line.len();
        }
        // The first of several names at one address is the one that is kept.
        starts.sort_by_key(|&(start, _)| start);
        starts.dedup_by_key(|&mut (start, _)| start);
        Self { starts, text }
    }

    /// The address in a line that is of a function, and where its name begins.
    fn start(line: &str) -> Option<(u64, usize)> {
        let (address, rest) = line.split_once(' ')?;
        let is_function = rest.starts_with(['t', 'T', 'w', 'W']) && rest[1..].starts_with(' ');
        let start = u64::from_str_radix(address, 16).ok().filter(|&start| is_function && start != 0)?;
        Some((start, address.len() + 3))
    }

    fn find(&self, address: u64) -> Option<KernelSymbol> {
        let after = self.starts.partition_point(|&(start, _)| start <= address);
        let &(start, at) = self.starts.get(after.checked_sub(1)?)?;
        let end = self.starts.get(after).map_or(start.saturating_add(LAST_BYTES), |&(next, _)| next);
        let mut names = self.text.get(at as usize..)?.lines().next()?.split_ascii_whitespace();
        let name = names.next()?;
        let module = names.next().map_or("", |module| module.trim_matches(['[', ']']));
        (address < end).then(|| KernelSymbol { start, end, name: name.into(), module: module.into() })
    }
}

/// Tells the functions of kernel stacks as they come.
#[derive(Default)]
pub(crate) struct KernelSymbols {
    table: Option<Table>,
    seen: HashSet<u64>,
    told: HashSet<u64>,
}

impl KernelSymbols {
    /// The functions of a sample that were not told before.
    pub(crate) fn news(&mut self, sample: &Sample) -> Vec<KernelSymbol> {
        let mut news = Vec::new();
        let frames = sample.kernel.iter().flat_map(|kernel| &kernel.frames);
        for &address in frames.filter(|&&address| address < WALL_MARKS) {
            if self.seen.insert(address)
                && let Some(symbol) = self.table().find(address)
                && self.told.insert(symbol.start)
            {
                news.push(symbol);
            }
        }
        news
    }

    /// The function at an address.
    pub(crate) fn find(&mut self, address: u64) -> Option<KernelSymbol> {
        self.table().find(address)
    }

    /// True if kernel stacks came and no name is to be had for them.
    pub(super) fn are_hidden(&self) -> bool {
        !self.seen.is_empty() && self.table.as_ref().is_some_and(|table| table.starts.is_empty())
    }

    fn table(&mut self) -> &Table {
        self.table.get_or_insert_with(|| {
            File::open("/proc/kallsyms").map_or_else(|_| Table::default(), Table::read)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000100 t do_one_thing
ffffffff81000180 D some_data
ffffffff81000200 W do_another
ffffffffc0001000 t module_function\t[ext4]
garbage
";

    #[test]
    fn functions_are_found_by_their_addresses() {
        let table = Table::read(TEXT.as_bytes());
        let name = |address| table.find(address).map(|symbol| symbol.name);
        assert_eq!(name(0xffff_ffff_8100_0000).as_deref(), Some("_stext"));
        assert_eq!(name(0xffff_ffff_8100_01ff).as_deref(), Some("do_one_thing"));
        assert_eq!(name(0xffff_ffff_80ff_ffff), None);
        let last = table.find(0xffff_ffff_c000_1010).unwrap();
        assert_eq!((last.name.as_str(), last.module.as_str()), ("module_function", "ext4"));
        assert_eq!(name(0xffff_ffff_c000_2000), None);
    }

    #[test]
    fn hidden_addresses_give_no_names() {
        let table = Table::read(&b"0000000000000000 T _stext\n0000000000000000 t other\n"[..]);
        assert!(table.starts.is_empty());
    }
}

//! Finds the names of an address's functions in the DWARF, the symbol tables or the Go table of a binary.

use std::borrow::Cow;
use std::collections::HashMap;

use super::demangle::demangle;
use super::dwarf::{Call, Lines, is_linker_name};
use super::go_lines::GoLines;
use super::symbols::{Line, Origin, Symbols};
use crate::names::{NameId, Names};

/// Prefix of glibc's internal names of public functions. The symbol table has the public ones.
const GLIBC_ALIAS: &[u8] = b"__GI_";

/// What the agent's functions are called, which have no symbols.
const AGENT: &str = "[selfwind]";

/// Whether that is the file name of an agent: `agent-VERSION-HASH.so`, with the name of a build after `agent`.
fn is_agent(file: &str) -> bool {
    let name = file.strip_prefix("agent-").and_then(|name| name.strip_suffix(".so"));
    let hash = name.and_then(|name| name.rsplit_once('-')).map_or("", |(_, hash)| hash);
    hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// A function of a symbol table: its address and its linkage name.
pub(super) type Found<'a> = (u64, Cow<'a, [u8]>);

/// Names addresses.
pub(super) struct Namer<'a, 'c> {
    module: &'c str,
    /// The function at an address, from symbol tables.
    find: &'c dyn Fn(u64) -> Option<Found<'a>>,
    /// The start of the function that contains an address, if nothing names it.
    function_start: &'c dyn Fn(u64) -> Option<u64>,
    lines: Option<&'c Lines<'a>>,
    /// In place of `lines`.
    go: Option<&'c GoLines<'a>>,
    known: Known,
}

/// A readable name and its linkage name.
#[derive(Clone, Copy)]
struct Named {
    function: NameId,
    linkage: NameId,
}

/// Names found so far. Most addresses share their names with others, and demangling is slow.
#[derive(Default)]
struct Known {
    /// By the position and length of a text.
    functions: HashMap<(usize, usize), Named>,
    files: HashMap<(usize, usize), NameId>,
    /// By the address of a symbol.
    symbols: HashMap<u64, Named>,
}

impl<'a, 'c> Namer<'a, 'c> {
    pub(super) fn new(
        module: &'c str,
        find: &'c dyn Fn(u64) -> Option<Found<'a>>,
        function_start: &'c dyn Fn(u64) -> Option<u64>,
        lines: Option<&'c Lines<'a>>,
        go: Option<&'c GoLines<'a>>,
    ) -> Self {
        Namer { module, find, function_start, lines, go, known: Known::default() }
    }

    /// Names ascending addresses.
    pub(super) fn name_all(mut self, addresses: &[u64], origin: Origin) -> Symbols {
        let mut symbols = Symbols::new(origin, addresses.len());
        symbols.read = true;
        let mut calls = Vec::new();
        for &address in addresses {
            let first = symbols.lines.len() as u32;
            if let Some(lines) = self.lines {
                lines.calls(address, &mut calls);
            } else if let Some(go) = self.go {
                go.calls(address, &mut calls);
            }
            self.name(address, &calls, &mut symbols);
            symbols.ranges.push(first..symbols.lines.len() as u32);
        }
        symbols
    }

    /// Appends the functions at one address.
    fn name(&mut self, address: u64, calls: &[Call<'_, '_>], symbols: &mut Symbols) {
        let Some(outermost) = calls.len().checked_sub(1) else {
            let Named { function, linkage } = self.symbol(address, &mut symbols.names);
            symbols.lines.push(Line { function, linkage, file: None, line: 0, inlined: false });
            return;
        };
        // The line in a function that the compiler split off and inlined again.
        let mut innermost: Option<&Call<'_, '_>> = None;
        for (depth, call) in calls.iter().enumerate() {
            let alias = call.name.is_some_and(|name| name.starts_with(GLIBC_ALIAS));
            if alias && calls.get(depth + 1).is_some_and(|outer| outer.name == call.name) {
                innermost = innermost.or(Some(call));
                continue;
            }
            let names = &mut symbols.names;
            let whole =
                if call.short && depth == outermost { self.linker_name(address, names) } else { None };
            let Named { function, linkage } = match (whole, call.name) {
                (Some(whole), _) => whole,
                (None, Some(name)) if !alias || depth < outermost => self.function(name, &mut symbols.names),
                _ => self.symbol(address, &mut symbols.names),
            };
            let source = innermost.take().unwrap_or(call);
            let file = source.file.map(|file| self.known.file(file, &mut symbols.names));
            let line = source.line.unwrap_or(0);
            symbols.lines.push(Line { function, linkage, file, line, inlined: depth < outermost });
        }
    }

    /// A function named by DWARF.
    fn function(&mut self, raw: &[u8], names: &mut Names) -> Named {
        *self.known.functions.entry((raw.as_ptr() as usize, raw.len())).or_insert_with(|| {
            let text = String::from_utf8_lossy(raw);
            let readable = match raw.strip_prefix(GLIBC_ALIAS) {
                Some(alias) => String::from_utf8_lossy(alias),
                None => demangle(&text),
            };
            Named { function: names.intern(&readable), linkage: names.intern(&text) }
        })
    }

    /// The name of an address in symbol tables, if it is mangled.
    fn linker_name(&mut self, address: u64, names: &mut Names) -> Option<Named> {
        let (_, name) = (self.find)(address)?;
        is_linker_name(&name).then(|| self.symbol(address, names))
    }

    /// The name of an address in symbol tables, or else module and start of its function, or for the agent a mark.
    fn symbol(&mut self, address: u64, names: &mut Names) -> Named {
        let Some((start, raw)) = (self.find)(address) else {
            let function = match is_agent(self.module) {
                true => names.intern(AGENT),
                false => {
                    let start = (self.function_start)(address).unwrap_or(address);
                    names.intern(&format!("{}+{start:#x}", self.module))
                }
            };
            return Named { function, linkage: function };
        };
        *self.known.symbols.entry(start).or_insert_with(|| {
            let text = String::from_utf8_lossy(&raw);
            let readable = match text.strip_suffix("@plt") {
                Some(function) => Cow::Owned(format!("{}@plt", demangle(function))),
                None => demangle(&text),
            };
            Named { function: names.intern(&readable), linkage: names.intern(&text) }
        })
    }
}

impl Known {
    fn file(&mut self, file: &str, names: &mut Names) -> NameId {
        let key = (file.as_ptr() as usize, file.len());
        *self.files.entry(key).or_insert_with(|| names.intern(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_recognised_by_their_file_names() {
        for name in ["agent-0.1.0-0123456789abcdef.so", "agent-probes-alloc-0.1.0-c8c94c043ff8d0f5.so"] {
            assert!(is_agent(name), "{name}");
        }
        for name in [
            "agent.so",
            "agent-0.1.0.so",
            "agent-0.1.0-0123456789abcdeg.so",
            "libagent-0.1.0-0123456789abcdef.so",
        ] {
            assert!(!is_agent(name), "{name}");
        }
    }
}

//! Modules written before: most processes of a recording have the same ones, at other addresses.

use std::collections::HashMap;

use super::event::{ModuleInfo, Segment};

/// Maximum number of known modules. When it is reached, writer and reader forget them all.
const LIMIT: usize = 4096;

/// Modules that were told in full, in this order. Everything is relative to their first address.
#[derive(Default)]
pub(super) struct KnownModules {
    told: Vec<ModuleInfo>,
    /// The writer's.
    numbers: HashMap<ModuleInfo, u32>,
}

impl KnownModules {
    /// The number of a module that was told. Otherwise it is to be told now, and has the next number.
    pub(super) fn number_of(&mut self, module: &ModuleInfo) -> Option<u32> {
        let relative = relative(module);
        if let Some(number) = self.numbers.get(&relative) {
            return Some(*number);
        }
        if self.numbers.len() == LIMIT {
            self.numbers.clear();
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(relative, number);
        None
    }

    /// A module was told in full.
    pub(super) fn tell(&mut self, module: &ModuleInfo) {
        if self.told.len() == LIMIT {
            self.told.clear();
        }
        self.told.push(relative(module));
    }

    /// The module of that number, from another address on.
    pub(super) fn again(&self, number: u32, start: u64) -> Option<ModuleInfo> {
        let module = self.told.get(usize::try_from(number).ok()?)?;
        Some(moved(module, |address| address.wrapping_add(start)))
    }
}

/// The module as all processes have it.
fn relative(module: &ModuleInfo) -> ModuleInfo {
    let start = module.start;
    let relative = moved(module, |address| address.wrapping_sub(start));
    ModuleInfo { process: 0, module: 0, loaded_ns: 0, ..relative }
}

fn moved(module: &ModuleInfo, to: impl Fn(u64) -> u64) -> ModuleInfo {
    let segment = |segment: &Segment| Segment { address: to(segment.address), ..*segment };
    ModuleInfo {
        start: to(module.start),
        end: to(module.end),
        bias: to(module.bias),
        segments: module.segments.iter().map(segment).collect(),
        ..module.clone()
    }
}

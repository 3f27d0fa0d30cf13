//! Frames in the kernel: its functions, as they were told while recording, and the binaries that stand for it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::{Binary, Profile};
use crate::profile_file::KernelSymbol;
use crate::symbolize::Origin;

/// How a frame in the kernel was found: by the kernel, beyond all `unwind::FoundBy`.
pub(super) const KERNEL: u8 = 4;

/// The functions of the kernel that were hit.
#[derive(Debug, Default)]
pub(super) struct KernelNames {
    by_start: BTreeMap<u64, KernelSymbol>,
    /// The binary that stands for the kernel or for a module of it, by its name.
    binaries: HashMap<String, u32>,
}

impl KernelNames {
    /// A function was told.
    pub(super) fn add(&mut self, symbol: KernelSymbol) {
        self.by_start.insert(symbol.start, symbol);
    }

    fn symbol(&self, address: u64) -> Option<&KernelSymbol> {
        self.by_start.range(..=address).next_back().map(|(_, symbol)| symbol).filter(|s| address < s.end)
    }

    /// The name of the function at an address.
    pub(super) fn find(&self, address: u64) -> Option<&str> {
        self.symbol(address).map(|symbol| symbol.name.as_str())
    }

    /// The binary that stands for what lies at an address.
    pub(super) fn binary(&mut self, profile: &mut Profile, address: u64) -> u32 {
        let module = self.symbol(address).map_or("", |symbol| &symbol.module);
        if let Some(&known) = self.binaries.get(module) {
            return known;
        }
        let module = module.to_owned();
        let path = PathBuf::from(format!("[{}]", if module.is_empty() { "kernel" } else { &module }));
        let binary = profile.binaries.len() as u32;
        profile.binaries.push(Binary {
            path,
            build_id: Vec::new(),
            file: None,
            origin: Some(Origin::Symbols),
            // Its names are in the profile.
            read: false,
        });
        profile.kernel_binaries.push(binary);
        self.binaries.insert(module, binary);
        binary
    }
}

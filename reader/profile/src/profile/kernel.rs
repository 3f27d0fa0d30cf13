//! Kernel frames: the functions stored while recording, and the pseudo-binaries of kernel and modules.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::code::Binary;
use super::contents::Profile;
use crate::profile_file::KernelSymbol;
use crate::symbolize::Origin;

/// The sampled functions of the kernel.
#[derive(Debug, Default)]
pub(super) struct KernelNames {
    by_start: BTreeMap<u64, KernelSymbol>,
    /// The pseudo-binary of the kernel or of a kernel module, by name.
    binaries: HashMap<String, u32>,
}

impl KernelNames {
    /// Adds a function.
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

    /// The pseudo-binary at an address.
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

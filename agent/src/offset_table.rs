//! The entries of a loaded object's global offset table through which it calls functions of other objects.
//!
//! They are replaced while threads of the program call through them, so an entry always holds one of two working addresses.
//! What must never happen here: that an object is changed which the loader is still relocating, since it would write to pages
//! that are read-only again.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use platform::sys::PAGE;

use crate::dynamic::{self, Symbols};
use crate::kernel;
use crate::object_info::ObjectInfo;

const PT_GNU_RELRO: u32 = 0x6474_e552;
const DT_PLTRELSZ: u64 = 2;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_RELACOUNT: u64 = 0x6fff_fff9;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    _addend: i64,
}

/// The table of an object.
pub(crate) struct OffsetTable {
    bias: u64,
    symbols: Symbols,
    /// Address and size in bytes of its relocations, those of calls last.
    relocations: [(u64, u64); 2],
    /// What the loader makes read-only once it has relocated the object.
    protected: Range<u64>,
}

/// An entry: where it is, and what it refers to.
pub(crate) struct Entry<'a> {
    table: &'a OffsetTable,
    symbol: u32,
    place: &'a AtomicU64,
}

impl OffsetTable {
    /// The table of `object`; `None` if it refers to no other object.
    ///
    /// # Safety
    /// The object must stay loaded while the result is used.
    pub(crate) unsafe fn of_object(object: &ObjectInfo) -> Option<OffsetTable> {
        // SAFETY: the caller promises that the object stays loaded.
        let (headers, symbols) = unsafe { (object.program_headers(), Symbols::of_object(object)?) };
        let bias = object.bias;
        let (mut relocations, mut relative) = ([(0u64, 0u64); 2], 0u64);
        let note = |tag, value: u64, address| match tag {
            DT_RELA => relocations[0].0 = address,
            DT_RELASZ => relocations[0].1 = value,
            DT_JMPREL => relocations[1].0 = address,
            DT_PLTRELSZ => relocations[1].1 = value,
            DT_RELACOUNT => relative = value.saturating_mul(size_of::<Relocation>() as u64),
            _ => {}
        };
        // SAFETY: the caller promises that the object stays loaded.
        unsafe { dynamic::each_entry(bias, dynamic::section_of(object)?, note) };
        // The first ones refer to no symbol.
        let [(first, bytes), _] = &mut relocations;
        relative = relative.min(*bytes);
        (*first, *bytes) = (first.wrapping_add(relative), *bytes - relative);
        let protected = headers.iter().find(|header| header.kind == PT_GNU_RELRO).map_or(0..0, |header| {
            let start = bias.wrapping_add(header.address);
            (start & !(PAGE - 1))..(start.wrapping_add(header.memory_size) & !(PAGE - 1))
        });
        Some(OffsetTable { bias, symbols, relocations, protected })
    }

    /// Calls `visit` for all entries.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Entry<'_>)) {
        for (address, bytes) in self.relocations {
            if address == 0 {
                continue;
            }
            let count = bytes as usize / size_of::<Relocation>();
            // SAFETY: the relocations of a loaded object, where its dynamic section says.
            let relocations = unsafe { core::slice::from_raw_parts(address as *const Relocation, count) };
            for relocation in relocations {
                if !matches!(relocation.info as u32, R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) {
                    continue;
                }
                let place = self.bias.wrapping_add(relocation.offset) as *mut u64;
                // SAFETY: the loader writes the address of the symbol to this aligned word.
                let place = unsafe { AtomicU64::from_ptr(place) };
                visit(&Entry { table: self, symbol: (relocation.info >> 32) as u32, place });
            }
        }
    }
}

impl Entry<'_> {
    /// The address that it holds.
    pub(crate) fn address(&self) -> u64 {
        self.place.load(Ordering::Relaxed)
    }

    /// The name of the function, if the loader has not looked it up yet: it does so at the first call. `None` also if the object
    /// itself defines one.
    pub(crate) fn unresolved(&self) -> Option<&CStr> {
        let symbols = &self.table.symbols;
        if !symbols.holds(self.address()) {
            return None;
        }
        // SAFETY: the number is that of a relocation of the object.
        let name = unsafe { symbols.name(self.symbol) };
        symbols.find(name, true).is_none().then_some(name)
    }

    /// Replaces the address `from`. Does nothing if the entry holds another one, or the loader is not done with the object.
    pub(crate) fn replace(&self, from: u64, to: u64) {
        let address = self.place.as_ptr() as u64;
        let replace = || {
            let _ = self.place.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        };
        if !self.table.protected.contains(&address) {
            return replace();
        }
        if kernel::is_writable(address) {
            return;
        }
        let page = address & !(PAGE - 1);
        // SAFETY: a page of the object's data that the loader has made read-only, and is done with.
        unsafe {
            if kernel::make_accessible(page as *mut u8, PAGE as usize).is_ok() {
                replace();
                let _ = kernel::make_read_only(page as *mut u8, PAGE as usize);
            }
        }
    }
}

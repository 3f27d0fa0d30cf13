//! The dynamic symbols of a loaded object, read where the loader mapped them.

use core::ffi::{CStr, c_char};

use unwind::elf_image::ProgramHeader;

use crate::object_info::ObjectInfo;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
const STB_LOCAL: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_OBJECT: u8 = 1;
const STT_NOTYPE: u8 = 0;
/// In `DT_VERSYM`: not the default version of the name.
const VERSION_HIDDEN: u16 = 0x8000;

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// The tables of one object's dynamic section.
pub(crate) struct Symbols {
    bias: u64,
    headers: &'static [ProgramHeader],
    symbols: *const Symbol,
    strings: *const c_char,
    versions: *const u16,
    gnu_hash: *const u32,
    hash: *const u32,
}

/// Calls `visit` with the tag and the value of each entry of a dynamic section, and with the address that the value is if it
/// is one.
///
/// # Safety
/// `entry` must be the mapped dynamic section of an object loaded at `bias`.
pub(crate) unsafe fn each_entry(bias: u64, mut entry: *const [u64; 2], mut visit: impl FnMut(u64, u64, u64)) {
    // SAFETY: the dynamic section is an array that ends with DT_NULL.
    while let [tag, value] = unsafe { *entry }
        && tag != DT_NULL
    {
        // Some loaders relocate these addresses in place, others do not.
        visit(tag, value, if value < bias { value + bias } else { value });
        // SAFETY: not the last entry.
        entry = unsafe { entry.add(1) };
    }
}

/// The mapped dynamic section of `object`.
///
/// # Safety
/// The object must stay loaded during the call.
pub(crate) unsafe fn section_of(object: &ObjectInfo) -> Option<*const [u64; 2]> {
    // SAFETY: the caller promises that the object stays loaded.
    let headers = unsafe { object.program_headers() };
    let dynamic = headers.iter().find(|header| header.kind == PT_DYNAMIC)?;
    Some(object.bias.wrapping_add(dynamic.address) as *const [u64; 2])
}

impl Symbols {
    /// The symbol tables of `object`; `None` if it has no dynamic symbols.
    ///
    /// # Safety
    /// The object must stay loaded while the result is used.
    pub(crate) unsafe fn of_object(object: &ObjectInfo) -> Option<Symbols> {
        // SAFETY: the caller promises that the object stays loaded.
        unsafe { Self::of_dynamic(object.bias, section_of(object)?, object.program_headers()) }
    }

    /// The symbol tables that the dynamic section at `entry` refers to. Without program headers, [`Symbols::holds`] is
    /// false.
    ///
    /// # Safety
    /// `entry` must be the mapped dynamic section of an object loaded at `bias`, which stays loaded while the result is
    /// used.
    pub(crate) unsafe fn of_dynamic(
        bias: u64,
        entry: *const [u64; 2],
        headers: &'static [ProgramHeader],
    ) -> Option<Symbols> {
        let mut found = Symbols {
            bias,
            headers,
            symbols: core::ptr::null(),
            strings: core::ptr::null(),
            versions: core::ptr::null(),
            gnu_hash: core::ptr::null(),
            hash: core::ptr::null(),
        };
        let note = |tag, _, address| match tag {
            DT_HASH => found.hash = address as *const u32,
            DT_GNU_HASH => found.gnu_hash = address as *const u32,
            DT_STRTAB => found.strings = address as *const c_char,
            DT_SYMTAB => found.symbols = address as *const Symbol,
            DT_VERSYM => found.versions = address as *const u16,
            _ => {}
        };
        // SAFETY: as the caller promises.
        unsafe { each_entry(bias, entry, note) };
        (!found.symbols.is_null() && !found.strings.is_null()).then_some(found)
    }

    /// Whether `address` lies in a segment of the object.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.headers.iter().any(|header| {
            let start = self.bias.wrapping_add(header.address);
            header.kind == PT_LOAD && address.wrapping_sub(start) < header.memory_size
        })
    }

    /// The name of the symbol with this number.
    ///
    /// # Safety
    /// There must be one.
    #[cfg(feature = "allocations")]
    pub(crate) unsafe fn name(&self, number: u32) -> &CStr {
        // SAFETY: the caller promises a valid number; names are offsets into the string table.
        unsafe {
            let symbol = &*self.symbols.add(number as usize);
            CStr::from_ptr(self.strings.add(symbol.name as usize))
        }
    }

    /// The address of the function or variable `name`; of a non-default version only if `allow_hidden`.
    pub(crate) fn find(&self, name: &CStr, allow_hidden: bool) -> Option<u64> {
        self.find_with_size(name, allow_hidden).map(|(address, _)| address)
    }

    /// Like [`find`](Self::find), with the symbol's size in bytes.
    pub(crate) fn find_with_size(&self, name: &CStr, allow_hidden: bool) -> Option<(u64, u64)> {
        if !self.gnu_hash.is_null() {
            self.find_by_gnu_hash(name, allow_hidden)
        } else if !self.hash.is_null() {
            self.find_by_hash(name, allow_hidden)
        } else {
            None
        }
    }

    /// Lookup in the GNU hash table: header, Bloom filter, buckets, and chains whose last hash has its lowest bit set.
    fn find_by_gnu_hash(&self, name: &CStr, allow_hidden: bool) -> Option<(u64, u64)> {
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: the table was made by the linker and mapped by the loader; every index below is defined by the
        // format.
        unsafe {
            let table = self.gnu_hash;
            let (buckets, first, blooms, shift) = (*table, *table.add(1), *table.add(2), *table.add(3));
            if buckets == 0 || blooms == 0 {
                return None;
            }
            let filter = table.add(4).cast::<u64>();
            let word = *filter.add((hash / 64 % blooms) as usize);
            if word & (1 << (hash % 64)) == 0 || word & (1 << ((hash >> shift) % 64)) == 0 {
                return None;
            }
            let bucket = filter.add(blooms as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut index = *bucket.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let link = *chain.add((index - first) as usize);
                if link | 1 == hash | 1
                    && let Some(found) = self.matches(index, name, allow_hidden)
                {
                    return Some(found);
                }
                if link & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// Lookup in the System V hash table: bucket count, chain count, buckets, and chains that end with 0.
    fn find_by_hash(&self, name: &CStr, allow_hidden: bool) -> Option<(u64, u64)> {
        let hash = name.to_bytes().iter().fold(0u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(u32::from(*byte));
            let high = hash & 0xf000_0000;
            (hash ^ (high >> 24)) & !high
        });
        // SAFETY: the table was made by the linker and mapped by the loader; every index below is defined by the
        // format.
        unsafe {
            let buckets = *self.hash;
            if buckets == 0 {
                return None;
            }
            let bucket = self.hash.add(2);
            let chain = bucket.add(buckets as usize);
            let mut index = *bucket.add((hash % buckets) as usize);
            while index != 0 {
                if let Some(found) = self.matches(index, name, allow_hidden) {
                    return Some(found);
                }
                index = *chain.add(index as usize);
            }
        }
        None
    }

    /// Address and size of symbol `index`, if it defines `name`.
    ///
    /// # Safety
    /// The index must come from the object's hash table.
    unsafe fn matches(&self, index: u32, name: &CStr, allow_hidden: bool) -> Option<(u64, u64)> {
        // SAFETY: the caller promises a valid index; names are offsets into the string table.
        unsafe {
            let symbol = &*self.symbols.add(index as usize);
            let defined = symbol.section != 0 && symbol.value != 0 && symbol.info >> 4 != STB_LOCAL;
            let usable = matches!(symbol.info & 15, STT_NOTYPE | STT_OBJECT | STT_FUNC);
            let hidden = !self.versions.is_null() && *self.versions.add(index as usize) & VERSION_HIDDEN != 0;
            let same = || CStr::from_ptr(self.strings.add(symbol.name as usize)) == name;
            (defined && usable && (allow_hidden || !hidden) && same())
                .then(|| (self.bias.wrapping_add(symbol.value), symbol.size))
        }
    }
}

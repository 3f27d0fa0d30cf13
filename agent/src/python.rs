//! Recognises CPython among the loaded objects, by what it exports: `libpython`, or a program that it was linked into.
//!
//! What the handler wants to know of it is found out here, once for each object, and published with the modules. A version
//! that is not known is refused by name, for the reader: nothing is guessed.

use core::ffi::CStr;

use handler::interpreter::python::{Code, Layout, Python};
use handler::stack::Bounds;
use unwind::elf_image::ElfImage;

use crate::dynamic::Symbols;

/// What an object turned out to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// An interpreter whose frames can be shown.
    Known(Python),
    /// Another one, by its major and minor version; 0 if that cannot be said.
    Refused(u8, u8),
}

impl Found {
    /// The interpreter, if its frames can be shown.
    pub(crate) fn known(&self) -> Option<Python> {
        match self {
            Found::Known(python) => Some(*python),
            Found::Refused(..) => None,
        }
    }
}

/// The interpreter in `image`, which has these symbols.
///
/// # Safety
/// The object is loaded, and stays so meanwhile.
pub(crate) unsafe fn recognise(symbols: &Symbols, image: &ElfImage<'_>) -> Option<Found> {
    let (runtime, runtime_bytes) = symbols.find_with_size(c"_PyRuntime", false)?;
    let (code_type, _) = symbols.find_with_size(c"PyCode_Type", false)?;
    // SAFETY: the caller's promise; both are variables of the object, of at least this size.
    let (major, minor) = unsafe { version(symbols) };
    if major != 3 {
        return Some(Found::Refused(major, minor));
    }
    let described = |word: usize| match (word as u64 + 1) * 8 <= runtime_bytes {
        // SAFETY: inside the variable.
        true => unsafe { (runtime as *const u64).add(word).read_volatile() },
        false => 0,
    };
    let layout = Layout::of_minor(minor).or_else(|| Layout::described(described));
    let Some(layout) = layout else { return Some(Found::Refused(major, minor)) };
    let evaluation = symbols
        .find_with_size(c"_PyEval_EvalFrameDefault", false)
        .map_or(Code::default(), |(start, bytes)| Code { start, end: start.wrapping_add(bytes) });
    let text = Code { start: image.text_start, end: image.text_end };
    let data = Bounds { low: image.data_start, high: image.data_end };
    Some(Found::Known(Python { layout, runtime, code_type, text, evaluation, data }))
}

/// Major and minor version. Before 3.11 no variable tells it, but each version has functions that the one before lacks.
///
/// # Safety
/// As for [`recognise`].
unsafe fn version(symbols: &Symbols) -> (u8, u8) {
    let has = |name: &CStr| symbols.find(name, false).is_some();
    match symbols.find_with_size(c"Py_Version", false) {
        Some((address, bytes)) if bytes >= 8 => {
            // SAFETY: `const unsigned long Py_Version`, PY_VERSION_HEX (Include/patchlevel.h).
            let version = unsafe { (address as *const u64).read_volatile() };
            ((version >> 24) as u8, (version >> 16) as u8)
        }
        _ if has(c"Py_NewRef") => (3, 10),
        _ if has(c"PyFrame_GetCode") => (3, 9),
        _ if has(c"_PyRuntime") => (3, 8),
        _ => (0, 0),
    }
}

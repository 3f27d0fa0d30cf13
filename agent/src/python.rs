//! Recognises CPython among the loaded objects by its exports: `libpython`, or a program that is linked with it.
//!
//! What the handler needs to know is determined here, once per object, and published with the modules. An unsupported
//! version is reported to the reader by number: layouts are never guessed.

use core::ffi::CStr;

use interpreter::python::{Code, Layout, Python, ThreadLocals};
use platform::bounds::Bounds;
use unwind::elf_image::ElfImage;

use crate::dynamic::Symbols;

/// Result of the examination of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// A supported interpreter.
    Known(Python),
    /// An unsupported one, with major and minor version; 0 if unknown.
    Refused(u8, u8),
}

impl Found {
    /// The interpreter, if it is supported.
    pub(crate) fn known(&self) -> Option<Python> {
        match self {
            Found::Known(python) => Some(*python),
            Found::Refused(..) => None,
        }
    }
}

/// The interpreter in `image`, which has these symbols and thread-local variables.
///
/// # Safety
/// The object must stay loaded during the call.
pub(crate) unsafe fn recognise(
    symbols: &Symbols,
    image: &ElfImage<'_>,
    thread_locals: ThreadLocals,
) -> Option<Found> {
    let (runtime, runtime_bytes) = symbols.find_with_size(c"_PyRuntime", false)?;
    let (code_type, _) = symbols.find_with_size(c"PyCode_Type", false)?;
    // SAFETY: the caller promises that the object stays loaded, and these are variables of it.
    let (major, minor) = unsafe { version(symbols) };
    if major != 3 {
        return Some(Found::Refused(major, minor));
    }
    let described = |word: usize| match (word as u64 + 1) * 8 <= runtime_bytes {
        // SAFETY: inside the variable, whose size was checked.
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
    // Another object may have variables of these names.
    let last = layout.finalizing.max(layout.interpreters.saturating_add(8)).max(layout.attached);
    if !data.hold(runtime) || !data.hold(runtime.saturating_add(last.into())) {
        return Some(Found::Refused(major, minor));
    }
    Some(Found::Known(Python { layout, runtime, code_type, text, evaluation, data, thread_locals }))
}

/// Major and minor version. Before 3.11 no variable holds it, but each version has functions that the previous one
/// lacks.
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

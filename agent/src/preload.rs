//! The agent's variables in the environment: passes them on to other programs, or removes them.
//!
//! A program that replaces its environment does not intend to end the recording. On the other hand, the loader of a
//! program with another root, another user, or a machine for which there is no agent must not complain about a file
//! that it cannot load, whether the process that starts it is recorded or not. Everything here may run in a child of
//! `vfork`: it must not allocate or modify anything.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_long};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::call_filter;
use crate::kernel::{self, File};
use crate::symbols;
use handler::recording;
use platform::activity;
use unwind::Machine;

/// Maximum number of variables in a modified environment.
const MOST: usize = 2040;
/// Maximum length of a generated LD_PRELOAD.
const LONGEST: usize = 4096;
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const SETTINGS: &[u8] = b"SELFWIND_";
const PLUGINS: &[u8] = b"SELFWIND_PLUGINS=";

/// The agent's variables in this program's environment.
struct Ours {
    /// Path of the agent as in LD_PRELOAD, terminated by NUL.
    agent: Vec<u8>,
    settings: Vec<&'static CStr>,
}

static OURS: AtomicPtr<Ours> = AtomicPtr::new(core::ptr::null_mut());
/// The agent's file could not be read when that could last be asked, or a filter would kill it.
static OUT_OF_REACH: AtomicBool = AtomicBool::new(false);

/// Stores the variables that the program started with.
pub(crate) fn remember() {
    let Some(agent) = symbols::own_name() else { return };
    let agent = [agent, b"\0"].concat();
    let copy = |entry: &CStr| -> &'static CStr { Box::leak(entry.to_owned().into_boxed_c_str()) };
    let ours = symbols::environment().filter(|entry| entry.to_bytes().starts_with(SETTINGS));
    let ours = Box::new(Ours { agent, settings: ours.map(copy).collect() });
    OURS.store(Box::into_raw(ours), Ordering::Release);
}

/// Checks whether the agent can be loaded at an exec before which that may no longer be asked: after the filter whose
/// description is at the address `filter` (0 for strict mode). An agent that the filter would kill is kept out, for good,
/// because filters add up.
pub(crate) fn look(filter: usize) {
    let is_permitted = call_filter::add(filter);
    // SAFETY: published once, never freed.
    if let Some(ours) = unsafe { OURS.load(Ordering::Acquire).as_ref() } {
        let fits = is_permitted && ours.is_loadable();
        OUT_OF_REACH.fetch_or(!fits, Ordering::Relaxed);
    }
}

/// Program arguments and environments: null-terminated arrays of strings.
pub(crate) type Strings = *const *const c_char;

/// Starts a program with an environment. Unlike a `dyn Fn`, whose table contains the code twice.
pub(crate) trait Start {
    fn start(&self, environment: Strings) -> c_long;
}

impl<F: Fn(Strings) -> c_long> Start for F {
    fn start(&self, environment: Strings) -> c_long {
        self(environment)
    }
}

/// Calls `go` with the environment for the program at `path`, derived from `given`. An empty path is unknown; with
/// `search` it is searched for as in execvp(3).
///
/// # Safety
/// `given` must be null or an environment, and the path a live string.
pub(crate) unsafe fn with_environment(path: &CStr, search: bool, given: Strings, go: &dyn Start) -> c_long {
    // SAFETY: published once, never freed.
    let Some(ours) = (unsafe { OURS.load(Ordering::Acquire).as_ref() }) else { return go.start(given) };
    let is_filtered = activity::is_filtered();
    let fits = match is_filtered {
        true => !OUT_OF_REACH.load(Ordering::Relaxed),
        false => ours.is_loadable() && !is_for_another_machine(path, search, 2),
    };
    let is_recorded = !is_filtered && recording::current().is_some_and(|recording| !recording.is_over());
    if fits && !is_recorded {
        return go.start(given);
    }
    // SAFETY: the caller promises that `given` is null or an environment.
    match unsafe { ours.suits(given, fits) } {
        true => go.start(given),
        // SAFETY: the caller promises that `given` is null or an environment.
        false => unsafe { changed(ours, given, fits, go) },
    }
}

/// The strings of an environment.
///
/// # Safety
/// `list` must be null or an environment, and stay so.
unsafe fn entries<'a>(list: Strings) -> impl Iterator<Item = &'a CStr> {
    let mut next = list;
    core::iter::from_fn(move || {
        // SAFETY: the caller promises an environment, which ends with null.
        unsafe {
            let entry = next.as_ref().copied().filter(|entry| !entry.is_null())?;
            next = next.add(1);
            Some(CStr::from_ptr(entry))
        }
    })
}

/// The part of `entry` up to and including the equals sign.
fn name(entry: &CStr) -> &[u8] {
    let bytes = entry.to_bytes();
    bytes.iter().position(|byte| *byte == b'=').map_or(bytes, |end| &bytes[..=end])
}

impl Ours {
    fn agent(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.agent).unwrap_or(c"")
    }

    /// Whether a loader started now could read the agent's file.
    fn is_loadable(&self) -> bool {
        kernel::is_readable_file(self.agent())
    }

    fn is_agent(&self, file: &[u8]) -> bool {
        file == self.agent().to_bytes()
    }

    /// Paths of the plug-ins loaded with the agent.
    fn plugins(&self) -> impl Iterator<Item = &[u8]> {
        self.settings.iter().filter_map(|setting| setting.to_bytes().strip_prefix(PLUGINS)).flat_map(parts)
    }

    fn is_ours(&self, file: &[u8]) -> bool {
        self.is_agent(file) || self.plugins().any(|plugin| plugin == file)
    }

    /// Whether the environment has all of the agent's variables (`wanted`), or none that a loader would act on.
    ///
    /// # Safety
    /// As for [`entries`].
    unsafe fn suits(&self, given: Strings, wanted: bool) -> bool {
        // SAFETY: the caller promises an environment.
        let entries = || unsafe { entries(given) };
        let preloads = entries().filter_map(|entry| entry.to_bytes().strip_prefix(PRELOAD));
        let loads_agent = preloads.flat_map(parts).any(|file| self.is_agent(file));
        if !wanted {
            return !loads_agent;
        }
        let has = |setting: &CStr| entries().any(|entry| name(entry) == name(setting));
        loads_agent && self.settings.iter().all(|setting| has(setting))
    }
}

/// The files listed in LD_PRELOAD.
fn parts(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| b" :".contains(byte)).filter(|file| !file.is_empty())
}

/// Calls `go` with `given` modified according to `wanted`, if that fits into this function's stack frame.
///
/// # Safety
/// As for [`with_environment`].
#[inline(never)]
unsafe fn changed(ours: &Ours, given: Strings, wanted: bool, go: &dyn Start) -> c_long {
    let mut list = [core::ptr::null::<c_char>(); MOST + 8];
    let mut preload = [0u8; LONGEST];
    let mut length = 0;
    let mut add = |bytes: &[u8]| -> Option<()> {
        // The byte after it stays NUL.
        preload[..LONGEST - 1].get_mut(length..length + bytes.len())?.copy_from_slice(bytes);
        length += bytes.len();
        Some(())
    };
    let mut fill = || -> Option<usize> {
        let mut count = 0;
        let mut put = |entry: &CStr| -> Option<()> {
            *list.get_mut(..MOST)?.get_mut(count)? = entry.as_ptr();
            count += 1;
            Some(())
        };
        let mut files = 0;
        add(PRELOAD)?;
        if wanted {
            add(ours.agent().to_bytes())?;
            files += 1;
            for plugin in ours.plugins() {
                add(b":")?;
                add(plugin)?;
            }
        }
        // SAFETY: the caller fulfils this function's contract.
        for entry in unsafe { entries(given) } {
            let Some(value) = entry.to_bytes().strip_prefix(PRELOAD) else {
                put(entry)?;
                continue;
            };
            for file in parts(value).filter(|file| !ours.is_ours(file)) {
                if files > 0 {
                    add(b":")?;
                }
                add(file)?;
                files += 1;
            }
        }
        if wanted {
            // SAFETY: the caller fulfils this function's contract.
            let is_set = |setting: &CStr| unsafe { entries(given) }.any(|entry| name(entry) == name(setting));
            for setting in ours.settings.iter().filter(|setting| !is_set(setting)) {
                put(setting)?;
            }
        }
        Some(count | usize::from(files > 0) << 32)
    };
    let Some(filled) = fill() else { return go.start(given) };
    if filled >> 32 != 0 {
        list[filled as u32 as usize] = preload.as_ptr().cast();
    }
    go.start(list.as_ptr())
}

/// Whether the file is a program for another machine or of another word size, for which there is no agent, or a script for
/// one.
fn is_for_another_machine(path: &CStr, search: bool, scripts: u32) -> bool {
    const CLASS_64: u8 = 2;
    /// Of `e_machine` in the header.
    const MACHINE_AT: usize = 18;
    if path.is_empty() {
        return false;
    }
    let mut head = [0u8; 256];
    let length = if search && !path.to_bytes().contains(&b'/') {
        read_found(path, &mut head)
    } else {
        File::read_only(path).and_then(|file| file.read_some(&mut head)).ok()
    };
    let Some(head) = length.and_then(|length| head.get_mut(..length)) else { return false };
    if let [0x7f, b'E', b'L', b'F', class, ..] = head {
        let class = *class;
        let machine = head.get(MACHINE_AT..).and_then(|rest| rest.first_chunk());
        return class != CLASS_64
            || machine.is_some_and(|&number| u16::from_le_bytes(number) != Machine::NATIVE.to_elf());
    }
    let Some(line) = head.strip_prefix(b"#!").filter(|_| scripts > 0) else { return false };
    let start = line.iter().take_while(|byte| b" \t".contains(byte)).count();
    let mut interpreter = [0u8; 256];
    let mut bytes = line[start..].iter().take_while(|byte| !b" \t\n\0".contains(byte));
    interpreter.iter_mut().zip(&mut bytes).for_each(|(to, from)| *to = *from);
    CStr::from_bytes_until_nul(&interpreter)
        .is_ok_and(|path| is_for_another_machine(path, false, scripts - 1))
}

/// Reads the beginning of the first file with that name on the PATH.
fn read_found(file: &CStr, head: &mut [u8]) -> Option<usize> {
    let path = symbols::environment().find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="));
    path.unwrap_or(b"/bin:/usr/bin").split(|byte| *byte == b':').find_map(|directory| {
        let mut whole = [0u8; 512];
        let mut length = 0;
        for part in [directory, if directory.is_empty() { b"" } else { b"/" }, file.to_bytes_with_nul()] {
            whole.get_mut(length..length + part.len())?.copy_from_slice(part);
            length += part.len();
        }
        let whole = CStr::from_bytes_until_nul(&whole).ok()?;
        File::read_only(whole).and_then(|file| file.read_some(head)).ok()
    })
}

//! Adopts tables that the recorder has made since their module was loaded, in the middle of a walk.
//!
//! A module's table is looked for where nothing else tells how to go on, and only after the recorder has told of new tables:
//! at most once per module and telling. It takes six system calls and a look at each byte of the table.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use platform::activity::{Active, is_filtered};
use platform::sys::{self, SignalsBlocked};
use unwind::{Module, Table, table_file};

use crate::recording::Recording;

/// Larger tables wait until the modules are scanned again, which no signal handler does. This one takes some milliseconds.
const LARGEST: i64 = 16 << 20;

/// Whether `module` has got a table now.
#[cold]
#[inline(never)]
pub(crate) fn adopt(recording: &Recording, module: &Module<'_>) -> bool {
    let told = recording.region.control().tables_told();
    let Some(late) = module.late.filter(|late| late.is_due(told) && !is_filtered()) else { return false };
    // Outside the handler: a signal handler of the program might not return here.
    let _blocked = SignalsBlocked::enter();
    // No file may be opened under a seccomp filter.
    let Some(_active) = Active::enter() else { return false };
    late.try_once(told, |path, key| {
        let bytes = Descriptor::open(path)?.map()?;
        let table = Table::from_trusted_bytes(bytes).ok();
        let table = table.filter(|table| table.build_id() == key && table.as_bytes().len() == bytes.len());
        if table.is_none() {
            // SAFETY: the mapping was made above, and nothing refers to it.
            unsafe { sys::call(libc::SYS_munmap, [bytes.as_ptr() as usize, bytes.len(), 0, 0, 0, 0]) };
        }
        table
    })
}

/// An open file, closed when dropped.
struct Descriptor(usize);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor was opened here and is not used again.
        unsafe { sys::call(libc::SYS_close, [self.0, 0, 0, 0, 0, 0]) };
    }
}

impl Descriptor {
    /// Opens a file for reading. Does not follow a link, and does not block on a pipe.
    fn open(path: &CStr) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0];
        // SAFETY: the path is a live C string.
        let descriptor = unsafe { sys::call(libc::SYS_openat, arguments) };
        (descriptor >= 0).then_some(Self(descriptor as usize))
    }

    /// Maps the file, if only this user or root can have written it.
    fn map(&self) -> Option<&'static [u8]> {
        let mut status = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: the kernel writes one `stat` of its own layout, which is libc's.
        let status = unsafe {
            sys::call(libc::SYS_fstat, [self.0, status.as_mut_ptr() as usize, 0, 0, 0, 0]);
            status.assume_init()
        };
        // SAFETY: geteuid has no arguments and cannot fail.
        let user = unsafe { sys::call(libc::SYS_geteuid, [0; 6]) as u32 };
        if !table_file::is_trusted(status.st_uid, status.st_mode, user)
            || !(1..=LARGEST).contains(&status.st_size)
        {
            return None;
        }
        let (bytes, flags) = (status.st_size as usize, libc::MAP_PRIVATE | libc::MAP_POPULATE);
        let arguments = [0, bytes, libc::PROT_READ as usize, flags as usize, self.0, 0];
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let base = unsafe { sys::call(libc::SYS_mmap, arguments) };
        // SAFETY: as long as the file, which nobody writes to any more, and mapped until the module is freed.
        (base > 0).then(|| unsafe { core::slice::from_raw_parts(base as *const u8, bytes) })
    }
}

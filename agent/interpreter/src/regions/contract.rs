//! What agent/include/selfwind.h says of region unwinders, as the agent sees it. Both change together.

use core::ffi::{c_char, c_int, c_void};

use unwind::End;

/// SELFWIND_ABI_VERSION.
pub const VERSION: u32 = 1;
/// SELFWIND_COLUMNS.
pub(super) const COLUMNS: usize = 32;
/// SELFWIND_STACK.
pub(super) const STACK: u64 = 2048;

/// `struct selfwind_registers`.
#[repr(C)]
pub(super) struct Registers {
    pub(super) known: u64,
    pub(super) pc: u64,
    pub(super) value: [u64; COLUMNS],
}

/// `struct selfwind_frame`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Frame {
    size: u32,
    pub(super) name: u32,
    pub(super) file: u32,
    pub(super) first_line: u32,
    pub(super) line: u32,
}

impl Frame {
    /// The frame at `given`, if its size is that of this version or more.
    ///
    /// # Safety
    /// Null, or a frame of the size that it says.
    pub(super) unsafe fn read(given: *const Frame) -> Option<Frame> {
        // SAFETY: the caller's promise; the size comes first.
        unsafe {
            let size = given.cast::<u32>().as_ref()?;
            (*size as usize >= size_of::<Frame>()).then(|| given.read())
        }
    }
}

/// `struct selfwind_walk`.
#[repr(C)]
pub struct Walk {
    pub(super) size: u32,
    pub(super) version: u32,
    pub(super) frame: u32,
    pub(super) interrupted: u32,
    pub(super) registers: Registers,
    pub(super) state: [u64; 4],
    pub(super) data: *mut c_void,
    pub(super) read: Option<unsafe extern "C" fn(*mut Walk, u64, *mut u8, usize) -> c_int>,
    pub(super) name: Option<unsafe extern "C" fn(*mut Walk, u64, u64, u64, usize) -> u32>,
    pub(super) emit: Option<unsafe extern "C" fn(*mut Walk, *const Frame) -> c_int>,
    pub(super) agent: *mut c_void,
}

/// The function of an unwinder.
pub type Unwind = unsafe extern "C" fn(*mut Walk) -> c_int;

/// `struct selfwind_unwinder`.
#[repr(C)]
pub struct Unwinder {
    /// Its own.
    pub size: u32,
    /// SELFWIND_ABI_VERSION.
    pub version: u32,
    /// What marks its frames.
    pub language: *const c_char,
    /// The unwinder.
    pub unwind: Option<Unwind>,
    /// What it is given.
    pub data: *mut c_void,
    /// The registers that it wants.
    pub wants: u64,
}

/// What an unwinder says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    NotMine,
    Caller { interrupted: bool, other_stack: bool },
    Beside,
    End(End),
}

impl Said {
    const CALLER: c_int = 1;
    const INTERRUPTED: c_int = 0x100;
    const OTHER_STACK: c_int = 0x200;

    /// An `enum selfwind_result`.
    pub(super) fn new(result: c_int) -> Said {
        match result {
            0 => Said::NotMine,
            2 => Said::Beside,
            3 => Said::End(End::Root),
            4 => Said::End(End::Unreadable),
            5 => Said::End(End::LostRegister),
            6 => Said::End(End::NoCfi),
            _ if result & !(Said::INTERRUPTED | Said::OTHER_STACK) == Said::CALLER => Said::Caller {
                interrupted: result & Said::INTERRUPTED != 0,
                other_stack: result & Said::OTHER_STACK != 0,
            },
            _ => Said::End(End::BadUnwinder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_what_the_header_says() {
        assert_eq!(Said::new(0), Said::NotMine);
        assert_eq!(Said::new(1), Said::Caller { interrupted: false, other_stack: false });
        assert_eq!(Said::new(0x301), Said::Caller { interrupted: true, other_stack: true });
        assert_eq!(Said::new(2), Said::Beside);
        assert_eq!(Said::new(3), Said::End(End::Root));
        for nonsense in [-1, 7, 0x100, 0x102, 0x401, c_int::MAX, c_int::MIN] {
            assert_eq!(Said::new(nonsense), Said::End(End::BadUnwinder));
        }
    }

    #[test]
    fn structures_are_laid_out_as_in_c() {
        // tests/targets/region_layout.c asserts the same numbers.
        assert_eq!((size_of::<Registers>(), size_of::<Frame>(), size_of::<Unwinder>()), (272, 20, 40));
        assert_eq!((size_of::<Walk>(), core::mem::offset_of!(Walk, state)), (360, 288));
    }
}

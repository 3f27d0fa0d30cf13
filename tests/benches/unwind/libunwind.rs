//! libunwind, loaded privately: linking it would replace libgcc's `_Unwind_Backtrace` in this process.

use crate::method::{MOST, Method, Stack};
use crate::workload::Walkway;
use std::ffi::{CStr, c_int, c_void};

type GetContext = unsafe extern "C" fn(*mut c_void) -> c_int;
type InitLocal = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Step = unsafe extern "C" fn(*mut c_void) -> c_int;
type GetRegister = unsafe extern "C" fn(*mut c_void, c_int, *mut u64) -> c_int;
type Backtrace = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

/// `UNW_X86_64_RIP`.
const RIP: c_int = 16;

/// The methods of libunwind, or none where it is not installed.
pub(crate) fn methods() -> Vec<Box<dyn Method>> {
    // SAFETY: libunwind's constructors only set up its own state; RTLD_LOCAL keeps its names from interposing.
    let library = unsafe { libc::dlopen(c"libunwind.so.8".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        eprintln!("libunwind.so.8 is not installed: its rows are missing (Debian: libunwind8)");
        return Vec::new();
    }
    let find = |name: &CStr| {
        // SAFETY: the handle is live and the name NUL-terminated.
        let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!symbol.is_null(), "libunwind.so.8 has no {name:?}");
        symbol
    };
    // SAFETY: the names and signatures are those of libunwind-x86_64.h and libunwind.h of libunwind 1.x.
    unsafe {
        vec![
            Box::new(UnwBacktrace(std::mem::transmute::<*mut c_void, Backtrace>(find(c"unw_backtrace")))),
            Box::new(UnwStep {
                get_context: std::mem::transmute::<*mut c_void, GetContext>(find(c"_Ux86_64_getcontext")),
                init_local: std::mem::transmute::<*mut c_void, InitLocal>(find(c"_ULx86_64_init_local")),
                step: std::mem::transmute::<*mut c_void, Step>(find(c"_ULx86_64_step")),
                get_register: std::mem::transmute::<*mut c_void, GetRegister>(find(c"_ULx86_64_get_reg")),
            }),
        ]
    }
}

/// `unw_backtrace`: libunwind's cached fast path.
struct UnwBacktrace(Backtrace);

impl Method for UnwBacktrace {
    fn name(&self) -> &'static str {
        "libunwind unw_backtrace"
    }

    fn capture(&mut self, _: &Walkway, stack: &mut Stack) -> usize {
        // SAFETY: the buffer holds MOST pointers, as said.
        unsafe { (self.0)(stack.as_mut_ptr().cast(), MOST as c_int) as usize }
    }
}

/// `unw_step` from frame to frame.
struct UnwStep {
    get_context: GetContext,
    init_local: InitLocal,
    step: Step,
    get_register: GetRegister,
}

impl Method for UnwStep {
    fn name(&self) -> &'static str {
        "libunwind unw_step"
    }

    fn capture(&mut self, _: &Walkway, stack: &mut Stack) -> usize {
        // unw_context_t is a ucontext_t (968 bytes), unw_cursor_t has 127 words; both get room to spare.
        let (mut context, mut cursor) = ([0u64; 160], [0u64; 160]);
        let (context, cursor) = (context.as_mut_ptr().cast::<c_void>(), cursor.as_mut_ptr().cast::<c_void>());
        let mut depth = 0;
        // SAFETY: the buffers are large enough and aligned; this frame, whose context is taken, outlives the walk.
        unsafe {
            (self.get_context)(context);
            (self.init_local)(cursor, context);
            while depth < MOST && (self.step)(cursor) > 0 {
                (self.get_register)(cursor, RIP, &mut stack[depth]);
                depth += 1;
            }
        }
        depth
    }
}

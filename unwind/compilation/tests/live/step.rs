//! Walks after every single instruction of real code: prologues, epilogues, PLT stubs, lazy binding.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_char, c_int, c_void};

use unwind::{End, FoundBy, Memory, Modules, RuleCache, StackCache, walk};

use crate::process::{Process, Resolution, capture, registers_of};

/// Plain loads from the stack and the modules' code; nothing elsewhere is readable.
struct Bounded<'a> {
    stack: std::ops::Range<u64>,
    modules: &'a Modules<'a>,
}

impl Memory for Bounded<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        let in_stack = self.stack.start <= address && address < self.stack.end - 8;
        let in_module = |address| self.modules.find(address).is_some();
        let inside = in_stack || (in_module(address) && in_module(address + 7));
        // SAFETY: the word lies in this thread's stack or in code, which is readable and not unloaded.
        inside.then(|| unsafe { (address as *const u64).read_unaligned() })
    }
}

/// State of the trap handler. It must not allocate: the code it interrupts may be malloc.
struct Stepper {
    modules: Modules<'static>,
    cache: &'static RuleCache,
    stack_cache: Box<UnsafeCell<StackCache>>,
    stack: std::ops::Range<u64>,
    /// The return addresses above the stepped function, leaf first.
    callers: Vec<u64>,
    steps: Cell<u64>,
    deepest: Cell<usize>,
    wrong: Cell<u64>,
    /// Program counter, depth and end of the first wrong walk.
    first_wrong: Cell<(u64, usize, End)>,
}

thread_local! {
    static STEPPER: Cell<Option<&'static Stepper>> = const { Cell::new(None) };
}

/// EFLAGS.TF: the processor traps after each instruction.
const TRAP_FLAG: i64 = 0x100;

/// Walks, and keeps the trap flag set as long as there is a stepper.
extern "C" fn on_trap(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a ucontext to a handler with SA_SIGINFO, and takes its registers back.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let flags = &mut context.uc_mcontext.gregs[libc::REG_EFL as usize];
    let Some(stepper) = STEPPER.get() else {
        *flags &= !TRAP_FLAG;
        return;
    };
    *flags |= TRAP_FLAG;
    let registers = registers_of(context);
    let mut memory = Bounded { stack: stepper.stack.clone(), modules: &stepper.modules };
    // SAFETY: traps do not nest, and no one else has the stack cache.
    let stack_cache = unsafe { &mut *stepper.stack_cache.get() };
    let walked = walk(&stepper.modules, stepper.cache, &registers, &mut memory, stack_cache, 128);
    let frames = stack_cache.frames();
    let callers = stepper.callers.iter().rev();
    let reaches = frames.len() > callers.len()
        && frames.iter().rev().zip(callers).all(|(frame, caller)| frame.address() == *caller);
    let exact = frames.iter().all(|frame| frame.found_by() == FoundBy::Cfi);
    if !(reaches && exact && walked.end == End::Root) {
        if stepper.wrong.get() == 0 {
            stepper.first_wrong.set((registers.pc, walked.depth, walked.end));
        }
        stepper.wrong.set(stepper.wrong.get() + 1);
    }
    stepper.steps.set(stepper.steps.get() + 1);
    stepper.deepest.set(stepper.deepest.get().max(frames.len()));
}

/// The bounds of this thread's stack.
fn stack_bounds() -> std::ops::Range<u64> {
    // SAFETY: the attributes are initialised by the first call and freed by the last.
    unsafe {
        let mut attributes = std::mem::zeroed();
        let (mut base, mut size) = (std::ptr::null_mut(), 0);
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &mut attributes), 0);
        assert_eq!(libc::pthread_attr_getstack(&attributes, &mut base, &mut size), 0);
        libc::pthread_attr_destroy(&mut attributes);
        base as u64..base as u64 + size as u64
    }
}

/// Runs `work` and walks after each instruction.
#[inline(never)]
fn stepped(how: Resolution, work: &mut dyn FnMut()) -> &'static Stepper {
    let process: &'static Process = Box::leak(Box::new(Process::new()));
    let list = process.list(how);
    let (frames, end) = process.walk(how, &capture());
    assert_eq!(end, End::Root);
    let stepper: &'static Stepper = Box::leak(Box::new(Stepper {
        modules: Modules::new(Box::leak(list.into_boxed_slice()), 1).unwrap(),
        cache: Box::leak(Box::new(RuleCache::new())),
        stack_cache: Box::new(UnsafeCell::new(StackCache::new())),
        stack: stack_bounds(),
        callers: frames[1..].iter().map(|frame| frame.address()).collect(),
        steps: Cell::new(0),
        deepest: Cell::new(0),
        wrong: Cell::new(0),
        first_wrong: Cell::new((0, 0, End::Root)),
    }));
    // SAFETY: the handler has the type that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()), 0);
    }
    STEPPER.set(Some(stepper));
    // SAFETY: the handler is installed.
    assert_eq!(unsafe { libc::raise(libc::SIGTRAP) }, 0);
    work();
    STEPPER.set(None);
    stepper
}

#[track_caller]
fn assert_all_right(stepper: &Stepper, at_least: u64) {
    let (pc, depth, end) = stepper.first_wrong.get();
    let (steps, wrong) = (stepper.steps.get(), stepper.wrong.get());
    assert_eq!(wrong, 0, "of {steps} walks; the first at {pc:#x}, depth {depth}, {end:?}");
    assert!(steps >= at_least, "{steps} steps");
    assert!(stepper.deepest.get() > stepper.callers.len() + 2);
}

extern "C" fn compare(a: *const c_void, b: *const c_void) -> c_int {
    // SAFETY: qsort passes pointers to the array's elements.
    unsafe { *a.cast::<i32>() - *b.cast::<i32>() }
}

/// Sorts, formats and allocates, in Rust and in C.
fn work() {
    let mut numbers = [5i32, 3, 9, 1, 7, 2, 8];
    // SAFETY: the array has seven elements of four bytes, and `compare` only reads them.
    unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 7, 4, Some(compare)) };
    let text = format!("{numbers:?} {:.3} {:x}", std::f64::consts::PI, u64::MAX);
    let mut words: Vec<String> = text.split(' ').map(String::from).collect();
    words.sort();
    let mut buffer = [0 as c_char; 64];
    // SAFETY: the buffer's size is given, and the arguments fit the format.
    unsafe {
        libc::snprintf(buffer.as_mut_ptr(), 64, c"%s %d %.17g".as_ptr(), c"x".as_ptr(), 42, 1.0f64 / 3.0)
    };
    std::hint::black_box((words, buffer));
}

#[test]
fn after_every_instruction() {
    for how in [Resolution::OnDemand, Resolution::Tables] {
        assert_all_right(stepped(how, &mut work), 10_000);
    }
}

/// A function of a library that is loaded with lazy binding and calls others through its PLT.
fn lazily_bound(library: &CStr, function: &CStr) -> Option<*mut c_void> {
    // SAFETY: loads a system library; its initialisers are no concern of this test.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        let found = if handle.is_null() { handle } else { libc::dlsym(handle, function.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

#[test]
fn through_lazy_binding() {
    // uncompress and compress of zlib call malloc, free and memcpy through the PLT.
    let compress = lazily_bound(c"libz.so.1", c"compress");
    let Some(compress) = compress else { return eprintln!("no libz.so.1: not tested") };
    type Compress = unsafe extern "C" fn(*mut u8, *mut libc::c_ulong, *const u8, libc::c_ulong) -> c_int;
    // SAFETY: zlib's documented signature.
    let compress: Compress = unsafe { std::mem::transmute(compress) };
    let input: Vec<u8> = (0..200u32).map(|i| (i * i % 251) as u8).collect();
    let mut output = [0u8; 512];
    let stepper = stepped(Resolution::OnDemand, &mut || {
        let mut length = 512;
        // SAFETY: the lengths are those of the buffers.
        let status = unsafe { compress(output.as_mut_ptr(), &mut length, input.as_ptr(), 200) };
        assert_eq!(status, 0);
    });
    assert_all_right(stepper, 10_000);
}

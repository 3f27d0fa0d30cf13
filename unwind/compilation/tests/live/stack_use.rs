//! Measures the stack use of a walk: a handler has little.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use unwind::{End, Modules, RuleCache, StackCache, walk};

use crate::process::{Own, Process, Resolution, capture};

/// Limit in bytes for one walk, including the registers it starts from and the memory reads below it.
const LIMIT: usize = 2048;

const PAINT: u8 = 0xa5;

/// Everything a walk needs, allocated outside the measured stack.
struct Prepared {
    modules: Modules<'static>,
    cache: RuleCache,
    stack_cache: UnsafeCell<StackCache>,
}

// SAFETY: only the one thread that runs the test touches the stack cache.
unsafe impl Sync for Prepared {}

static PREPARED: OnceLock<Prepared> = OnceLock::new();
static WALKING: AtomicBool = AtomicBool::new(false);
static DEPTH: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    if WALKING.load(Ordering::Relaxed) {
        walk_here();
    }
}

#[inline(never)]
fn walk_here() {
    let prepared = PREPARED.get().expect("set before the signal");
    let registers = capture();
    // SAFETY: no one else touches the stack cache meanwhile.
    let stack_cache = unsafe { &mut *prepared.stack_cache.get() };
    let walked = walk(&prepared.modules, &prepared.cache, &registers, &mut Own, stack_cache, 128);
    DEPTH.store(if walked.end == End::Root { walked.depth } else { 0 }, Ordering::Relaxed);
}

/// Bytes of `stack` that a signal handler used.
fn used(stack: &mut [u8], walking: bool) -> usize {
    stack.fill(PAINT);
    WALKING.store(walking, Ordering::Relaxed);
    // SAFETY: the handler is installed and runs on the alternate stack, which is this memory.
    assert_eq!(unsafe { libc::raise(libc::SIGURG) }, 0);
    stack.len() - stack.iter().position(|&byte| byte != PAINT).unwrap_or(stack.len())
}

#[test]
#[cfg_attr(debug_assertions, ignore = "frames of unoptimised code are large")]
fn a_walk_takes_little_stack() {
    let list = Process::new().list(Resolution::OnDemand);
    let modules = Modules::new(Box::leak(list.into_boxed_slice()), 1).unwrap();
    let stack_cache = UnsafeCell::new(StackCache::new());
    assert!(PREPARED.set(Prepared { modules, cache: RuleCache::new(), stack_cache }).is_ok());
    let mut stack = vec![0u8; 64 * 1024];
    let alternate = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: the memory outlives its use as a signal stack; the handler has the type that SA_SIGINFO asks for.
    unsafe {
        assert_eq!(libc::sigaltstack(&alternate, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()), 0);
    }
    // The walk passes the signal frame, which takes the exact evaluation with expressions.
    let (without, with) = (used(&mut stack, false), used(&mut stack, true));
    // SAFETY: disables the alternate stack; no handler runs now, so none is using it.
    assert_eq!(unsafe { libc::sigaltstack(&none, std::ptr::null_mut()) }, 0);
    assert!(DEPTH.load(Ordering::Relaxed) > 5);
    println!("a walk takes {} bytes of stack", with - without);
    assert!(with - without <= LIMIT, "{} bytes", with - without);
}

//! Walks of the stacks of this process, compared with glibc's `backtrace`.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

mod process;
mod stack_use;
mod step;

use std::cell::Cell;
use std::hint::black_box;

use process::{Process, Resolution, capture};
use unwind::{End, FoundBy, Frame};

/// One stack, by every kind of rule lookup and by glibc.
struct Stacks {
    ours: Vec<(Resolution, Vec<Frame>, End)>,
    glibc: Vec<u64>,
}

#[inline(never)]
fn both(process: &Process) -> Stacks {
    let mut addresses = [std::ptr::null_mut(); 256];
    // SAFETY: the array has room for the count passed.
    let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), 256) };
    let glibc = addresses[..count as usize].iter().map(|address| *address as u64).collect();
    let registers = capture();
    let ours = Resolution::ALL.map(|how| {
        let (frames, end) = process.walk(how, &registers);
        (how, frames, end)
    });
    Stacks { ours: ours.into(), glibc }
}

/// All kinds of rule lookup give the same complete stack, which equals glibc's above the frame that took it.
#[track_caller]
fn assert_same(stacks: &Stacks) {
    for (how, frames, end) in &stacks.ours {
        assert_eq!(*end, End::Root, "{how:?} {frames:x?}");
        let ours: Vec<_> = frames.iter().skip(1).map(|frame| frame.address()).collect();
        assert_eq!(ours, stacks.glibc[1..], "{how:?}");
        assert!(frames[0].is_exact());
        assert!(frames.iter().all(|frame| frame.found_by() == FoundBy::Cfi));
    }
}

#[test]
fn a_rust_stack() {
    let process = Process::new();
    let stacks = both(&process);
    assert_same(&stacks);
    assert!(stacks.glibc.len() > 5);
}

#[inline(never)]
fn recurse(depth: u32, process: &Process) -> Stacks {
    let stacks = if depth == 0 { both(process) } else { recurse(depth - 1, process) };
    black_box(stacks)
}

#[test]
fn a_deep_stack() {
    let process = Process::new();
    let stacks = recurse(100, &process);
    assert_same(&stacks);
    assert!(stacks.glibc.len() > 100);
}

thread_local! {
    static PROCESS: Cell<Option<&'static Process>> = const { Cell::new(None) };
    static STACKS: Cell<Option<Stacks>> = const { Cell::new(None) };
}

/// Runs where C code calls back into Rust; takes the stacks once.
fn take_stacks() {
    if let Some(process) = PROCESS.get() {
        STACKS.set(Some(both(process)));
    }
}

fn stacks_taken_in(run: impl FnOnce()) -> Stacks {
    PROCESS.set(Some(Box::leak(Box::new(Process::new()))));
    run();
    STACKS.take().expect("the callback ran")
}

extern "C" fn compare(a: *const libc::c_void, b: *const libc::c_void) -> libc::c_int {
    take_stacks();
    // SAFETY: qsort passes pointers to the array's elements.
    unsafe { *a.cast::<i32>() - *b.cast::<i32>() }
}

#[test]
fn through_c_frames() {
    let stacks = stacks_taken_in(|| {
        let mut numbers = [3i32, 1, 2];
        // SAFETY: the array has three elements of four bytes, and `compare` only reads them.
        unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 3, 4, Some(compare)) };
        assert_eq!(numbers, [1, 2, 3]);
    });
    assert_same(&stacks);
}

extern "C" fn thread(_: *mut libc::c_void) -> *mut libc::c_void {
    let stacks = stacks_taken_in(take_stacks);
    assert_same(&stacks);
    std::ptr::null_mut()
}

#[test]
fn a_c_thread() {
    // SAFETY: the thread's function takes no argument, and the thread is joined.
    let status = unsafe {
        let mut id = std::mem::zeroed();
        let created = libc::pthread_create(&mut id, std::ptr::null(), thread, std::ptr::null_mut());
        assert_eq!(created, 0);
        libc::pthread_join(id, std::ptr::null_mut())
    };
    assert_eq!(status, 0);
}

thread_local! {
    /// The stacks from the interrupted registers, taken inside the handler.
    static INTERRUPTED: Cell<Vec<(Vec<Frame>, End)>> = const { Cell::new(Vec::new()) };
}

extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a ucontext to a handler with SA_SIGINFO.
    let registers = process::registers_of(unsafe { &*context.cast() });
    if let Some(process) = PROCESS.get() {
        INTERRUPTED.set(Resolution::ALL.map(|how| process.walk(how, &registers)).into());
    }
    take_stacks();
}

fn raise_with(flags: libc::c_int) -> Stacks {
    stacks_taken_in(|| {
        // SAFETY: the handler has the type that SA_SIGINFO asks for; the signal goes to this thread alone.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | flags;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
            let thread = libc::pthread_self();
            assert_eq!(libc::pthread_kill(thread, libc::SIGUSR2), 0);
        }
    })
}

/// After the signal frame come the same frames as in a walk from the interrupted registers.
#[track_caller]
fn assert_interrupted_frame(stacks: &Stacks) {
    let interrupted = INTERRUPTED.take();
    assert_eq!(interrupted.len(), stacks.ours.len());
    for ((how, frames, end), direct) in stacks.ours.iter().zip(&interrupted) {
        let at = frames.iter().rposition(|frame| frame.is_exact()).unwrap();
        assert!(at > 0, "{how:?}: no frame after the signal frame is exact");
        assert_eq!((&frames[at..], *end), (&direct.0[..], direct.1));
    }
}

#[test]
fn out_of_a_signal_handler() {
    let stacks = raise_with(0);
    assert_same(&stacks);
    assert_interrupted_frame(&stacks);
}

#[test]
fn out_of_a_signal_handler_on_its_own_stack() {
    let mut stack = vec![0u8; 8 << 20];
    let on_stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    let off = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: the memory outlives its use as a signal stack.
    assert_eq!(unsafe { libc::sigaltstack(&on_stack, std::ptr::null_mut()) }, 0);
    let stacks = raise_with(libc::SA_ONSTACK);
    // SAFETY: disables the alternate stack; no handler runs now, so none is using it.
    assert_eq!(unsafe { libc::sigaltstack(&off, std::ptr::null_mut()) }, 0);
    assert_same(&stacks);
    assert_interrupted_frame(&stacks);
}

#[test]
fn a_full_array_says_so() {
    let process = Process::new();
    let registers = capture();
    let (frames, end) = process.walk_up_to(3, &registers);
    assert_eq!((frames.len(), end), (3, End::DepthLimit));
    let (none, end) = process.walk_up_to(0, &registers);
    assert_eq!((none.len(), end), (0, End::DepthLimit));
    let (all, _) = process.walk(Resolution::OnDemand, &registers);
    let (exact, end) = process.walk_up_to(all.len(), &registers);
    assert_eq!((exact.len(), end), (all.len(), End::Root));
}

#[test]
fn the_vdso_has_rows() {
    // SAFETY: getauxval has no preconditions.
    let address = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    assert_ne!(address, 0);
    // SAFETY: the kernel maps a whole ELF object there, for as long as the process lives.
    let image = unsafe { unwind::elf_image::ElfImage::from_memory(address) }.unwrap();
    let section = image.trimmed_eh_frame().unwrap();
    let bytes = compilation::compile(section, image.bias, image.build_id.unwrap()).unwrap();
    let table = unwind::Table::from_bytes(&bytes).unwrap();
    assert_eq!(table.build_id(), image.build_id.unwrap());
    let mut fdes = 0;
    for extent in unwind::cfi::entries(section) {
        let Some(fde) = unwind::cfi::Fde::<unwind::Native>::at(&section, extent.offset) else { continue };
        fdes += 1;
        assert!(image.text_start <= fde.start && fde.end <= image.text_end);
        for address in [fde.start, fde.end - 1] {
            assert_eq!(image.module().decode_rule(address), Ok(table.lookup(address - image.bias)));
        }
    }
    assert!(fdes > 3, "{fdes}");
}

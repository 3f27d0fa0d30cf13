//! The stacks to unwind: random paths through 500 functions in five shared libraries, compiled when the bench starts.
//! Every function notes its own return address, so the true stack of each capture is known.

use std::ffi::{CString, c_int, c_long, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Frames of the workload on a full stack; the harness' own frames come on top.
pub(crate) const DEPTH: usize = 44;
const LIBRARIES: usize = 5;
const FUNCTIONS: usize = 100;

type Function = extern "C" fn(*mut Walkway, c_int, c_long, c_long) -> c_int;

/// Twin of `struct walkway` in workload.c.
#[repr(C)]
pub(crate) struct Walkway {
    capture: extern "C" fn(*mut Walkway) -> c_int,
    path: *const u32,
    depth: c_int,
    truth: *mut *const c_void,
    table: *const Function,
    /// Frame pointer of the innermost workload frame.
    pub(crate) frame: *const u64,
    sink: c_long,
    run: *mut c_void,
}

/// A small generator with a fixed seed, so that every method gets the same stacks.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The same seed gives the same stacks.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(limit)) >> 32) as u32
    }
}

/// The sequence of stacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scenario {
    /// The same stack again and again.
    Hot,
    /// A new random stack each time.
    Rot,
    /// One to eight frames popped and as many new ones pushed: typical for a profiler.
    Walk,
    /// As `Walk`, with the caches flushed by 4 MiB of other data in between.
    Cold,
}

/// The loaded libraries.
pub(crate) struct Workload {
    table: Vec<Function>,
}

impl Workload {
    /// Loads the five libraries into this process.
    pub(crate) fn load(folder: &Path, frame_pointers: bool) -> Workload {
        Workload { table: files(folder, frame_pointers).flat_map(|file| functions(&file)).collect() }
    }

    /// Takes `captures` captures in `scenario`; `capture` is called at the innermost frame of each stack with the true
    /// stack, outermost frame first.
    pub(crate) fn run(
        &self,
        scenario: Scenario,
        captures: usize,
        random: Random,
        capture: &mut dyn FnMut(&Walkway, &[*const c_void]),
    ) {
        let mut run = Run {
            scenario,
            left: captures,
            random,
            path: [0; DEPTH],
            truth: [std::ptr::null(); DEPTH],
            functions: self.table.len() as u32,
            flush: vec![1; 4 << 20],
            capture,
        };
        while run.left > 0 {
            run.renew(DEPTH);
            let mut walkway = Walkway {
                capture: on_capture,
                path: run.path.as_ptr(),
                depth: DEPTH as c_int,
                truth: run.truth.as_mut_ptr(),
                table: self.table.as_ptr(),
                frame: std::ptr::null(),
                sink: 0,
                run: std::ptr::from_mut(&mut run).cast(),
            };
            let first = self.table[(run.path[0] >> 2) as usize];
            // SAFETY: the function is called as C calls it.
            unsafe { selfwind_bench_outermost(first, &mut walkway) };
        }
    }
}

// Calls the first function of a stack from a frame without a caller, so that every method's walk ends there.
std::arch::global_asm!(
    ".globl selfwind_bench_outermost",
    ".type selfwind_bench_outermost,@function",
    "selfwind_bench_outermost:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "mov rax, rdi",
    "mov rdi, rsi",
    "xor esi, esi",
    "mov edx, 1",
    "mov ecx, 2",
    "call rax",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size selfwind_bench_outermost, . - selfwind_bench_outermost",
);

unsafe extern "C" {
    fn selfwind_bench_outermost(first: Function, walkway: *mut Walkway);
}

struct Run<'a> {
    scenario: Scenario,
    left: usize,
    random: Random,
    path: [u32; DEPTH],
    truth: [*const c_void; DEPTH],
    functions: u32,
    flush: Vec<u8>,
    capture: &'a mut dyn FnMut(&Walkway, &[*const c_void]),
}

impl Run<'_> {
    fn renew(&mut self, frames: usize) {
        for step in &mut self.path[DEPTH - frames..] {
            *step = self.random.below(self.functions * 4);
        }
    }

    #[inline(always)]
    fn capture(&mut self, walkway: &Walkway) -> c_int {
        let everything = DEPTH as c_int + 1;
        loop {
            if self.scenario == Scenario::Cold {
                for byte in self.flush.iter_mut().step_by(64) {
                    *byte = byte.wrapping_add(1);
                }
            }
            (self.capture)(walkway, &self.truth);
            self.left -= 1;
            match self.scenario {
                _ if self.left == 0 => return everything,
                Scenario::Hot => {}
                Scenario::Rot => return everything,
                Scenario::Walk | Scenario::Cold => {
                    let pop = 1 + self.random.below(8);
                    self.renew(pop as usize);
                    return pop as c_int;
                }
            }
        }
    }
}

extern "C" fn on_capture(walkway: *mut Walkway) -> c_int {
    // SAFETY: the workload passes on the pointer it was given by `Workload::run`, whose frame is still live; `run` is
    // reached only through it while the workload runs.
    let (run, walkway) = unsafe { (&mut *(*walkway).run.cast::<Run<'_>>(), &*walkway) };
    run.capture(walkway)
}

/// Compiles the libraries of both workloads into `folder`.
pub(crate) fn compile(source: &Path, folder: &Path) {
    let kinds: [(bool, &[&str]); 2] =
        [(false, &["-fomit-frame-pointer"]), (true, &["-fno-omit-frame-pointer", "-DFRAME_POINTERS"])];
    for (frame_pointers, flags) in kinds {
        for file in files(folder, frame_pointers) {
            let mut compiler = Command::new("cc");
            compiler.args(["-O2", "-fPIC", "-shared"]).args(flags).arg("-o").arg(file).arg(source);
            assert!(compiler.status().is_ok_and(|status| status.success()), "{compiler:?} failed");
        }
    }
}

fn files(folder: &Path, frame_pointers: bool) -> impl Iterator<Item = PathBuf> {
    let kind = if frame_pointers { "fp" } else { "" };
    (0..LIBRARIES).map(move |library| folder.join(format!("libworkload{kind}{library}.so")))
}

fn functions(file: &Path) -> Vec<Function> {
    let name = CString::new(file.to_str().expect("a UTF-8 path")).expect("no NUL in a path");
    // SAFETY: the library is the one just compiled; it has no constructors and stays loaded until the process ends.
    let functions = unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "cannot load {}", file.display());
        libc::dlsym(handle, c"functions".as_ptr()).cast::<Function>()
    };
    assert!(!functions.is_null(), "{} has no `functions`", file.display());
    // SAFETY: `functions` is an array of FUNCTIONS pointers of this very type (workload.c).
    unsafe { std::slice::from_raw_parts(functions, FUNCTIONS) }.to_vec()
}

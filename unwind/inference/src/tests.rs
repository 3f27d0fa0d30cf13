//! Rows inferred for functions in assembly, at their labels.

use std::arch::global_asm;

use unwind::{Kind, Rule, SavedFp};

use crate::{Code, infer};

// Functions, with labels where the rule is asked for. None of them is ever run.
global_asm!(
    ".pushsection .text.inferred, \"ax\", @progbits",
    ".balign 16",
    ".globl inferred_begin, inferred_end",
    "inferred_begin:",
    // Pushes, makes room, calls, and leaves in two places.
    ".globl plain, plain_pushed, plain_called, plain_popped",
    "plain: push rbp",
    "push rbx",
    "plain_pushed: sub rsp, 24",
    "mov ebp, edi",
    "call helper",
    "plain_called: test eax, eax",
    "je 2f",
    "add rsp, 24",
    "pop rbx",
    "pop rbp",
    "plain_popped: ret",
    "2: add rsp, 24",
    "pop rbx",
    "pop rbp",
    "jmp helper",
    ".balign 16",
    "helper: xor eax, eax",
    "ret",
    ".balign 16",
    // A frame pointer, and a frame of a size that is not known.
    ".globl framed, framed_grown",
    "framed: push rbp",
    "mov rbp, rsp",
    "sub rsp, rdi",
    "framed_grown: call helper",
    "leave",
    "ret",
    ".balign 16",
    // Keeps the stack pointer in another register, as matrix multiplications in assembly do, and the caller's frame pointer in a
    // place that it does not push to.
    ".globl held, held_aligned, held_restored",
    "held: sub rsp, 96",
    "mov [rsp], rbx",
    "mov [rsp + 8], rbp",
    "mov rbx, rsp",
    "sub rsp, 28800",
    "and rsp, -4096",
    "xor ebp, ebp",
    "held_aligned: lea rsi, [rsp + 128]",
    "mov [rsp + 40], rsi",
    "mov rsp, rbx",
    "mov rbx, [rsp]",
    "mov rbp, [rsp + 8]",
    "held_restored: add rsp, 96",
    "ret",
    ".balign 16",
    // Aligns the stack as compilers do, with the argument pointer in the frame.
    ".globl aligned, aligned_running",
    "aligned: lea r10, [rsp + 8]",
    "and rsp, -64",
    "push qword ptr [r10 - 8]",
    "push rbp",
    "mov rbp, rsp",
    "push r10",
    "sub rsp, 56",
    "aligned_running: call helper",
    "mov r10, [rbp - 8]",
    "leave",
    "lea rsp, [r10 - 8]",
    "ret",
    ".balign 16",
    // Aligns the stack as video codecs do, with the stack pointer in the frame.
    ".globl stored, stored_running",
    "stored: mov rax, rsp",
    "sub rsp, 512",
    "and rsp, -64",
    "mov [rsp + 448], rax",
    "mov eax, 1",
    "stored_running: add eax, 1",
    "mov rsp, [rsp + 448]",
    "ret",
    ".balign 16",
    // A jump table whose targets nothing else leads to.
    ".globl switch, switch_first, switch_second",
    "switch: sub rsp, 40",
    "lea rdx, [rip + switch]",
    "jmp rdx",
    "switch_first: mov eax, 1",
    "jmp 3f",
    "switch_second: mov eax, 2",
    "3: add rsp, 40",
    "ret",
    ".balign 16",
    // A call that does not return, and directly behind it a function to which nothing leads.
    ".globl fatal, lonely, lonely_pushed",
    "fatal: sub rsp, 8",
    "call end",
    ".balign 16",
    "lonely: push rbx",
    "lonely_pushed: call helper",
    "pop rbx",
    "ret",
    ".balign 16",
    "end: hlt",
    ".balign 16",
    // Pops its return address.
    ".globl returns_otherwise",
    "returns_otherwise: pop rdx",
    "jmp rdx",
    ".balign 16",
    // Switches the stack.
    ".globl switches",
    "switches: push rbp",
    "mov rsp, rdi",
    "pop rbp",
    "ret",
    ".balign 16",
    // Does so, and branches to a part that looks like a function.
    ".globl branches, branches_part",
    "branches: push rbp",
    "mov rsp, rdi",
    "test edi, edi",
    "je branches_part",
    "pop rbp",
    "ret",
    "branches_part: push rdi",
    "call end",
    ".balign 16",
    // Never returns, but jumps from one to the next, like compiled Haskell, whose stack is elsewhere.
    ".globl jumps_only, jumps_on",
    "jumps_only: dec ecx",
    "jne jumps_only",
    "jmp jumps_on",
    ".balign 16",
    "jumps_on: sub rsp, 8",
    "call helper",
    "add rsp, 8",
    "jmp jumps_only",
    ".balign 16",
    // Returns from a signal handler.
    ".globl restorer",
    "restorer: mov eax, 15",
    "syscall",
    "ret",
    ".balign 16",
    "inferred_end:",
    ".popsection",
);

macro_rules! labels {
    ($($name:ident)*) => {
        unsafe extern "C" { $(static $name: u8;)* }
        /// The address of a label.
        fn address(name: &str) -> u64 {
            match name {
                $(stringify!($name) => &raw const $name as u64,)*
                _ => panic!("no {name}"),
            }
        }
    };
}

labels! {
    inferred_begin inferred_end plain plain_pushed plain_called plain_popped framed framed_grown held held_aligned
    held_restored aligned aligned_running stored stored_running switch switch_first switch_second fatal lonely
    lonely_pushed returns_otherwise switches branches branches_part restorer jumps_only jumps_on
}

/// The rule inferred at a label, if functions are known to begin at `starts`.
fn rule(starts: &[&str], label: &str) -> Option<Rule> {
    let (begin, end) = (address("inferred_begin"), address("inferred_end"));
    // SAFETY: the code between the two labels, which is never written.
    let bytes = unsafe { std::slice::from_raw_parts(begin as *const u8, (end - begin) as usize) };
    let starts = starts.iter().map(|start| address(start)).collect();
    let rows = infer(&Code { ranges: vec![(begin, bytes.to_vec())], starts, entry: 0 });
    assert!(rows.windows(2).all(|pair| pair[0].end <= pair[1].start), "{rows:?}");
    let at = address(label);
    rows.iter().find(|row| (row.start..row.end).contains(&at)).map(|row| row.rule)
}

fn of(kind: Kind, offset: i32, addend: i32, fp: SavedFp) -> Option<Rule> {
    Rule::new(kind, offset, addend, fp)
}

#[test]
fn pushes_and_pops_are_followed() {
    for starts in [&["plain"][..], &[]] {
        assert_eq!(rule(starts, "plain"), of(Kind::Sp, 8, 0, SavedFp::Same));
        assert_eq!(rule(starts, "plain_pushed"), of(Kind::Sp, 24, 0, SavedFp::AtCfa(-16)));
        assert_eq!(rule(starts, "plain_called"), of(Kind::Sp, 48, 0, SavedFp::AtCfa(-16)));
        assert_eq!(rule(starts, "plain_popped"), of(Kind::Sp, 8, 0, SavedFp::Same));
    }
}

#[test]
fn a_frame_pointer_is_used() {
    assert_eq!(rule(&[], "framed_grown"), of(Kind::Fp, 16, 0, SavedFp::AtCfa(-16)));
}

#[test]
fn another_register_may_hold_the_frame() {
    const RBX: i32 = 3;
    assert_eq!(rule(&[], "held_aligned"), of(Kind::Register, 104, RBX, SavedFp::AtCfa(-96)));
    assert_eq!(rule(&[], "held_restored"), of(Kind::Sp, 104, 0, SavedFp::AtCfa(-96)));
}

#[test]
fn aligned_frames_say_where_they_came_from() {
    assert_eq!(rule(&[], "aligned_running"), of(Kind::FpMemory, -8, 0, SavedFp::AtFp(0)));
    assert_eq!(rule(&[], "stored_running"), of(Kind::SpMemory, 448, 8, SavedFp::Same));
}

#[test]
fn targets_of_jump_tables_have_the_frame_of_the_jump() {
    for label in ["switch_first", "switch_second"] {
        assert_eq!(rule(&[], label), of(Kind::Sp, 48, 0, SavedFp::Same), "{label}");
    }
}

#[test]
fn calls_that_do_not_return_lead_nowhere() {
    for starts in [&["fatal"][..], &["fatal", "lonely"], &[]] {
        assert_eq!(rule(starts, "lonely"), of(Kind::Sp, 8, 0, SavedFp::Same));
        assert_eq!(rule(starts, "lonely_pushed"), of(Kind::Sp, 16, 0, SavedFp::Same));
    }
}

#[test]
fn what_is_not_understood_has_no_rule() {
    for label in ["returns_otherwise", "switches", "restorer"] {
        assert_eq!(rule(&[label], label), None, "{label}");
    }
    for starts in [&["branches"][..], &[]] {
        assert_eq!(rule(starts, "branches_part"), None);
    }
    for label in ["jumps_only", "jumps_on"] {
        assert_eq!(rule(&["jumps_only", "jumps_on"], label), None, "{label}");
        assert_eq!(rule(&[], label), None, "{label}");
    }
}

#[test]
fn any_bytes_are_accepted() {
    let mut seed = 1u64;
    for length in [0, 1, 15, 16, 17, 4096] {
        let mut bytes = vec![0u8; length];
        bytes.iter_mut().for_each(|byte| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (seed >> 33) as u8;
        });
        let starts = vec![0, 0xfff, 0x1000, 0x1007, u64::MAX];
        let _ = infer(&Code { ranges: vec![(0x1000, bytes.clone())], starts: starts.clone(), entry: 0x1000 });
        let _ = infer(&Code { ranges: vec![(u64::MAX - length as u64, bytes)], starts, entry: 0 });
    }
}

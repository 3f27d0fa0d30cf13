//! The field offsets of CPython's structures, for the handler, which reads them in its own process, and for the recorder, which
//! reads those of a blocked thread from outside.
//!
//! 3.13 and later describe themselves, in `_Py_DebugOffsets` at the start of `_PyRuntime` (Include/internal/pycore_runtime.h,
//! in 3.14 pycore_debug_offsets.h). For 3.9 to 3.12 there is a table. Its offsets are those that a C compiler finds with the
//! headers of 3.9.18, 3.10.13, 3.11.7 and 3.12.1 on x86-64 (`tests/tests/python_layout.rs` checks this): pycore_runtime.h,
//! pycore_interp.h, pycore_frame.h, cpython/pystate.h, cpython/code.h, cpython/unicodeobject.h, frameobject.h. Structures
//! keep their layout within a minor version from its first release on.

#![no_std]

use unwind::Interpreted;

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The minor version of Python 3.
    pub minor: u8,
    /// How frames are linked.
    pub linkage: Linkage,
    /// How line tables are written: 1 `co_lnotab` (3.9), 2 PEP 626 (3.10), 3 the location table of 3.11.
    pub lines_form: u8,
    /// `_PyRuntimeState._finalizing`.
    pub finalizing: u16,
    /// `_PyRuntimeState.interpreters.head`.
    pub interpreters: u16,
    /// `_PyRuntimeState.gilstate.tstate_current`, before 3.12; 0 later.
    pub attached: u16,
    /// `PyInterpreterState.next`.
    pub interpreter_next: u16,
    /// `PyInterpreterState.threads.head`, before 3.11 `tstate_head`.
    pub interpreter_threads: u16,
    /// `PyThreadState.prev`.
    pub thread_previous: u16,
    /// `PyThreadState.next`.
    pub thread_next: u16,
    /// `PyThreadState.interp`.
    pub thread_interpreter: u16,
    /// `PyThreadState.thread_id`.
    pub thread_id: u16,
    /// `PyThreadState.native_thread_id`, since 3.11; 0 before.
    pub thread_native_id: u16,
    /// `PyThreadState.frame`, in 3.11 and 3.12 `cframe`, later `current_frame`.
    pub thread_frame: u16,
    /// `PyThreadState.cframe`, where there are both.
    pub thread_c_frame: u16,
    /// `PyThreadState.datastack_chunk`, followed by `datastack_top`; 0 if unknown or absent.
    pub thread_chunk: u16,
    /// `PyThreadState._status`, of 32 bits, since 3.13; meaningful if `thread_chunk` is known.
    pub thread_status: u16,
    /// `_PyCFrame.current_frame`.
    pub c_frame_current: u16,
    /// `_PyCFrame.previous`.
    pub c_frame_previous: u16,
    /// `_PyInterpreterFrame.previous`, of a frame object `f_back`.
    pub frame_previous: u16,
    /// `f_code`, since 3.13 `f_executable`.
    pub frame_code: u16,
    /// `prev_instr`, since 3.13 `instr_ptr`, of a frame object `f_lasti`.
    pub frame_instruction: u16,
    /// `_PyInterpreterFrame.owner`; in 3.11 `is_entry`.
    pub frame_owner: u16,
    /// `_PyInterpreterFrame.stacktop`.
    pub frame_stack_top: u16,
    /// The words of a frame before its local variables, since 3.11.
    pub frame_words: u16,
    /// `PyObject.ob_type`, which follows `ob_refcnt`.
    pub object_type: u16,
    /// `PyCodeObject.co_qualname`, before 3.11 `co_name`.
    pub code_name: u16,
    /// `PyCodeObject.co_filename`.
    pub code_file: u16,
    /// `PyCodeObject.co_firstlineno`.
    pub code_first_line: u16,
    /// `PyCodeObject.co_linetable`, in 3.9 `co_lnotab`.
    pub code_lines: u16,
    /// `PyCodeObject.co_code_adaptive`, since 3.11.
    pub code_bytes: u16,
    /// `PyCodeObject.co_stacksize` and `co_nlocalsplus`: a frame has the sum of both and of `frame_words`.
    pub code_stack_words: u16,
    /// `PyCodeObject.co_nlocalsplus`.
    pub code_local_words: u16,
    /// `PyASCIIObject.length`.
    pub string_length: u16,
    /// `PyASCIIObject.hash`.
    pub string_hash: u16,
    /// `PyASCIIObject.state`.
    pub string_state: u16,
    /// The first bit of `state.kind`; `compact` and `ascii` follow its three.
    pub string_kind_bit: u8,
    /// `sizeof(PyASCIIObject)`.
    pub string_ascii: u16,
    /// `sizeof(PyCompactUnicodeObject)`.
    pub string_compact: u16,
    /// `PyBytesObject.ob_size`.
    pub bytes_size: u16,
    /// `PyBytesObject.ob_sval`.
    pub bytes_data: u16,
}

/// How frames are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// Frame objects, each evaluated by a call of its own (3.9).
    Objects,
    /// The same; each call has a `CFrame` on its stack (3.10).
    ObjectsAndCFrames,
    /// Each call of the evaluation loop has a `_PyCFrame` on its stack that points to a run of frames. The run's last frame
    /// is marked (3.11).
    CFrames,
    /// The same, but the run's last frame is followed by one that belongs to the call itself (3.12).
    CFramesAndEntries,
    /// Only frames that belong to calls, no `_PyCFrame` (3.13 and later).
    Entries,
}

/// The least `owner` of a frame that is the interpreter's own: FRAME_OWNED_BY_CSTACK, or in 3.14
/// FRAME_OWNED_BY_INTERPRETER.
pub const OWN: u8 = 3;

/// Since 3.14 the lowest bits of a reference in a frame are flags of its counting.
pub const REFERENCE_FLAGS: u64 = 3;

/// The first minor version of each field order of `_Py_DebugOffsets`.
const FIRST_SELF_DESCRIBING: u8 = 13;
const LAST_SELF_DESCRIBING: u8 = 14;

const V3_9: Layout = Layout {
    minor: 9,
    linkage: Linkage::Objects,
    lines_form: 1,
    finalizing: 16,
    interpreters: 32,
    attached: 568,
    interpreter_next: 0,
    interpreter_threads: 8,
    thread_previous: 0,
    thread_next: 8,
    thread_interpreter: 16,
    thread_id: 176,
    thread_native_id: 0,
    thread_frame: 24,
    thread_c_frame: 0,
    thread_chunk: 0,
    thread_status: 0,
    c_frame_current: 0,
    c_frame_previous: 0,
    frame_previous: 24,
    frame_code: 32,
    frame_instruction: 104,
    frame_owner: 0,
    frame_stack_top: 0,
    frame_words: 0,
    object_type: 8,
    code_name: 112,
    code_file: 104,
    code_first_line: 40,
    code_lines: 120,
    code_bytes: 0,
    code_stack_words: 0,
    code_local_words: 0,
    string_length: 16,
    string_hash: 24,
    string_state: 32,
    string_kind_bit: 2,
    string_ascii: 48,
    string_compact: 72,
    bytes_size: 16,
    bytes_data: 32,
};

const V3_10: Layout = Layout {
    minor: 10,
    linkage: Linkage::ObjectsAndCFrames,
    lines_form: 2,
    thread_c_frame: 48,
    c_frame_previous: 8,
    frame_instruction: 96,
    ..V3_9
};

const V3_11: Layout = Layout {
    minor: 11,
    linkage: Linkage::CFrames,
    lines_form: 3,
    finalizing: 24,
    interpreters: 40,
    attached: 576,
    interpreter_threads: 16,
    thread_id: 152,
    thread_native_id: 160,
    thread_frame: 56,
    thread_c_frame: 56,
    thread_chunk: 296,
    c_frame_current: 8,
    c_frame_previous: 16,
    frame_previous: 48,
    frame_code: 32,
    frame_instruction: 56,
    frame_owner: 68,
    frame_stack_top: 64,
    frame_words: 9,
    code_name: 128,
    code_file: 112,
    code_first_line: 72,
    code_lines: 136,
    code_bytes: 184,
    code_stack_words: 68,
    code_local_words: 76,
    ..V3_10
};

const V3_12: Layout = Layout {
    minor: 12,
    linkage: Linkage::CFramesAndEntries,
    attached: 0,
    interpreter_threads: 72,
    thread_id: 136,
    thread_native_id: 144,
    thread_chunk: 232,
    c_frame_current: 0,
    c_frame_previous: 8,
    frame_previous: 8,
    frame_code: 0,
    frame_owner: 70,
    code_first_line: 68,
    code_bytes: 192,
    code_stack_words: 64,
    code_local_words: 72,
    string_ascii: 40,
    string_compact: 56,
    ..V3_11
};

/// The index of a frame's current instruction; that of the first one if it has not begun. `None` if there can be no such.
#[inline]
pub fn instruction_index(index: i64) -> Option<u32> {
    u32::try_from(index.max(0)).ok().filter(|index| *index <= Interpreted::LAST_OFFSET)
}

impl Layout {
    /// The [`instruction_index`] that a frame's pointer into its code means, since 3.11.
    #[inline]
    pub fn instruction(&self, pointer: u64, code: u64) -> Option<u32> {
        let start = code.wrapping_add(self.code_bytes.into());
        instruction_index(pointer.wrapping_sub(start) as i64 >> 1)
    }

    /// Where the text of a string with this state begins in its object, and its width, 1, 2 or 4 bytes a character; `None` if it
    /// is elsewhere. Names in code come from the compiler or from its files: all have this form.
    #[inline]
    pub fn text(&self, state: u64) -> Option<(u16, u32)> {
        const COMPACT: u32 = 1 << 3;
        const ASCII: u32 = 1 << 4;
        let state = state as u32 >> self.string_kind_bit;
        let width = state & 7;
        let start = if state & ASCII != 0 { self.string_ascii } else { self.string_compact };
        (state & COMPACT != 0 && matches!(width, 1 | 2 | 4)).then_some((start, width))
    }

    /// The layout of Python 3.`minor`, for versions that do not describe themselves.
    pub fn of_minor(minor: u8) -> Option<Layout> {
        [V3_9, V3_10, V3_11, V3_12].into_iter().find(|layout| layout.minor == minor)
    }

    /// The layout described by the words of `_Py_DebugOffsets`; `None` for another version, a free-threaded build, or
    /// impossible offsets.
    pub fn described(word: impl Fn(usize) -> u64) -> Option<Layout> {
        const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
        let version = word(1);
        let minor = (version >> 16) as u8;
        let is_known = (FIRST_SELF_DESCRIBING..=LAST_SELF_DESCRIBING).contains(&minor);
        if word(0) != COOKIE || version >> 24 != 3 || !is_known || word(2) != 0 {
            return None;
        }
        // The index of each structure's first word, which is its size.
        let later = minor >= 14;
        let [interpreter, thread, frame, code, object, bytes, string] =
            if later { [6, 22, 31, 39, 50, 74, 77] } else { [6, 19, 28, 34, 44, 64, 67] };
        let field = |structure: usize, number: usize| {
            let (size, offset) = (word(structure), word(structure + number));
            // All fields are words, except some small ones at the end of a frame.
            (offset < size && size <= 1 << 24).then(|| u16::try_from(offset).ok()).flatten()
        };
        // Not described: taken from the headers of 3.13.0 and 3.14.8 if the structures have the same sizes.
        let thread_chunk = match (minor, word(thread), word(code)) {
            (13, 304, 208) | (14, 832, 216) => 232,
            _ => 0,
        };
        let string_size = u16::try_from(word(string + 3)).ok().filter(|size| (40..=256).contains(size))?;
        Some(Layout {
            minor,
            linkage: Linkage::Entries,
            lines_form: 3,
            finalizing: u16::try_from(word(4)).ok().filter(|offset| u64::from(*offset) < word(3))?,
            thread_chunk,
            thread_status: 32,
            interpreters: u16::try_from(word(5)).ok().filter(|offset| u64::from(*offset) < word(3))?,
            interpreter_next: field(interpreter, 2)?,
            interpreter_threads: field(interpreter, 3)?,
            thread_previous: field(thread, 1)?,
            thread_next: field(thread, 2)?,
            thread_interpreter: field(thread, 3)?,
            thread_frame: field(thread, 4)?,
            thread_id: field(thread, 5)?,
            thread_native_id: field(thread, 6)?,
            frame_previous: field(frame, 1)?,
            frame_code: field(frame, 2)?,
            frame_instruction: field(frame, 3)?,
            frame_owner: field(frame, 5)?,
            // FRAME_SPECIALS_SIZE: the local variables begin with the last word of the structure.
            frame_words: u16::try_from(word(frame) / 8).ok()?.checked_sub(1)?,
            object_type: field(object, 1)?,
            code_name: field(code, 3)?,
            code_file: field(code, 1)?,
            code_lines: field(code, 4)?,
            code_first_line: field(code, 5)?,
            code_bytes: field(code, 9)?,
            string_state: field(string, 1)?,
            string_length: field(string, 2)?,
            // Between the described fields (cpython/unicodeobject.h).
            string_hash: field(string, 2)? + 8,
            string_ascii: string_size,
            // The UTF-8 form and its length follow.
            string_compact: string_size + 16,
            bytes_size: field(bytes, 1)?,
            bytes_data: field(bytes, 2)?,
            ..V3_12
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// `_Py_DebugOffsets` as 3.13.0 has it, up to the part that is used.
    fn words_of_3_13() -> [u64; 73] {
        let mut words = [0; 73];
        words[..3].copy_from_slice(&[u64::from_le_bytes(*b"xdebugpy"), 0x030d_00f0, 0]);
        words[3..6].copy_from_slice(&[283_320, 608, 632]);
        words[6..10].copy_from_slice(&[200_000, 7272, 7264, 7344]);
        words[19..28].copy_from_slice(&[320, 0, 8, 16, 72, 152, 160, 248, 36]);
        words[28..34].copy_from_slice(&[80, 8, 0, 56, 72, 70]);
        words[34..44].copy_from_slice(&[208, 112, 120, 128, 136, 68, 52, 96, 104, 200]);
        words[44..46].copy_from_slice(&[16, 8]);
        words[64..67].copy_from_slice(&[40, 16, 32]);
        words[67..71].copy_from_slice(&[64, 32, 16, 40]);
        words
    }

    #[test]
    fn tables_are_there_for_what_does_not_describe_itself() {
        let minors: std::vec::Vec<_> = (0..=255).filter(|minor| Layout::of_minor(*minor).is_some()).collect();
        assert_eq!(minors, [9, 10, 11, 12]);
    }

    #[test]
    fn a_description_is_believed_if_it_can_be_true() {
        let words = words_of_3_13();
        let layout = Layout::described(|at| words.get(at).copied().unwrap_or(0)).unwrap();
        assert_eq!((layout.minor, layout.linkage, layout.interpreters), (13, Linkage::Entries, 632));
        assert_eq!((layout.thread_frame, layout.thread_id, layout.frame_owner), (72, 152, 70));
        assert_eq!((layout.code_name, layout.code_first_line, layout.code_bytes), (128, 68, 200));
        assert_eq!((layout.string_hash, layout.string_ascii, layout.string_compact), (24, 40, 56));
        let spoilt = |at: usize, word: u64| {
            let mut words = words;
            *words.get_mut(at).unwrap() = word;
            Layout::described(|at| words.get(at).copied().unwrap_or(0))
        };
        // Another cookie, 3.15, free-threaded, a field outside its structure, a structure too large.
        for (at, word) in [(0, 0), (1, 0x030f_00f0), (2, 1), (23, 320), (33, u64::MAX), (28, 1 << 40)] {
            assert_eq!(spoilt(at, word), None, "{at}");
        }
    }
}

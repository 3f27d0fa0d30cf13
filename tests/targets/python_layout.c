/* Offsets in CPython's structures by its own headers: one line `FIELD OFFSET` each, with the names used in
 * `python-layout/src/lib.rs`. */

#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>

#include <internal/pycore_runtime.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_pystate.h>
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#else
#include <code.h>
#include <frameobject.h>
#endif

#define FIELD(name, type, field) printf("%s %zu\n", #name, offsetof(type, field))

int main(void) {
    PyASCIIObject string;
    unsigned state;

    FIELD(finalizing, _PyRuntimeState, _finalizing);
    FIELD(interpreters, _PyRuntimeState, interpreters.head);
    _Static_assert(offsetof(_PyRuntimeState, interpreters.main) == offsetof(_PyRuntimeState, interpreters.head) + 8, "main");
#if PY_VERSION_HEX < 0x030c0000
    FIELD(attached, _PyRuntimeState, gilstate.tstate_current);
#endif
    FIELD(interpreter_next, PyInterpreterState, next);
    FIELD(thread_previous, PyThreadState, prev);
    FIELD(thread_next, PyThreadState, next);
    FIELD(thread_interpreter, PyThreadState, interp);
    FIELD(thread_id, PyThreadState, thread_id);
#if PY_VERSION_HEX >= 0x030b0000
    FIELD(thread_native_id, PyThreadState, native_thread_id);
#endif
#if PY_VERSION_HEX >= 0x030b0000
    FIELD(interpreter_threads, PyInterpreterState, threads.head);
#else
    FIELD(interpreter_threads, PyInterpreterState, tstate_head);
    FIELD(thread_frame, PyThreadState, frame);
    FIELD(frame_previous, PyFrameObject, f_back);
    FIELD(frame_code, PyFrameObject, f_code);
    FIELD(frame_instruction, PyFrameObject, f_lasti);
    FIELD(code_name, PyCodeObject, co_name);
#endif
#if PY_VERSION_HEX >= 0x030a0000 && PY_VERSION_HEX < 0x030b0000
    FIELD(thread_c_frame, PyThreadState, cframe);
    FIELD(c_frame_previous, CFrame, previous);
#endif
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
    FIELD(thread_frame, PyThreadState, cframe);
    FIELD(c_frame_current, _PyCFrame, current_frame);
    FIELD(c_frame_previous, _PyCFrame, previous);
    FIELD(frame_code, _PyInterpreterFrame, f_code);
    FIELD(frame_instruction, _PyInterpreterFrame, prev_instr);
#endif
#if PY_VERSION_HEX >= 0x030d0000
    FIELD(thread_frame, PyThreadState, current_frame);
    FIELD(frame_code, _PyInterpreterFrame, f_executable);
    FIELD(frame_instruction, _PyInterpreterFrame, instr_ptr);
#endif
#if PY_VERSION_HEX >= 0x030b0000
    FIELD(frame_previous, _PyInterpreterFrame, previous);
#if PY_VERSION_HEX < 0x030e0000
    /* Used where data stacks are. */
    FIELD(frame_stack_top, _PyInterpreterFrame, stacktop);
    FIELD(thread_chunk, PyThreadState, datastack_chunk);
    FIELD(code_stack_words, PyCodeObject, co_stacksize);
    FIELD(code_local_words, PyCodeObject, co_nlocalsplus);
    _Static_assert(FRAME_SPECIALS_SIZE == 9, "FRAME_WORDS");
    _Static_assert(offsetof(PyThreadState, datastack_top) == offsetof(PyThreadState, datastack_chunk) + 8, "top");
    _Static_assert(offsetof(_PyStackChunk, size) == 8 && offsetof(_PyStackChunk, top) == 16, "a chunk");
    _Static_assert(offsetof(_PyStackChunk, data) == 24, "a chunk");
#endif
    FIELD(code_name, PyCodeObject, co_qualname);
    FIELD(code_bytes, PyCodeObject, co_code_adaptive);
#endif
#if PY_VERSION_HEX >= 0x030c0000
    FIELD(frame_owner, _PyInterpreterFrame, owner);
#elif PY_VERSION_HEX >= 0x030b0000
    FIELD(frame_owner, _PyInterpreterFrame, is_entry);
#endif
#if PY_VERSION_HEX >= 0x030a0000
    FIELD(code_lines, PyCodeObject, co_linetable);
#else
    FIELD(code_lines, PyCodeObject, co_lnotab);
#endif
    FIELD(object_type, PyObject, ob_type);
    _Static_assert(offsetof(PyObject, ob_type) == offsetof(PyObject, ob_refcnt) + 8, "references");
    FIELD(code_file, PyCodeObject, co_filename);
    FIELD(code_first_line, PyCodeObject, co_firstlineno);
    FIELD(string_length, PyASCIIObject, length);
    FIELD(string_hash, PyASCIIObject, hash);
    FIELD(string_state, PyASCIIObject, state);
    printf("string_ascii %zu\nstring_compact %zu\n", sizeof(PyASCIIObject), sizeof(PyCompactUnicodeObject));
    memset(&string, 0, sizeof string);
    string.state.kind = 1;
    memcpy(&state, &string.state, sizeof state);
    printf("string_kind_bit %d\n", __builtin_ctz(state));
    FIELD(bytes_size, PyBytesObject, ob_base.ob_size);
    FIELD(bytes_data, PyBytesObject, ob_sval);
    return 0;
}

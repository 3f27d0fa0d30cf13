//! An interpreter's internal functions, which only call the next interpreted function.

use std::path::Path;

use crate::file_name::base_name;

/// CPython's evaluation loop and its ways to call: whoever reads a profile of a Python program knows that it calls. What
/// does something of its own (`list_sort`, `builtin_map`) is none of these.
const CALLS: [&str; 55] = [
    "_PyEval_EvalCodeWithName",
    "_PyEval_EvalFrame",
    "_PyEval_EvalFrameDefault",
    "_PyEval_Vector",
    "_PyFunction_FastCallDict",
    "_PyFunction_Vectorcall",
    "_PyObject_Call",
    "_PyObject_CallFunction_SizeT",
    "_PyObject_CallMethodIdObjArgs",
    "_PyObject_Call_Prepend",
    "_PyObject_FastCall",
    "_PyObject_FastCallDict",
    "_PyObject_FastCallDictTstate",
    "_PyObject_MakeTpCall",
    "_PyObject_Vectorcall",
    "_PyObject_VectorcallTstate",
    "_PyVectorcall_Call",
    "PyEval_EvalFrame",
    "PyEval_EvalFrameEx",
    "PyObject_Call",
    "PyObject_CallFunction",
    "PyObject_CallFunctionObjArgs",
    "PyObject_CallMethodObjArgs",
    "PyObject_CallNoArgs",
    "PyObject_CallObject",
    "PyObject_CallOneArg",
    "PyObject_Vectorcall",
    "PyObject_VectorcallMethod",
    "PyVectorcall_Call",
    "_PyEval_EvalCode",
    "PyCFunction_Call",
    "PyEval_EvalCode",
    "PyEval_EvalCodeEx",
    "_PyObject_CallNoArg",
    "_PyObject_CallNoArgs",
    "_PyObject_CallNoArgsTstate",
    "call_function",
    "cfunction_call",
    "cfunction_vectorcall_FASTCALL",
    "cfunction_vectorcall_FASTCALL_KEYWORDS",
    "cfunction_vectorcall_NOARGS",
    "cfunction_vectorcall_O",
    "do_call_core",
    "function_code_fastcall",
    "gen_send_ex",
    "gen_send_ex2",
    "method_call",
    "method_vectorcall",
    "method_vectorcall_FASTCALL",
    "method_vectorcall_FASTCALL_KEYWORDS",
    "method_vectorcall_NOARGS",
    "method_vectorcall_O",
    "method_vectorcall_VARARGS",
    "object_vacall",
    "trace_call_function",
];

/// Whether `path` is CPython's.
pub(crate) fn is_interpreter(path: &Path) -> bool {
    let name = base_name(path);
    name.starts_with("libpython") || name.starts_with("python")
}

/// Whether the function `name` in the binary at `path` is one that leads from function to function.
pub fn is_internal(path: &Path, name: &str) -> bool {
    // What compilers make of a function has a suffix.
    let name = name.split_once('.').map_or(name, |(name, _)| name);
    CALLS.contains(&name) && is_interpreter(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_internal_and_work_is_not() {
        let library = Path::new("/usr/lib/libpython3.12.so.1.0");
        for name in ["_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault.cold", "method_vectorcall.isra.0"]
        {
            assert!(is_internal(library, name) && is_internal(Path::new("/bin/python3.11"), name), "{name}");
            assert!(!is_internal(Path::new("/usr/bin/node"), name));
        }
        assert!(!is_internal(library, "list_sort_impl") && !is_internal(library, "PyObject_Str"));
    }
}

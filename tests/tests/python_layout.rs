//! The offsets that the handler uses in CPython's structures equal those that a C compiler computes from its headers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use interpreter::python::Layout;
use object::{Object, ObjectSegment, ObjectSymbol};
use selfwind_tests::outcome::run;
use selfwind_tests::pythons::pythons;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::skip::skip;

/// An interpreter with its headers.
struct Interpreter {
    minor: u8,
    include: PathBuf,
    /// The file that has `_PyRuntime`.
    library: PathBuf,
}

fn interpreters() -> Vec<Interpreter> {
    let facts = |(minor, program): (u32, PathBuf)| {
        let print = "import os, sys, sysconfig as s; v = s.get_config_var; lib = os.path.join(v('LIBDIR'), v('INSTSONAME')); print(\
                     s.get_paths()['include'], lib if v('Py_ENABLE_SHARED') and os.path.exists(lib) \
                     else os.path.realpath(sys.executable), sep='\\n')";
        let outcome = run(Command::new(&program).args(["-c", print]));
        let mut lines = outcome.stdout.lines();
        Some(Interpreter { minor: minor as u8, include: lines.next()?.into(), library: lines.next()?.into() })
    };
    let all = pythons().into_iter().filter_map(facts);
    all.filter(|one| one.include.join("internal/pycore_runtime.h").exists()).collect()
}

/// The offsets according to the compiler.
fn by_headers(interpreter: &Interpreter) -> BTreeMap<String, u64> {
    let scratch = Scratch::new();
    let program = scratch.join("layout");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/python_layout.c");
    let mut compiler = Command::new("cc");
    compiler
        .arg("-w")
        .arg("-I")
        .arg(&interpreter.include)
        .arg("-I")
        .arg(interpreter.include.join("internal"))
        // Debian's configuration is in a directory of the architecture.
        .arg("-idirafter")
        .arg(interpreter.include.join(".."));
    let outcome = run(compiler.arg(source).arg("-o").arg(&program));
    assert_eq!(outcome.status, 0, "3.{}: {}", interpreter.minor, outcome.stderr);
    let field = |line: &str| {
        let (name, offset) = line.split_once(' ').expect("a field and its offset");
        (name.to_owned(), offset.parse().expect("a number"))
    };
    run(&mut Command::new(program)).stdout.lines().map(field).collect()
}

/// The offsets according to the interpreter itself, at the start of `_PyRuntime`.
fn described(library: &Path) -> Option<Layout> {
    let bytes = fs::read(library).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let address = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("_PyRuntime"))?.address();
    let holds = |segment: &object::Segment<'_, '_>| {
        (segment.address()..segment.address() + segment.size()).contains(&address)
    };
    let segment = file.segments().find(holds)?;
    let data = segment.data_range(address, 8 * 100).ok()??;
    Layout::described(|word| data[8 * word..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

fn by_table(layout: &Layout) -> BTreeMap<&'static str, u64> {
    let Layout { interpreters, interpreter_next, interpreter_threads, thread_previous, thread_next, .. } =
        *layout;
    let Layout { thread_interpreter, thread_id, thread_native_id, thread_frame, thread_c_frame, .. } =
        *layout;
    let Layout { c_frame_current, c_frame_previous, frame_previous, frame_code, frame_instruction, .. } =
        *layout;
    let Layout { finalizing, thread_chunk, frame_stack_top, code_stack_words, code_local_words, .. } =
        *layout;
    let Layout { frame_owner, object_type, code_name, code_file, code_first_line, code_lines, .. } = *layout;
    let Layout { code_bytes, string_length, string_hash, string_state, string_kind_bit, .. } = *layout;
    let Layout { string_ascii, string_compact, bytes_size, bytes_data, attached, .. } = *layout;
    [
        ("finalizing", finalizing),
        ("thread_chunk", thread_chunk),
        ("frame_stack_top", frame_stack_top),
        ("code_stack_words", code_stack_words),
        ("code_local_words", code_local_words),
        ("interpreters", interpreters),
        ("attached", attached),
        ("interpreter_next", interpreter_next),
        ("interpreter_threads", interpreter_threads),
        ("thread_previous", thread_previous),
        ("thread_next", thread_next),
        ("thread_interpreter", thread_interpreter),
        ("thread_id", thread_id),
        ("thread_native_id", thread_native_id),
        ("thread_frame", thread_frame),
        ("thread_c_frame", thread_c_frame),
        ("c_frame_current", c_frame_current),
        ("c_frame_previous", c_frame_previous),
        ("frame_previous", frame_previous),
        ("frame_code", frame_code),
        ("frame_instruction", frame_instruction),
        ("frame_owner", frame_owner),
        ("object_type", object_type),
        ("code_name", code_name),
        ("code_file", code_file),
        ("code_first_line", code_first_line),
        ("code_lines", code_lines),
        ("code_bytes", code_bytes),
        ("string_length", string_length),
        ("string_hash", string_hash),
        ("string_state", string_state),
        ("string_kind_bit", string_kind_bit.into()),
        ("string_ascii", string_ascii),
        ("string_compact", string_compact),
        ("bytes_size", bytes_size),
        ("bytes_data", bytes_data),
    ]
    .map(|(name, offset)| (name, offset.into()))
    .into()
}

#[test]
fn offsets_are_those_of_the_headers() {
    let interpreters = interpreters();
    if interpreters.is_empty() {
        skip("no Python 3.9 to 3.14 with its headers");
    }
    for interpreter in interpreters {
        let what = format!("3.{} {}", interpreter.minor, interpreter.library.display());
        let layout = Layout::of_minor(interpreter.minor).or_else(|| described(&interpreter.library));
        let layout = layout.unwrap_or_else(|| panic!("{what}: no layout"));
        assert_eq!(layout.minor, interpreter.minor, "{what}");
        let table = by_table(&layout);
        let headers = by_headers(&interpreter);
        assert!(headers.len() >= 24, "{what}: {headers:?}");
        for (field, offset) in headers {
            assert_eq!(table.get(field.as_str()), Some(&offset), "{what}: {field}");
        }
    }
}

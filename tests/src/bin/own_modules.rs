//! Loads the libraries on its command line and prints what findshlibs reports as loaded: one line each with load bias,
//! build-id (`-` for none), first address and end of its segments, and path. Then it works for a while.

use std::ffi::CString;
use std::time::{Duration, Instant};

use findshlibs::{Segment, SharedLibrary, SharedLibraryId, TargetSharedLibrary};

fn main() {
    for library in std::env::args().skip(1) {
        let name = CString::new(library.clone()).expect("no NUL in an argument");
        // SAFETY: libraries that may be loaded at any time. Each is asked for a symbol, as it would be by who uses it.
        let handle = unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            libc::dlsym(handle, c"any".as_ptr());
            handle
        };
        assert!(!handle.is_null(), "{library} was not loaded");
    }
    TargetSharedLibrary::each(|library| {
        let id = match library.id() {
            Some(SharedLibraryId::GnuBuildId(id)) => id.iter().map(|byte| format!("{byte:02x}")).collect(),
            _ => String::from("-"),
        };
        let bounds = library.segments().filter(|segment| segment.is_load());
        let bounds: Vec<_> =
            bounds.map(|segment| (segment.actual_virtual_memory_address(library).0, segment.len())).collect();
        let start = bounds.iter().map(|(start, _)| *start).min().unwrap_or(0);
        let end = bounds.iter().map(|(start, length)| start + length).max().unwrap_or(0);
        let path = library.name().to_string_lossy();
        println!("{:x} {id} {start:x} {end:x} {path}", library.virtual_memory_bias().0);
    });
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        std::hint::black_box(begun);
    }
}

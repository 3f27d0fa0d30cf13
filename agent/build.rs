//! Link arguments that make the library load into any dynamic program: no needed library, no lazy binding,
//! never unloaded. rustc's own export list already limits the exports to the `#[no_mangle]` items.
//!
//! Only the profile `agent` aborts on panic and is `no_std`. Any other profile builds the same code against
//! std, for the compiler's checks alone, and links it like any library.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // <target>/<profile>/build/<package>-<hash>/out: cargo tells a build script the profile only in this path.
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    if profile.is_none_or(|name| name != "agent") {
        return;
    }
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-z,defs",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,-z,nodelete",
        "-Wl,-z,noexecstack",
        "-Wl,--hash-style=both",
        "-Wl,-Bsymbolic",
        "-Wl,-soname,libselfwind_agent.so",
        // Where a recorder enters that has put the library into a running process.
        "-Wl,-e,selfwind_attached",
    ] {
        println!("cargo:rustc-link-arg-cdylib={argument}");
    }
}

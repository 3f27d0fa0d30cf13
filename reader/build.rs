//! Builds the preloaded agent, in both of its kinds, and hands it to `include_bytes!`, so that one file is the whole program.
//!
//! The agent is another kind of artefact (`no_std`, `panic = "abort"`, its own profile), so it is built by a
//! second cargo in its own target directory: the outer one holds the lock on the usual directory.

use std::env;
use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("..");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for input in ["agent", "unwind", "python-layout", "shm-format", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", root.join(input).display());
    }
    println!("cargo:rerun-if-env-changed=SELFWIND_SKIP_AGENT");
    let is_skipped = env::var_os("SELFWIND_SKIP_AGENT").is_some_and(|value| value != "0");
    // The second one stands in front of the program's allocator, locks and mappings, too.
    let kinds = [
        ("agent", "SELFWIND_AGENT", ""),
        ("agent-probes", "SELFWIND_PROBES_AGENT", "allocations,locks,mappings"),
    ];
    // One target directory, so that the second kind finds what both need.
    let target = out.join("agent-target");
    for (name, variable, features) in kinds {
        let embedded = out.join(format!("{name}.so"));
        if is_skipped {
            fs::write(&embedded, b"")?;
        } else {
            fs::copy(build_agent(&root, &target, features)?, &embedded)?;
        }
        println!("cargo:rustc-env={variable}_FILE={}", embedded.display());
        let mut hasher = DefaultHasher::new();
        hasher.write(&fs::read(&embedded)?);
        println!("cargo:rustc-env={variable}_HASH={:016x}", hasher.finish());
    }
    Ok(())
}

fn build_agent(root: &Path, target: &Path, features: &str) -> Result<PathBuf, Box<dyn Error>> {
    let mut cargo = Command::new(env::var_os("CARGO").ok_or("CARGO is not set")?);
    cargo.args(["build", "--package", "selfwind-agent", "--profile", "agent", "--features", features]);
    cargo.arg("--manifest-path").arg(root.join("Cargo.toml"));
    cargo.arg("--target-dir").arg(target);
    // Settings of the outer build that are not meant for the agent: flags, target, lint driver.
    for name in
        ["CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "RUSTC_WORKSPACE_WRAPPER"]
    {
        cargo.env_remove(name);
    }
    let output = cargo.output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("building the agent failed ({}):\n{text}", output.status).into());
    }
    let library = target.join("agent").join("libselfwind_agent.so");
    if !library.is_file() {
        return Err(format!("the agent's build made no {}", library.display()).into());
    }
    Ok(library)
}

//! Builds the hazard programs, each once, into the target directory, with the machine's C compilers.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};

use crate::binary::target_dir;
use crate::skip;

/// How one program is built.
#[derive(Clone, Debug)]
pub struct Target {
    source: String,
    output: String,
    compiler: &'static str,
    flags: Vec<String>,
}

/// Whether `compiler` is installed.
pub fn is_installed(compiler: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(compiler).exists())
}

/// Where the sources lie.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("targets")
}

impl Target {
    fn new(name: &str, extension: &str, compiler: &'static str, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|f| f.to_string()).collect();
        Self { source: format!("{name}.{extension}"), output: name.to_string(), compiler, flags }
    }

    /// `targets/NAME.c` as a dynamic glibc program, optimised and with debug info.
    pub fn c(name: &str) -> Self {
        Self::new(name, "c", "cc", &["-std=gnu11", "-O2", "-g", "-pthread", "-Wall"])
    }

    /// `detector/NAME.c`, as a shared object.
    pub fn preload(name: &str) -> Self {
        Self::new(&format!("../detector/{name}"), "c", "cc", &["-std=gnu11", "-O2", "-g", "-Wall"])
            .shared(&format!("{name}.so"))
    }

    /// `plugins/NAME.c`, a plug-in.
    pub fn plugin(name: &str) -> Self {
        let flags = ["-std=gnu11", "-O2", "-g", "-Wall"];
        Self::new(&format!("../../plugins/{name}"), "c", "cc", &flags)
            .shared(&format!("{name}.so"))
            .with_header()
    }

    /// `targets/NAME.cpp`.
    pub fn cpp(name: &str) -> Self {
        Self::new(name, "cpp", "c++", &["-std=c++17", "-O2", "-g", "-pthread", "-Wall"])
    }

    /// `targets/NAME.rs`, optimised and with debug info.
    pub fn rust(name: &str) -> Self {
        Self::new(name, "rs", "rustc", &["--edition=2024", "-O", "-g"])
    }

    /// With agent/include/selfwind.h.
    pub fn with_header(mut self) -> Self {
        self.flags.push(format!("-I{}/../agent/include", env!("CARGO_MANIFEST_DIR")));
        self
    }

    /// Built by another compiler; the output's name says so.
    pub fn by(mut self, compiler: &'static str) -> Self {
        self.compiler = compiler;
        self.output = format!("{}-{compiler}", self.output);
        self
    }

    /// The same program against musl.
    pub fn musl(self) -> Self {
        self.by("musl-gcc")
    }

    /// Whether it is built against musl.
    pub fn is_musl(&self) -> bool {
        self.compiler == "musl-gcc"
    }

    /// Statically linked.
    pub fn fixed(self) -> Self {
        self.with("static", &["-static"])
    }

    /// With more flags, as a variant with this name.
    pub fn with(mut self, variant: &str, flags: &[&str]) -> Self {
        self.output = format!("{}-{variant}", self.output);
        self.flags.extend(flags.iter().map(|f| f.to_string()));
        self
    }

    /// As a shared object with exactly this file name, which may have directories in front.
    pub fn shared(mut self, file: &str) -> Self {
        self.output = file.to_string();
        self.flags.extend(["-shared", "-fPIC"].map(str::to_string));
        self
    }

    /// As a file with exactly this name, with more flags.
    pub fn named(mut self, file: &str, flags: &[&str]) -> Self {
        self.output = file.to_string();
        self.flags.extend(flags.iter().map(|f| f.to_string()));
        self
    }

    /// `targets/bare.c` without call frame information, and with it: the same code under the same build-id.
    pub fn bare_and_described() -> [PathBuf; 2] {
        let id = "-Wl,--build-id=0x5e1f0123456789abcdef";
        let built = |name, tables| {
            Self::c("bare").named(name, &["-shared", "-fPIC", "-nostdlib", "-g0", id, tables]).build()
        };
        [
            built("bare/bare.so", "-fno-asynchronous-unwind-tables"),
            built("bare/described.so", "-fasynchronous-unwind-tables"),
        ]
    }

    /// Builds it unless it is there and newer than its sources; returns its path. A failure fails the test.
    pub fn build(&self) -> PathBuf {
        let output = directory().join(&self.output);
        let parent = output.parent().expect("outputs lie in a directory");
        fs::create_dir_all(parent).expect("the target directory is writable");
        let stamp = append(&output, ".command");
        // Tests run in parallel: one builds, the others wait.
        let lock = File::create(append(&output, ".lock")).expect("the target directory is writable");
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, e)| e).expect("flock");
        let temporary = append(&output, ".new");
        let command = self.command(&temporary);
        let line = format!("{command:?}");
        if fs::read_to_string(&stamp).is_ok_and(|old| old == line)
            && is_newer(&output, &sources().join(&self.source))
        {
            return output;
        }
        run(command);
        fs::rename(&temporary, &output).expect("just built");
        fs::write(&stamp, line).expect("the target directory is writable");
        output
    }

    fn command(&self, output: &Path) -> Command {
        let mut command = Command::new(self.compiler);
        let source = sources().join(&self.source);
        if self.compiler == "rustc" {
            command.args(&self.flags).arg(source).arg("-o").arg(output);
            return command;
        }
        // Libraries come after what needs them.
        let (libraries, flags): (Vec<_>, Vec<_>) =
            self.flags.iter().partition(|f| f.starts_with("-l") || f.ends_with(".so"));
        command.args(flags).arg("-I").arg(sources()).arg(source).arg("-o").arg(output).args(libraries);
        command
    }
}

/// Where the built programs lie.
pub fn directory() -> PathBuf {
    target_dir().join("hazards")
}

fn append(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn is_newer(output: &Path, source: &Path) -> bool {
    let modified =
        |path: &Path| fs::metadata(path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let headers = ["burn.h", "../../agent/include/selfwind.h", "../../plugins/luajit_objects.h"]
        .map(|header| modified(&sources().join(header)));
    let newest = headers.into_iter().fold(modified(source), SystemTime::max);
    modified(output) >= newest && output.exists()
}

fn run(mut command: Command) {
    let output = match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            skip::leave(format_args!("{} is not installed", command.get_program().display()))
        }
        output => output.unwrap_or_else(|error| panic!("{command:?}: {error}")),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
}

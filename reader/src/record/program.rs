//! Finds the program to record, and checks how it gets the agent.
//!
//! This is checked before the program is started, so that an impossible recording is an error instead of an empty profile.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getegid, geteuid};

use crate::sampling::sources::Sources;

/// Why a program cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// Not on PATH, or no such file.
    #[error("{program}: command not found; check the name and PATH")]
    Missing {
        /// As given.
        program: String,
    },
    /// It exists but cannot be executed.
    #[error("{path}: cannot execute: {why}")]
    Unexecutable {
        /// The file.
        path: String,
        /// The cause, and what to do.
        why: String,
    },
    /// It would run, but without the agent.
    #[error("{path}: cannot be preloaded: {why}")]
    Unpreloadable {
        /// The file.
        path: String,
        /// The cause, and what to do.
        why: String,
    },
}

impl ProgramError {
    /// The exit status that a shell gives for it; 125, as other wrappers use, if selfwind itself refuses.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Missing { .. } => 127,
            Self::Unexecutable { .. } => 126,
            Self::Unpreloadable { .. } => 125,
        }
    }
}

/// A program that can be recorded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The file to execute.
    pub(crate) path: PathBuf,
    pub(super) kind: Kind,
}

/// How a program is started, and gets the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its loader, or that of its interpreter, loads the agent.
    Loaded,
    /// A text file without `#!`: run by /bin/sh, as execvp does.
    ShellScript,
    /// It is statically linked, or its interpreter is: the agent is injected into the running process.
    Static,
}

impl Program {
    /// Fails if a program without a loader cannot be recorded with `sources`.
    pub(crate) fn check(&self, sources: &Sources) -> Result<(), ProgramError> {
        if self.kind != Kind::Static
            || sources.can_be_injected() && sources.interposed().is_empty() && !sources.need_start()
        {
            return Ok(());
        }
        Err(ProgramError::Unpreloadable {
            path: self.path.display().to_string(),
            why: format!(
                "it is statically linked, so no loader runs that could load the agent, and an injected one samples by CPU timers only; use -e cpu instead of -e {}",
                sources.name()
            ),
        })
    }
}

/// Finds `name` as a shell does, and checks the file.
pub(crate) fn find(name: &OsStr, path_variable: Option<&OsStr>) -> Result<Program, ProgramError> {
    let path = resolve(name, path_variable)?;
    let kind = inspect(&path, 0)?;
    Ok(Program { path, kind })
}

fn resolve(name: &OsStr, path_variable: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    let not_found = || ProgramError::Missing { program: name.to_string_lossy().into_owned() };
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        return executable(Path::new(name));
    }
    let default = OsString::from("/usr/local/bin:/usr/bin:/bin");
    let mut denied = None;
    for directory in std::env::split_paths(path_variable.unwrap_or(&default)) {
        let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        match executable(&directory.join(name)) {
            Ok(path) => return Ok(path),
            Err(error @ ProgramError::Unexecutable { .. }) => denied = denied.or(Some(error)),
            Err(_) => {}
        }
    }
    Err(denied.unwrap_or_else(not_found))
}

fn executable(path: &Path) -> Result<PathBuf, ProgramError> {
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            ProgramError::Missing { program: path.display().to_string() }
        }
        _ => not_executable(path, error.to_string()),
    })?;
    if metadata.is_dir() {
        return Err(not_executable(path, "it is a directory".into()));
    }
    if !metadata.is_file() || access(path, AccessFlags::X_OK).is_err() || metadata.mode() & 0o111 == 0 {
        return Err(not_executable(path, "permission denied; `chmod +x` makes it executable".into()));
    }
    Ok(path.to_owned())
}

fn not_executable(path: &Path, why: String) -> ProgramError {
    ProgramError::Unexecutable { path: path.display().to_string(), why }
}

/// Checks a file and, for a script, its interpreter.
fn inspect(path: &Path, depth: u32) -> Result<Kind, ProgramError> {
    let refuse =
        |why: &str| Err(ProgramError::Unpreloadable { path: path.display().to_string(), why: why.into() });
    let file = match File::open(path) {
        Ok(file) => file,
        // Executable but not readable: it can run, but not be checked.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Kind::Loaded),
        Err(error) => return Err(not_executable(path, error.to_string())),
    };
    if gains_privileges(&file, path) {
        return refuse(
            "it is setuid, setgid or has file capabilities, and the loader ignores LD_PRELOAD for such programs; run selfwind as the user it changes to, or record a copy without these bits",
        );
    }
    let mut head = [0; 256];
    let len = read_at(&file, &mut head, 0);
    let head = &head[..len];
    if let Some(line) = head.strip_prefix(b"#!") {
        return match interpreter(line) {
            // The kernel follows a few levels, then gives up with ELOOP.
            Some(interpreter) if depth < 4 => {
                let interpreter = executable(&interpreter)
                    .map_err(|error| not_executable(path, format!("its interpreter: {error}")))?;
                inspect(&interpreter, depth + 1).map(|kind| match kind {
                    Kind::ShellScript => Kind::Loaded,
                    kind => kind,
                })
            }
            Some(_) => Err(not_executable(path, "too many nested interpreters".into())),
            None => Err(not_executable(path, "its `#!` line names no interpreter".into())),
        };
    }
    if !head.starts_with(b"\x7fELF") {
        let first_line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
        if first_line.contains(&0) {
            return Err(not_executable(path, "neither an ELF program nor a script".into()));
        }
        return inspect(Path::new("/bin/sh"), depth + 1).map(|_| Kind::ShellScript);
    }
    match Elf::parse(&file, head) {
        None => Err(not_executable(path, "its ELF header is damaged".into())),
        Some(Elf { native: false, .. }) => {
            refuse("it is not an x86-64 program, and the agent is one; build it for x86-64")
        }
        Some(Elf { interpreted: false, .. }) if !is_loader(path) => Ok(Kind::Static),
        Some(_) => Ok(Kind::Loaded),
    }
}

fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| b" \t\r".contains(byte)).filter(|word| !word.is_empty());
    words.next().map(|word| PathBuf::from(OsStr::from_bytes(word)))
}

/// True for the loader itself: `ld.so PROGRAM` has no interpreter but does preload.
fn is_loader(path: &Path) -> bool {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real.file_name().is_some_and(|name| {
        [&b"ld-linux"[..], b"ld-musl", b"ld-2", b"ld.so"]
            .iter()
            .any(|prefix| name.as_bytes().starts_with(prefix))
    })
}

/// True if exec changes the privileges of the process: the loader then runs in secure mode.
fn gains_privileges(file: &File, path: &Path) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let mode = metadata.mode();
    let other_user = mode & 0o4000 != 0 && metadata.uid() != geteuid().as_raw();
    let other_group = mode & 0o2010 == 0o2010 && metadata.gid() != getegid().as_raw();
    // File capabilities give root nothing new, so its loader does not run in secure mode.
    let capabilities = !geteuid().is_root()
        && rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64][..]).is_ok_and(|len| len > 0);
    other_user || other_group || capabilities
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) | Err(_) => break,
            Ok(n) => got += n,
        }
    }
    got
}

/// The relevant fields of an ELF header (System V ABI, chapter 4).
struct Elf {
    /// 64-bit, little endian, x86-64.
    native: bool,
    /// Has a PT_INTERP: a loader runs first.
    interpreted: bool,
}

impl Elf {
    fn parse(file: &File, head: &[u8]) -> Option<Self> {
        const X86_64: u16 = 62;
        const PT_INTERP: u32 = 3;
        let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
        let (class, data) = (*head.get(4)?, *head.get(5)?);
        if class != 2 || data != 1 || half(18)? != X86_64 {
            return Some(Self { native: false, interpreted: true });
        }
        let table = u64::from_le_bytes(head.get(32..40)?.try_into().ok()?);
        let (entry_len, entries) = (half(54)?, half(56)?);
        if entry_len < 56 {
            return None;
        }
        let interpreted = (0..u64::from(entries)).any(|i| {
            let mut kind = [0; 4];
            let at = table.saturating_add(i * u64::from(entry_len));
            at < i64::MAX as u64 && read_at(file, &mut kind, at) == 4 && u32::from_le_bytes(kind) == PT_INTERP
        });
        Some(Self { native: true, interpreted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("selfwind-program-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        fn find(&self, name: &str) -> Result<Program, (u8, String)> {
            find(OsStr::new(name), Some(self.0.as_os_str())).map_err(|e| (e.exit_code(), e.to_string()))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn elf(machine: u16, segment: u32) -> Vec<u8> {
        let mut bytes = vec![0u8; 120];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&segment.to_le_bytes());
        bytes
    }

    #[test]
    fn finds_programs_and_scripts() {
        let dir = Scratch::new("find");
        let dynamic = dir.file("dynamic", &elf(62, 3), 0o755);
        assert_eq!(dir.find("dynamic"), Ok(Program { path: dynamic.clone(), kind: Kind::Loaded }));
        let script = dir.file("script", format!("#! {} -x\n", dynamic.display()).as_bytes(), 0o755);
        assert_eq!(dir.find("script"), Ok(Program { path: script, kind: Kind::Loaded }));
        let text = dir.file("text", b"echo hello\n", 0o755);
        assert_eq!(dir.find("text"), Ok(Program { path: text, kind: Kind::ShellScript }));
        let fixed = dir.file("fixed", &elf(62, 1), 0o755);
        let fixed_script = dir.file("fixed-script", format!("#!{}\n", fixed.display()).as_bytes(), 0o755);
        for (name, path) in [("fixed", fixed), ("fixed-script", fixed_script)] {
            let program = dir.find(name).unwrap();
            assert_eq!(program, Program { path, kind: Kind::Static });
            assert!(program.check(&"cpu".parse().unwrap()).is_ok());
            for sources in ["offcpu", "cpu,alloc:all", "tp:a:b"] {
                let sources: Sources = sources.parse().unwrap();
                let refused = program.check(&sources).unwrap_err().to_string();
                let advice = format!("use -e cpu instead of -e {}", sources.name());
                assert!(refused.contains("statically linked") && refused.ends_with(&advice), "{refused}");
            }
        }
    }

    #[test]
    fn refuses_with_the_status_of_a_shell_and_a_way_out() {
        let dir = Scratch::new("refuse");
        dir.file("foreign", &elf(183, 3), 0o755);
        dir.file("plain", b"text", 0o644);
        dir.file("garbage", b"\0\x01\x02", 0o755);
        dir.file("short", b"\x7fELF\x02", 0o755);
        dir.file("orphan", b"#!/nonexistent/interpreter\n", 0o755);
        fs::create_dir(dir.0.join("folder")).unwrap();
        for (name, status, part) in [
            ("absent", 127, "command not found"),
            ("", 127, "command not found"),
            ("/nonexistent/x", 127, "command not found"),
            ("foreign", 125, "not an x86-64 program"),
            ("plain", 126, "permission denied"),
            ("garbage", 126, "neither an ELF program nor a script"),
            ("short", 126, "damaged"),
            ("orphan", 126, "interpreter"),
            ("folder", 126, "directory"),
        ] {
            let (got, text) = dir.find(name).unwrap_err();
            assert_eq!(
                (got, text.contains(part), text.contains('\n')),
                (status, true, false),
                "{name}: {text}"
            );
        }
    }

    #[test]
    fn a_script_that_names_itself_ends() {
        let dir = Scratch::new("loop");
        let path = dir.0.join("self");
        dir.file("self", format!("#!{}\n", path.display()).as_bytes(), 0o755);
        assert_eq!(dir.find("self").unwrap_err().0, 126);
    }
}

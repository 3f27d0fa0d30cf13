//! Plug-ins: shared objects that are preloaded together with the agent (docs/plug-ins.md).

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why the loader could not load a file as a plug-in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginError {
    #[error("{0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    #[error("{0} is not a shared object for this machine; build it with `cc -shared -fPIC`")]
    NoLibrary(PathBuf),
    #[error("{0}: the loader does not accept a path that contains a space or a colon; move the file")]
    Separator(PathBuf),
}

/// Checks that a plug-in can be loaded, and returns its absolute path.
pub(crate) fn plugin(path: &str) -> Result<PathBuf, PluginError> {
    let absolute =
        std::fs::canonicalize(path).map_err(|error| PluginError::Unreadable(path.into(), error))?;
    if absolute.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(PluginError::Separator(absolute));
    }
    match is_library(&absolute) {
        Ok(true) => Ok(absolute),
        Ok(false) => Err(PluginError::NoLibrary(absolute)),
        Err(error) => Err(PluginError::Unreadable(absolute, error)),
    }
}

/// Checks the ELF header: class, byte order, type and machine.
fn is_library(path: &Path) -> std::io::Result<bool> {
    const DYNAMIC: u8 = 3;
    const MACHINE: u8 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut head = Vec::new();
    File::open(path)?.take(20).read_to_end(&mut head)?;
    Ok(head.len() == 20
        && head.starts_with(&[0x7f, b'E', b'L', b'F', 2, 1])
        && head[16..] == [DYNAMIC, 0, MACHINE, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loader_would_not_take_is_refused_by_name() {
        let scratch = std::env::temp_dir().join(format!("selfwind-plugin-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = scratch.join(name);
            std::fs::write(&path, bytes).unwrap();
            plugin(path.to_str().unwrap()).map_err(|error| error.to_string())
        };
        let program = std::env::current_exe().unwrap();
        let mut head = std::fs::read(program).unwrap()[..64].to_vec();
        head[16] = 3;
        assert!(write("good.so", &head).is_ok());
        assert!(write("a b.so", &head).unwrap_err().contains("a space or a colon"));
        head[18] = 3;
        assert!(write("other.so", &head).unwrap_err().contains("cc -shared"));
        assert!(write("short.so", &head[..10]).unwrap_err().contains("cc -shared"));
        assert!(plugin("/nowhere/x.so").unwrap_err().to_string().contains("/nowhere/x.so: No such file"));
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}

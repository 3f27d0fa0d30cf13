//! Whose samples they are: processes and their threads.

use std::path::Path;

use crate::file_name::base_name;
use crate::profile_file::ProcessInfo;

/// A process image.
#[derive(Debug, Clone)]
pub struct Process {
    /// What was recorded of it.
    pub info: ProcessInfo,
}

impl Process {
    /// A short name: that by which it was started (such as `redis-server`, though the executable may have many names), or by which
    /// it calls itself (`postgres: checkpointer`), else that of the executable.
    pub fn name(&self) -> String {
        let called = self.info.argv.first().and_then(|argument| match argument.split_once(' ') {
            Some((word, _)) if word.ends_with(':') => Some(argument.clone()),
            // All arguments as one: Chromium's processes do that.
            Some(_) => None,
            None if argument == "/proc/self/exe" => None,
            None => Some(base_name(Path::new(argument))),
        });
        // The name of a login shell begins with `-`.
        let called = called.map(|name| name.trim_start_matches('-').to_owned());
        let name = called.filter(|name| !name.is_empty()).unwrap_or_else(|| base_name(&self.info.exe));
        if name.is_empty() { "?".into() } else { name }
    }
}

/// A thread of a process.
#[derive(Debug, Clone)]
pub struct Thread {
    /// Index in [`super::Profile::processes`].
    pub process: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Number of the thread in its process.
    pub seq: u32,
    /// Its last known name.
    pub name: String,
}

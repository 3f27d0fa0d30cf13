//! Snapshot files next to a profile: FILE.1, FILE.2 and so on, each a complete profile.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use selfwind_profile::file_name::with_suffix;
use selfwind_profile::profile_file::{Event, ProfileWriter};
use selfwind_profile::staged_file::StagedFile;

/// The snapshot files of one recording.
#[derive(Debug)]
pub(super) struct Numbered {
    /// The profile that is written at the end.
    profile: PathBuf,
    taken: u32,
}

impl Numbered {
    /// Without any snapshot yet.
    pub(super) fn beside(profile: &Path) -> Self {
        Self { profile: profile.to_owned(), taken: 0 }
    }

    /// The path of the next snapshot.
    pub(super) fn next(&mut self) -> PathBuf {
        self.taken += 1;
        self.name(self.taken)
    }

    fn name(&self, number: u32) -> PathBuf {
        with_suffix(&self.profile, format!(".{number}"))
    }

    /// Writes the next snapshot: the first `written` bytes of a growing profile, which are complete blocks, and the events `ends`.
    /// The file gets its name once it is complete.
    pub(super) fn copy(&mut self, growing: &Path, written: u64, ends: &[Event]) -> anyhow::Result<PathBuf> {
        let path = self.next();
        let cannot = || format!("{}: cannot write the snapshot", path.display());
        let mut file = StagedFile::create(&path).with_context(cannot)?;
        let copied = File::open(growing)
            .and_then(|growing| io::copy(&mut growing.take(written), &mut file))
            .with_context(cannot)?;
        anyhow::ensure!(copied == written, "{}: the profile was truncated by another program", cannot());
        let mut writer = ProfileWriter::go_on(&mut file, written);
        ends.iter()
            .try_for_each(|end| writer.push(end))
            .and_then(|()| writer.flush())
            .with_context(cannot)?;
        file.commit().with_context(cannot)?;
        Ok(path)
    }

    /// A line that names the snapshots, if there are any.
    pub(super) fn summary(&self) -> Option<String> {
        let (first, last) = (self.name(1), self.name(self.taken));
        match self.taken {
            0 => None,
            1 => Some(format!("snapshot: {}", first.display())),
            _ => Some(format!("snapshots: {} to {}", first.display(), last.display())),
        }
    }
}

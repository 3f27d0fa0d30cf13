//! Snapshots beside a profile: FILE.1, FILE.2 and so on, each a whole profile.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use selfwind_profile::file_name::with_suffix;
use selfwind_profile::profile_file::{Event, ProfileWriter};
use selfwind_profile::staged_file::StagedFile;

/// The snapshots of one recording.
#[derive(Debug)]
pub(super) struct Numbered {
    /// The profile that is written at the end.
    profile: PathBuf,
    taken: u32,
}

impl Numbered {
    /// None yet.
    pub(super) fn beside(profile: &Path) -> Self {
        Self { profile: profile.to_owned(), taken: 0 }
    }

    /// The name of the next one.
    pub(super) fn next(&mut self) -> PathBuf {
        self.taken += 1;
        self.name(self.taken)
    }

    fn name(&self, number: u32) -> PathBuf {
        with_suffix(&self.profile, format!(".{number}"))
    }

    /// Makes the next one of the first `written` bytes of a growing profile, which are whole blocks, and of the events that
    /// end it. The file has its name once it is whole.
    pub(super) fn copy(&mut self, growing: &Path, written: u64, ends: &[Event]) -> anyhow::Result<PathBuf> {
        let path = self.next();
        let cannot = || format!("{}: cannot write the snapshot", path.display());
        let mut file = StagedFile::create(&path).with_context(cannot)?;
        let copied = File::open(growing)
            .and_then(|growing| io::copy(&mut growing.take(written), &mut file))
            .with_context(cannot)?;
        anyhow::ensure!(copied == written, "{}: the profile was made shorter meanwhile", cannot());
        let mut writer = ProfileWriter::go_on(&mut file, written);
        ends.iter()
            .try_for_each(|end| writer.push(end))
            .and_then(|()| writer.flush())
            .with_context(cannot)?;
        file.commit().with_context(cannot)?;
        Ok(path)
    }

    /// Which ones there are, if any.
    pub(super) fn summary(&self) -> Option<String> {
        let (first, last) = (self.name(1), self.name(self.taken));
        match self.taken {
            0 => None,
            1 => Some(format!("snapshot: {}", first.display())),
            _ => Some(format!("snapshots: {} to {}", first.display(), last.display())),
        }
    }
}

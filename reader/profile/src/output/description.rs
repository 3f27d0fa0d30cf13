//! The description of a format: everything that the rest of the program knows about it.

use std::io::{self, Write};

use super::grouping::Grouping;
use crate::profile::Profile;

/// A format. Each format's file defines one, `DESCRIPTION`.
pub(super) struct Description {
    /// The name used on the command line.
    pub(super) name: &'static str,
    /// The extensions that select it, without the leading dot; the usual one first.
    pub(super) extensions: &'static [&'static str],
    /// A default file name of this format, if it selects the format too.
    pub(super) file_name: Option<&'static str>,
    /// It is binary.
    pub(super) is_binary: bool,
    /// The command that shows a file in this format, if that takes another program.
    pub(super) shown_by: Option<&'static str>,
    /// The function that writes it.
    pub(super) writer: Writer,
}

/// Writes a profile; formats that cannot group stacks ignore how they are grouped.
type WriteProfile = fn(&Profile, Grouping, &mut dyn Write) -> io::Result<()>;

/// The input of a format.
#[derive(Clone, Copy)]
pub(super) enum Writer {
    /// A profile with names.
    Named(WriteProfile),
    /// The same, with the fields of tracepoint events.
    Detailed(WriteProfile),
    /// That, and every sample at its time.
    Timed(WriteProfile),
    /// The recording as it is: readers of the format look up names themselves.
    Recorded,
}

impl Description {
    /// A text for any viewer.
    pub(super) const fn text(
        name: &'static str,
        extensions: &'static [&'static str],
        writer: Writer,
    ) -> Self {
        Self { name, extensions, file_name: None, is_binary: false, shown_by: None, writer }
    }

    /// Length of the extension by which a file name selects this format; 0 if it does not.
    pub(super) fn matched(&self, name: &str) -> usize {
        let fits = |extension: &&&str| {
            let stem = name.strip_suffix(**extension).and_then(|stem| stem.strip_suffix('.'));
            stem.is_some_and(|stem| !stem.is_empty())
        };
        let longest = self.extensions.iter().filter(fits).map(|extension| extension.len()).max();
        let whole = self.file_name.filter(|own| *own == name).map(str::len);
        longest.max(whole).unwrap_or(0)
    }
}

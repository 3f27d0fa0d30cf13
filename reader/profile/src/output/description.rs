//! The description of a format: everything that the rest of the program knows about it.

use std::io::{self, Write};

use super::Grouping;
use crate::profile::Profile;

/// A format. Its file has one, `DESCRIPTION`.
pub(super) struct Description {
    /// The name used on the command line.
    pub(super) name: &'static str,
    /// The extensions that ask for it, without their first dot; the usual one first.
    pub(super) extensions: &'static [&'static str],
    /// The name that files in it have without any choice of their user's, if it asks for the format, too.
    pub(super) file_name: Option<&'static str>,
    /// A terminal cannot show it.
    pub(super) is_binary: bool,
    /// The command that shows a file in this format, where that is another program's and reads nothing else.
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
    /// A text that any program may show.
    pub(super) const fn text(
        name: &'static str,
        extensions: &'static [&'static str],
        writer: Writer,
    ) -> Self {
        Self { name, extensions, file_name: None, is_binary: false, shown_by: None, writer }
    }

    /// Bytes of the extension by which a file name asks for this format; 0 if it asks for none.
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

//! Standard output, for commands that print data. What cannot be written there must never fail without being named: the
//! error of a full disk behind `>` has no path of its own.

use std::io::{self, Write};

/// Standard output whose errors say so.
#[derive(Debug)]
pub(crate) struct StandardOutput(io::Stdout);

impl StandardOutput {
    pub(crate) fn new() -> Self {
        Self(io::stdout())
    }
}

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// The same kind of error, in words that name the output.
fn named(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ (io::ErrorKind::Interrupted | io::ErrorKind::BrokenPipe) => kind.into(),
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}

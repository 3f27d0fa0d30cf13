//! The terminal: its size, its colours, and text fitted to it.

use std::borrow::Cow;
use std::env;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Width used if the output is not a terminal and `COLUMNS` is not set.
const PIPE_WIDTH: usize = 120;
/// Minimum width, even on narrower terminals.
const NARROWEST: usize = 40;

/// The properties of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Screen {
    /// Columns.
    pub(crate) width: usize,
    /// Rows; none if the output is not a terminal.
    pub(crate) height: Option<usize>,
    /// True if escape sequences for colours may be written.
    pub(crate) colour: bool,
}

impl Screen {
    /// The properties of stdout. There are no colours with `NO_COLOR`, `CLICOLOR=0`, `TERM=dumb` or on pipes; `COLUMNS` sets the
    /// width of a pipe.
    pub(crate) fn of_stdout() -> Self {
        let stdout = io::stdout();
        let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        if !stdout.is_terminal() {
            let columns = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
            let width = columns.unwrap_or(PIPE_WIDTH).max(NARROWEST);
            return Screen { width, height: None, colour: false };
        }
        let (width, height) = size_of(&stdout).unwrap_or((80, 24));
        let plain = set("NO_COLOR")
            || env::var_os("CLICOLOR").is_some_and(|value| value == "0")
            || env::var_os("TERM").is_some_and(|value| value == "dumb");
        Screen { width: width.max(NARROWEST), height: Some(height), colour: !plain }
    }

    /// `text` in a style, if the screen has colours.
    pub(crate) fn paint<'a>(&self, style: Style, text: &'a str) -> Cow<'a, str> {
        let code = match style {
            Style::Plain => return Cow::Borrowed(text),
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Hot => "1;31",
            Style::Warm => "33",
            Style::Good => "32",
        };
        if self.colour && !text.is_empty() {
            Cow::Owned(format!("\x1b[{code}m{text}\x1b[0m"))
        } else {
            Cow::Borrowed(text)
        }
    }
}

/// Columns and rows of a terminal; none if it is not a terminal or its size is unknown.
pub(crate) fn size_of(terminal: impl AsFd) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

/// The style of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// No highlighting.
    Plain,
    /// A heading.
    Bold,
    /// Less important.
    Dim,
    /// A large share.
    Hot,
    /// A notable share.
    Warm,
    /// Less than before.
    Good,
}

impl Style {
    /// The style of a share, in percent.
    pub(crate) fn of_share(percent: f64) -> Style {
        match percent {
            p if p >= 10.0 => Style::Hot,
            p if p >= 2.0 => Style::Warm,
            _ => Style::Plain,
        }
    }
}

/// `text` shortened to `width` columns by cutting its middle: the start and end of a name are the most telling.
pub(crate) fn fit(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let kept = width.saturating_sub(1);
    let tail = kept / 3;
    let head = kept - tail;
    let start = bytes_within(text.chars(), head);
    let end = text.len() - bytes_within(text.chars().rev(), tail);
    Cow::Owned(format!("{}…{}", &text[..start], &text[end..]))
}

/// How many bytes of these characters fit into `columns` columns.
fn bytes_within(characters: impl Iterator<Item = char>, columns: usize) -> usize {
    let mut used = 0;
    let fitting = characters.take_while(|c| {
        used += c.width().unwrap_or(1);
        used <= columns
    });
    fitting.map(char::len_utf8).sum()
}

/// `text` as one line without control characters: line breaks and tabs become spaces, others `?`.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        Cow::Owned(text.chars().map(visible).collect())
    } else {
        Cow::Borrowed(text)
    }
}

fn visible(c: char) -> char {
    match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => '?',
        c => c,
    }
}

/// A writer for text with names from other programs: replaces all control characters except line breaks.
#[derive(Debug)]
pub(crate) struct Printable<W>(pub(crate) W);

impl<W: Write> Write for Printable<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let plain: String = text.chars().map(|c| if c == '\n' { c } else { visible(c) }).collect();
        self.0.write_all(plain.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_in_the_middle() {
        assert_eq!(fit("abcdefghij", 10), "abcdefghij");
        assert_eq!(fit("abcdefghij", 7), "abcd…ij");
        assert_eq!(fit("äöüß", 3), "äö…");
        assert_eq!(fit("abc", 0).chars().count(), 1);
        assert_eq!(fit("名前空間関数", 12), "名前空間関数");
        assert_eq!(fit("名前空間関数", 8), "名前…数", "each takes two columns");
    }

    #[test]
    fn control_characters_are_shown_as_such() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a?[2Jb c");
        let mut out = Printable(Vec::new());
        write!(out, "a\x1b[2J\t ü\nb\u{9b}2J").unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), "a?[2J  ü\nb?2J");
    }
}

//! `report`: where the time went, for people and as JSON.

mod json;
mod screen;
mod short_name;
mod text;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::Path;

pub use screen::Screen;

use crate::profile;
use crate::symbolize::DebugDirectories;

/// Which weights a report is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum View {
    /// Functions by their own weight, with their totals; the tree of what calls what.
    #[default]
    Both,
    /// Functions by their total, callees included (`--children`).
    Children,
    /// Functions by their own weight alone (`--no-children`); the tree of who calls the hottest.
    NoChildren,
}

/// What `report` shows.
#[derive(Debug, Clone, Default)]
pub struct ReportOptions {
    /// Which weights.
    pub view: View,
    /// JSON instead of text.
    pub json: bool,
    /// Rows of the table, and again of the tree. None: what fits the screen; 0: all.
    pub limit: Option<usize>,
    /// Where separate debug files are.
    pub directories: DebugDirectories,
}

/// Reads a profile file and writes a report of it.
///
/// # Errors
/// When the profile cannot be read or `out` cannot be written.
pub fn run(path: &Path, options: &ReportOptions, screen: Screen, out: &mut dyn Write) -> anyhow::Result<()> {
    let profile = profile::load(path, &options.directories)?;
    if options.json {
        json::write(&profile, options, out)?;
    } else {
        let name = path.display().to_string();
        out.write_all(text::render(&profile, &name, options, screen).as_bytes())?;
    }
    out.flush()?;
    Ok(())
}

//! `diff`: what changed between two profiles.
//!
//! Profiles are compared by shares of their weight, since their lengths differ; memory in use is compared by its amount.
//! Functions are the same if name and binary are equal or, if a binary has another name in the other profile, if the name
//! alone is. Addresses are not comparable across builds.

mod amount;
mod arguments;
mod changes;
mod comparison;
mod folded;
mod gate;
mod json;
mod options;
mod significance;
mod text;

#[cfg(test)]
mod tests;

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;

pub(crate) use arguments::DiffArgs;
use changes::changes;
use comparison::{Comparison, Side};
use options::{DiffOptions, Form};

use crate::flags::event;
use crate::terminal::screen::Screen;
use selfwind_profile::input;
use selfwind_profile::output::refuse_own;
use selfwind_profile::profile;
use selfwind_profile::staged_file::StagedFile;

/// Compares two profile files. Returns one line for each failed `--fail-if` condition.
///
/// # Errors
/// If one cannot be read or has no samples, if they count different things, or if the output cannot be written.
pub(crate) fn run(
    a: &Path,
    b: &Path,
    options: &DiffOptions,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<String>> {
    let load = |path: &Path| {
        let mut profile = profile::load(path, &options.sources)?;
        let name = || input::name(path).into_owned();
        event::choose(&mut profile, options.event.as_deref()).with_context(name)?;
        anyhow::Ok(profile)
    };
    let (profile_a, profile_b) = (load(a)?, load(b)?);
    let side = |profile, path| Side::new(profile, path, options.unit, &options.filters);
    let sides = (side(&profile_a, a), side(&profile_b, b));
    let (counts_a, counts_b) = (sides.0.counts(), sides.1.counts());
    if counts_a != counts_b {
        anyhow::bail!(
            "{} counts {counts_a}, {} counts {counts_b}: their shares cannot be compared; record both with the same -e, or choose with --event",
            sides.0.name,
            sides.1.name
        );
    }
    for side in [&sides.0, &sides.1] {
        // An empty side is fine for memory in use: everything has grown.
        if side.weight() == 0 && !side.is_level() {
            let filters = options.filters.flags();
            let why = if filters.is_empty() {
                "it has no samples".into()
            } else {
                format!("nothing matches {filters}")
            };
            anyhow::bail!("{}: {why}; there is nothing to compare", side.name);
        }
    }
    let changes = changes(&sides.0, &sides.1, options.sort);
    let comparison = Comparison { a: sides.0, b: sides.1, changes };
    output(&comparison, (a, b), options, screen, out)?;
    let failures = options.gates.iter().map(|gate| gate.failure(&comparison));
    Ok(failures.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

fn output(
    comparison: &Comparison<'_>,
    (a, b): (&Path, &Path),
    options: &DiffOptions,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Some(path) = &options.output else { return write(comparison, options, screen, out) };
    let cannot = || format!("{}: cannot write the output; choose another file with -o", path.display());
    refuse_own(a, path)?;
    refuse_own(b, path)?;
    let mut file = StagedFile::create(path).with_context(cannot)?;
    write(comparison, options, screen, &mut BufWriter::new(&mut file)).with_context(cannot)?;
    file.commit().with_context(cannot)
}

fn write(
    comparison: &Comparison<'_>,
    options: &DiffOptions,
    screen: Screen,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Comparison { a, b, .. } = comparison;
    match options.form {
        Form::Text => out.write_all(text::render(comparison, options, screen).as_bytes())?,
        Form::Json => json::write(comparison, options, out)?,
        Form::Folded => folded::write(a, b, out)?,
        Form::Flamegraph => folded::flamegraph(a, b, out)?,
    }
    Ok(out.flush()?)
}

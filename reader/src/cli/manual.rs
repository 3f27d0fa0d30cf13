//! Shell completions and manual pages, generated from the definition of the command line.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

/// The flags of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  selfwind completions bash > ~/.local/share/bash-completion/completions/selfwind
  selfwind completions zsh > ~/.zfunc/_selfwind
  selfwind completions fish > ~/.config/fish/completions/selfwind.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(super) shell: Shell,
}

/// The flags of `man`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  selfwind man ~/.local/share/man/man1 && man selfwind-record")]
pub(crate) struct ManArgs {
    /// Output directory; created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

/// Environment variables that apply to every command.
const VARIABLES: [(&str, &str); 3] = [
    ("NO_COLOR", "If set, output has no colours."),
    ("COLUMNS", "Width of tables written to a pipe or a file."),
    ("SELFWIND_DIR", "Directory for the shared memory of programs that were started with the agent."),
];

/// The exit status of commands whose help does not describe another.
const EXIT_STATUS: &str = "0 on success, 1 on failure, 2 for a wrong command line.";

/// Writes the completions of `command` for a shell.
pub(super) fn completions(shell: Shell, mut command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    // The generator panics on write errors, so it writes to memory.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "selfwind", &mut text);
    out.write_all(&text)?;
    Ok(())
}

/// Writes a manual page for `command` and one for each of its subcommands to a directory.
pub(super) fn man(command: Command, directory: &Path) -> anyhow::Result<()> {
    let cannot = || format!("{}: cannot write manual pages; choose another directory", directory.display());
    fs::create_dir_all(directory).with_context(cannot)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    pages(&command, None, directory).with_context(cannot)
}

fn pages(command: &Command, above: Option<&str>, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let subcommands: Vec<&Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    for subcommand in &subcommands {
        pages(subcommand, Some(&name), directory)?;
    }
    let below = subcommands.iter().filter_map(|sub| sub.get_display_name()).map(str::to_owned);
    let related: Vec<String> = above.map(str::to_owned).into_iter().chain(below).collect();
    let mut out = BufWriter::new(File::create(directory.join(format!("{name}.1")))?);
    page(command, &related, &mut out)?;
    out.flush()
}

fn page(command: &Command, related: &[String], out: &mut dyn Write) -> io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(out)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let Remarks { notes, examples, exit_status } = Remarks::of(&help);
    if !notes.is_empty() {
        section("NOTES", out)?;
        paragraphs(&notes, out)?;
    }
    section("EXIT STATUS", out)?;
    paragraphs(&[exit_status.unwrap_or_else(|| EXIT_STATUS.to_owned())], out)?;
    section("ENVIRONMENT", out)?;
    for argument in command.get_arguments() {
        if let (Some(variable), Some(flag)) = (argument.get_env(), argument.get_long()) {
            entry(&variable.to_string_lossy(), &format!("Default of --{flag}."), out)?;
        }
    }
    VARIABLES.iter().try_for_each(|(name, text)| entry(name, text, out))?;
    if !examples.is_empty() {
        section("EXAMPLES", out)?;
        writeln!(out, ".nf")?;
        examples.iter().try_for_each(|line| writeln!(out, "{}", escaped(line)))?;
        writeln!(out, ".fi")?;
    }
    section("SEE ALSO", out)?;
    let names: Vec<String> = related.iter().map(|name| format!("\\fB{}\\fR(1)", escaped(name))).collect();
    writeln!(out, "{}", if names.is_empty() { "perf(1)".into() } else { names.join(", ") })
}

/// The text after the options, split by topic.
#[derive(Debug, Default, PartialEq)]
struct Remarks {
    notes: Vec<String>,
    examples: Vec<String>,
    exit_status: Option<String>,
}

impl Remarks {
    fn of(help: &str) -> Self {
        let mut remarks = Remarks::default();
        for paragraph in help.split("\n\n") {
            let joined = || paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" ");
            let first = paragraph.lines().next().unwrap_or_default();
            if first == "Examples:" || first == "Example:" || paragraph.starts_with("  ") {
                remarks
                    .examples
                    .extend(paragraph.lines().filter(|line| line.starts_with(' ')).map(str::to_owned));
            } else if let Some(status) = joined().strip_prefix("Exit status: ") {
                remarks.exit_status = Some(status.to_owned());
            } else if !paragraph.trim().is_empty() {
                remarks.notes.push(joined());
            }
        }
        remarks
    }
}

fn section(name: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, ".SH \"{name}\"")
}

fn paragraphs(texts: &[String], out: &mut dyn Write) -> io::Result<()> {
    texts.iter().try_for_each(|text| writeln!(out, "{}\n.PP", escaped(text)))
}

fn entry(name: &str, text: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, ".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(text))
}

/// `text` escaped for roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_parted_by_what_it_is_about() {
        let help = "Examples:\n  a -b\n  c\n\n  d\n\nKeys:\nq ends.\n\nExit status: 0; 1 when\nnot.\n";
        let expected = Remarks {
            notes: vec!["Keys: q ends.".into()],
            examples: vec!["  a -b".into(), "  c".into(), "  d".into()],
            exit_status: Some("0; 1 when not.".into()),
        };
        assert_eq!(Remarks::of(help), expected);
        assert_eq!(escaped(".a-b\\n"), "\\&.a\\-b\\en");
    }
}

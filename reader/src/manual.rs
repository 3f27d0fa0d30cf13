//! Completions for shells and manual pages, made from the definition of the command line.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

/// The flags of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  selfwind completions bash > ~/.local/share/bash-completion/completions/selfwind
  selfwind completions zsh > ~/.zfunc/_selfwind
  selfwind completions fish > ~/.config/fish/completions/selfwind.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// The flags of `man`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  selfwind man ~/.local/share/man/man1 && man selfwind-record")]
pub struct ManArgs {
    /// Where to put them; made if it is missing
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Writes the completions of `command` for a shell.
pub fn completions(shell: Shell, mut command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    // The generator does not expect that its output can fail.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "selfwind", &mut text);
    out.write_all(&text)?;
    Ok(())
}

/// Writes a page for `command` and one for each of its subcommands into a directory.
pub fn man(command: Command, directory: &Path) -> anyhow::Result<()> {
    let cannot = || format!("{}: cannot write manual pages; choose another directory", directory.display());
    std::fs::create_dir_all(directory).with_context(cannot)?;
    clap_mangen::generate_to(command, directory).with_context(cannot)?;
    Ok(())
}

//! The `selfwind` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    selfwind::cli::run()
}

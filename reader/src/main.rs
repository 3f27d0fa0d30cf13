//! The `selfwind` command.

fn main() -> std::process::ExitCode {
    selfwind_command::run()
}

//! The command `selfwind`.

fn main() -> std::process::ExitCode {
    selfwind_command::run()
}

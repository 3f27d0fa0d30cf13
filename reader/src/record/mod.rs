//! `record`: runs a command with the agent preloaded, or follows a running process, and writes a profile.
//!
//! A command is started and followed to its end ([`command`]); a running process is followed until Ctrl-C or its end
//! ([`running`]). Either way, events are written to a [`recording`].

mod agent_notes;
mod attachment;
mod closed_descriptors;
mod command;
mod debugger_interface;
mod delay;
mod destination;
mod exit_status;
mod file_growth;
mod generated_code;
mod interpreter;
mod kept_files;
pub(crate) mod kernel_symbols;
mod kernel_table;
mod module_files;
mod module_refresh;
mod new_addresses;
mod numbered;
mod options;
mod priority;
pub(crate) mod program;
mod recording;
mod running;
mod second_mappings;
mod snapshot;
pub(crate) mod spawn;

use self::command::record_command;
use self::program::ProgramError;
use self::running::record_process;
use crate::terminal::notices::warn;

pub(crate) use self::attachment::{attach, search_processes, search_started};
pub(crate) use self::exit_status::{OWN_FAILURE, shell_status};
pub(crate) use self::options::RecordOptions;

/// Records. Returns the exit status.
pub(crate) fn run(options: &RecordOptions) -> u8 {
    if options.snapshot && options.sampling.sources.have_wall() {
        warn(
            "--snapshot saves what the agents hold, but -e wall is sampled by the recorder itself; leave out one of them",
        );
        return OWN_FAILURE;
    }
    let result = match options.pid {
        Some(pid) => record_process(options, pid),
        None => record_command(options),
    };
    result.unwrap_or_else(|error| {
        warn(format_args!("{error:#}"));
        error.downcast_ref::<ProgramError>().map_or(OWN_FAILURE, ProgramError::exit_code)
    })
}

//! How threads are asked for their stacks.

use std::time::Duration;

use clap::Args;

use crate::flags::seconds::seconds;
use crate::target::request::Manner;

/// The flags of commands that ask.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct MannerArgs {
    /// Time to wait for a thread's answer
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    timeout: Duration,
    /// Skip threads that wait in a call that a signal ends with EINTR (poll, epoll_wait, nanosleep, ...)
    #[arg(long)]
    gentle: bool,
}

impl From<MannerArgs> for Manner {
    fn from(MannerArgs { timeout, gentle }: MannerArgs) -> Self {
        Self { timeout, gentle }
    }
}

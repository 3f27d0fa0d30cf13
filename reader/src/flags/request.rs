//! The flags for requesting stacks from threads.

use std::time::Duration;

use clap::Args;

use crate::flags::duration::duration;
use crate::target::request::RequestOptions;

/// The flags of commands that request stacks.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct RequestFlags {
    /// Time to wait for a thread's answer
    #[arg(long, value_name = "DURATION", default_value = "0.5", value_parser = duration)]
    timeout: Duration,
    /// Skip threads that wait in a call that a signal ends with EINTR (poll, epoll_wait, nanosleep, ...)
    #[arg(long)]
    gentle: bool,
}

impl From<RequestFlags> for RequestOptions {
    fn from(RequestFlags { timeout, gentle }: RequestFlags) -> Self {
        Self { timeout, gentle }
    }
}

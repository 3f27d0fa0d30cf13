//! One process: its region, its identity, requesting its stacks, injecting the agent. Nothing here writes a profile.

pub(crate) mod agent_exports;
pub(crate) mod agent_file;
pub(crate) mod attach;
pub(crate) mod clock;
pub(crate) mod inject;
pub(crate) mod leftovers;
pub(crate) mod liveness;
mod others;
pub(crate) mod process_search;
pub(crate) mod region_name;
pub(crate) mod request;
pub(crate) mod session;
pub(crate) mod session_directory;
pub(crate) mod shortage;
pub(crate) mod thread_search;
pub(crate) mod translate;

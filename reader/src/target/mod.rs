//! One process: its region, who it is, asking it for stacks, putting the agent into it. Nothing here makes a profile.

pub mod agent_file;
pub mod attach;
pub mod clock;
pub mod inject;
pub mod liveness;
pub mod others;
pub mod request;
pub mod session;
pub mod shortage;
pub mod thread_search;
pub mod translate;

//! Sampling settings: what the agent is told.

pub(crate) mod buffer;
pub(crate) mod clock;
pub(crate) mod plugin;
mod probes;
pub(crate) mod rate;
pub(crate) mod settings;
mod size;
pub(crate) mod sources;
pub(crate) mod switch_cost;
mod tracepoints;
pub(crate) mod unwinding;

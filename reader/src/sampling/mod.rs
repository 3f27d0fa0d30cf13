//! How to sample: what agents are told.

pub(crate) mod buffer;
pub(crate) mod rate;
pub(crate) mod settings;
mod size;
pub(crate) mod source;
pub(crate) mod unwinding;

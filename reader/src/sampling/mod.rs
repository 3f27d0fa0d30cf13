//! How to sample: what agents are told.

pub mod buffer;
pub mod rate;
pub mod source;

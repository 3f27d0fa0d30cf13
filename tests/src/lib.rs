//! What the tests under `tests/tests` share.
//!
//! Hazard programs are built once into the build's target directory ([`target`]), run with and without the profiler
//! ([`outcome`], [`recording`]), and their profiles are read back through the public commands only ([`stats`],
//! [`folded`]). Only the single-step oracle ([`single_step`]) and the handler's tracer ([`handler_trace`]) use
//! internals.

pub mod asked;
pub mod attacher;
pub mod binary;
pub mod cache_lines;
pub mod doc_page;
pub mod dump_times;
pub mod flight;
pub mod folded;
pub mod fuzz;
pub mod handler_trace;
pub mod memory_group;
pub mod mutation;
pub mod outcome;
pub mod python_stack;
pub mod pythons;
pub mod random;
pub mod recording;
pub mod scratch;
pub mod single_step;
pub mod sites;
pub mod skip;
pub mod stats;
pub mod target;
pub mod terminal;

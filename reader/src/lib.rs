//! The `selfwind` command: everything that happens outside the profiled process, but for what a profile is
//! (`selfwind-profile`).
//!
//! [`cli`] knows all commands. Most are a file or a folder of their own here; `record` has a room, and uses three below it:
//! [`drain`] (from regions to events), [`target`] (one process), [`sampling`] (what agents are told). [`terminal`] and
//! [`flags`] serve all.
//!
//! A library with one function, so that it compiles while `selfwind-profile` is still being optimised.

#![allow(rustdoc::private_intra_doc_links)]

mod agent_path;
mod attach;
mod cli;
mod diff;
mod doctor;
mod drain;
mod dump;
mod flags;
mod import;
mod list;
mod live;
mod proc;
mod record;
mod report;
mod request;
mod resolve;
mod sampling;
mod stats;
mod tables;
mod tail;
mod target;
mod terminal;
mod top;
mod wall;

pub use cli::run;

//! The `selfwind` command: everything outside the profiled process, except reading and evaluating profiles
//! (`selfwind-profile`).
//!
//! [`cli`] lists all commands. Most are a file or a folder of their own here. `record` is built on [`drain`] (from regions to
//! events), [`target`] (one process) and [`sampling`] (settings for agents). [`terminal`] and [`flags`] serve all commands.
//!
//! It is a library with one function so that it compiles while `selfwind-profile` is still being optimised.

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
mod process_files;
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
mod time_namespace;
mod top;
mod wall;

pub use cli::run;

//! Reads profiles recorded by selfwind, names their addresses, selects and sums up stacks, and writes other formats.
//!
//! [`profile_file`] reads a profile file event by event. [`profile::load`] turns it into a [`profile::Profile`] in memory: distinct
//! stacks with their weights, with addresses named by [`symbolize`]. A [`selection`] of it provides the stacks of a
//! [`call_tree`]; [`output`] writes the formats of other programs; [`stats`] sums up what was sampled and lost.
//!
//! Nothing here prints, reads arguments or depends on a terminal: messages are returned to the caller.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use selfwind_profile::profile;
//! use selfwind_profile::symbolize::SymbolSources;
//!
//! let profile = profile::load(Path::new("selfwind.data"), &SymbolSources::default())?;
//! println!("{} samples", profile.totals.samples);
//! # Ok::<(), selfwind_profile::profile_file::ProfileError>(())
//! ```

pub mod call_tree;
pub mod collapsed_name;
pub mod digits;
pub mod events;
pub mod file_name;
pub mod heap;
pub mod input;
pub mod interpreted;
pub mod kernel_event;
pub mod locks;
pub mod mapped_file;
pub mod mapped_memory;
mod mappings;
pub mod measure;
pub mod names;
pub mod output;
mod poisson;
pub mod private_directory;
pub mod profile;
pub mod profile_file;
pub mod selection;
pub mod source_list;
pub mod staged_file;
pub mod stats;
pub mod symbolize;
pub mod tracepoint;
mod word_map;

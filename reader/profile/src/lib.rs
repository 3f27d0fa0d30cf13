//! Profiles that selfwind has recorded: reading, naming, selecting, adding up, and writing them in other formats.
//!
//! A profile file is read by [`profile_file`], event by event. [`profile::load`] makes a [`profile::Profile`] of it in
//! memory: distinct stacks with what they weigh, their addresses named by [`symbolize`]. A [`selection`] of it gives the
//! stacks of a [`call_tree`]; [`output`] writes the formats of other programs; [`stats`] adds up what was sampled and
//! lost.
//!
//! Nothing here prints, reads arguments or knows a terminal: what is to be said is returned.
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

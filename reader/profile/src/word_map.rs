//! Maps keyed by words: addresses, and numbers assigned here.
//!
//! The words come from a program that the user chose to profile; provoking collisions only slows down this report. The hash is the same
//! in every run, so that equal profiles are processed equally.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// A map keyed by words.
pub(crate) type WordMap<K, V> = HashMap<K, V, FixedState>;

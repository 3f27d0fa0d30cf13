//! Maps and sets keyed by words: addresses, and numbers given out here.
//!
//! The words come from a program that is profiled at the user's own wish; flooding a table on purpose only
//! slows this report. The hash is the same in every run, so that equal profiles take equal ways.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

/// A map keyed by words.
pub(crate) type WordMap<K, V> = HashMap<K, V, FixedState>;

/// A set of words.
pub(crate) type WordSet<K> = HashSet<K, FixedState>;
